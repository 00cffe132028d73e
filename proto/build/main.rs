//! Generates Rust code from our own protos, and the stubs of Google's public services.
//!
//! Ours (`ebla/*.proto`) are compiled with protox, so no `protoc` is needed. Google's `.proto` files are not copied:
//! their services are described by name in [`services`], and their messages come from published crates or from
//! `src/data.rs`. The descriptors of both are for server reflection: see [`descriptors`].

mod crates;
mod descriptors;
mod services;

use std::{
    env,
    error::Error,
    fs,
    path::{Path, PathBuf},
};

use protox::prost_reflect::prost_types::FileDescriptorSet;

const PROTOS: [&str; 11] = [
    "record.proto",
    "command.proto",
    "tablet.proto",
    "raft.proto",
    "control.proto",
    "locate.proto",
    "operate.proto",
    "mounttable.proto",
    "health.proto",
    "trace.proto",
    "otlp.proto",
];

#[expect(clippy::print_stdout, reason = "build scripts pass instructions to cargo on stdout")]
fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=ebla");
    println!("cargo::rerun-if-changed=build");
    println!("cargo::rerun-if-changed=src/data");
    // The versions of the published crates.
    println!("cargo::rerun-if-changed=../Cargo.lock");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    // Cargo runs a build script in the folder of its crate.
    let crate_folder = env::current_dir()?;
    let own = protox::compile(PROTOS, ["ebla"])?;
    fs::write(out.join("descriptors.binpb"), descriptors::encoded(&own, &crate_folder, &out)?)?;
    own_protos(own, &out)?;
    fs::write(out.join("services.rs"), services::stubs()?)?;
    Ok(())
}

/// Every `bytes` field becomes `Bytes`: values pass from socket to log without a copy.
fn own_protos(descriptors: FileDescriptorSet, out: &Path) -> Result<(), Box<dyn Error>> {
    tonic_prost_build::configure().bytes(".").out_dir(out).compile_fds(descriptors)?;
    Ok(())
}
