//! Pages that were crawled several times, and the cells that are derived from them.
//!
//! ```text
//! row                                     family:qualifier                        timestamps    value
//! org.llvm.clang/docs/UsersManual.html    contents:                               each crawl    the page
//!                                         checksum:                               each crawl    CRC-32C of the page, 8 hexadecimal digits
//!                                         language:                               newest crawl  en
//!                                         anchor:clang.llvm.org/docs/index.html   newest crawl  the words of the link there
//! ```
//!
//! Crawl number n was n weeks after the first one, so loading the same pages again writes the same cells.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use ebla_model::time::Micros;

use super::{Column, Pages, html, reversed};

/// Contents of pages by their address, which has no scheme, and by the number of the crawl.
pub type CrawledPages = BTreeMap<String, BTreeMap<u32, Bytes>>;

/// The time of the first crawl: 1 January 2024.
const FIRST_CRAWL: Micros = Micros::from_millis(1_704_067_200_000);
const BETWEEN_CRAWLS: Duration = Duration::from_secs(7 * 86_400);
/// The language of a page that declares none: undetermined (RFC 5646).
const NO_LANGUAGE: &str = "und";

/// Adds the cells of these pages to the table. Links to pages that are not in it are skipped.
pub fn add(pages: &mut Pages, crawled: &CrawledPages) {
    let rows = crawled.keys().filter_map(|address| Some((address.as_str(), row_of(address)?)));
    let rows: BTreeMap<&str, String> = rows.collect();
    for (address, row) in &rows {
        let Some(versions) = crawled.get(*address) else { continue };
        let columns = pages.entry(row.clone()).or_default();
        for (crawl, contents) in versions {
            let column =
                |family, value| Column { family, qualifier: String::new(), timestamp: crawled_at(*crawl), value };
            columns.push(column("contents", contents.clone()));
            columns.push(column("checksum", format!("{:08x}", crc32c::crc32c(contents)).into()));
        }
        let Some((newest, contents)) = versions.last_key_value() else { continue };
        let (at, text) = (crawled_at(*newest), String::from_utf8_lossy(contents));
        let language = html::language(&text).unwrap_or(NO_LANGUAGE).to_owned();
        columns.push(Column { family: "language", qualifier: String::new(), timestamp: at, value: language.into() });
        // The first link to a page counts: a column has one value.
        let mut anchors: BTreeMap<&String, String> = BTreeMap::new();
        for link in html::links(&text, address) {
            if let Some(to) = rows.get(link.to.as_str()) {
                anchors.entry(to).or_insert(link.text);
            }
        }
        for (to, text) in anchors {
            let anchor =
                Column { family: "anchor", qualifier: (*address).to_owned(), timestamp: at, value: text.into() };
            pages.entry(to.clone()).or_default().push(anchor);
        }
    }
}

/// The row of the page at an address without scheme.
pub fn row_of(address: &str) -> Option<String> {
    reversed(&format!("https://{address}"))
}

fn crawled_at(crawl: u32) -> Micros {
    FIRST_CRAWL.plus(BETWEEN_CRAWLS * crawl)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_its_versions_and_the_anchors_of_other_pages() {
        let page = |text: &'static str| Bytes::from_static(text.as_bytes());
        let crawled = CrawledPages::from([
            ("a.org/x.html".to_owned(), BTreeMap::from([(0, page("<html>1")), (2, page("<html lang=\"de\">2"))])),
            (
                "a.org/y.html".to_owned(),
                BTreeMap::from([(
                    0,
                    page("<html><a href=\"x.html\">X</a> <a href=\"x.html\">again</a> <a href=\"z.html\">Z</a>"),
                )]),
            ),
        ]);
        let mut pages = Pages::new();
        add(&mut pages, &crawled);
        assert_eq!(pages.keys().collect::<Vec<_>>(), ["org.a/x.html", "org.a/y.html"]);
        let shown = |row: &str| {
            let columns = pages[row].iter().map(|column| {
                let weeks = column.timestamp.since(FIRST_CRAWL).as_secs() / BETWEEN_CRAWLS.as_secs();
                format!("{}:{} {weeks} {}", column.family, column.qualifier, String::from_utf8_lossy(&column.value))
            });
            columns.collect::<Vec<_>>()
        };
        let first = shown("org.a/x.html");
        for expected in
            ["contents: 0 <html>1", "contents: 2 <html lang=\"de\">2", "language: 2 de", "anchor:a.org/y.html 0 X"]
        {
            assert!(first.contains(&expected.to_owned()), "{expected} in {first:?}");
        }
        assert_eq!(first.len(), 6, "and two checksums: {first:?}");
        assert!(shown("org.a/y.html").contains(&"language: 0 und".to_owned()));
    }

    #[test]
    fn checksums_are_those_of_the_standard() {
        // RFC 3720, appendix B.4: 32 bytes of zeros.
        let zeros = CrawledPages::from([("a/".to_owned(), BTreeMap::from([(0, Bytes::from(vec![0; 32]))]))]);
        let mut pages = Pages::new();
        add(&mut pages, &zeros);
        let checksum = pages["a/"].iter().find(|column| column.family == "checksum").unwrap();
        assert_eq!(checksum.value, "8a9136aa");
    }
}
