//! The page `/tables/{t}/data`: rows of a table as the viewer may read them, by prefix or range, with versions; and a form for one cell.
//!
//! Rows are read through the public API with the viewer's token, so rights, hidden families and audit are those of any other read. The page has
//! bounds: rows, versions of a column, cells, bytes that are shown of one value and of all cells. What exceeds them is left out with a note.

use ebla_client::encoding::{escape, escape_column, shell_quote, time, to_hex};
use ebla_client::table::ReadOptions;
use ebla_model::cell::{Cell, Row};
use ebla_model::error::Error;
use ebla_model::filter::Filter;
use ebla_model::key::{KeyRange, RowKey, RowSet};
use ebla_model::schema::TableName;
use futures::TryStreamExt as _;

use super::{Page, note, section, tables};
use crate::Context;
use crate::context::{Actions, short_name, table_name};
use crate::html::tables::SAME;
use crate::html::{Element, Html, Path, action_form, element, link, query_form, row, table};
use crate::request::PageRequest;

/// The most rows of a page.
const ROWS_MAX: u64 = 500;
/// Rows without a choice.
const ROWS_DEFAULT: u64 = 20;
/// The most versions of a column.
const VERSIONS_MAX: u64 = 100;
/// The most cells of a page. A row with more of them is cut, and the cluster sends no more of it.
const CELLS_MAX: usize = 10_000;
/// Bytes that are shown of all cells of a page. The row that reaches them is cut.
const PAGE_BYTES_MAX: usize = 4 << 20;
/// Bytes that are shown of a value.
const VALUE_SHOWN_MAX: usize = 2 << 10;
/// Bytes of indented JSON; a value with more is shown as text. Nested arrays of 2 KiB can have 100 times as many.
const JSON_SHOWN_MAX: usize = 4 * VALUE_SHOWN_MAX;

/// How values are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum View {
    /// As text, with escapes.
    Text,
    /// As hexadecimal digits.
    Hex,
    /// As a 64-bit number, big endian: what increments write.
    Int64,
    /// As indented JSON.
    Json,
}

impl View {
    const ALL: [Self; 4] = [Self::Text, Self::Hex, Self::Int64, Self::Json];

    const fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Hex => "hex",
            Self::Int64 => "int64",
            Self::Json => "json",
        }
    }

    /// A value for people. What has another type is shown as text, with a note.
    fn shown(self, value: &[u8]) -> String {
        let cut = value.get(..VALUE_SHOWN_MAX).unwrap_or(value);
        let more = match value.len().saturating_sub(cut.len()) {
            0 => String::new(),
            more => format!(" … {more} bytes more"),
        };
        let other = |kind: &str| format!("{}{more} (no {kind})", escape(cut));
        match self {
            Self::Text => format!("{}{more}", escape(cut)),
            Self::Hex => format!("{}{more}", to_hex(cut)),
            Self::Int64 => match <[u8; 8]>::try_from(value) {
                Ok(bytes) => i64::from_be_bytes(bytes).to_string(),
                Err(_) => other("64-bit number"),
            },
            Self::Json => match serde_json::from_slice::<serde_json::Value>(cut) {
                Ok(json) if more.is_empty() => {
                    let indented = format!("{json:#}");
                    if indented.len() <= JSON_SHOWN_MAX { indented } else { escape(cut) }
                }
                _ => other("JSON"),
            },
        }
    }
}

/// What is asked for.
#[derive(Clone, Debug)]
struct Choice {
    prefix: Option<RowKey>,
    start: Option<RowKey>,
    end: Option<RowKey>,
    family: Option<String>,
    limit: u64,
    versions: u64,
    view: View,
}

impl Choice {
    fn of(request: &PageRequest) -> Result<Self, Error> {
        let view = request.get("view").unwrap_or(View::Text.name());
        let view = View::ALL.into_iter().find(|one| one.name() == view);
        let view = view.ok_or_else(|| Error::invalid("view is text, hex, int64 or json"))?;
        Ok(Self {
            prefix: request.key("prefix")?,
            start: request.key("start")?,
            end: request.key("end")?,
            family: request.get("family").map(str::to_owned),
            limit: request.number("limit", ROWS_MAX)?.filter(|limit| *limit > 0).unwrap_or(ROWS_DEFAULT),
            versions: request.number("versions", VERSIONS_MAX)?.filter(|versions| *versions > 0).unwrap_or(1),
            view,
        })
    }

    /// The rows: those with the prefix, inside of the range.
    fn rows(&self) -> Result<RowSet, Error> {
        let start = self.start.clone().unwrap_or(RowKey::EMPTY);
        let range = KeyRange::new(start, self.end.clone());
        let range = range.ok_or_else(|| Error::invalid("the range is empty: its end is not above its start"))?;
        let prefix = self.prefix.as_ref().map_or(KeyRange::all(), |prefix| KeyRange::prefix(prefix.as_bytes()));
        Ok(RowSet::from_ranges(prefix.intersect(&range)))
    }

    fn filter(&self) -> Filter {
        // Names of families have no other character with a meaning in a pattern.
        let family = self.family.iter().map(|family| Filter::FamilyNameRegex(family.replace('.', "\\.").into()));
        let versions = Filter::CellsPerColumnLimit(i32::try_from(self.versions).unwrap_or(1));
        // One more than fits says that there are others.
        let cells = Filter::CellsPerRowLimit(i32::try_from(CELLS_MAX.saturating_add(1)).unwrap_or(i32::MAX));
        Filter::Chain(family.chain([versions, cells]).collect())
    }

    /// The same choice as parameters of a page, from this key on.
    fn path(&self, name: &TableName, start: Option<&RowKey>) -> Path {
        let text = |key: &RowKey| escape(key.as_bytes());
        let optional = [
            ("prefix", self.prefix.as_ref().map(text)),
            ("start", start.or(self.start.as_ref()).map(text)),
            ("end", self.end.as_ref().map(text)),
            ("family", self.family.clone()),
        ];
        let numbers = [("limit", self.limit.to_string()), ("versions", self.versions.to_string())];
        let given = optional.into_iter().filter_map(|(name, value)| Some((name, value?))).chain(numbers);
        let path = Path::of(&["tables", short_name(name), "data"]).with("view", self.view.name());
        given.fold(path, |path, (name, value)| path.with(name, &value))
    }

    fn command(&self, name: &TableName) -> String {
        let mut command = format!("ebla row scan {}", shell_quote(short_name(name)));
        let mut option = |name: &str, key: Option<&RowKey>| {
            if let Some(key) = key {
                command.push_str(&format!(" {name} {}", shell_quote(&escape(key.as_bytes()))));
            }
        };
        option("--prefix", self.prefix.as_ref());
        option("--start", self.start.as_ref());
        option("--end", self.end.as_ref());
        format!("{command} --limit {}", self.limit)
    }
}

/// Rows that were read, and whether others follow.
#[derive(Clone, Debug, Default)]
struct Rows {
    rows: Vec<Row>,
    /// Whether cells of the last row are left out.
    is_cut: bool,
    /// Where the next page starts.
    next: Option<RowKey>,
}

/// What still fits on a page. Pure.
#[derive(Clone, Copy, Debug)]
struct Room {
    cells: usize,
    bytes: usize,
}

impl Room {
    const PAGE: Self = Self { cells: CELLS_MAX, bytes: PAGE_BYTES_MAX };

    const fn is_used_up(self) -> bool {
        self.cells == 0 || self.bytes == 0
    }

    /// Takes the room of the cells of a row that fit, and returns their number. The one that uses the bytes up fits.
    fn take(&mut self, cells: &[Cell]) -> usize {
        let fitting = cells.iter().take_while(|cell| {
            if self.is_used_up() {
                return false;
            }
            // The family and the time are shown too: a few dozen bytes.
            let shown = cell.qualifier.len().saturating_add(cell.value.len().min(VALUE_SHOWN_MAX)).saturating_add(64);
            *self = Self { cells: self.cells.saturating_sub(1), bytes: self.bytes.saturating_sub(shown) };
            true
        });
        fitting.count()
    }
}

/// The page.
///
/// # Errors
/// `NotFoundTable`, `PermissionDenied`, `InvalidArgument`; what the cluster answers.
pub async fn page(context: &Context, given: &str, request: &PageRequest) -> Result<Page, Error> {
    let (name, choice) = (table_name(given)?, Choice::of(request)?);
    let rows = read(context, &name, &choice).await?;
    let actions = context.config().actions;
    context.render(move || render(&name, &choice, &rows, actions)).await
}

async fn read(context: &Context, name: &TableName, choice: &Choice) -> Result<Rows, Error> {
    let options =
        ReadOptions { filter: Some(choice.filter()), limit: choice.limit.saturating_add(1), ..ReadOptions::default() };
    let mut stream = context.data().table(name).stream_rows(choice.rows()?, options);
    let (mut read, mut room) = (Rows::default(), Room::PAGE);
    while let Some(mut row) = stream.try_next().await? {
        if read.rows.len() as u64 >= choice.limit || room.is_used_up() {
            read.next = Some(row.key);
            break;
        }
        let fitting = room.take(&row.cells);
        read.is_cut = fitting < row.cells.len();
        row.cells.truncate(fitting);
        read.rows.push(row);
    }
    Ok(read)
}

fn field(name: &'static str, label: &str, value: &str) -> Element {
    let input = element("input").attr("name", name).attr("value", value);
    element("label").text(label).child(input.attr("id", name))
}

fn form(name: &TableName, choice: &Choice) -> Element {
    let key = |key: &Option<RowKey>| key.as_ref().map(|key| escape(key.as_bytes())).unwrap_or_default();
    let view = |view: View| {
        let option = element("option").attr("value", view.name()).text(view.name());
        if view == choice.view { option.flag("selected") } else { option }
    };
    let views = element("select").attr("name", "view").children(View::ALL.into_iter().map(view));
    query_form(&Path::of(&["tables", short_name(name), "data"]))
        .class("fields")
        .child(field("prefix", "Prefix", &key(&choice.prefix)))
        .child(field("start", "Start", &key(&choice.start)))
        .child(field("end", "End (exclusive)", &key(&choice.end)))
        .child(field("family", "Family", choice.family.as_deref().unwrap_or_default()))
        .child(field("limit", "Rows", &choice.limit.to_string()))
        .child(field("versions", "Versions", &choice.versions.to_string()))
        .child(element("label").text("Values as").child(views))
        .child(element("button").text("Read"))
}

fn render(name: &TableName, choice: &Choice, read: &Rows, actions: Actions) -> Page {
    let shown: Html = match read.rows.as_slice() {
        [] => note("no rows").into(),
        rows => {
            let lines = rows.iter().flat_map(|row| columns(row, choice.view));
            let all = table(&["Row", "Column", "Versions, the newest first"], lines);
            element("div").class("scroll").child(all).into()
        }
    };
    let cut = match read.rows.last().filter(|_| read.is_cut) {
        Some(last) => {
            let command =
                format!("ebla row get {} {}", shell_quote(short_name(name)), shell_quote(&escape(last.key.as_bytes())));
            let why =
                format!("cells of the last row are left out: choose a family or fewer versions, or use `{command}`");
            note(&why).test_id("cut").into()
        }
        None => Html::empty(),
    };
    let next = match &read.next {
        Some(next) => element("p").child(link(&choice.path(name, Some(next)), "Next page").test_id("next")).into(),
        None => Html::empty(),
    };
    let page = Page::new(format!("Rows of {}", name.table()), choice.command(name))
        .fixed(element("p").children(tables::links(name)))
        .fixed(form(name, choice))
        .fixed(Html::join([shown, cut, next]));
    match actions {
        Actions::ReadOnly => page,
        Actions::Permitted => page.fixed(section("Write a cell", [cell_form(name)])),
    }
}

/// A line for each column of a row; the key is in the first one.
fn columns(of: &Row, view: View) -> Vec<Html> {
    let mut lines: Vec<(String, Vec<Html>)> = Vec::new();
    let mut last: Option<&Cell> = None;
    for cell in &of.cells {
        let version = version(cell, view);
        match lines.last_mut().filter(|_| last.is_some_and(|last| last.is_same_column(cell))) {
            Some((_column, versions)) => versions.push(version),
            None => lines.push((escape_column(cell.family.as_str(), &cell.qualifier), vec![version])),
        }
        last = Some(cell);
    }
    let key = escape(of.key.as_bytes());
    let line = |(at, (column, versions)): (usize, (String, Vec<Html>))| {
        let shown = match at {
            0 => element("span").class("key").test_id("row-key").text(&key),
            _ => element("span").flag(SAME),
        };
        let column = element("span").class("key").text(column);
        let versions = element("ul").class("versions").children(versions);
        row([shown, column, versions]).into()
    };
    lines.into_iter().enumerate().map(line).collect()
}

fn version(cell: &Cell, view: View) -> Html {
    let at = time(cell.timestamp);
    element("li")
        .child(element("time").class("time").attr("datetime", &at).text(&at))
        .text(" ")
        .child(element("code").test_id("value").text(view.shown(&cell.value)))
        .into()
}

fn cell_form(name: &TableName) -> Element {
    let kind = |kind: &str| element("option").attr("value", kind).text(kind);
    let kinds = element("select").attr("name", "type").children(["text", "hex", "int64"].map(kind));
    let field = |name: &'static str, label: &str| {
        element("label").text(label).child(element("input").attr("name", name).test_id(format!("cell-{name}")))
    };
    action_form(&Path::of(&["tables", short_name(name), "data"]))
        .class("fields")
        .child(field("key", "Row"))
        .child(field("column", "FAMILY:QUALIFIER"))
        .child(field("value", "Value"))
        .child(element("label").text("Value is").child(kinds))
        .child(element("button").test_id("write-cell").text("Write"))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use ebla_model::Micros;
    use ebla_model::cell::FamilyName;

    use super::*;
    use crate::pages::golden::check;

    fn choice(query: &str) -> Choice {
        Choice::of(&PageRequest::parse(&format!("/?{query}"), "").unwrap()).unwrap()
    }

    fn cell(family: &str, qualifier: &'static [u8], time: i64, value: &'static [u8]) -> Cell {
        let (qualifier, value) = (Bytes::from_static(qualifier), Bytes::from_static(value));
        Cell::new(FamilyName::new(family).unwrap(), qualifier, Micros::new(time), value)
    }

    #[test]
    fn rows_are_shown_as_before() {
        let name = table_name("web").unwrap();
        let cells = vec![
            cell("anchor", b"<q>", 2_000_000, b"<script>alert(1)</script>"),
            cell("anchor", b"<q>", 1_000_000, b"old"),
            cell("contents", b"", 1_000_000, b"\x00\xff"),
        ];
        let row = Row { key: RowKey::new("<k>&"), cells };
        let read = Rows { rows: vec![row], is_cut: false, next: Some(RowKey::new("m\u{0}")) };
        check("data", &render(&name, &choice("prefix=%3C&versions=3&limit=1"), &read, Actions::ReadOnly));
        check("data-none", &render(&name, &choice("view=hex"), &Rows::default(), Actions::Permitted));
    }

    #[test]
    fn values_have_four_views() {
        let number = 258_i64.to_be_bytes();
        assert_eq!(View::Int64.shown(&number), "258");
        assert_eq!(View::Hex.shown(&number), "0000000000000102");
        assert_eq!(View::Text.shown(b"a\x00"), "a\\x00");
        assert_eq!(View::Int64.shown(b"a"), "a (no 64-bit number)");
        assert_eq!(View::Json.shown(b"{\"a\":[1]}"), "{\n  \"a\": [\n    1\n  ]\n}");
        assert_eq!(View::Json.shown(b"{"), "{ (no JSON)");
        let nested = [b"[".repeat(100), b"0,".repeat(800), b"0".to_vec(), b"]".repeat(100)].concat();
        assert_eq!(View::Json.shown(&nested).as_bytes(), nested, "indented it would be 80 times as long");
        let long = vec![b'x'; VALUE_SHOWN_MAX + 3];
        assert!(View::Text.shown(&long).ends_with("x … 3 bytes more"));
    }

    #[test]
    fn the_cells_of_a_page_are_bounded() {
        let small = vec![cell("f", b"q", 0, b"v"); CELLS_MAX + 1];
        let mut room = Room::PAGE;
        assert_eq!(room.take(&small[..10]), 10);
        assert!(!room.is_used_up());
        assert_eq!((room.take(&small), room.is_used_up(), room.take(&small)), (CELLS_MAX - 10, true, 0));
        static LARGE: [u8; 1 << 20] = [0; 1 << 20];
        let large = vec![cell("f", b"q", 0, &LARGE); CELLS_MAX];
        let mut room = Room::PAGE;
        let fitting = room.take(&large);
        assert!(fitting.abs_diff(PAGE_BYTES_MAX / VALUE_SHOWN_MAX) < 100 && room.is_used_up(), "{fitting}");
        let Filter::Chain(filters) = choice("family=a.b").filter() else { panic!("no chain") };
        assert_eq!(filters.len(), 3);
        assert!(matches!(filters.last(), Some(Filter::CellsPerRowLimit(limit)) if *limit == 10_001));
        let cut = Rows {
            rows: vec![Row { key: RowKey::new("k"), cells: large[..fitting].to_vec() }],
            is_cut: true,
            next: None,
        };
        let page = render(&table_name("web").unwrap(), &choice(""), &cut, Actions::ReadOnly);
        assert!(page.parts.iter().any(|part| part.html.as_str().contains("ebla row get web k")), "the note");
    }

    #[test]
    fn a_choice_is_checked_and_survives_the_next_page() {
        for wrong in ["view=x", "limit=501", "versions=x", "prefix=%5Cq"] {
            assert!(Choice::of(&PageRequest::parse(&format!("/?{wrong}"), "").unwrap()).is_err(), "{wrong}");
        }
        assert!(choice("start=b&end=a").rows().is_err());
        assert!(choice("prefix=x&start=y").rows().unwrap().is_empty());
        let chosen = choice("prefix=p&end=px&family=f&limit=3&versions=2&view=hex");
        let again = chosen.path(&table_name("web").unwrap(), Some(&RowKey::new("p1"))).to_string();
        let again = Choice::of(&PageRequest::parse(&again, "").unwrap()).unwrap();
        assert_eq!(again.start, Some(RowKey::new("p1")));
        assert_eq!((again.limit, again.versions, again.view), (3, 2, View::Hex));
        assert_eq!((again.prefix, again.end, again.family), (chosen.prefix, chosen.end, chosen.family));
    }
}
