//! The notation of scripts.

use ebla_mounttable_tree::{BlessingName, Caller, Error};

/// A word of a script; `""` is empty, `\s` a blank, and `x*520` a repeated letter.
pub(crate) fn word(text: &str) -> String {
    let text = text.replace("\\s", " ").replace("\\0", "\0").replace("\\n", "\n");
    let parts: Vec<_> = text.split('/').map(repeated).collect();
    if text == "\"\"" { String::new() } else { parts.join("/") }
}

/// `x*520` is a repeated letter, `x/*65` a repeated element.
fn repeated(part: &str) -> String {
    match part.split_once('*').map(|(unit, times)| (unit, times.parse::<usize>())) {
        Some((unit, Ok(times))) if !unit.is_empty() => {
            unit.replace('+', "/").repeat(times).trim_end_matches('/').to_string()
        }
        _ => part.to_string(),
    }
}

/// The words of a line after its first.
pub(crate) fn words(line: &str) -> Vec<String> {
    line.split_whitespace().skip(1).map(word).collect()
}

/// A text in the notation of scripts: `""` when empty.
pub(crate) fn shown(text: &str) -> String {
    if text.is_empty() { "\"\"".to_string() } else { text.to_string() }
}

/// `head` and the texts after it, or nothing when there are none.
pub(crate) fn line(head: &str, texts: &[String]) -> Option<String> {
    let texts: Vec<_> = texts.iter().map(|text| shown(text)).collect();
    (!texts.is_empty()).then(|| format!("{head} {}", texts.join(" ")))
}

/// An error: its reason and its message.
pub(crate) fn refusal(error: &Error) -> String {
    format!("{}: {error}", error.reason)
}

/// The names of a caller, separated by commas or blanks.
pub(crate) fn names(text: &str) -> Vec<BlessingName> {
    text.split([',', ' ']).filter(|name| !name.is_empty() && *name != "-").map(|name| name.parse().unwrap()).collect()
}

/// A caller with these names, without superuser rights; `-` has none.
pub(crate) fn caller(text: &str) -> Caller {
    Caller::new(names(text), &[])
}
