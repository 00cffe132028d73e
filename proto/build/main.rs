//! Generates Rust code from our own protos, and the stubs of Google's public services.
//!
//! Ours (`ebla/*.proto`) are compiled with protox, so no `protoc` is needed. Google's `.proto` files are not copied:
//! their services are described by name in [`services`], and their messages come from published crates or from
//! `src/data.rs`.

mod services;

use std::{
    env,
    error::Error,
    fs,
    path::{Path, PathBuf},
};

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
    let out = PathBuf::from(env::var("OUT_DIR")?);
    own_protos(&out)?;
    fs::write(out.join("services.rs"), services::stubs()?)?;
    Ok(())
}

/// Every `bytes` field becomes `Bytes`: values pass from socket to log without a copy.
fn own_protos(out: &Path) -> Result<(), Box<dyn Error>> {
    let descriptors = protox::compile(PROTOS, ["ebla"])?;
    tonic_prost_build::configure().bytes(".").out_dir(out).compile_fds(descriptors)?;
    Ok(())
}
