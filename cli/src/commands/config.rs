//! `ebla config`: what a process would run with, and where each value comes from.

use std::ffi::OsString;

use serde_json::{Value, json};

use super::program;
use crate::config::{self, COMMANDS, ConfigFile, Described, Origin, Refused};
use crate::output::{self, Failure, Format, Table};

/// Show, check and write configuration files
///
/// Examples:
///   ebla config show tablet-server --config /etc/ebla/tablet-server.toml
///   ebla config template tablet-server > tablet-server.toml
#[derive(Debug, clap::Subcommand)]
#[command(verbatim_doc_comment)]
#[expect(missing_docs, reason = "documentation of a variant would replace the help of its command")]
pub enum Config {
    Show(Show),
    Template(Template),
}

/// Show every option of a process with its value, and with --origin where it comes from: flag, variable, file or default
///
/// What follows the command is its command line, as if it were started. Nothing is started. A file or a flag that the command would
/// refuse is refused with the same message and exit code 2, so this checks a file before a restart.
///
/// Examples:
///   ebla config show --origin tablet-server --config /etc/ebla/tablet-server.toml
///   ebla config show -o json up --servers 5
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Show {
    /// Show where each value comes from
    #[arg(long)]
    pub origin: bool,
    /// Output format
    #[arg(short = 'o', long = "output", env = "EBLA_OUTPUT", value_parser = output::layouts(), default_value = "table")]
    pub output: Format,
    /// Command of the process
    #[arg(value_name = "COMMAND", value_parser = COMMANDS)]
    pub command: String,
    /// Its options
    #[arg(value_name = "OPTIONS", trailing_var_arg = true, allow_hyphen_values = true)]
    pub options: Vec<OsString>,
}

/// Write a configuration file with every option of a command as a comment
///
/// Example:
///   ebla config template master > master.toml
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Template {
    /// Command of the process
    #[arg(value_name = "COMMAND", value_parser = COMMANDS)]
    pub command: String,
}

/// Runs the command.
///
/// # Errors
/// Usage: what is wrong with the options or the file.
pub fn run(command: &Config) -> Result<(), Failure> {
    match command {
        Config::Show(show) => self::show(show),
        Config::Template(template) => {
            let mut program = program();
            program.build();
            let command = program.find_subcommand(&template.command);
            output::print(&command.map(config::template).unwrap_or_default());
            Ok(())
        }
    }
}

fn show(show: &Show) -> Result<(), Failure> {
    let line: Vec<OsString> =
        ["ebla".into(), OsString::from(&show.command)].into_iter().chain(show.options.iter().cloned()).collect();
    let (described, file) = config::describe(&line).map_err(|refused| match refused {
        Refused::File(failure) => failure,
        Refused::CommandLine(error) => {
            Failure::usage(error.to_string().trim_start_matches("error: ").trim().to_owned())
        }
    })?;
    match show.output {
        Format::Json => output::print_json(&document(&described, file.as_ref())),
        Format::Table => output::print(&table(&described, file.as_ref(), show.origin).render()),
    }
    Ok(())
}

pub(super) fn document(described: &[Described], file: Option<&ConfigFile>) -> Value {
    let options: Vec<_> = described
        .iter()
        .map(|one| {
            json!({
                "option": one.key,
                "values": one.values,
                "origin": one.origin.name(),
                "variable": one.variable,
                "reloadable": one.is_reloadable,
            })
        })
        .collect();
    json!({ "file": file.map(|file| file.path.display().to_string()), "options": options })
}

fn table(described: &[Described], file: Option<&ConfigFile>, with_origin: bool) -> Table {
    let mut table = Table::new(if with_origin { &["OPTION", "VALUE", "ORIGIN"] } else { &["OPTION", "VALUE"] });
    for one in described {
        let value = if one.values.is_empty() { "-".to_owned() } else { one.values.join(",") };
        let mut row = vec![one.key.clone(), value];
        if with_origin {
            row.push(origin(one, file));
        }
        table.row(row);
    }
    table
}

/// Where a value comes from, for people.
fn origin(one: &Described, file: Option<&ConfigFile>) -> String {
    match (one.origin, file, &one.variable) {
        (Origin::File, Some(file), _) => {
            let line = file.get(&one.key).map_or(0, |setting| setting.line);
            format!("{}:{line}", file.path.display())
        }
        (Origin::Variable, _, Some(name)) => name.clone(),
        (Origin::Unset, ..) => "-".to_owned(),
        (other, ..) => other.name().to_owned(),
    }
}
