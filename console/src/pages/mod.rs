//! The pages, one module each: an `async fn` from a `Context` and a request to a [`Page`], around a pure `render` of the values.
//!
//! A page loads all its values before it renders; there is no state between two requests. A part that is marked as live is rendered again
//! once a second while the page is open.

pub mod configuration;
pub mod data;
pub mod events;
#[cfg(test)]
pub(crate) mod golden;
pub mod groups;
pub mod heat;
pub mod locate;
pub mod names;
pub mod overview;
pub mod servers;
pub mod slow;
pub mod tables;
pub mod tablets;
pub(crate) mod time_range;
mod traffic;

use ebla_client::encoding;
use ebla_model::key::RowKey;

use crate::html::{Element, Html, Path, element, link, text};

/// A page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Its title.
    pub title: String,
    /// The command that prints the same.
    pub command: String,
    /// Its parts, in order.
    pub parts: Vec<Part>,
}

/// A part of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The name by which the script finds it; `None`: it stays as it was when the page was loaded.
    pub live: Option<&'static str>,
    /// Its content.
    pub html: Html,
}

impl Page {
    /// The same page with its parts changed.
    #[must_use]
    pub fn map(mut self, change: impl Fn(&Html) -> Html) -> Self {
        self.parts.iter_mut().for_each(|part| part.html = change(&part.html));
        self
    }

    /// A page without parts. `command`: the command that prints the same.
    pub fn new(title: impl Into<String>, command: impl Into<String>) -> Self {
        Self { title: title.into(), command: command.into(), parts: Vec::new() }
    }

    /// Adds a part that stays as it is, such as a form.
    #[must_use]
    pub fn fixed(mut self, html: impl Into<Html>) -> Self {
        self.parts.push(Part { live: None, html: html.into() });
        self
    }

    /// Adds a part that is replaced once a second. `name`: unique on the page.
    #[must_use]
    pub fn live(mut self, name: &'static str, html: impl Into<Html>) -> Self {
        self.parts.push(Part { live: Some(name), html: html.into() });
        self
    }
}

/// A section with a heading.
pub fn section<T: Into<Html>>(heading: &str, content: impl IntoIterator<Item = T>) -> Element {
    element("section").child(element("h2").text(heading)).children(content)
}

/// A sentence in the place of values that do not exist.
pub fn note(shown: &str) -> Element {
    element("p").class("note").text(shown)
}

/// A key for people; `empty`: what is shown for the empty one.
pub fn shown_key(key: &RowKey, empty: &str) -> String {
    if key.is_empty() { empty.to_owned() } else { encoding::escape(key.as_bytes()) }
}

/// A text that names a missing value.
pub fn or_dash<T: ToString>(value: Option<T>) -> String {
    value.map_or("-".to_owned(), |value| value.to_string())
}

/// A link to a server's page.
pub fn server_link(server: u64) -> Element {
    link(&Path::of(&["servers", &server.to_string()]), server)
}

/// The state of something, with a colour: `ok`, `warn` or `bad`.
pub fn state(class: &'static str, shown: &str) -> Element {
    element("span").class(class).child(text(shown))
}
