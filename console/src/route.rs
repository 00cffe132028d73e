//! Which page a path is, and the pages of the navigation.

use ebla_model::error::{Error, Reason};

use crate::Context;
use crate::html::Path;
use crate::pages::{
    Page, configuration, data, events, groups, heat, locate, names, overview, servers, slow, tables, tablets,
};
use crate::request::PageRequest;

/// The pages of the navigation: the first segment of the path, and the name.
pub(crate) const NAVIGATION: [(&str, &str); 9] = [
    ("", "Overview"),
    ("servers", "Servers"),
    ("tables", "Tables"),
    ("heat", "Heat map"),
    ("locate", "Location"),
    ("events", "Events"),
    ("slow", "Slow"),
    ("mt", "Names"),
    ("config", "Configuration"),
];

/// The page of a request.
///
/// # Errors
/// `NotFound` for an unknown path; otherwise those of the page.
pub(crate) async fn page(context: &Context, request: &PageRequest) -> Result<Page, Error> {
    match request.path().as_slice() {
        [] => overview::page(context).await,
        ["servers"] => servers::list(context).await,
        ["servers", server] => servers::one(context, server).await,
        ["tables"] => tables::list(context, request).await,
        ["tables", table] => tables::one(context, table).await,
        ["tables", table, "tablets"] => tablets::page(context, table, request).await,
        ["tables", table, "data"] => data::page(context, table, request).await,
        ["groups", group] => groups::page(context, group).await,
        ["heat"] | ["heat", _] => heat::page(context, request).await,
        ["locate"] => locate::page(context, request).await,
        ["events"] => events::page(context, request).await,
        ["slow"] => slow::page(context, request).await,
        ["mt"] => names::page(context, request).await,
        ["config"] => configuration::page(context).await,
        _ => Err(Error::new(Reason::NotFound, "there is no such page; the navigation lists all pages")),
    }
}

/// Where the search box leads: a server's number, the name of a table, or a table and a key of it.
pub(crate) fn search(given: &str) -> Path {
    let given = given.trim();
    match given.split_once(char::is_whitespace) {
        Some((table, key)) => Path::of(&["locate"]).with("table", table).with("key", key.trim()),
        None if given.is_empty() => Path::of(&[]),
        None if given.parse::<u64>().is_ok() => Path::of(&["servers", given]),
        None if given.starts_with('/') => Path::of(&["mt"]).with("name", given),
        None => Path::of(&["tables", given]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_leads_to_the_page_of_what_it_names() {
        for (given, expected) in [
            ("3", "/servers/3"),
            (" web ", "/tables/web"),
            ("web com.cnn.www", "/locate?table=web&key=com.cnn.www"),
            ("/host:8101/a", "/mt?name=%2Fhost%3A8101%2Fa"),
            ("", "/"),
        ] {
            assert_eq!(search(given).to_string(), expected);
        }
    }
}
