//! The web console of a process that serves: its options, and the site at the HTTP port.

use std::ffi::OsString;
use std::sync::Arc;

use ebla_console::{AccessMode, Actions, Console, ConsoleConfig, Setting};
use ebla_runtime::Runtime;
use ebla_runtime::http_port::{Site, shown_arguments};
use ebla_tablet_server::TabletServer;

use crate::config::{self, Described};

/// What processes without a console say at the HTTP port.
pub const ELSEWHERE: &str = "the web console is at the HTTP port of each tablet server (--http) and of ebla up";

/// Options of the console.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct ConsoleArguments {
    /// Let the web console at --http drain servers and write cells, with the rights of its viewer; without this it only shows
    #[arg(long)]
    pub console_admin: bool,
}

/// What a process gives its console.
pub struct ConsoleParts<'a> {
    /// The command of the process.
    pub role: &'static str,
    /// A tablet server of the process.
    pub server: &'a TabletServer,
    /// Whether callers need tokens.
    pub access: AccessMode,
    /// The roots of the mounttable, rooted names.
    pub mounttable: Vec<String>,
}

impl ConsoleArguments {
    /// The console of these parts.
    pub fn site(self, parts: ConsoleParts<'_>, runtime: &Runtime) -> Arc<dyn Site> {
        let ConsoleParts { role, server, access, mounttable } = parts;
        let line: Vec<OsString> = std::env::args_os().collect();
        // Outside of the program, as in tests, the command line is another one.
        let described = config::describe(&line).map(|(described, _file)| described).unwrap_or_default();
        let config = ConsoleConfig {
            api: server.address().to_owned(),
            cluster: server.cluster().clone(),
            access,
            actions: if self.console_admin { Actions::Permitted } else { Actions::ReadOnly },
            mounttable,
            process: format!("ebla {role} {}", env!("CARGO_PKG_VERSION")),
            configuration_command: format!("ebla config show --origin {role}"),
            configuration: described.iter().map(setting).collect(),
        };
        Arc::new(Console::new(config, runtime.child("console")))
    }
}

/// An option as the page shows it, without secrets.
fn setting(one: &Described) -> Setting {
    let given = format!("--{}={}", one.key, one.values.join(","));
    let shown = shown_arguments([OsString::from(given)]).pop().unwrap_or_default();
    let value = shown.split_once('=').map_or("", |(_name, value)| value);
    Setting {
        key: one.key.clone(),
        value: if one.values.is_empty() { String::new() } else { value.to_owned() },
        origin: one.origin.name(),
        variable: one.variable.clone(),
        is_reloadable: one.is_reloadable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Origin;

    #[test]
    fn settings_have_no_secrets() {
        let shown = |key: &str, values: &[&str]| {
            let values = values.iter().map(|value| (*value).to_owned()).collect();
            let one =
                Described { key: key.to_owned(), values, origin: Origin::Flag, variable: None, is_reloadable: false };
            setting(&one).value
        };
        assert_eq!(shown("split-load", &["7"]), "7");
        assert_eq!(shown("zone", &[]), "");
        assert_eq!(shown("etcd", &["http://u:p@a:1", "http://b:2"]), "http://(hidden)@a:1,http://b:2");
        assert!(!shown("token-secret", &["abc"]).contains("abc"));
    }
}
