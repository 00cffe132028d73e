//! A configuration file with every option of a command as a comment.

use std::fmt::Write as _;

use clap::{Arg, Command};

use super::{RELOADABLE, key, options};

/// Columns of a comment.
const WIDTH: usize = 100;

/// The file for a command, which must have been built: each option with its help, its default and its environment variable.
///
/// A line that starts with `#` and a key sets the option to its default; without a default it shows the kind of the value.
pub fn template(command: &Command) -> String {
    let mut text = format!(
        "# Configuration of `ebla {}`. Remove the # before an option to set it. Flags and environment\n\
         # variables take precedence. Options that are marked with [SIGHUP] change without a restart.\n",
        command.get_name()
    );
    for option in options(command) {
        text.push('\n');
        let help = option.get_long_help().or_else(|| option.get_help()).map(ToString::to_string).unwrap_or_default();
        let mut words: Vec<_> = help.split_whitespace().map(str::to_owned).collect();
        if option.is_required_set() {
            words.push("(required)".to_owned());
        }
        if let Some(name) = option.get_env() {
            words.push(format!("[{}]", name.to_string_lossy()));
        }
        if RELOADABLE.contains(&key(option)) {
            words.push("[SIGHUP]".to_owned());
        }
        wrap(&mut text, &words);
        let _infallible = writeln!(text, "#{} = {}", key(option), value(option));
    }
    text
}

/// Words as comments of at most [`WIDTH`] columns.
fn wrap(text: &mut String, words: &[String]) {
    let mut line = String::from("#");
    for word in words {
        if line.chars().count() + 1 + word.chars().count() > WIDTH && line.len() > 1 {
            text.push_str(&line);
            text.push('\n');
            line = String::from("#");
        }
        line.push(' ');
        line.push_str(word);
    }
    text.push_str(&line);
    text.push('\n');
}

/// The default of an option in TOML, or the kind of its value.
fn value(option: &Arg) -> String {
    if !option.get_action().takes_values() {
        return "false".to_owned();
    }
    let defaults: Vec<_> =
        option.get_default_values().iter().map(|value| value.to_string_lossy().into_owned()).collect();
    let is_list = matches!(option.get_action(), clap::ArgAction::Append);
    let names: Vec<_> = option.get_value_names().unwrap_or_default().iter().map(ToString::to_string).collect();
    let scalar = |text: &str| match text.parse::<i64>() {
        Ok(number) => number.to_string(),
        Err(_) => toml::Value::from(text).to_string(),
    };
    match (defaults.as_slice(), is_list) {
        ([], false) => scalar(&names.join(" ")),
        ([], true) => format!("[{}]", scalar(names.join(" ").trim_end_matches(",…"))),
        ([one], false) => scalar(one),
        (many, _) => format!("[{}]", many.iter().map(|one| scalar(one)).collect::<Vec<_>>().join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::CommandFactory as _;

    use super::super::{COMMANDS, ConfigFile};
    use super::*;
    use crate::commands::Arguments;

    #[test]
    fn the_template_of_every_command_is_a_file_of_its_options() {
        let mut program = Arguments::command();
        program.build();
        for name in COMMANDS {
            let command = program.find_subcommand(name).unwrap();
            let text = template(command);
            assert_eq!(ConfigFile::parse(Path::new("t"), &text).unwrap().settings, [], "everything is a comment");
            let is_setting = |line: &&str| line.starts_with('#') && !line.starts_with("# ");
            let set: String = text.lines().filter(is_setting).map(|line| format!("{}\n", &line[1..])).collect();
            let file = ConfigFile::parse(Path::new("t"), &set).unwrap();
            assert_eq!(file.settings.len(), options(command).count(), "{set}");
            assert!(text.lines().all(|line| line.chars().count() <= 110), "{text}");
        }
    }

    #[test]
    fn an_option_has_its_help_default_and_variable() {
        let command = Command::new("server").args([
            Arg::new("data").long("data").value_name("DIR").env("EBLA_DATA").required(true).help("Data folder"),
            Arg::new("ttl").long("lease-ttl").default_value("10").help("Seconds"),
            Arg::new("etcd").long("etcd").value_name("URL,…").action(clap::ArgAction::Append).help("Addresses"),
            Arg::new("log-level").long("log-level").default_value("warn").help("Filter"),
        ]);
        let text = template(&command);
        for part in [
            "\n# Data folder (required) [EBLA_DATA]\n#data = \"DIR\"\n",
            "\n# Seconds\n#lease-ttl = 10\n",
            "\n# Addresses\n#etcd = [\"URL\"]\n",
            "\n# Filter [SIGHUP]\n#log-level = \"warn\"\n",
        ] {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
    }
}
