//! A parameter of the query that is kept when a viewer follows a link or sends a form. Pure.
//!
//! Text and attributes are escaped, so `<`, `>` and `"` of a value never look like a tag or like the end of an attribute, and pages can be
//! changed by their tags.

use super::{Html, element, encode, pieces};

/// The attribute that a link leads by.
const HREF: &str = " href=\"";

impl Html {
    /// The same HTML, in which all links lead on with this parameter, and forms that ask for a page send it. Links and forms that have a
    /// parameter of this name stay as they are.
    #[must_use]
    pub fn keep(&self, name: &str, value: &str) -> Self {
        let (mut kept, mut at) = (String::with_capacity(self.0.len()), 0);
        for piece in pieces(&self.0) {
            if piece.starts_with("<a ") {
                kept.push_str(&link(piece, name, value));
            } else {
                kept.push_str(piece);
            }
            let rest = self.0.get(at..).unwrap_or_default();
            let is_query = piece.starts_with("<form ") && piece.contains(" method=\"get\"");
            if is_query && !has_field(rest, name) {
                let field = element("input").attr("type", "hidden").attr("name", name).attr("value", value);
                kept.push_str(&Self::from(field).0);
            }
            at = at.saturating_add(piece.len());
        }
        Self(kept)
    }
}

/// Whether the form that begins here has a field of this name.
fn has_field(form: &str, name: &str) -> bool {
    let form = form.split("</form>").next().unwrap_or_default();
    pieces(form).any(|piece| piece.starts_with('<') && piece.contains(&format!(" name=\"{name}\"")))
}

/// The tag of a link with one more parameter.
fn link(tag: &str, name: &str, value: &str) -> String {
    let Some((before, rest)) = tag.split_once(HREF) else { return tag.to_owned() };
    let Some((to, after)) = rest.split_once('"') else { return tag.to_owned() };
    let mut parameter = String::new();
    encode(name, &mut parameter);
    parameter.push('=');
    let query = to.split_once('?').map(|(_path, query)| query);
    if query.is_some_and(|query| query.split("&amp;").any(|pair| pair.starts_with(&parameter))) {
        return tag.to_owned();
    }
    encode(value, &mut parameter);
    let joint = if query.is_some() { "&amp;" } else { "?" };
    format!("{before}{HREF}{to}{joint}{parameter}\"{after}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::html::{Path, action_form, link, query_form, text};

    fn kept(html: impl Into<Html>) -> String {
        html.into().keep("time", "1 h").0
    }

    #[test]
    fn links_lead_on_with_the_parameter_once() {
        let to = |path: &Path| link(path, "<a href=\"/x\">").attr("title", " href=\"/y\"");
        let plain = kept(to(&Path::of(&["events"])));
        assert!(plain.starts_with("<a href=\"/events?time=1%20h\" title=\" href=&quot;/y&quot;\">&lt;a href=&quot;/x"));
        let other = kept(to(&Path::of(&["events"]).with("table", "time=x")));
        assert!(other.starts_with("<a href=\"/events?table=time%3Dx&amp;time=1%20h\""), "{other}");
        for own in [Path::of(&[]).with("time", "6h"), Path::of(&["heat"]).with("a", "b").with("time", "6h")] {
            assert_eq!(kept(to(&own)), Html::from(to(&own)).0);
        }
        assert_eq!(kept(text("<a href=\"/x\">")), text("<a href=\"/x\">").0, "text is no link");
    }

    #[test]
    fn forms_that_ask_send_the_parameter_once() {
        let field = |name: &str| element("input").attr("name", name);
        let hidden = "<input type=\"hidden\" name=\"time\" value=\"1 h\">";
        let search = query_form(&Path::of(&["search"])).child(field("q"));
        assert_eq!(
            kept(search.clone()),
            format!("<form action=\"/search\" method=\"get\">{hidden}<input name=\"q\"></form>")
        );
        let own = query_form(&Path::of(&["heat"])).child(field("time"));
        assert_eq!(kept(Html::join([own.clone(), search.clone()])).matches(hidden).count(), 1);
        assert_eq!(kept(own.clone()), Html::from(own).0);
        let change = action_form(&Path::of(&["logout"]));
        assert_eq!(kept(change.clone()), Html::from(change).0, "a change has no time");
    }
}
