//! Tells `ebla version` which commit the program was built from, when git knows it.
//!
//! It runs again only when the current commit changes. A build without git may set `EBLA_COMMIT` and `EBLA_COMMIT_DATE`;
//! a value that is not known stays unset and is shown as unknown.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if let Ok(target) = std::env::var("TARGET") {
        println!("cargo::rustc-env=EBLA_TARGET={target}");
    }
    for name in ["EBLA_COMMIT", "EBLA_COMMIT_DATE"] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    // Sources that are untracked in an enclosing repository do not belong to any of its commits.
    if std::env::var_os("EBLA_COMMIT").is_some() || git(&["ls-files", "--error-unmatch", "build.rs"]).is_none() {
        return;
    }
    for file in ["HEAD", "logs/HEAD"] {
        // With a missing file here, cargo would run this script at every build.
        if let Some(path) = git(&["rev-parse", "--git-path", file]).filter(|path| Path::new(path).exists()) {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    for (name, format) in [("EBLA_COMMIT", "%H"), ("EBLA_COMMIT_DATE", "%cd")] {
        let format = format!("--format={format}");
        if let Some(value) = git(&["log", "-1", "--date=format-local:%Y-%m-%dT%H:%M:%SZ", &format]) {
            println!("cargo::rustc-env={name}={value}");
        }
    }
}

/// What git prints; `None` when git fails or prints nothing.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).env("TZ", "UTC").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}
