//! What the Webtable uses of a page in HTML: its language and its links. Tags are searched for as text, which is enough for well-formed
//! pages; there is no parser.

/// Longest text of a link that is stored, in characters.
const TEXT_CHARS_MAX: usize = 100;

/// A link of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// The address of the other page, without scheme, query and fragment: `clang.llvm.org/docs/index.html`.
    pub to: String,
    /// The words of the link, without tags.
    pub text: String,
}

/// The language that the page declares, such as `en`.
pub fn language(html: &str) -> Option<&str> {
    let (_, after) = html.split_once("<html")?;
    attribute(after.split_once('>')?.0, "lang").filter(|language| !language.is_empty())
}

/// The links of the page at `address` to other pages of the Web, in their order. `address` has no scheme.
pub fn links(html: &str, address: &str) -> Vec<Link> {
    let mut links = Vec::new();
    let mut rest = html;
    while let Some((_, after)) = rest.split_once("<a ") {
        let Some((attributes, after)) = after.split_once('>') else { break };
        let (inner, after) = after.split_once("</a>").unwrap_or((after, ""));
        rest = after;
        let to = attribute(attributes, "href").and_then(|reference| resolve(address, reference));
        if let Some(to) = to.filter(|to| to != address) {
            links.push(Link { to, text: text(inner) });
        }
    }
    links
}

/// The value of an attribute in quotes.
fn attribute<'a>(attributes: &'a str, name: &str) -> Option<&'a str> {
    let mut rest = attributes;
    while let Some((before, after)) = rest.split_once(name) {
        let is_whole = before.is_empty() || before.ends_with(|letter: char| letter.is_ascii_whitespace());
        if let Some(quoted) = after.strip_prefix("=\"").filter(|_quoted| is_whole) {
            return quoted.split_once('"').map(|(value, _)| value);
        }
        rest = after;
    }
    None
}

/// The address that a reference in the page at `address` names; `None` for a place in the same page and for what is no page.
fn resolve(address: &str, reference: &str) -> Option<String> {
    let reference = reference.split(['#', '?']).next().filter(|path| !path.is_empty())?;
    for scheme in ["http://", "https://", "//"] {
        if let Some(other) = reference.strip_prefix(scheme) {
            return Some(other.to_owned());
        }
    }
    if reference.split('/').next().is_some_and(|first| first.contains(':')) {
        return None;
    }
    let (host, page) = address.split_once('/').unwrap_or((address, ""));
    let folder = page.rsplit_once('/').filter(|_| !reference.starts_with('/'));
    let mut path: Vec<&str> = folder.map(|(folder, _)| folder.split('/').collect()).unwrap_or_default();
    for part in reference.split('/') {
        match part {
            "" | "." => {}
            ".." => _ = path.pop(),
            part => path.push(part),
        }
    }
    Some(format!("{host}/{}", path.join("/")))
}

/// What is between the tags, with single spaces.
fn text(html: &str) -> String {
    let mut outside = String::new();
    for (number, piece) in html.split('<').enumerate() {
        outside.push_str(if number == 0 { piece } else { piece.split_once('>').map_or("", |(_tag, after)| after) });
        outside.push(' ');
    }
    let words: Vec<&str> = outside.split_whitespace().collect();
    words.join(" ").chars().take(TEXT_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(html: &str) -> Vec<(String, String)> {
        links(html, "example.com/docs/a/page.html").into_iter().map(|link| (link.to, link.text)).collect()
    }

    fn link(to: &str, text: &str) -> (String, String) {
        (to.to_owned(), text.to_owned())
    }

    #[test]
    fn references_become_addresses() {
        let cases = [
            ("other.html", "example.com/docs/a/other.html"),
            ("other.html#part", "example.com/docs/a/other.html"),
            ("./other.html?x=1", "example.com/docs/a/other.html"),
            ("../b/", "example.com/docs/b"),
            ("../../../x.html", "example.com/x.html"),
            ("/top.html", "example.com/top.html"),
            ("https://www.gnu.org/software/bash/", "www.gnu.org/software/bash/"),
            ("//cdn.example/x.html", "cdn.example/x.html"),
        ];
        for (reference, expected) in cases {
            let html = format!("<p>see <a class=\"x\" href=\"{reference}\">this</a></p>");
            assert_eq!(found(&html), [link(expected, "this")], "{reference}");
        }
        for reference in ["#part", "page.html", "page.html#part", "mailto:a@example.com", "javascript:void(0)", ""] {
            assert!(found(&format!("<a href=\"{reference}\">this</a>")).is_empty(), "{reference}");
        }
    }

    #[test]
    fn the_text_of_a_link_has_no_tags() {
        let html =
            "<a href=\"x.html\"><span class=\"p\">the\n  <em>other</em></span> page</a><a name=\"y\">no link</a>";
        assert_eq!(found(html), [link("example.com/docs/a/x.html", "the other page")]);
        assert!(found("<a href=\"x.html\"").is_empty());
        assert_eq!(found("<a href=\"x.html\">open"), [link("example.com/docs/a/x.html", "open")]);
    }

    #[test]
    fn the_language_is_the_declared_one() {
        assert_eq!(language("<!DOCTYPE html>\n<html class=\"a\" lang=\"en-GB\"><head>"), Some("en-GB"));
        assert_eq!(language("<html xmlns=\"http://www.w3.org/1999/xhtml\"><body lang=\"de\">"), None);
        assert_eq!(language("no page"), None);
    }
}
