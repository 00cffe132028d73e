//! The command line of this process, with the options of its configuration file added.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue};
use clap::{ArgMatches, Command, FromArgMatches as _};

use super::layers::{Added, added};
use super::{COMMANDS, ConfigFile, InvalidFile, OPTION, Reload};
use crate::commands::{Arguments, program};
use crate::output::{self, Failure, Layout};

/// The arguments of this process.
#[derive(Debug)]
pub struct Read {
    /// What they say.
    pub arguments: Arguments,
    /// How the output is written, if the command has `-o`.
    pub layout: Option<Layout>,
    /// What is read again at SIGHUP, if there is a configuration file.
    pub reload: Option<Reload>,
}

/// Arguments that cannot be used.
#[derive(Debug)]
pub enum Refused {
    /// A usage error, or requested help.
    CommandLine(clap::Error),
    /// The configuration file, or an option in it.
    File(Failure),
}

impl From<InvalidFile> for Refused {
    fn from(error: InvalidFile) -> Self {
        Self::File(Failure::usage(error.to_string()))
    }
}

/// Reads a command line, which begins with the name of the program, and the configuration file that it or the environment names.
///
/// # Errors
/// What is wrong with either, or the help that was asked for.
pub fn read(line: &[OsString]) -> Result<Read, Refused> {
    let layered = Layered::of(line)?;
    let matches = layered.matches()?;
    let arguments = Arguments::from_arg_matches(&matches).map_err(Refused::CommandLine)?;
    let reload = layered.file.is_some().then(|| Reload::new(line.to_vec(), layered.described(&matches)));
    Ok(Read { arguments, layout: output::layout_of(&matches), reload })
}

/// A command line with the settings of its file.
pub(super) struct Layered {
    /// The command, with all its options.
    pub(super) command: Option<Command>,
    /// The file, if there is one.
    pub(super) file: Option<ConfigFile>,
    /// What the file adds.
    pub(super) added: Added,
    line: Vec<OsString>,
}

impl Layered {
    /// The command line and its file.
    ///
    /// # Errors
    /// When the file cannot be read, or has a setting that is no option of the command.
    pub(super) fn of(line: &[OsString]) -> Result<Self, Refused> {
        let mut layered = Self { command: None, file: None, added: Added::default(), line: line.to_vec() };
        // All other commands are parsed once: to describe and parse them once more takes a millisecond.
        if !line.iter().any(|word| COMMANDS.iter().any(|name| word == name)) {
            return Ok(layered);
        }
        // A parse that ignores errors: what is missing may be in the file. The complete line is parsed again.
        let Ok(given) = program().ignore_errors(true).try_get_matches_from(line) else { return Ok(layered) };
        let Some((name, of_command)) = given.subcommand() else { return Ok(layered) };
        if !COMMANDS.contains(&name) {
            return Ok(layered);
        }
        let mut whole = program();
        whole.build();
        let Some(command) = whole.find_subcommand(name).cloned() else { return Ok(layered) };
        let path = of_command.try_get_one::<PathBuf>(OPTION).ok().flatten();
        // An empty name means no file, for scripts that pass a variable on.
        if let Some(path) = path.filter(|path| !path.as_os_str().is_empty()) {
            let file = ConfigFile::open(path)?;
            layered.added = added(&command, &[&given, of_command], &file)?;
            layered.line.extend(layered.added.arguments.iter().cloned());
            layered.file = Some(file);
        }
        layered.command = Some(command);
        Ok(layered)
    }

    /// The complete line, parsed.
    ///
    /// # Errors
    /// What is wrong with it, or the help that was asked for.
    pub(super) fn matches(&self) -> Result<ArgMatches, Refused> {
        program().try_get_matches_from(&self.line).map_err(|error| match self.of_file(&error) {
            Some(invalid) => invalid.into(),
            None => Refused::CommandLine(error),
        })
    }

    /// The error as one of the file, if it is about a setting of it.
    fn of_file(&self, error: &clap::Error) -> Option<InvalidFile> {
        let file = self.file.as_ref()?;
        let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else { return None };
        let named = option.trim_start_matches("--").split([' ', '=']).next()?;
        let key = self.added.keys.iter().find(|key| *key == named)?;
        let text = error.to_string();
        let reason = text.trim_start_matches("error: ").lines().take_while(|line| !line.is_empty());
        let reason: Vec<_> = reason.map(str::trim).collect();
        Some(file.invalid(file.get(key)?, reason.join("; ")))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::commands;

    /// Reads `line` with a file of this text as its configuration.
    fn with_file(line: &[&str], text: &str) -> Result<Arguments, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ebla.toml");
        fs::write(&path, text).unwrap();
        let config = format!("--config={}", path.display());
        let line: Vec<OsString> =
            ["ebla"].iter().chain(line).copied().chain([config.as_str()]).map(Into::into).collect();
        match read(&line) {
            Ok(read) => {
                assert!(read.reload.is_some());
                Ok(read.arguments)
            }
            Err(Refused::CommandLine(error)) => Err(error.to_string()),
            Err(Refused::File(failure)) => {
                assert_eq!(failure.code, 2);
                Err(failure.message.replace(&path.display().to_string(), "ebla.toml"))
            }
        }
    }

    fn server(line: &[&str], text: &str) -> Result<commands::tablet_server::TabletServer, String> {
        match with_file(line, text)?.command {
            commands::Command::TabletServer(server) => Ok(*server),
            other => Err(format!("{other:?}")),
        }
    }

    const SERVER: &str = "listen = \"127.0.0.1:0\"\ndata = \"/data\"\netcd = [\"http://127.0.0.1:2379\", \"http://127.0.0.1:2479\"]\nsplit-bytes = \"64M\"\n";

    #[test]
    fn required_options_may_be_in_the_file() {
        let server = server(&["tablet-server"], SERVER).unwrap();
        assert_eq!(server.node.listen, "127.0.0.1:0");
        assert_eq!(server.node.etcd, ["http://127.0.0.1:2379", "http://127.0.0.1:2479"]);
        assert_eq!(server.splits.split_bytes.map(ebla_runtime::units::ByteSize::bytes), Some(64 << 20));
        assert_eq!(server.splits.split_load, 2_000);
    }

    #[test]
    fn flags_take_precedence() {
        let server = server(&["tablet-server", "--data=/other", "--etcd", "http://127.0.0.1:1"], SERVER).unwrap();
        assert_eq!(server.node.data, PathBuf::from("/other"));
        assert_eq!(server.node.etcd, ["http://127.0.0.1:1"]);
        assert_eq!(server.node.listen, "127.0.0.1:0");
    }

    #[test]
    fn options_of_every_command_may_be_in_the_file() {
        let text = format!("{SERVER}log-level = \"ebla_master=debug\"\n");
        let arguments = with_file(&["tablet-server"], &text).unwrap();
        assert!(arguments.log_level.to_string().starts_with("ebla_master=debug"));
        let arguments = with_file(&["--log-level", "error", "tablet-server"], &text).unwrap();
        assert!(arguments.log_level.to_string().starts_with("error"));
    }

    #[test]
    fn errors_name_the_line_of_the_file() {
        let refused = server(&["tablet-server"], &format!("{SERVER}lease-ttl = 0\n")).unwrap_err();
        assert!(
            refused.starts_with("configuration file ebla.toml, line 5: invalid value '0' for '--lease-ttl"),
            "{refused}"
        );
        let refused = server(&["tablet-server"], &format!("{SERVER}spilt-load = 5\n")).unwrap_err();
        assert!(
            refused.ends_with("line 5: `ebla tablet-server` has no option spilt-load; did you mean split-load?"),
            "{refused}"
        );
        // Without the file's fault, the error is the usual one.
        let refused = server(&["tablet-server", "--zone"], SERVER).unwrap_err();
        assert!(refused.contains("--zone") && !refused.contains("configuration file"), "{refused}");
        let refused = server(&["tablet-server"], "listen = \"127.0.0.1:0\"\n").unwrap_err();
        assert!(refused.contains("--etcd") && refused.contains("--data"), "{refused}");
    }

    #[test]
    fn other_commands_have_no_file() {
        let line = ["ebla", "status", "--config=x"].map(OsString::from);
        assert!(matches!(read(&line), Err(Refused::CommandLine(_))));
        let line = ["ebla", "up", "--help"].map(OsString::from);
        assert!(matches!(read(&line), Err(Refused::CommandLine(error)) if !error.use_stderr()));
        let line = ["ebla", "up", "--config="].map(OsString::from);
        assert!(read(&line).unwrap().reload.is_none());
    }
}
