//! The sources of the data: the machine's `apt-cache dumpavail`, or a small sample that ships with the program, and folders of pages.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::crawl::CrawledPages;

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

/// The pages of a folder: `FOLDER/CRAWL/HOST/PATH`, one folder for each crawl, in the order of their names. Files that do not end in `.html`
/// are skipped.
///
/// # Errors
/// When a folder or a file cannot be read, or a name is not UTF-8.
pub fn crawled(folder: &Path) -> io::Result<CrawledPages> {
    let mut pages = CrawledPages::new();
    let crawls = entries(folder)?.into_iter().filter(|path| path.is_dir());
    for (crawl, folder) in (0..).zip(crawls) {
        let mut open = vec![folder.clone()];
        while let Some(path) = open.pop() {
            if path.is_dir() {
                open.extend(entries(&path)?);
            } else if path.extension().is_some_and(|extension| extension == "html") {
                let address = path.strip_prefix(&folder).ok().and_then(Path::to_str);
                let address = address.ok_or_else(|| {
                    io::Error::new(io::ErrorKind::InvalidData, format!("{}: the name is not UTF-8", path.display()))
                })?;
                pages.entry(address.to_owned()).or_default().insert(crawl, fs::read(&path)?.into());
            }
        }
    }
    Ok(pages)
}

/// The entries of a folder in the order of their names.
fn entries(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let within = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", folder.display()));
    let entries = fs::read_dir(folder).map_err(within)?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
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

    #[test]
    fn a_folder_has_a_folder_for_each_crawl() {
        let folder = tempfile::tempdir().unwrap();
        let files =
            [("13/a.org/x.html", "old"), ("14/a.org/x.html", "new"), ("14/a.org/b/y.html", "y"), ("14/a.org/z.js", "")];
        for (path, text) in files {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let pages = crawled(folder.path()).unwrap();
        assert_eq!(pages.keys().collect::<Vec<_>>(), ["a.org/b/y.html", "a.org/x.html"]);
        let versions: Vec<_> = pages["a.org/x.html"].iter().map(|(crawl, page)| (*crawl, &page[..])).collect();
        assert_eq!(versions, [(0, &b"old"[..]), (1, &b"new"[..])]);
        assert_eq!(pages["a.org/b/y.html"].keys().collect::<Vec<_>>(), [&1]);
        let missing = crawled(&folder.path().join("missing")).unwrap_err().to_string();
        assert!(missing.contains("missing"), "{missing}");
    }
}
