//! The configuration file of a process that serves: `--config FILE`, below flags and environment variables.
//!
//! ```text
//!   read        the command line of this process, with the options of the file added
//!   file        the file: TOML, one key for each option, at the top level
//!   layers      which settings of the file count, as arguments; unknown keys are refused with the nearest name
//!   describe    every option of a command with its value and its origin: `ebla config show`
//!   reload      SIGHUP: the file is read again; what changes at once and what needs a restart
//!   template    a file with every option as a comment: `ebla config template`
//! ```
//!
//! The keys are the long names of the options (`split-bytes = "64M"`). A setting of the file becomes an argument of the command line,
//! so the same code checks both, and a rule between two options (`requires`, `conflicts_with`) holds wherever they come from.

mod describe;
mod file;
mod layers;
mod read;
mod reload;
mod template;

use std::convert::Infallible;
use std::path::PathBuf;

use clap::{Arg, Command};

pub use describe::{Described, Origin, describe};
pub use file::{ConfigFile, Given, InvalidFile};
pub use read::{Read, Refused, read};
pub use reload::Reload;
pub use template::template;

/// The commands that have a configuration file.
pub const COMMANDS: [&str; 5] = ["up", "demo", "master", "tablet-server", "mounttable"];
/// The options that take effect without a restart when the process receives SIGHUP.
pub const RELOADABLE: [&str; 1] = ["log-level"];
/// The option that names the file; it cannot be in the file.
const OPTION: &str = "config";

/// The option of a command that has a configuration file.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct ConfigArguments {
    /// Configuration file (TOML): a line `NAME = VALUE` for each option, without the dashes. Flags and environment variables take
    /// precedence; SIGHUP makes the process read it again. `ebla config template` writes one
    #[arg(long, env = "EBLA_CONFIG", value_name = "FILE", value_parser = file_name)]
    pub config: Option<PathBuf>,
}

/// Any text: an empty one means no file, for scripts that pass a variable on.
fn file_name(text: &str) -> Result<PathBuf, Infallible> {
    Ok(PathBuf::from(text))
}

/// The options of a command that may be in its file: those with a long name, except the file itself and clap's own.
fn options(command: &Command) -> impl Iterator<Item = &Arg> {
    let is_option = |arg: &&Arg| {
        arg.get_long().is_some_and(|long| !["help", "version", OPTION].contains(&long)) && !arg.is_hide_set()
    };
    command.get_arguments().filter(is_option)
}

/// The long name of an option.
fn key(option: &Arg) -> &str {
    option.get_long().unwrap_or_default()
}
