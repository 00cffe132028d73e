//! A Webtable: pages with several versions of their contents, and the home pages of the programs in a Debian package index.
//!
//! The paper's Webtable (section 2, figure 1) keeps a page under its reversed host name, so that the pages of one domain
//! lie together, with one column for each page that links to it. The families are in three locality groups (section 6): a scan of
//! anchors or of languages reads no page.
//!
//! ```text
//! locality group   families                                   compression
//! contents         contents                                   two-pass: versions of a page and pages of a site have much in common
//! anchors          anchor                                     the default
//! metadata         language, checksum, description, section   LZ4 in small blocks
//! ```
//!
//! [`crawl`] describes the rows of pages with contents. Those come from a folder ([`source`]), or are generated ([`generate`]). For the
//! index, a page is the home page that a package names, and a link is a dependency: the row of
//! `https://www.gnu.org/software/bash/` is `org.gnu.www/software/bash/`, and each package that depends on `bash` is an anchor of that row.
//!
//! ```text
//! row                          family:qualifier      value
//! org.gnu.www/software/bash/   description:bash      GNU Bourne Again SHell
//!                              section:bash          shells
//!                              anchor:base-files     Pre-Depends: awk
//! ```
//!
//! Packages without a home page go under `org.debian.packages/<package>`. Only [`source`] reads files and the machine's index; the rest turns
//! text into rows. Writing the rows is the command `load`.

pub mod crawl;
pub mod generate;
pub mod html;
pub mod index;
pub mod source;

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use ebla_model::time::Micros;

use index::Package;

/// Versions of a page's contents that the table keeps.
pub const VERSIONS_MAX: u32 = 5;

/// The families of the table, in the order in which they are created, and how many versions each keeps.
pub const FAMILIES: [(&str, u32); 6] = [
    ("contents", VERSIONS_MAX),
    ("anchor", 1),
    ("language", 1),
    ("checksum", VERSIONS_MAX),
    ("description", 1),
    ("section", 1),
];

/// A locality group of the table: its name, its families and its options.
pub type GroupOfFamilies = (&'static str, &'static [&'static str], &'static str);

/// The locality groups of the table.
pub const LOCALITY_GROUPS: [GroupOfFamilies; 3] = [
    ("contents", &["contents"], "compression=two-pass"),
    ("anchors", &["anchor"], ""),
    ("metadata", &["language", "checksum", "description", "section"], "compression=lz4;block=4k"),
];

/// One cell of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// One of [`FAMILIES`].
    pub family: &'static str,
    /// The package or the page that the column speaks of; empty for the page itself.
    pub qualifier: String,
    /// The time of the crawl; 0 for what comes from a package index.
    pub timestamp: Micros,
    /// The value.
    pub value: Bytes,
}

/// Pages by row key.
pub type Pages = BTreeMap<String, Vec<Column>>;

/// The table of a package index. Links to packages that are not in the index (virtual ones) are skipped.
pub fn pages(packages: &[Package]) -> Pages {
    let rows: HashMap<&str, String> =
        packages.iter().map(|package| (package.name.as_str(), row_key(package))).collect();
    let mut pages = Pages::new();
    for package in packages {
        let page = pages.entry(row_key(package)).or_default();
        page.push(column("description", &package.name, &package.description));
        page.push(column("section", &package.name, &package.section));
        for link in &package.links {
            if let Some(row) = rows.get(link.to.as_str()) {
                pages.entry(row.clone()).or_default().push(column("anchor", &package.name, &link.text));
            }
        }
    }
    pages
}

/// Keys that divide the pages into `parts` tablets of about as many rows each.
pub fn split_keys(pages: &Pages, parts: usize) -> Vec<String> {
    let step = pages.len().div_ceil(parts.max(1)).max(1);
    pages.keys().step_by(step).skip(1).cloned().collect()
}

fn column(family: &'static str, qualifier: &str, value: &str) -> Column {
    let value = Bytes::copy_from_slice(value.as_bytes());
    Column { family, qualifier: qualifier.to_owned(), timestamp: Micros::ZERO, value }
}

fn row_key(package: &Package) -> String {
    let page = package.homepage.as_deref().and_then(reversed);
    page.unwrap_or_else(|| format!("org.debian.packages/{}", package.name))
}

/// `https://www.gnu.org/software/bash/` becomes `org.gnu.www/software/bash/`. `None` when there is no host in it.
pub fn reversed(url: &str) -> Option<String> {
    let (_, rest) = url.split_once("://")?;
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let host = authority.rsplit('@').next()?.split(':').next()?.to_ascii_lowercase();
    if host.is_empty() || !host.is_ascii() {
        return None;
    }
    let reversed: Vec<_> = host.split('.').filter(|part| !part.is_empty()).rev().collect();
    let path = if path.is_empty() { "/" } else { path };
    Some(format!("{}{path}", reversed.join(".")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_reversed_and_paths_kept() {
        assert_eq!(reversed("https://www.gnu.org/software/bash/").unwrap(), "org.gnu.www/software/bash/");
        assert_eq!(reversed("http://Example.COM:8080").unwrap(), "com.example/");
        assert_eq!(reversed("https://user@kernel.org?x=1").unwrap(), "org.kernel?x=1");
        assert_eq!(reversed("not a url"), None);
        assert_eq!(reversed("https:///path"), None);
    }

    #[test]
    fn a_dependency_is_an_anchor_of_the_page_it_points_to() {
        let text = "Package: bash\nHomepage: https://www.gnu.org/software/bash/\nDescription: a shell\nSection: shells\n\n\
                    Package: tool\nDescription: uses it\nSection: utils\nDepends: bash (>= 5), nowhere\n";
        let pages = pages(&index::parse(text));
        let bash = &pages["org.gnu.www/software/bash/"];
        assert!(bash.contains(&column("anchor", "tool", "Depends: bash (>= 5)")));
        assert!(pages.contains_key("org.debian.packages/tool"));
        assert_eq!(pages.len(), 2);
    }

    #[test]
    fn split_keys_lie_inside_and_ascend() {
        let pages: Pages = (0..100).map(|n| (format!("{n:03}"), Vec::new())).collect();
        assert_eq!(split_keys(&pages, 4), ["025", "050", "075"]);
        assert_eq!(split_keys(&Pages::new(), 4), Vec::<String>::new());
    }
}
