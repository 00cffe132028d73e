//! The command-line reference, `docs/reference/commands.md`, as a function of clap's description of the program.
//!
//! ```text
//!   page        every command in order: usage, description, a table of arguments and options
//!   shared      options that are the same in many commands are described once, at the top
//!   variables   the environment variables that options are read from
//! ```
//!
//! The test below compares the page with the generated one; with `UPDATE=1` it writes the page instead. The page contains
//! what `--help` shows: to change it, change the help.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use clap::{Arg, Command};

/// An option that is the same in this number of commands is described once.
const SHARED_BY: usize = 6;

/// The page.
fn page(mut program: Command) -> String {
    program.build();
    let shared = shared(&program);
    let mut text = String::from(HEAD);
    text.push_str("\n## Options of every command\n\n");
    let global: Vec<_> = shown(&program).filter(|arg| arg.is_global_set()).collect();
    table(&mut text, &global);
    text.push_str("\n## Options of many commands\n\nThe section of a command lists those that it has.\n\n");
    table(&mut text, &shared.iter().collect::<Vec<_>>());
    let global_rows: Vec<_> = global.iter().map(|arg| row(arg)).collect();
    let shared = shared.iter().map(|arg| (row(arg), name(arg))).collect();
    for command in commands(&program) {
        section(&mut text, command, &global_rows, &shared);
    }
    text
}

const HEAD: &str = "\
# Command line

The output of `ebla help` and `ebla help COMMAND` in one page. It is generated from the program:
`UPDATE=1 cargo test --release -p ebla-cli --lib reference` regenerates it.

Data goes to stdout, messages go to stderr. Exit codes: [Error reasons and exit codes](errors.md). Variables:
[Environment variables](environment.md).
";

/// Subcommands of a command, and of these, in order.
fn commands(command: &Command) -> Vec<&Command> {
    let mut found = Vec::new();
    for one in command.get_subcommands().filter(|one| one.get_name() != "help" && !one.is_hide_set()) {
        found.push(one);
        found.extend(commands(one));
    }
    found
}

/// The visible arguments of a command, without clap's own.
fn shown(command: &Command) -> impl Iterator<Item = &Arg> {
    let own = |arg: &&Arg| !arg.is_hide_set() && !["help", "version"].contains(&arg.get_id().as_str());
    command.get_arguments().filter(own)
}

/// Options that are the same in many commands, in the order of their first command.
fn shared(program: &Command) -> Vec<Arg> {
    let mut times: BTreeMap<String, usize> = BTreeMap::new();
    let mut first: Vec<&Arg> = Vec::new();
    for arg in commands(program).into_iter().flat_map(shown).filter(|arg| !arg.is_positional() && !arg.is_global_set())
    {
        let times = times.entry(row(arg)).or_default();
        *times += 1;
        if *times == SHARED_BY {
            first.push(arg);
        }
    }
    first.into_iter().cloned().collect()
}

fn section(text: &mut String, command: &Command, global: &[String], shared: &BTreeMap<String, String>) {
    let names = command.get_bin_name().unwrap_or_else(|| command.get_name());
    let level = "#".repeat(names.split(' ').count().min(3));
    let _infallible = write!(text, "\n{level} {names}\n\n");
    let about = command.get_long_about().or_else(|| command.get_about()).map(ToString::to_string).unwrap_or_default();
    description(text, &about);
    if command.has_subcommands() && command.is_subcommand_required_set() {
        let names: Vec<_> = command.get_subcommands().map(Command::get_name).filter(|name| *name != "help").collect();
        let _infallible = writeln!(text, "\nCommands: {}.", names.join(", "));
    } else {
        let usage = command.clone().render_usage().to_string();
        let _infallible = writeln!(text, "\n```text\n{}\n```", usage.trim_start_matches("Usage: ").trim_end());
    }
    let rest: Vec<_> = shown(command).filter(|arg| !global.contains(&row(arg))).collect();
    let (often, own): (Vec<_>, Vec<_>) = rest.into_iter().partition(|arg| shared.contains_key(&row(arg)));
    if !own.is_empty() {
        text.push('\n');
        table(text, &own);
    }
    if !often.is_empty() {
        let names: Vec<_> = often.iter().filter_map(|arg| shared.get(&row(arg))).cloned().collect();
        let _infallible = writeln!(text, "\nAlso: {}.", names.join(", "));
    }
}

/// Paragraphs unchanged, with a full stop after a single line without one, and examples as code.
fn description(text: &mut String, about: &str) {
    let mut is_code = false;
    for line in about.lines() {
        let is_example = line.starts_with("  ");
        if is_example != is_code {
            text.push_str(if is_example { "\n```sh\n" } else { "```\n" });
            is_code = is_example;
        }
        let line = if is_example { line.trim_start().to_owned() } else { plain(line) };
        let needs_stop =
            !is_example && line.ends_with(|last: char| last.is_alphanumeric() || last == ')' || last == '`');
        let stop = if needs_stop && about.lines().count() == 1 { "." } else { "" };
        let _infallible = writeln!(text, "{line}{stop}");
    }
    if is_code {
        text.push_str("```\n");
    }
}

fn table(text: &mut String, arguments: &[&Arg]) {
    text.push_str("| argument | what | default | variable |\n|---|---|---|---|\n");
    for arg in arguments {
        text.push_str(&row(arg));
        text.push('\n');
    }
}

fn row(arg: &Arg) -> String {
    let help = arg.get_long_help().or_else(|| arg.get_help()).map(ToString::to_string).unwrap_or_default();
    let mut what = plain(&help.split_whitespace().collect::<Vec<_>>().join(" "));
    let choices: Vec<_> = arg.get_possible_values().iter().filter(|one| !one.is_hide_set()).cloned().collect();
    if arg.get_action().takes_values() && !choices.is_empty() {
        let names: Vec<_> = choices.iter().map(|one| format!("`{}`", one.get_name())).collect();
        what = format!("{what} ({})", names.join(", "));
    }
    let is_flag = !arg.get_action().takes_values();
    let defaults: Vec<_> = arg.get_default_values().iter().map(|value| value.to_string_lossy().into_owned()).collect();
    let default = if is_flag || defaults.is_empty() { String::new() } else { format!("`{}`", defaults.join(" ")) };
    let variable = arg.get_env().map(|name| format!("`{}`", name.to_string_lossy())).unwrap_or_default();
    format!("| {} | {what} | {default} | {variable} |", name(arg))
}

/// The syntax of an argument on the command line.
fn name(arg: &Arg) -> String {
    let values: Vec<_> = arg.get_value_names().unwrap_or_default().iter().map(ToString::to_string).collect();
    let values = if arg.get_action().takes_values() { values.join(" ") } else { String::new() };
    if arg.is_positional() {
        return format!("`{}`", if arg.is_required_set() { format!("<{values}>") } else { format!("[{values}]") });
    }
    let short = arg.get_short().map(|short| format!("-{short}"));
    let long = arg.get_long().map(|long| format!("--{long}"));
    let names: Vec<_> = short.into_iter().chain(long).collect();
    let optional = arg.get_num_args().is_some_and(|count| count.min_values() == 0) && !values.is_empty();
    let values = match (values.is_empty(), optional) {
        (true, _) => String::new(),
        (false, true) if arg.is_require_equals_set() => format!("[={values}]"),
        (false, true) => format!(" [{values}]"),
        (false, false) => format!(" {values}"),
    };
    format!("`{}{values}`", names.join(", ")).replace('|', "\\|")
}

/// Text with Markdown's special characters escaped.
fn plain(text: &str) -> String {
    text.replace('\\', "\\\\").replace('|', "\\|").replace('<', "&lt;").replace('*', "\\*").replace('[', "\\[")
}

/// The environment variables that options are read from.
fn variables(program: &Command) -> BTreeSet<String> {
    let all = commands(program).into_iter().chain([program]);
    all.flat_map(Command::get_arguments).filter_map(|arg| Some(arg.get_env()?.to_string_lossy().into_owned())).collect()
}

mod tests {
    use std::path::{Path, PathBuf};

    use clap::CommandFactory as _;
    use ebla_model::error::{Error, Reason};

    use super::*;
    use crate::commands::Arguments;
    use crate::output::Failure;

    fn document(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference").join(name)
    }

    #[test]
    fn the_page_matches_the_program() {
        let path = document("commands.md");
        let expected = page(Arguments::command());
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&path, &expected).unwrap();
        }
        let actual = std::fs::read_to_string(&path).unwrap_or_default();
        let differs = || expected.lines().zip(actual.lines()).find(|(wanted, is)| wanted != is);
        assert!(
            actual == expected,
            "docs/reference/commands.md does not match the program; first difference: {:?}\n\
             UPDATE=1 cargo test --release -p ebla-cli --lib reference    regenerates it",
            differs()
        );
    }

    #[test]
    fn every_variable_of_an_option_is_described() {
        let table = std::fs::read_to_string(document("environment.md")).unwrap();
        let missing: Vec<_> = variables(&Arguments::command())
            .into_iter()
            .filter(|name| !table.lines().any(|line| line.starts_with(&format!("| `{name}` |"))))
            .collect();
        assert!(missing.is_empty(), "add rows for these variables to docs/reference/environment.md: {missing:?}");
    }

    #[test]
    fn every_reason_of_an_error_is_described_with_its_codes() {
        let table = std::fs::read_to_string(document("errors.md")).unwrap();
        let screaming = |name: String| {
            let words = name.chars().enumerate().map(|(place, c)| match place > 0 && c.is_uppercase() {
                true => format!("_{c}"),
                false => c.to_uppercase().to_string(),
            });
            words.collect::<String>()
        };
        let rows = Reason::ALL.iter().map(|reason| {
            let grpc = screaming(format!("{:?}", ebla_proto::status::code(*reason)));
            let exit = Failure::from(Error::new(*reason, "")).code;
            format!("| `{}` | {grpc} | {exit} |", reason.name())
        });
        let missing: Vec<_> = rows.filter(|row| !table.lines().any(|line| line.starts_with(row.as_str()))).collect();
        assert!(missing.is_empty(), "add these rows to docs/reference/errors.md: {missing:#?}");
    }

    #[test]
    fn the_page_has_commands_options_and_examples() {
        let of_many = |name: &'static str| {
            let addr = Arg::new("addr").long("addr").value_name("HOST:PORT").env("EBLA_ADDR").help("Which <server>");
            Command::new(name).about("Does it").arg(addr)
        };
        let one = of_many("one")
            .long_about("Does it well.\n\nExample:\n  p one --count 3 x")
            .arg(Arg::new("count").long("count").value_name("N").default_value("7").help("How many"))
            .arg(Arg::new("watch").long("watch").num_args(0..=1).require_equals(true).value_name("S").help("Again"))
            .arg(Arg::new("name").required(true).value_name("NAME").help("The name"));
        let others = ["two", "three", "four", "five", "six"].map(of_many);
        let shown = page(Command::new("p").subcommand(one).subcommands(others));
        for part in [
            "\n## p one\n\nDoes it well.\n\nExample:\n\n```sh\np one --count 3 x\n```\n",
            "\n```text\np one [OPTIONS] <NAME>\n```\n",
            "| `--count N` | How many | `7` |  |\n",
            "| `--watch[=S]` | Again |  |  |\n",
            "| `<NAME>` | The name |  |  |\n",
            "\nAlso: `--addr HOST:PORT`.\n",
            "\n## p two\n\nDoes it.\n",
        ] {
            assert!(shown.contains(part), "{part:?} is not in\n{shown}");
        }
        assert_eq!(shown.matches("Which &lt;server>").count(), 1, "{shown}");
    }
}
