//! `ebla --help`: the commands in groups, by task.

use clap::builder::StyledStr;
use clap::{Command, CommandFactory as _};

use super::Arguments;

/// The groups: title and commands.
const GROUPS: [(&str, &[&str]); 9] = [
    ("Run", &["up", "demo", "master", "tablet-server", "mounttable", "config"]),
    (
        "Inspect",
        &["status", "top", "doctor", "slow", "trace", "debug", "wait", "events", "server", "tablet", "group", "meta"],
    ),
    ("Secure", &["cert", "token", "iam", "view"]),
    ("Cluster", &["cluster"]),
    ("Repair", &["check", "recover"]),
    ("Data", &["get", "set", "scan", "count", "row", "table", "family", "load"]),
    (
        "As in cbt",
        &[
            "ls",
            "read",
            "lookup",
            "createtable",
            "deletetable",
            "deleteallrows",
            "createfamily",
            "setgcpolicy",
            "deletefamily",
            "deleterow",
            "deletecolumn",
        ],
    ),
    ("Names", &["mt"]),
    ("Test", &["bench", "verify"]),
];
/// Title of the group of all other commands.
const OTHERS: &str = "Other";
/// Heading of the options that many commands take; it follows the command's own options.
const SHARED: &str = "Shared options";
/// The options under that heading, in addition to global ones: cluster, mounttable, output format.
const SHARED_OPTIONS: [&str; 8] =
    ["addr", "project", "instance", "output", "root", "identity", "token_file", "insecure_token"];

/// The program as clap describes it, with its help in groups.
pub(crate) fn program() -> Command {
    grouped(Arguments::command())
}

/// The command with its help in groups. Subcommands keep their own help, with shared options under a separate heading.
fn grouped(command: Command) -> Command {
    let command = separate_shared(command);
    let header = command.get_styles().get_header().to_owned();
    let literal = command.get_styles().get_literal().to_owned();
    let width = command.get_subcommands().map(|one| one.get_name().len()).max().unwrap_or(0);
    let line = |one: &Command| {
        let about = one.get_about().map(|about| first_line(&about.to_string()).to_owned()).unwrap_or_default();
        format!("  {literal}{:<width$}{literal:#}  {about}\n", one.get_name())
    };
    let mut groups = String::new();
    for (title, names) in GROUPS {
        groups.push_str(&format!("{header}{title}:{header:#}\n"));
        names.iter().filter_map(|name| command.find_subcommand(name)).for_each(|one| groups.push_str(&line(one)));
        groups.push('\n');
    }
    groups.push_str(&format!("{header}{OTHERS}:{header:#}\n"));
    let others = |one: &&Command| !GROUPS.iter().any(|(_, names)| names.contains(&one.get_name()));
    command.get_subcommands().filter(others).for_each(|one| groups.push_str(&line(one)));
    groups.push_str(&format!("  {literal}{:<width$}{literal:#}  Show this help, or the help of a command\n", "help"));
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{groups}\n{header}Options:{header:#}\n{{options}}{{after-help}}"
    );
    command.help_template(StyledStr::from(template))
}

/// The command and all its subcommands, with shared options under their heading.
fn separate_shared(command: Command) -> Command {
    let apart = |option: clap::Arg| {
        let is_shared = option.is_global_set() || SHARED_OPTIONS.contains(&option.get_id().as_str());
        if is_shared { option.help_heading(SHARED) } else { option }
    };
    command.mut_args(apart).mut_subcommands(separate_shared)
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default().trim_end_matches('.')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Commands without examples.
    const WITHOUT_EXAMPLES: [&str; 0] = [];

    #[test]
    fn every_command_is_in_one_group() {
        let command = Arguments::command();
        let named: Vec<_> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        for name in &named {
            assert!(command.find_subcommand(name).is_some(), "no command {name}");
            assert_eq!(named.iter().filter(|other| *other == name).count(), 1, "{name}");
        }
        let others: Vec<_> =
            command.get_subcommands().map(Command::get_name).filter(|name| !named.contains(name)).collect();
        assert_eq!(others, ["version", "completion", "man"], "a command without a group");
    }

    #[test]
    fn help_shows_the_groups_and_each_command_once() {
        let shown = grouped(Arguments::command()).render_help().to_string();
        for title in
            ["Run:", "Inspect:", "Secure:", "Cluster:", "Data:", "As in cbt:", "Names:", "Test:", "Other:", "Options:"]
        {
            assert_eq!(shown.lines().filter(|line| *line == title).count(), 1, "{title} in\n{shown}");
        }
        assert!(shown.contains("\n  row            Read and write rows\n"), "{shown}");
        assert!(shown.contains("--log-level") && shown.contains("--help"), "{shown}");
        let commands = shown.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
        let long = commands.filter(|line| line.chars().count() > 110);
        assert_eq!(long.collect::<Vec<_>>(), Vec::<&str>::new());
    }

    #[test]
    fn the_help_of_every_command_has_examples() {
        fn check(command: &Command, path: &str, missing: &mut Vec<String>) {
            let help = command.get_long_about().or(command.get_about()).map(ToString::to_string).unwrap_or_default();
            if !help.contains(&format!("  {path}")) {
                missing.push(path.to_owned());
            }
            for one in command.get_subcommands() {
                check(one, &format!("{path} {}", one.get_name()), missing);
            }
        }
        let mut missing = Vec::new();
        for one in Arguments::command().get_subcommands() {
            check(one, &format!("ebla {}", one.get_name()), &mut missing);
        }
        missing.retain(|path| !WITHOUT_EXAMPLES.contains(&path.as_str()));
        assert_eq!(missing, Vec::<String>::new());
    }

    #[test]
    fn shared_options_have_a_separate_heading() {
        let mut command = grouped(Arguments::command());
        command.build();
        let row = command.find_subcommand("row").and_then(|row| row.find_subcommand("scan")).unwrap();
        let shown = row.clone().render_long_help().to_string();
        let (own, shared) = shown.split_once(&format!("\n{}:\n", SHARED)).unwrap();
        assert!(own.contains("--limit") && !own.contains("--addr") && !own.contains("--log-level"), "{shown}");
        assert!(shared.contains("--addr") && shared.contains("--output") && shared.contains("--log-level"), "{shown}");
        assert!(!shared.contains("--limit"), "{shown}");
    }
}
