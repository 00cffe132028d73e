//! `ebla mt glob` and `ebla mt ls`: what patterns ask for.

use ebla_mounttable::{Reason, naming};
use ebla_runtime::Runtime;
use futures::StreamExt;
use serde_json::Value;

use super::{Root, refused, show};
use crate::output::{self, Failure, Format};

/// What is right below a name.
pub(super) async fn below(root: &Root, runtime: &Runtime, name: &str) -> Result<(), Failure> {
    run(root, runtime, &naming::join(&[&escaped(name), "*"]), name).await
}

/// Lists as it comes, with names below `above`; what could not be listed is said on stderr. Only if nothing else came
/// of it is that a failure.
pub(super) async fn run(root: &Root, runtime: &Runtime, pattern: &str, above: &str) -> Result<(), Failure> {
    let mut items = root.namespace(runtime)?.glob(pattern).map_err(refused)?;
    let above = naming::clean(above);
    let (mut shown, mut entries, mut failure) = (0_usize, Vec::new(), None);
    while let Some(item) = items.next().await {
        let entry = match item {
            Ok(entry) => entry,
            Err(failed) => {
                if failed.error.reason != Reason::MatchesOmitted {
                    failure = Some(failed.error.clone());
                }
                eprintln!("{}: {} ({})", failed.name, failed.error.message, failed.error.reason);
                continue;
            }
        };
        shown = shown.saturating_add(1);
        let name = entry.name.strip_prefix(&above).unwrap_or(&entry.name).trim_start_matches('/');
        let name = if above.is_empty() { &entry.name } else { name };
        match root.output {
            Format::Json => entries.push(show::found(name, &entry)),
            Format::Table => output::print(&show::line(name, &entry)),
        }
    }
    match failure {
        Some(error) if shown == 0 => return Err(refused(error)),
        _ if root.output == Format::Json => output::print_json(&Value::Array(entries)),
        _ => {}
    }
    Ok(())
}

/// The pattern that means this name alone.
fn escaped(name: &str) -> String {
    let escape = |c: char| if "*?[\\".contains(c) { vec!['\\', c] } else { vec![c] };
    name.chars().flat_map(escape).collect()
}
