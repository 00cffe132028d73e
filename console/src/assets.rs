//! The files of the console that do not depend on the cluster: one style sheet, one script and an icon, in the program itself.

use bytes::Bytes;

/// The largest size of all files together: a first page must not wait for them.
#[cfg(test)]
const BYTES_MAX: usize = 150 << 10;

const STYLE: &str = include_str!("assets/console.css");
const ICON: &str = include_str!("assets/console.svg");
const SCRIPT: &str = include_str!("assets/console.js");

/// The media type and the content of a file.
pub(crate) fn find(path: &str) -> Option<(&'static str, Bytes)> {
    match path {
        "/console.css" => Some(("text/css; charset=utf-8", Bytes::from_static(STYLE.as_bytes()))),
        "/console.js" => Some(("text/javascript; charset=utf-8", Bytes::from_static(SCRIPT.as_bytes()))),
        "/console.svg" => Some(("image/svg+xml", Bytes::from_static(ICON.as_bytes()))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_are_small_and_name_no_other_host() {
        assert!(STYLE.len() + SCRIPT.len() + ICON.len() < BYTES_MAX);
        for file in [STYLE, SCRIPT] {
            assert!(!file.contains("://") && !file.contains("@import"), "the console loads nothing from elsewhere");
        }
        assert!(find("/console.css").is_some() && find("/console.js").is_some() && find("/x").is_none());
    }
}
