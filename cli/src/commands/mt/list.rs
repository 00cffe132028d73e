//! `ebla mt glob`, `ls` and `tree`: listings of names that match patterns.

use std::collections::BTreeMap;

use ebla_model::Micros;
use ebla_mounttable_namespace::{GlobEntry, Namespace};
use ebla_mounttable_tree::{Error, Reason, naming};
use futures::StreamExt;
use serde_json::Value;

use super::{show, to_failure};
use crate::output::{self, Failure, Format};

/// Output style of a listing.
#[derive(Clone, Copy)]
pub(super) struct ListingStyle {
    pub(super) format: Format,
    /// One line for each server, with its kind and expiry.
    pub(super) long: bool,
    pub(super) now: Micros,
}

/// Lists the children of a name.
pub(super) async fn below(names: &Namespace, name: &str, style: ListingStyle) -> Result<(), Failure> {
    run(names, &naming::join(&[&escaped(name), "*"]), name, style).await
}

/// Lists matching names as they arrive, relative to `above`.
pub(super) async fn run(names: &Namespace, pattern: &str, above: &str, style: ListingStyle) -> Result<(), Failure> {
    let above = naming::clean(above);
    let mut entries = Vec::new();
    let is_something = each(names, pattern, |entry| {
        let name = relative(&entry.name, &above);
        match style.format {
            Format::Json => entries.push(show::found(name, &entry)),
            Format::Table if style.long => output::print(&show::long(name, &entry, style.now)),
            Format::Table => output::print(&show::line(name, &entry)),
        }
    })
    .await?;
    match style.format {
        Format::Json => output::print_json(&Value::Array(entries)),
        Format::Table => note_empty(is_something),
    }
    Ok(())
}

/// Lists everything below a name, or `depth` levels of it, in order.
pub(super) async fn tree(names: &Namespace, name: &str, depth: Option<u8>, format: Format) -> Result<(), Failure> {
    let above = naming::clean(name);
    let mut found: BTreeMap<Vec<String>, GlobEntry> = BTreeMap::new();
    let patterns = match depth {
        None => vec!["...".to_owned()],
        Some(depth) => (1..=depth).map(|levels| vec!["*"; levels.into()].join("/")).collect(),
    };
    for pattern in patterns {
        each(names, &naming::join(&[&escaped(name), &pattern]), |entry| {
            let path: Vec<_> = naming::elements(relative(&entry.name, &above)).map(str::to_owned).collect();
            if !path.is_empty() {
                found.insert(path, entry);
            }
        })
        .await?;
    }
    match format {
        Format::Json => {
            let entries = found.iter().map(|(path, entry)| show::found(&path.join("/"), entry));
            output::print_json(&Value::Array(entries.collect()));
        }
        Format::Table => {
            note_empty(!found.is_empty());
            for (path, entry) in &found {
                let (last, before) = path.split_last().map_or(("", 0), |(last, before)| (last.as_str(), before.len()));
                output::print(&format!("{}{}", "  ".repeat(before), show::line(last, entry)));
            }
        }
    }
    Ok(())
}

/// Calls `visit` for each entry, and returns whether there was one. Parts that could not be listed are noted on stderr; when
/// there are no entries at all, the worst error is the failure.
async fn each(names: &Namespace, pattern: &str, mut visit: impl FnMut(GlobEntry)) -> Result<bool, Failure> {
    let mut items = names.glob(pattern).map_err(to_failure)?;
    let (mut is_something, mut failed) = (false, Vec::new());
    while let Some(item) = items.next().await {
        match item {
            Ok(entry) => {
                is_something = true;
                visit(entry);
            }
            Err(place) => failed.push(place),
        }
        if output::is_closed() {
            return Ok(true);
        }
    }
    let worst = failed.iter().rposition(|place| place.error.reason != Reason::MatchesOmitted);
    let worst = worst.or(failed.len().checked_sub(1)).filter(|_| !is_something);
    let worst = worst.map(|worst| failed.remove(worst));
    for place in failed {
        output::note(&unlisted(&place.name, &place.error));
    }
    match worst {
        Some(place) => Err(Failure { message: unlisted(&place.name, &place.error), ..to_failure(place.error) }),
        None => Ok(is_something),
    }
}

/// The message for a part that could not be listed.
fn unlisted(name: &str, error: &Error) -> String {
    let place = if name.is_empty() { String::new() } else { format!("cannot list {name}: ") };
    format!("{place}{} ({})", error.message, error.reason)
}

/// Notes that a listing is empty.
fn note_empty(is_something: bool) {
    if !is_something {
        output::note("no names");
    }
}

fn relative<'n>(name: &'n str, above: &str) -> &'n str {
    match name.strip_prefix(above) {
        Some(below) if !above.is_empty() => below.trim_start_matches('/'),
        _ => name,
    }
}

/// A pattern that matches this name only.
fn escaped(name: &str) -> String {
    let escape = |c: char| if "*?[\\".contains(c) { vec!['\\', c] } else { vec![c] };
    name.chars().flat_map(escape).collect()
}
