//! The source of the package index: the machine's `apt-cache dumpavail`, or a small sample that ships with the program.

use std::process::{Command, Stdio};

/// A few dozen packages as bare facts, for machines without apt.
const SAMPLE: &str = include_str!("../../data/packages.txt");

/// A smaller index means that the lists of apt were never fetched.
const PACKAGES_MIN: usize = 1_000;

/// The text of an index, and where it came from, in words for a person.
pub struct Source {
    /// Paragraphs of fields, as `index::parse` reads them.
    pub text: String,
    /// `apt-cache dumpavail`, or the reason why it is the sample.
    pub origin: String,
}

/// The machine's index where there is a useful one, else the sample.
pub fn find() -> Source {
    match Command::new("apt-cache").arg("dumpavail").stderr(Stdio::null()).output() {
        Ok(output) if output.status.success() => {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let count = text.lines().filter(|line| line.starts_with("Package: ")).count();
            if count >= PACKAGES_MIN {
                return Source { text, origin: "apt-cache dumpavail".to_owned() };
            }
            sample(&format!("apt-cache has only {count} packages; run `apt-get update` for the rest"))
        }
        Ok(_) => sample("apt-cache dumpavail failed"),
        Err(_) => sample("apt-cache is not installed"),
    }
}

fn sample(reason: &str) -> Source {
    Source { text: SAMPLE.to_owned(), origin: format!("the sample that ships with ebla ({reason})") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sample_makes_pages_with_anchors() {
        let packages = crate::webtable::index::parse(SAMPLE);
        assert!(packages.len() >= 30, "{} packages", packages.len());
        let pages = crate::webtable::pages(&packages);
        assert!(pages.values().flatten().any(|column| column.family == "anchor"));
    }
}
