//! HTML that is escaped by construction. Pure.
//!
//! An [`Html`] comes from text, which is escaped, from constants of this program, or from elements with such content; there is no way to make
//! one of a `String`. Addresses of links are [`Path`]s, which always stay on this site, so no value can become a script.
//!
//! ```text
//!   text("a < b")                                     a &lt; b
//!   element("b").test_id("total").text(7)             <b data-testid="total">7</b>
//!   link(&Path::of(&["tables", "a/b"]), "a/b")        <a href="/tables/a%2Fb">a/b</a>
//! ```

mod kept;
pub mod tables;

use std::fmt::{self, Write as _};

/// Attributes that have a type or a method of their own, because their values could be scripts or would be refused by the content security policy.
const RESERVED: [&str; 6] = ["href", "src", "action", "formaction", "style", "srcdoc"];
/// Elements without content.
const VOID: [&str; 5] = ["br", "hr", "input", "link", "meta"];

/// A piece of HTML.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Html(String);

impl Html {
    /// No HTML.
    #[must_use]
    pub const fn empty() -> Self {
        Self(String::new())
    }

    /// A constant of this program.
    #[must_use]
    pub fn constant(html: &'static str) -> Self {
        Self(html.to_owned())
    }

    /// These pieces, one after the other.
    #[must_use]
    pub fn join<T: Into<Self>>(pieces: impl IntoIterator<Item = T>) -> Self {
        let mut all = Self::empty();
        pieces.into_iter().for_each(|piece| all.push(piece));
        all
    }

    /// Adds a piece.
    pub fn push(&mut self, piece: impl Into<Self>) {
        self.0.push_str(&piece.into().0);
    }

    /// Its text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether there is nothing in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Text, escaped.
#[must_use]
pub fn text(text: impl fmt::Display) -> Html {
    let mut html = Html::empty();
    // Writing to a string cannot fail.
    let _written = write!(Escaped(&mut html.0), "{text}");
    html
}

/// Escapes what is written to it. Quotes too, so that the result is also the content of an attribute.
struct Escaped<'a>(&'a mut String);

impl fmt::Write for Escaped<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars() {
            match c {
                '&' => self.0.push_str("&amp;"),
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '"' => self.0.push_str("&quot;"),
                '\'' => self.0.push_str("&#39;"),
                // A browser replaces it, or ends the text.
                '\0' => self.0.push('\u{fffd}'),
                c => self.0.push(c),
            }
        }
        Ok(())
    }
}

/// An element.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Element {
    tag: &'static str,
    attributes: String,
    content: Html,
}

/// An element of HTML or SVG without attributes and content.
pub const fn element(tag: &'static str) -> Element {
    Element { tag, attributes: String::new(), content: Html::empty() }
}

/// A link to a path of this site.
pub fn link(to: &Path, shown: impl fmt::Display) -> Element {
    element("a").href(to).text(shown)
}

/// A form that sends its fields to a path of this site, in the query.
pub fn query_form(to: &Path) -> Element {
    element("form").raw("action", to).attr("method", "get")
}

/// A form that sends its fields to a path of this site as a change.
pub fn action_form(to: &Path) -> Element {
    element("form").raw("action", to).attr("method", "post")
}

impl Element {
    /// Adds an attribute.
    ///
    /// # Panics
    /// For attributes whose value could be a script: there are methods for those.
    pub fn attr(self, name: &'static str, value: impl fmt::Display) -> Self {
        assert!(!RESERVED.contains(&name) && !name.starts_with("on"), "the attribute {name} has a method of its own");
        self.raw(name, value)
    }

    fn raw(mut self, name: &'static str, value: impl fmt::Display) -> Self {
        let value = text(value);
        // Writing to a string cannot fail.
        let _written = write!(self.attributes, " {name}=\"{}\"", value.as_str());
        self
    }

    /// Adds an attribute without a value.
    pub fn flag(mut self, name: &'static str) -> Self {
        self.attributes.push(' ');
        self.attributes.push_str(name);
        self
    }

    /// The path that it leads to.
    pub fn href(self, to: &Path) -> Self {
        self.raw("href", to)
    }

    /// Where a script comes from.
    pub fn src(self, from: &Path) -> Self {
        self.raw("src", from)
    }

    /// Its class.
    pub fn class(self, name: &'static str) -> Self {
        self.raw("class", name)
    }

    /// The name by which tests find it.
    pub fn test_id(self, name: impl fmt::Display) -> Self {
        self.raw("data-testid", name)
    }

    /// Adds text.
    pub fn text(self, shown: impl fmt::Display) -> Self {
        self.child(text(shown))
    }

    /// Adds a piece.
    pub fn child(mut self, piece: impl Into<Html>) -> Self {
        self.content.push(piece);
        self
    }

    /// Adds pieces.
    pub fn children<T: Into<Html>>(mut self, pieces: impl IntoIterator<Item = T>) -> Self {
        pieces.into_iter().for_each(|piece| self.content.push(piece));
        self
    }
}

impl From<Element> for Html {
    fn from(element: Element) -> Self {
        let Element { tag, attributes, content } = element;
        if VOID.contains(&tag) {
            return Self(format!("<{tag}{attributes}>"));
        }
        Self(format!("<{tag}{attributes}>{}</{tag}>", content.0))
    }
}

/// A path of this site, with its query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    path: String,
    has_query: bool,
}

impl Path {
    /// The path of these segments; none: the first page. Empty ones are left out: two slashes would begin the name of another host.
    #[must_use]
    pub fn of(segments: &[&str]) -> Self {
        let mut path = String::new();
        for segment in segments.iter().filter(|segment| !segment.is_empty()) {
            path.push('/');
            encode(segment, &mut path);
        }
        if path.is_empty() {
            path.push('/');
        }
        Self { path, has_query: false }
    }

    /// The same path with a parameter more.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.path.push(if self.has_query { '&' } else { '?' });
        encode(name, &mut self.path);
        self.path.push('=');
        encode(value, &mut self.path);
        self.has_query = true;
        self
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path)
    }
}

/// Percent-encodes all but the characters that a URL never gives a meaning (RFC 3986, section 2.3). A segment of dots only would be removed by
/// browsers, so the first dot is encoded too.
fn encode(part: &str, into: &mut String) {
    let is_dots = !part.is_empty() && part.bytes().all(|byte| byte == b'.');
    for (at, byte) in part.bytes().enumerate() {
        match byte {
            b'.' if is_dots && at == 0 => into.push_str("%2E"),
            byte if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) => into.push(char::from(byte)),
            // Writing to a string cannot fail.
            byte => drop(write!(into, "%{byte:02X}")),
        }
    }
}

/// The tags and the texts between them, in order. Values have neither `<` nor `>`, so each one ends a piece.
fn pieces(html: &str) -> impl Iterator<Item = &str> {
    let mut rest = html;
    std::iter::from_fn(move || {
        let end = if rest.starts_with('<') { rest.find('>').map(|at| at.saturating_add(1)) } else { rest.find('<') };
        let (piece, after) = rest.split_at_checked(end.unwrap_or(rest.len()))?;
        rest = after;
        Some(piece).filter(|piece| !piece.is_empty())
    })
}

/// A table with a heading and a row for each item.
pub fn table<T: Into<Html>>(heading: &[&str], rows: impl IntoIterator<Item = T>) -> Element {
    let cells = heading.iter().map(|name| element("th").attr("scope", "col").text(name));
    let head = element("thead").child(element("tr").children(cells));
    element("table").child(head).child(element("tbody").children(rows))
}

/// A row of a table.
pub fn row<T: Into<Html>>(cells: impl IntoIterator<Item = T>) -> Element {
    element("tr").children(cells.into_iter().map(|cell| element("td").child(cell)))
}

/// A list of names with their values. Tests find each value by its name: `prefix-name`.
pub fn facts(prefix: &str, values: impl IntoIterator<Item = (&'static str, String)>) -> Element {
    let pair = |(name, value): (&'static str, String)| {
        let id = format!("{prefix}-{}", name.replace(' ', "-"));
        element("div").child(element("dt").text(name)).child(element("dd").test_id(id).text(value))
    };
    element("dl").class("facts").children(values.into_iter().map(pair))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn html(element: Element) -> String {
        Html::from(element).as_str().to_owned()
    }

    #[test]
    fn text_and_attributes_are_escaped() {
        let hostile = "\"><script>alert('1' & 2)</script>\0";
        let escaped = "&quot;&gt;&lt;script&gt;alert(&#39;1&#39; &amp; 2)&lt;/script&gt;\u{fffd}";
        assert_eq!(text(hostile).as_str(), escaped);
        let shown = html(element("b").attr("title", hostile).test_id(hostile).text(hostile));
        assert_eq!(shown, format!("<b title=\"{escaped}\" data-testid=\"{escaped}\">{escaped}</b>"));
        assert_eq!(html(element("input").attr("name", "a").flag("required")), "<input name=\"a\" required>");
    }

    #[test]
    fn links_stay_on_this_site() {
        for (segments, expected) in [
            (&[][..], "/"),
            (&["tables", "a/b c"], "/tables/a%2Fb%20c"),
            (&["tables", ".."], "/tables/%2E."),
            (&["", "evil.example"], "/evil.example"),
            (&["javascript:alert(1)"], "/javascript%3Aalert%281%29"),
        ] {
            assert_eq!(Path::of(segments).to_string(), expected);
        }
        let to = Path::of(&["locate"]).with("key", "a&b=\"\u{e9}\"").with("n", "1");
        assert_eq!(to.to_string(), "/locate?key=a%26b%3D%22%C3%A9%22&n=1");
        assert_eq!(html(link(&to, "<")), format!("<a href=\"{}\">&lt;</a>", to.to_string().replace('&', "&amp;")));
    }

    #[test]
    fn attributes_that_could_be_scripts_are_refused() {
        for name in ["href", "style", "onclick", "src"] {
            let made = std::panic::catch_unwind(|| html(element("a").attr(name, "javascript:alert(1)")));
            assert!(made.is_err(), "{name}");
        }
    }

    #[test]
    fn tables_and_facts_have_their_values() {
        let shown = html(table(&["A"], [row([text("<")])]));
        assert_eq!(
            shown,
            "<table><thead><tr><th scope=\"col\">A</th></tr></thead><tbody><tr><td>&lt;</td></tr></tbody></table>"
        );
        let shown = html(facts("server", [("disk free", "1".to_owned())]));
        assert!(shown.contains("<dt>disk free</dt><dd data-testid=\"server-disk-free\">1</dd>"), "{shown}");
    }
}
