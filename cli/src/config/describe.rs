//! Every option of a command with its value and where the value comes from.

use std::ffi::OsString;

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches};

use super::read::Layered;
use super::{ConfigFile, RELOADABLE, Refused, key, options};

/// Where the value of an option comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The command line.
    Flag,
    /// The environment variable of the option.
    Variable,
    /// The configuration file.
    File,
    /// None of them: the default.
    Default,
    /// None of them, and the option has no fixed default.
    Unset,
}

impl Origin {
    /// Its name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Flag => "flag",
            Self::Variable => "variable",
            Self::File => "file",
            Self::Default => "default",
            Self::Unset => "unset",
        }
    }
}

/// An option of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    /// Its long name, which is its key in a file.
    pub key: String,
    /// Its values: none when it is not set, several when it takes a list.
    pub values: Vec<String>,
    /// Where they come from.
    pub origin: Origin,
    /// Its environment variable, if it has one.
    pub variable: Option<String>,
    /// Whether SIGHUP changes it without a restart.
    pub is_reloadable: bool,
}

/// The options of the process that a command line, which begins with the name of the program, would start, in the order of their
/// names; and its configuration file.
///
/// # Errors
/// What is wrong with the command line or the file.
pub fn describe(line: &[OsString]) -> Result<(Vec<Described>, Option<ConfigFile>), Refused> {
    let layered = Layered::of(line)?;
    let matches = layered.matches()?;
    Ok((layered.described(&matches), layered.file))
}

impl Layered {
    /// The options of the command in `matches`, a parse of the complete line.
    pub(super) fn described(&self, matches: &ArgMatches) -> Vec<Described> {
        let (Some(command), Some((_, of_command))) = (&self.command, matches.subcommand()) else { return Vec::new() };
        let mut described: Vec<_> = options(command).map(|option| self.option(option, of_command)).collect();
        described.sort_by(|one, other| one.key.cmp(&other.key));
        described
    }

    fn option(&self, option: &Arg, matches: &ArgMatches) -> Described {
        let id = option.get_id().as_str();
        let raw = matches.try_get_raw(id).ok().flatten();
        let values: Vec<_> = raw.into_iter().flatten().map(|value| value.to_string_lossy().into_owned()).collect();
        let key = key(option).to_owned();
        let origin = match matches.value_source(id) {
            Some(ValueSource::CommandLine) if self.added.keys.contains(&key) => Origin::File,
            Some(ValueSource::CommandLine) => Origin::Flag,
            Some(ValueSource::EnvVariable) => Origin::Variable,
            _ if values.is_empty() => Origin::Unset,
            _ => Origin::Default,
        };
        let variable = option.get_env().map(|name| name.to_string_lossy().into_owned());
        Described { is_reloadable: RELOADABLE.contains(&key.as_str()), key, values, origin, variable }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_has_its_value_and_origin() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ebla.toml");
        std::fs::write(&path, "split-load = 7\nephemeral = true\nmerge-bytes = \"1M\"\n").unwrap();
        let config = format!("--config={}", path.display());
        let line = ["ebla", "up", "--servers", "5", "--merge-bytes=2M", &config].map(OsString::from);
        let (described, file) = describe(&line).unwrap();
        assert_eq!(file.unwrap().path, path);
        let shown = |key: &str| {
            let one = described.iter().find(|one| one.key == key).unwrap();
            (one.values.join(","), one.origin)
        };
        assert_eq!(shown("servers"), ("5".into(), Origin::Flag));
        assert_eq!(shown("merge-bytes"), ("2M".into(), Origin::Flag));
        assert_eq!(shown("split-load"), ("7".into(), Origin::File));
        assert_eq!(shown("ephemeral"), ("true".into(), Origin::File));
        assert_eq!(shown("insecure"), ("false".into(), Origin::Default));
        assert_eq!(shown("disk-reserve"), (String::new(), Origin::Unset));
        assert!(described.iter().any(|one| one.key == "log-level" && one.is_reloadable));
        assert!(!described.iter().any(|one| ["config", "help", "version"].contains(&one.key.as_str())));
    }
}
