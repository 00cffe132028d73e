//! `ebla version`: which program this is.

use serde_json::json;

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

/// Shows it.
pub fn run(version: &Version) {
    let known = FACTS.map(|(name, value)| (name, value.filter(|value| !value.is_empty()).unwrap_or("unknown")));
    match version.output {
        Format::Json => {
            let known = known.map(|(name, value)| (name.to_owned(), json!(value)));
            output::print_json(&serde_json::Value::Object(known.into_iter().collect()));
        }
        Format::Table => {
            let mut table = Table::default();
            known.into_iter().for_each(|(name, value)| table.row(vec![name.to_owned(), value.to_owned()]));
            output::print(&table.render());
        }
    }
}
