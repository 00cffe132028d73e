//! `ebla version`: which program this is.

use serde_json::{Value, json};

use crate::output::{self, Format, Table};

/// Show version, commit, date and target of this program
///
/// Examples:
///   ebla version
///   ebla version -o json
///
/// The date is that of the commit. Values that the build could not determine, for example without git, are `unknown`.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Version {
    /// Output format
    #[arg(short = 'o', long = "output", env = "EBLA_OUTPUT", value_parser = output::layouts(), default_value = "table")]
    pub output: Format,
}

/// Facts known at build time, in output order. The build script sets them.
const FACTS: [(&str, Option<&str>); 4] = [
    ("version", Some(env!("CARGO_PKG_VERSION"))),
    ("commit", option_env!("EBLA_COMMIT")),
    ("date", option_env!("EBLA_COMMIT_DATE")),
    ("target", option_env!("EBLA_TARGET")),
];

/// The facts with their names; unknown ones are `unknown`.
fn known() -> [(&'static str, &'static str); 4] {
    FACTS.map(|(name, value)| (name, value.filter(|value| !value.is_empty()).unwrap_or("unknown")))
}

/// The facts as JSON.
pub(super) fn document() -> Value {
    Value::Object(known().map(|(name, value)| (name.to_owned(), json!(value))).into_iter().collect())
}

/// Shows it.
pub fn run(version: &Version) {
    match version.output {
        Format::Json => output::print_json(&document()),
        Format::Table => {
            let mut table = Table::default();
            known().into_iter().for_each(|(name, value)| table.row(vec![name.to_owned(), value.to_owned()]));
            output::print(&table.render());
        }
    }
}
