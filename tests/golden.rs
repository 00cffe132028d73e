//! Golden files of cases: input lines, `---`, the expected output; an empty line between two cases.
//!
//! The unit tests of several crates include this file.

use std::path::Path;

/// Compares a golden file with what `run` makes of each of its cases: the input lines again, `---`, and the output. With
/// `UPDATE=1` the file is rewritten first; the change is reviewed as code.
pub(crate) fn check_cases(file: &Path, run: impl Fn(&str) -> String) {
    let script = std::fs::read_to_string(file).unwrap();
    let cases: Vec<_> = script.trim_end().split("\n\n").map(|case| run(&format!("{case}\n"))).collect();
    let actual = cases.join("\n");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(file, &actual).unwrap();
    }
    assert_eq!(actual, std::fs::read_to_string(file).unwrap(), "{}", file.display());
}
