//! Generated contents of pages, for machines without a folder of real ones: the home pages of the packages that most others depend on.
//!
//! Each page has the frame of its site, facts of the package index, and links to the pages of other packages. It was crawled
//! [`CRAWLS`] times. From one crawl to the next the date, the release and the list of news change, and a few packages are added to
//! the list of those that use it.

use std::collections::HashMap;

use bytes::Bytes;

use super::crawl::CrawledPages;
use super::index::Package;

/// How many pages are generated at most.
const PAGES_MAX: usize = 300;
/// How often each was crawled.
pub const CRAWLS: u32 = 4;
/// Packages that a page lists at most.
const LISTED_MAX: usize = 200;
/// News that a page shows at most.
const NEWS_MAX: u32 = 3;
/// The entries of the navigation of each page.
const NAVIGATION: [&str; 6] = ["Home", "Download", "Documentation", "Source code", "Mailing lists", "Report a problem"];

/// The pages with most links, by address.
pub fn crawl(packages: &[Package]) -> CrawledPages {
    let by_name: HashMap<&str, &Package> = packages.iter().map(|package| (package.name.as_str(), package)).collect();
    let mut users: HashMap<&str, Vec<&Package>> = HashMap::new();
    for package in packages {
        for link in &package.links {
            users.entry(link.to.as_str()).or_default().push(package);
        }
    }
    let users_of = |package: &Package| users.get(package.name.as_str()).map(Vec::as_slice).unwrap_or_default();
    let mut shown: Vec<&Package> = packages.iter().filter(|package| address(package).is_some()).collect();
    shown.sort_by_key(|package| (std::cmp::Reverse(users_of(package).len()), package.name.as_str()));
    let mut pages = CrawledPages::new();
    for package in shown {
        let Some(address) = address(package).filter(|address| !pages.contains_key(*address)) else { continue };
        if pages.len() == PAGES_MAX {
            break;
        }
        let needs: Vec<&Package> =
            package.links.iter().filter_map(|link| by_name.get(link.to.as_str()).copied()).collect();
        let version = |crawl| (crawl, Bytes::from(page(package, &needs, users_of(package), crawl)));
        pages.insert(address.to_owned(), (0..CRAWLS).map(version).collect());
    }
    pages
}

/// The address of its home page without scheme.
fn address(package: &Package) -> Option<&str> {
    let (_scheme, address) = package.homepage.as_deref()?.split_once("://")?;
    (!address.is_empty()).then_some(address)
}

fn page(package: &Package, needs: &[&Package], users: &[&Package], crawl: u32) -> String {
    let Package { name, description, section, .. } = package;
    let navigation: String =
        NAVIGATION.iter().map(|entry| format!("<li><a class=\"navigation\" href=\"#\">{entry}</a></li>\n")).collect();
    let first_news = crawl.saturating_sub(NEWS_MAX - 1);
    let news: String = (first_news..=crawl).rev().map(|number| news(name, number)).collect();
    // Later crawls find a few more.
    let missing = usize::try_from((CRAWLS - 1).saturating_sub(crawl)).unwrap_or(0);
    let users = users.get(..users.len().saturating_sub(missing)).unwrap_or_default();
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>{name}: {description}</title>\n\
         <link rel=\"stylesheet\" href=\"/style.css\" type=\"text/css\">\n</head>\n<body>\n<ul class=\"menu\">\n{navigation}</ul>\n\
         <h1>{name}</h1>\n<p class=\"summary\">{description}</p>\n<p>The current release is 1.{crawl}.</p>\n\
         <h2>News</h2>\n{news}<h2>What {name} needs</h2>\n{}<h2>What uses {name}</h2>\n{}\
         <div class=\"footer\">Section {section}. Last change in week {crawl}. The text of this page may be copied and changed by \
         everyone.</div>\n</body>\n</html>\n",
        list(needs),
        list(users),
    )
}

fn news(name: &str, number: u32) -> String {
    format!(
        "<div class=\"news\"><h3>Week {number}: release 1.{number}</h3>\n<p>Release 1.{number} of {name} repairs {} problems that users \
         have reported. Everyone who uses an earlier release should install it.</p></div>\n",
        3 + number * 7 % 11
    )
}

fn list(packages: &[&Package]) -> String {
    let item = |package: &&Package| {
        let Package { name, description, .. } = package;
        match package.homepage.as_deref() {
            Some(homepage) => format!("<li><a class=\"package\" href=\"{homepage}\">{name}</a>: {description}</li>\n"),
            None => format!("<li><span class=\"package\">{name}</span>: {description}</li>\n"),
        }
    };
    let items: String = packages.iter().take(LISTED_MAX).map(item).collect();
    format!("<ul class=\"packages\">\n{items}</ul>\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::webtable::{crawl as derived, index};

    #[test]
    fn pages_change_a_little_from_crawl_to_crawl_and_link_to_each_other() {
        let text = "Package: bash\nHomepage: https://www.gnu.org/software/bash/\nDescription: a shell\nSection: shells\n\n\
                    Package: tool\nHomepage: https://tool.example/\nDescription: uses it\nSection: utils\nDepends: bash\n\n\
                    Package: other\nDescription: has no page\nSection: utils\nDepends: bash\n";
        let pages = crawl(&index::parse(text));
        assert_eq!(pages.keys().collect::<Vec<_>>(), ["tool.example/", "www.gnu.org/software/bash/"]);
        let bash = &pages["www.gnu.org/software/bash/"];
        assert_eq!(bash.len(), CRAWLS as usize);
        let versions: Vec<String> = bash.values().map(|page| String::from_utf8_lossy(page).into_owned()).collect();
        for (before, after) in versions.iter().zip(versions.iter().skip(1)) {
            assert_ne!(before, after);
            let same = after.lines().filter(|line| before.contains(line)).count();
            assert!(same * 2 > after.lines().count(), "{before}\n{after}");
        }
        assert!(versions.last().unwrap().contains("other"));

        let mut table = crate::webtable::Pages::new();
        derived::add(&mut table, &pages);
        let anchors = table["org.gnu.www/software/bash/"].iter().filter(|column| column.family == "anchor");
        assert_eq!(anchors.map(|column| column.qualifier.as_str()).collect::<Vec<_>>(), ["tool.example/"]);
    }
}
