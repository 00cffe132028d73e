//! Which settings of a file count, as arguments: those that neither a flag nor an environment variable gives.

use std::ffi::OsString;

use clap::builder::PossibleValue;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};

use super::file::{Given, Setting};
use super::{ConfigFile, InvalidFile, OPTION, key, options};

/// How similar a name must be to be suggested (Jaro-Winkler, 0 to 1).
const SIMILARITY_MIN: f64 = 0.75;

/// The arguments that a file adds to a command line, and the keys of the settings that they come from.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Added {
    /// In the syntax of the command line: `--key=value`.
    pub(super) arguments: Vec<OsString>,
    /// Their keys.
    pub(super) keys: Vec<String>,
}

/// The settings of `file` for `command` that count beside what `given`, a parse of the command line and the environment, has already.
///
/// A setting also does not count when the command line has an option that excludes it.
///
/// # Errors
/// The first setting that is no option of the command, with the nearest one, or that has a value of the wrong type.
pub(super) fn added(command: &Command, given: &[&ArgMatches], file: &ConfigFile) -> Result<Added, InvalidFile> {
    let mut added = Added::default();
    for setting in &file.settings {
        let Some(option) = options(command).find(|option| key(option) == setting.key) else {
            return Err(file.invalid(setting, unknown(command, &setting.key)));
        };
        let arguments = arguments(option, setting).map_err(|reason| file.invalid(setting, reason))?;
        let is_given = |option: &Arg| given.iter().any(|matches| is_given(matches, option));
        // Either of the two may name the other.
        let excludes = |other: &Arg, option: &Arg| {
            command.get_arg_conflicts_with(other).iter().any(|named| named.get_id() == option.get_id())
        };
        let excluded =
            options(command).any(|other| is_given(other) && (excludes(other, option) || excludes(option, other)));
        if is_given(option) || excluded || arguments.is_empty() {
            continue;
        }
        added.arguments.extend(arguments);
        added.keys.push(setting.key.clone());
    }
    Ok(added)
}

/// Whether a flag or an environment variable gives an option.
fn is_given(matches: &ArgMatches, option: &Arg) -> bool {
    let id = option.get_id().as_str();
    let is_known = matches.try_contains_id(id).is_ok();
    is_known && matches!(matches.value_source(id), Some(ValueSource::CommandLine | ValueSource::EnvVariable))
}

/// A setting in the syntax of the command line.
fn arguments(option: &Arg, setting: &Setting) -> Result<Vec<OsString>, String> {
    let key = &setting.key;
    if !option.get_action().takes_values() {
        return match setting.value {
            Given::Truth(true) => Ok(vec![format!("--{key}").into()]),
            Given::Truth(false) => Ok(Vec::new()),
            _ => Err(format!("{key} is true or false")),
        };
    }
    // An option whose value may be left out is also given by its name alone.
    let is_optional = option.get_num_args().is_some_and(|count| count.min_values() == 0);
    match setting.value {
        Given::Truth(true) if is_optional => return Ok(vec![format!("--{key}").into()]),
        Given::Truth(false) if is_optional => return Ok(Vec::new()),
        _ => {}
    }
    let text = |value: &str| OsString::from(format!("--{key}={value}"));
    match &setting.value {
        Given::Text(value) => Ok(vec![text(value)]),
        Given::Truth(truth) => match switch(&option.get_possible_values(), *truth) {
            Some(value) => Ok(vec![text(value)]),
            None => Err(format!("{key} is not true or false, but {}", wanted(option))),
        },
        // Options that may be repeated are repeated; others separate their values by commas.
        Given::List(values) if takes_many(option) => Ok(values.iter().map(|value| text(value)).collect()),
        Given::List(values) => Ok(vec![text(&values.join(","))]),
    }
}

fn takes_many(option: &Arg) -> bool {
    matches!(option.get_action(), clap::ArgAction::Append)
}

/// `on` and `off`, where these are the values of an option.
fn switch(possible: &[PossibleValue], truth: bool) -> Option<&'static str> {
    let name = if truth { "on" } else { "off" };
    possible.iter().any(|value| value.matches(name, true)).then_some(name)
}

/// What an option takes, for people.
fn wanted(option: &Arg) -> String {
    let choices: Vec<_> = option.get_possible_values().iter().map(|value| format!("{:?}", value.get_name())).collect();
    if !choices.is_empty() {
        return choices.join(" or ");
    }
    option.get_value_names().unwrap_or_default().iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

/// What is wrong with a key that no option has.
fn unknown(command: &Command, given: &str) -> String {
    let name = command.get_name();
    if given == OPTION {
        return "a configuration file cannot name another one".to_owned();
    }
    let plain = given.trim_start_matches('-').replace('_', "-");
    let similarity = |option: &&Arg| strsim::jaro_winkler(&plain, key(option));
    let nearest = options(command).max_by(|one, other| similarity(one).total_cmp(&similarity(other)));
    match nearest.filter(|option| similarity(option) >= SIMILARITY_MIN) {
        Some(option) => format!("`ebla {name}` has no option {given}; did you mean {}?", key(option)),
        None => format!("`ebla {name}` has no option {given}; `ebla config template {name}` shows those that it has"),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::{ArgAction, builder::PossibleValuesParser};

    use super::*;

    fn command() -> Command {
        Command::new("server").args([
            Arg::new("config").long("config"),
            Arg::new("listen").long("listen"),
            Arg::new("data_dir").long("data").conflicts_with("ephemeral"),
            Arg::new("ephemeral").long("ephemeral").action(ArgAction::SetTrue),
            Arg::new("etcd").long("etcd").action(ArgAction::Append),
            Arg::new("addr").long("addr"),
            Arg::new("zone").long("zone").env("CONFIG_TEST_UNSET"),
            Arg::new("names").long("names").num_args(0..=1),
            Arg::new("balance").long("balance").value_parser(PossibleValuesParser::new(["on", "off"])),
        ])
    }

    fn layered(line: &[&str], text: &str) -> Result<Vec<String>, String> {
        let file = ConfigFile::parse(Path::new("f.toml"), text).unwrap();
        let line = ["server"].iter().chain(line);
        let given = command().try_get_matches_from(line).unwrap();
        let added = added(&command(), &[&given], &file).map_err(|error| error.to_string())?;
        Ok(added.arguments.into_iter().map(|one| one.into_string().unwrap()).collect())
    }

    #[test]
    fn settings_become_arguments_unless_the_command_line_has_them() {
        let text = "listen = \"a:1\"\nephemeral = true\netcd = [\"x\", \"y\"]\naddr = [\"p\", \"q\"]\nbalance = false\nzone = 7\n";
        assert_eq!(
            layered(&[], text).unwrap(),
            ["--addr=p,q", "--balance=off", "--ephemeral", "--etcd=x", "--etcd=y", "--listen=a:1", "--zone=7"]
        );
        assert_eq!(
            layered(&["--listen", "b:2", "--etcd=z", "--balance", "on"], text).unwrap(),
            ["--addr=p,q", "--ephemeral", "--zone=7"]
        );
        assert_eq!(layered(&[], "ephemeral = false\nnames = false\n").unwrap(), [""; 0]);
        assert_eq!(layered(&[], "names = true\n").unwrap(), ["--names"]);
        assert_eq!(layered(&[], "names = \"a:1\"\n").unwrap(), ["--names=a:1"]);
    }

    #[test]
    fn a_setting_that_a_flag_excludes_does_not_count() {
        assert_eq!(layered(&["--ephemeral"], "data = \"/d\"\n").unwrap(), [""; 0]);
        assert_eq!(layered(&["--data", "/e"], "ephemeral = true\n").unwrap(), [""; 0]);
        assert_eq!(layered(&[], "data = \"/d\"\n").unwrap(), ["--data=/d"]);
    }

    #[test]
    fn unknown_keys_are_refused_with_the_nearest_name() {
        let refused = |text: &str| layered(&[], text).unwrap_err();
        assert_eq!(
            refused("\nlistn = \"a:1\"\n"),
            "configuration file f.toml, line 2: `ebla server` has no option listn; did you mean listen?"
        );
        assert!(refused("--listen = 1").ends_with("did you mean listen?"));
        assert!(refused("ephemerel = true").ends_with("did you mean ephemeral?"));
        assert!(refused("colour = 1").ends_with("`ebla config template server` shows those that it has"));
        assert!(refused("config = \"g.toml\"").ends_with("a configuration file cannot name another one"));
        assert!(refused("help = true").contains("has no option help"));
    }

    #[test]
    fn values_of_the_wrong_type_are_refused() {
        let refused = |text: &str| layered(&[], text).unwrap_err();
        assert!(refused("ephemeral = \"yes\"").ends_with("line 1: ephemeral is true or false"));
        assert!(refused("listen = true").contains("listen is not true or false, but"));
        assert_eq!(layered(&[], "balance = true").unwrap(), ["--balance=on"]);
        // What the option's own parser refuses is refused when the whole line is parsed.
        assert_eq!(layered(&[], "balance = 3").unwrap(), ["--balance=3"]);
    }
}
