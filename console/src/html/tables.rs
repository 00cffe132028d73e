//! The tables of a page as text, for files. Pure.
//!
//! The cells are read back from the HTML that the page shows, so a file has neither more nor less than the page. The text of a cell is what a
//! reader sees; two attributes change it:
//!
//! ```text
//!   data-text="…"    this text is in the file too: what a picture or a colour says
//!   data-same        the cell is empty because its value is that of the row above
//! ```

use super::{Html, pieces};

/// The attribute of a cell with the value of the row above.
pub const SAME: &str = "data-same";
/// The attribute with a text for files.
const TEXT: &str = " data-text=\"";

/// A table of a page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TextTable {
    /// The heading of its section, the nearest one before it; empty: none.
    pub section: String,
    /// The names of its columns.
    pub heading: Vec<String>,
    /// Its rows, each with a cell for each column.
    pub rows: Vec<Vec<String>>,
}

/// Where the reader is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Elsewhere,
    Section,
    Heading,
    Cell,
}

impl Html {
    /// The tables in it, in order. No table of a page is within another.
    #[must_use]
    pub fn tables(&self) -> Vec<TextTable> {
        let mut tables: Vec<TextTable> = Vec::new();
        let (mut section, mut read, mut place, mut is_same) = (String::new(), String::new(), Place::Elsewhere, false);
        // Titles of pictures are shown only under a pointer.
        let mut pictures = 0_usize;
        for piece in pieces(&self.0) {
            let table = tables.last_mut();
            match (tag_name(piece), table) {
                ("h2", _) => (place, read) = (Place::Section, String::new()),
                ("/h2", _) => (place, section) = (Place::Elsewhere, trimmed(&read)),
                ("table", _) => tables.push(TextTable { section: section.clone(), ..TextTable::default() }),
                ("th", _) => (place, read) = (Place::Heading, String::new()),
                ("td", _) => (place, read, is_same) = (Place::Cell, String::new(), false),
                ("tr", Some(table)) if !table.heading.is_empty() => table.rows.push(Vec::new()),
                ("/th", Some(table)) => {
                    place = Place::Elsewhere;
                    table.heading.push(trimmed(&read));
                }
                ("/td", Some(table)) => {
                    place = Place::Elsewhere;
                    table.add_cell(trimmed(&read), is_same);
                }
                ("/li" | "br", _) => read.push('\n'),
                ("svg", _) => pictures = pictures.saturating_add(1),
                ("/svg", _) => pictures = pictures.saturating_sub(1),
                ("", _) if place != Place::Elsewhere && pictures == 0 => unescape(piece, &mut read),
                _ => {}
            }
            if place == Place::Cell && piece.starts_with('<') {
                // Values of attributes are between quotes.
                is_same = is_same || piece.split('"').step_by(2).any(|outside| outside.contains(SAME));
                let given = piece.split_once(TEXT).and_then(|(_before, rest)| rest.split_once('"'));
                given.into_iter().for_each(|(given, _after)| unescape(given, &mut read));
            }
        }
        tables
    }

    /// The same HTML with these pieces after the tables in it: `piece` gets the number of each table, from 0.
    #[must_use]
    pub fn with_after_tables(&self, mut piece: impl FnMut(usize) -> Self) -> Self {
        let (mut all, mut number) = (String::with_capacity(self.0.len()), 0_usize);
        for part in pieces(&self.0) {
            all.push_str(part);
            if tag_name(part) == "/table" {
                all.push_str(&piece(number).0);
                number = number.saturating_add(1);
            }
        }
        Self(all)
    }
}

impl TextTable {
    fn add_cell(&mut self, text: String, is_same: bool) {
        let column = self.rows.last().map_or(0, Vec::len);
        let above = self.rows.len().checked_sub(2).and_then(|above| self.rows.get(above)?.get(column));
        let text = above.filter(|_above| is_same).cloned().unwrap_or(text);
        if let Some(row) = self.rows.last_mut() {
            row.push(text);
        }
    }
}

/// The name of a tag, with the slash of its end; empty: text.
fn tag_name(piece: &str) -> &str {
    let Some(tag) = piece.strip_prefix('<') else { return "" };
    tag.split([' ', '>']).next().unwrap_or_default()
}

/// Adds a text without its escapes.
fn unescape(text: &str, into: &mut String) {
    let mut rest = text;
    while let Some((before, escaped)) = rest.split_once('&') {
        into.push_str(before);
        let known = [("amp;", '&'), ("lt;", '<'), ("gt;", '>'), ("quot;", '"'), ("#39;", '\'')];
        let found = known.into_iter().find_map(|(name, c)| Some((escaped.strip_prefix(name)?, c)));
        let (after, c) = found.unwrap_or((escaped, '&'));
        into.push(c);
        rest = after;
    }
    into.push_str(rest);
}

/// Lines without the spaces around them: those of the page's layout.
fn trimmed(text: &str) -> String {
    text.trim_matches([' ', '\n', '\u{a0}']).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::html::{element, row, table, text};

    #[test]
    fn a_table_is_read_as_it_is_shown() {
        let hostile = "<td>\"&amp;'</td>";
        let picture = element("svg").child(element("title").text("hidden"));
        let versions = element("ul").children(["1 a", "2 b"].map(|one| element("li").text(one)));
        let named = element("span").attr("data-text", "named \"x\"");
        let rows = [
            row([text(hostile), versions.into(), picture.into()]),
            row([Html::from(element("span").flag(SAME)), named.into(), text(" - ")]),
            row([Html::from(element("b").flag(SAME)), text("a"), Html::empty()]),
        ];
        let html = Html::join([
            Html::from(element("h2").text("S & ").child(element("b").text("T"))),
            table(&["A", "B<", ""], rows).into(),
            element("p").text("outside").into(),
            table(&["C"], Vec::<Html>::new()).into(),
        ]);
        let cells = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        let expected = TextTable {
            section: "S & T".to_owned(),
            heading: cells(["A", "B<", ""]),
            rows: vec![
                cells([hostile, "1 a\n2 b", ""]),
                cells([hostile, "named \"x\"", "-"]),
                cells([hostile, "a", ""]),
            ],
        };
        let tables = html.tables();
        assert_eq!(tables[0], expected);
        assert_eq!((tables.len(), &tables[1].heading[..], tables[1].rows.len()), (2, &["C".to_owned()][..], 0));
        assert!(text(hostile).tables().is_empty() && Html::empty().tables().is_empty());
    }

    #[test]
    fn pieces_stand_after_their_tables() {
        let html = Html::join([table(&["A"], [row([text("</table>")])]), table(&["B"], [row([text("b")])])]);
        let with = html.with_after_tables(text);
        assert_eq!(with.as_str().matches("</table>0<table>").count(), 1, "{with:?}");
        assert!(with.as_str().ends_with("</table>1"), "{with:?}");
    }
}
