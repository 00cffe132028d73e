//! The tables of a page as CSV or JSON: `?format=csv|json`, and `export=N` for the Nth table. Pure.
//!
//! A file has the rows that the page shows to the same viewer, because it is made of that page. Tables with the same columns are one file, in
//! which the first column says of which section a row is. Columns without a name, such as links, are left out.

use ebla_model::error::{Error, Reason};
use serde_json::{Map, Value, json};

use crate::html::tables::TextTable;
use crate::html::{Html, element, link};
use crate::pages::{Page, Part};
use crate::request::PageRequest;

/// The parameter that asks for a file.
pub(crate) const FORMAT: &str = "format";
/// The parameter that chooses one of several tables.
const NUMBER: &str = "export";
/// The column of the section.
const SECTION: &str = "Section";
/// The largest file. Keys of rows are repeated for each of their columns, so a file can be larger than its page.
const BYTES_MAX: usize = 16 << 20;
/// What makes a spreadsheet compute a cell.
const FORMULA: [char; 6] = ['=', '+', '-', '@', '\t', '\r'];

/// The format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// Comma-separated values (RFC 4180) with a line of names.
    Csv,
    /// An array of objects, whose values are texts.
    Json,
}

impl Format {
    const ALL: [Self; 2] = [Self::Csv, Self::Json];

    const fn name(self) -> &'static str {
        match self {
            Self::Csv => "csv",
            Self::Json => "json",
        }
    }

    /// The type of the file.
    pub(crate) const fn media_type(self) -> &'static str {
        match self {
            Self::Csv => "text/csv; charset=utf-8",
            Self::Json => "application/json",
        }
    }

    /// What a request asks for; `None`: a page.
    ///
    /// # Errors
    /// `InvalidArgument` for another format.
    pub(crate) fn of(request: &PageRequest) -> Result<Option<Self>, Error> {
        let Some(wanted) = request.get(FORMAT) else { return Ok(None) };
        let found = Self::ALL.into_iter().find(|format| format.name() == wanted);
        found.map(Some).ok_or_else(|| Error::invalid("format is csv or json"))
    }
}

/// A file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct File {
    /// Its name, without characters that have a meaning in a header or a path.
    pub(crate) name: String,
    /// Its content.
    pub(crate) content: String,
}

/// The file of a page that a request asks for.
///
/// # Errors
/// `NotFound` when the page has no such table; `InvalidArgument` when the file would be larger than 16 MiB.
pub(crate) fn file(page: &Page, request: &PageRequest, format: Format) -> Result<File, Error> {
    let number = request.number(NUMBER, u64::MAX)?.unwrap_or(1);
    let at = usize::try_from(number).ok().and_then(|number| number.checked_sub(1));
    let tables = at.and_then(|at| tables_of_file(page, at));
    let missing = || Error::new(Reason::NotFound, format!("this page has no table {number}, or it is empty now"));
    let (heading, rows) = columns(&tables.ok_or_else(missing)?);
    let names = request.path().join("-");
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' };
    let place: String = names.chars().map(plain).take(100).collect();
    let place = if place.is_empty() { "overview" } else { place.as_str() };
    let name = format!("ebla-{place}-{number}.{}", format.name());
    let content = match format {
        Format::Csv => csv(&heading, &rows),
        Format::Json => json(&heading, &rows),
    };
    if content.len() > BYTES_MAX {
        let message = format!("the file would be larger than {} MiB: choose fewer rows", BYTES_MAX >> 20);
        return Err(Error::invalid(message));
    }
    Ok(File { name, content })
}

/// The same page with a link to each file after its table; after the last one of those that are one file.
pub(crate) fn with_links(mut page: Page, request: &PageRequest) -> Page {
    let tables: Vec<TextTable> = page.parts.iter().flat_map(|part| part.html.tables()).collect();
    let headings = distinct(&tables);
    let number_after = |at: usize| {
        let heading = &tables.get(at)?.heading;
        let is_last = !tables.iter().skip(at.saturating_add(1)).any(|later| later.heading == *heading);
        headings.iter().position(|known| *known == heading).filter(|_number| is_last)
    };
    let mut seen = 0_usize;
    for Part { html, .. } in &mut page.parts {
        let changed = html.with_after_tables(|_number| {
            let after = number_after(seen);
            seen = seen.saturating_add(1);
            after.map_or(Html::empty(), |at| links(request, at.saturating_add(1)))
        });
        *html = changed;
    }
    page
}

fn links(request: &PageRequest, number: usize) -> Html {
    let page = request.to_path(&[FORMAT, NUMBER]);
    let of_format = |format: Format| {
        let to = page.clone().with(FORMAT, format.name()).with(NUMBER, &number.to_string());
        link(&to, format.name().to_uppercase()).test_id(format!("export-{}-{number}", format.name()))
    };
    let [csv, json] = Format::ALL.map(of_format);
    element("p").class("export").text("This table as ").child(csv).text(" or ").child(json).into()
}

/// The headings of tables, each once, in order.
fn distinct(tables: &[TextTable]) -> Vec<&Vec<String>> {
    let mut known: Vec<&Vec<String>> = Vec::new();
    for table in tables {
        if !known.contains(&&table.heading) {
            known.push(&table.heading);
        }
    }
    known
}

/// The tables of a page that are its file number `at`, from 0: those with the same heading. The tables of other files are only read.
fn tables_of_file(page: &Page, at: usize) -> Option<Vec<TextTable>> {
    let mut tables: Vec<TextTable> = page.parts.iter().flat_map(|part| part.html.tables()).collect();
    let heading = distinct(&tables).into_iter().nth(at)?.clone();
    tables.retain(|table| table.heading == heading);
    Some(tables)
}

/// The named columns of these tables with their rows, after the section if there is one.
fn columns(tables: &[TextTable]) -> (Vec<String>, Vec<Vec<String>>) {
    let has_sections = tables.iter().any(|table| !table.section.is_empty());
    let heading = tables.first().map(|table| table.heading.clone()).unwrap_or_default();
    let named = |row: &[String]| {
        let cells = heading.iter().zip(row).filter(|(name, _cell)| !name.is_empty());
        cells.map(|(_name, cell)| cell.clone()).collect::<Vec<String>>()
    };
    let with_section = |section: &str, cells: Vec<String>| {
        has_sections.then(|| section.to_owned()).into_iter().chain(cells).collect::<Vec<String>>()
    };
    let rows = tables.iter().flat_map(|table| table.rows.iter().map(move |row| (table, row)));
    let rows = rows.map(|(table, row)| with_section(&table.section, named(row))).collect();
    (with_section(SECTION, named(&heading)), rows)
}

fn csv(heading: &[String], rows: &[Vec<String>]) -> String {
    let mut file = String::new();
    for row in std::iter::once(heading).chain(rows.iter().map(Vec::as_slice)) {
        let cells: Vec<String> = row.iter().map(|cell| csv_cell(cell)).collect();
        file.push_str(&cells.join(","));
        file.push_str("\r\n");
    }
    file
}

/// A cell in quotes. A text that a spreadsheet would compute begins with an apostrophe: keys and values come from anywhere.
fn csv_cell(cell: &str) -> String {
    let is_number = cell.parse::<f64>().is_ok();
    let is_formula = cell.starts_with(FORMULA) && !is_number && cell != "-";
    let mark = if is_formula { "'" } else { "" };
    format!("\"{mark}{}\"", cell.replace('"', "\"\""))
}

fn json(heading: &[String], rows: &[Vec<String>]) -> String {
    let object = |row: &Vec<String>| -> Value {
        let pairs = heading.iter().cloned().zip(row.iter().map(|cell| json!(cell)));
        Value::Object(pairs.collect::<Map<String, Value>>())
    };
    let mut file = Value::Array(rows.iter().map(object).collect()).to_string();
    file.push('\n');
    file
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::html::{row, table, text};

    fn request(target: &str) -> PageRequest {
        PageRequest::parse(target, "").unwrap()
    }

    fn list(heading: &[&str], rows: &[&[&str]]) -> Html {
        table(heading, rows.iter().map(|cells| row(cells.iter().map(text)))).into()
    }

    fn page() -> Page {
        let first = Html::join([
            element("h2").text("One").into(),
            list(&["Key", "", "Value"], &[&["=1+2", "link", "\"a\"\n,"]]),
        ]);
        let second = Html::join([element("h2").text("Two").into(), list(&["Key", "", "Value"], &[&["-3", "x", "-"]])]);
        Page::new("t", "").live("first", first).fixed(list(&["Other"], &[&["<o>"]])).live("second", second)
    }

    fn content(target: &str) -> Result<String, Reason> {
        let request = request(target);
        let format = Format::of(&request).unwrap().unwrap();
        file(&page(), &request, format).map(|file| file.content).map_err(|error| error.reason)
    }

    #[test]
    fn tables_with_the_same_columns_are_one_file() {
        let csv = "\"Section\",\"Key\",\"Value\"\r\n\"One\",\"'=1+2\",\"\"\"a\"\"\n,\"\r\n\"Two\",\"-3\",\"-\"\r\n";
        assert_eq!(content("/x?format=csv"), Ok(csv.to_owned()));
        let json: Value = serde_json::from_str(&content("/x?format=json&export=1").unwrap()).unwrap();
        assert_eq!(json[0], json!({"Section": "One", "Key": "=1+2", "Value": "\"a\"\n,"}));
        assert_eq!(json[1]["Key"], "-3");
        assert_eq!(content("/x?format=json&export=2"), Ok("[{\"Other\":\"<o>\"}]\n".to_owned()));
        for absent in ["0", "3", "18446744073709551615"] {
            assert_eq!(content(&format!("/x?format=csv&export={absent}")), Err(Reason::NotFound), "{absent}");
        }
        assert!(Format::of(&request("/x?format=xml")).is_err());
        assert_eq!(Format::of(&request("/x?format=")), Ok(None));
    }

    #[test]
    fn a_file_is_bounded_and_its_name_is_plain() {
        let large = "k".repeat(BYTES_MAX);
        let one = Page::new("t", "").fixed(list(&["Key"], &[&[large.as_str()]]));
        let asked = request("/x?format=csv");
        assert_eq!(file(&one, &asked, Format::Csv).unwrap_err().reason, Reason::InvalidArgument);
        let name = |target: &str| file(&page(), &request(target), Format::Csv).unwrap().name;
        assert_eq!(name("/"), "ebla-overview-1.csv");
        assert_eq!(name("/tables/a%22%0D%2Fb/tablets?export=2"), "ebla-tables-a---b-tablets-2.csv");
    }

    #[test]
    fn each_file_has_one_link_for_each_format() {
        let shown = with_links(page(), &request("/x?a=b%26&export=7&format=csv"));
        let html: Vec<&str> = shown.parts.iter().map(|part| part.html.as_str()).collect();
        assert!(!html[0].contains("export"), "the first file ends with the last part: {html:?}");
        assert!(
            html[1].contains("href=\"/x?a=b%26&amp;format=json&amp;export=2\" data-testid=\"export-json-2\""),
            "{html:?}"
        );
        assert!(html[2].contains("href=\"/x?a=b%26&amp;format=csv&amp;export=1\""), "{html:?}");
        assert_eq!(html.concat().matches("<a ").count(), 4);
        let none = Page::new("t", "").fixed(text("no table"));
        assert_eq!(with_links(none.clone(), &request("/")), none);
    }
}
