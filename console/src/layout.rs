//! The frame of every page: navigation, search, theme, the command that prints the same, and the parts. Pure.

use crate::html::{Html, Path, action_form, element, link, query_form};
use crate::pages::time_range::{PARAMETER, TimeRange};
use crate::pages::{Page, Part};
use crate::route::NAVIGATION;

/// What the frame of a page shows beside the page.
#[derive(Clone, Debug)]
pub(crate) struct Frame<'a> {
    /// The role and the release of the process.
    pub(crate) process: &'a str,
    /// The first segment of the page's path.
    pub(crate) place: &'a str,
    /// The page itself, to load it again.
    pub(crate) here: Path,
    /// The range of time that links keep.
    pub(crate) kept: Option<TimeRange>,
    /// Whether the viewer has logged in.
    pub(crate) session: Session,
}

/// How the viewer got in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Session {
    /// Without an identity: there is no access control.
    Open,
    /// With a token.
    Token,
    /// Not at all: the login form.
    None,
}

/// The whole document.
pub(crate) fn document(page: &Page, frame: &Frame<'_>) -> Html {
    let head = element("head")
        .child(element("meta").attr("charset", "utf-8"))
        .child(element("meta").attr("name", "viewport").attr("content", "width=device-width, initial-scale=1"))
        .child(element("title").text(format!("{} · Ebla", page.title)))
        .child(element("link").attr("rel", "stylesheet").href(&Path::of(&["console.css"])))
        .child(element("link").attr("rel", "icon").attr("type", "image/svg+xml").href(&Path::of(&["console.svg"])))
        .child(element("script").src(&Path::of(&["console.js"])));
    let main = element("main")
        .child(element("h1").test_id("title").text(&page.title))
        .child(command(&page.command))
        .children(page.parts.iter().map(part));
    let top = top(page, frame);
    let top = match frame.kept {
        Some(range) => top.keep(PARAMETER, range.name),
        None => top,
    };
    let body = element("body").child(top).child(main).child(footer(frame));
    let mut all = Html::constant("<!DOCTYPE html>");
    all.push(element("html").attr("lang", "en").child(head).child(body));
    all
}

/// A part with the mark by which the script finds it.
fn part(part: &Part) -> Html {
    match part.live {
        Some(name) => element("div").attr("data-live", name).child(part.html.clone()).into(),
        None => part.html.clone(),
    }
}

fn top(page: &Page, frame: &Frame<'_>) -> Html {
    let mut header = element("header").class("top").child(link(&Path::of(&[]), "Ebla").class("brand"));
    if frame.session != Session::None {
        let item = |(place, name): &(&str, &str)| {
            let to = link(&Path::of(&[*place]), name);
            if *place == frame.place { to.attr("aria-current", "page") } else { to }
        };
        let box_of_search = element("input")
            .attr("type", "search")
            .attr("name", "q")
            .attr("aria-label", "search")
            .attr("placeholder", "table, server, or table key");
        header = header
            .child(element("nav").attr("aria-label", "pages").children(NAVIGATION.iter().map(item)))
            .child(query_form(&Path::of(&["search"])).child(box_of_search));
    }
    if page.parts.iter().any(|part| part.live.is_some()) {
        let again = link(&frame.here, "Refresh");
        header = header
            .child(element("span").attr("id", "live-state").attr("role", "status").test_id("live-state"))
            .child(element("noscript").child(again));
    }
    let theme = element("button").attr("type", "button").flag("data-theme-toggle").flag("hidden");
    header.child(theme.test_id("theme").text("Light / dark")).into()
}

fn command(command: &str) -> Html {
    if command.is_empty() {
        return Html::empty();
    }
    let copy = element("button").attr("type", "button").attr("data-copy", command).flag("hidden").text("Copy");
    element("p").class("command").child(element("code").test_id("command").text(command)).child(copy).into()
}

fn footer(frame: &Frame<'_>) -> Html {
    let mut footer = element("footer").text(frame.process);
    match frame.session {
        Session::Open => footer = footer.text(" · no access control"),
        Session::Token => {
            let button = element("button").text("Log out");
            footer = footer.text(" · ").child(action_form(&Path::of(&["logout"])).class("inline").child(button));
        }
        Session::None => {}
    }
    footer.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::html::text;

    #[test]
    fn a_document_has_its_parts_and_no_code_inside() {
        let page = Page::new("<Servers>", "ebla server list").live("list", text("<1>")).fixed(text("form"));
        let here = Path::of(&["servers"]);
        let frame = Frame { process: "up 0.1.0", place: "servers", here, kept: None, session: Session::Open };
        let html = document(&page, &frame);
        let html = html.as_str();
        assert!(html.starts_with("<!DOCTYPE html><html lang=\"en\">"), "{html}");
        assert!(
            html.contains("<title>&lt;Servers&gt; · Ebla</title>")
                && html.contains("<div data-live=\"list\">&lt;1&gt;</div>form")
        );
        assert!(html.contains("<a href=\"/servers\" aria-current=\"page\">Servers</a>") && html.contains("/slow"));
        assert!(html.contains("<noscript><a href=\"/servers\">Refresh</a></noscript>"));
        // The content security policy refuses them.
        assert!(!html.contains("style=") && !html.contains("onclick") && html.matches("<script").count() == 1);
        let kept = document(&page, &Frame { kept: Some(TimeRange::HOUR), ..frame.clone() });
        assert!(
            kept.as_str().contains("<a href=\"/events?time=1h\">")
                && kept.as_str().contains("name=\"time\" value=\"1h\"")
        );
        let login = Frame { session: Session::None, ..frame };
        let html = document(&Page::new("Log in", ""), &login);
        assert!(!html.as_str().contains("<nav") && !html.as_str().contains("noscript"));
    }
}
