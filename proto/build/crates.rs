//! Where cargo has the source of the published crates with Google's messages.
//!
//! Only cargo knows it: a registry's folder, a mirror, or a folder with copies of all crates. It is asked about a package of its own, which
//! depends on nothing but these crates, in the versions of our `Cargo.lock`. Asked about the whole workspace, it would insist on the crates of
//! all tests, which `cargo build` has not downloaded.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use serde_json::Value;

/// What the names of these crates begin with.
const PREFIX: &str = "googleapis-tonic-";
/// The crates that are asked for; others are their dependencies.
const CRATES: [&str; 3] = [
    "googleapis-tonic-google-bigtable-admin-v2",
    "googleapis-tonic-google-bigtable-v2",
    "googleapis-tonic-google-iam-v1",
];
/// The folder of generated code in each crate. There is one per combination of features; names, tags and types are the same in all.
const VARIANT: &str = "src/bytes_hash_map";

/// The generated code of a package of messages.
pub(crate) struct PackageSource {
    /// The name of the package, such as `google.bigtable.v2`.
    pub(crate) package: String,
    /// The file.
    pub(crate) file: PathBuf,
}

/// All packages of the crates. `workspace`: the folder with `Cargo.lock`; `out`: a folder for temporary files.
///
/// # Errors
/// When cargo does not know the crates, or their content is not what is expected.
pub(crate) fn packages(workspace: &Path, out: &Path) -> Result<Vec<PackageSource>, String> {
    let manifest = write_manifest(workspace, out)?;
    let mut sources = Vec::new();
    for folder in crate_folders(&metadata(workspace, &manifest)?)? {
        let folder = folder.join(VARIANT);
        let entries = fs::read_dir(&folder).map_err(|error| format!("read {}: {error}", folder.display()))?;
        for entry in entries {
            let file = entry.map_err(|error| format!("read {}: {error}", folder.display()))?.path();
            let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if let Some(package) = name.strip_suffix(".rs") {
                // Words of the language are escaped: `google.r#type.rs`.
                sources.push(PackageSource { package: package.replace("r#", ""), file: file.clone() });
            }
        }
    }
    sources.sort_by(|one, other| one.package.cmp(&other.package));
    Ok(sources)
}

/// Writes the package that depends on the crates, and returns the path of its manifest.
fn write_manifest(workspace: &Path, out: &Path) -> Result<PathBuf, String> {
    let folder = out.join("sources");
    let manifest = folder.join("Cargo.toml");
    let dependencies: String = CRATES
        .iter()
        .map(|name| {
            format!("{name} = {{ version = \"*\", default-features = false, features = [\"bytes\", \"hash-map\"] }}\n")
        })
        .collect();
    // Nothing is compiled, so any file will do as the library.
    let text = format!(
        "[package]\nname = \"message-sources\"\nedition = \"2024\"\n\n[lib]\npath = \"Cargo.toml\"\n\n[dependencies]\n{dependencies}\n[workspace]\n"
    );
    fs::create_dir_all(&folder)
        .and_then(|()| fs::write(&manifest, text))
        .and_then(|()| fs::copy(workspace.join("Cargo.lock"), folder.join("Cargo.lock")))
        .map_err(|error| format!("write {} with a copy of Cargo.lock: {error}", manifest.display()))?;
    Ok(manifest)
}

/// What cargo says about the package.
fn metadata(workspace: &Path, manifest: &Path) -> Result<Value, String> {
    let mut output = run_cargo(workspace, manifest, &["--offline"])?;
    if !output.status.success() {
        // Another workspace that contains this crate (`fuzz`) may have downloaded other versions of the dependencies.
        output = run_cargo(workspace, manifest, &[])?;
    }
    if !output.status.success() {
        let reason = String::from_utf8_lossy(&output.stderr);
        return Err(format!("cargo metadata cannot find the source of {}: {reason}", CRATES.join(", ")));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| format!("cargo metadata: {error}"))
}

fn run_cargo(workspace: &Path, manifest: &Path, more: &[&str]) -> Result<Output, String> {
    let variable = |name: &str| env::var(name).map_err(|error| format!("{name}: {error}"));
    Command::new(variable("CARGO")?)
        .args(["metadata", "--format-version", "1", "--filter-platform", &variable("TARGET")?, "--manifest-path"])
        .arg(manifest)
        .args(more)
        // Where cargo looks for its configuration.
        .current_dir(workspace)
        .output()
        .map_err(|error| format!("run cargo metadata: {error}"))
}

/// The folders of the crates.
fn crate_folders(metadata: &Value) -> Result<Vec<PathBuf>, String> {
    let packages = metadata.get("packages").and_then(Value::as_array).ok_or("cargo metadata lists no packages")?;
    let text = |package: &Value, field: &str| package.get(field).and_then(Value::as_str).map(str::to_owned);
    let is_wanted = |package: &&Value| text(package, "name").is_some_and(|name| name.starts_with(PREFIX));
    let folder = |package: &Value| {
        let manifest = text(package, "manifest_path").map(PathBuf::from);
        let folder = manifest.as_deref().and_then(Path::parent).map(Path::to_path_buf);
        folder.ok_or_else(|| format!("cargo metadata has no path of {:?}", text(package, "name")))
    };
    packages.iter().filter(is_wanted).map(folder).collect()
}
