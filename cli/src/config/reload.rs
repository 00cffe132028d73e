//! SIGHUP: the configuration file is read again. Some options change at once; others need a restart, which the log says.

use std::convert::Infallible;
use std::ffi::OsString;

use ebla_runtime::logging::{self, LogFilter};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{Described, Refused, describe};
use crate::output::{self, Failure};

/// What a process needs to read its configuration again.
#[derive(Clone, Debug)]
pub struct Reload {
    line: Vec<OsString>,
    known: Vec<Described>,
}

/// What differs between two states of a configuration.
#[derive(Debug, Default, PartialEq, Eq)]
struct Changes {
    /// Options that change at once.
    now: Vec<Described>,
    /// Names of options that need a restart.
    at_restart: Vec<String>,
}

fn changes(before: &[Described], after: &[Described]) -> Changes {
    let mut changes = Changes::default();
    let is_new = |one: &&Described| !before.iter().any(|other| other.key == one.key && other.values == one.values);
    for changed in after.iter().filter(is_new) {
        if changed.is_reloadable {
            changes.now.push(changed.clone());
        } else {
            changes.at_restart.push(changed.key.clone());
        }
    }
    changes
}

impl Reload {
    /// For the process with this command line, whose options are `known`.
    pub(super) fn new(line: Vec<OsString>, known: Vec<Described>) -> Self {
        Self { line, known }
    }

    /// Watches for SIGHUP from now on.
    ///
    /// # Errors
    /// When the signal cannot be watched.
    pub fn watch(self) -> Result<impl Future<Output = Infallible>, Failure> {
        let signal = signal(SignalKind::hangup())?;
        Ok(self.follow(signal))
    }

    async fn follow(mut self, mut signal: Signal) -> Infallible {
        loop {
            if signal.recv().await.is_none() {
                return std::future::pending().await;
            }
            let text = self.again();
            // Not eprintln: the terminal may be what is gone, and a panic ends the process.
            output::note(&format!("ebla: {text}"));
        }
    }

    /// Reads the file again and applies what changes at once. What is wrong with the file leaves everything as it is.
    fn again(&mut self) -> String {
        let after = match describe(&self.line) {
            Ok((after, _)) => after,
            Err(refused) => return format!("configuration not reloaded: {}", reason(refused)),
        };
        let Changes { now, at_restart } = changes(&self.known, &after);
        for changed in &now {
            if let Err(error) = apply(changed) {
                return format!("configuration not reloaded: {}: {error}", changed.key);
            }
        }
        // Options that need a restart stay as they were, so that each reload names them until there is one.
        for changed in &now {
            self.known.iter_mut().filter(|one| one.key == changed.key).for_each(|one| one.clone_from(changed));
        }
        described(&now, &at_restart)
    }
}

fn apply(changed: &Described) -> Result<(), String> {
    let value = changed.values.first().map(String::as_str).unwrap_or_default();
    match changed.key.as_str() {
        "log-level" => {
            let filter: LogFilter = crate::commands::log_filter(value).map_err(|error| error.to_string())?;
            logging::set_filter(&filter).map_err(|error| error.to_string())
        }
        other => Err(format!("{other} cannot be changed without a restart")),
    }
}

fn reason(refused: Refused) -> String {
    match refused {
        Refused::File(failure) => failure.message,
        Refused::CommandLine(error) => error.to_string().trim_start_matches("error: ").trim().replace('\n', " "),
    }
}

fn described(now: &[Described], at_restart: &[String]) -> String {
    let now: Vec<_> = now.iter().map(|one| format!("{} = {}", one.key, one.values.join(","))).collect();
    match (now.is_empty(), at_restart.is_empty()) {
        (true, true) => "configuration reloaded: nothing has changed".to_owned(),
        (false, true) => format!("configuration reloaded: {}", now.join(", ")),
        (true, false) => format!("configuration reloaded: restart for {}", at_restart.join(", ")),
        (false, false) => format!("configuration reloaded: {}; restart for {}", now.join(", "), at_restart.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::read;
    use super::*;

    #[test]
    fn a_reload_says_what_changes_and_what_needs_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ebla.toml");
        let write = |text: &str| std::fs::write(&path, text).unwrap();
        write("split-load = 7\nlog-level = \"warn\"\n");
        let line = vec!["ebla".into(), "up".into(), format!("--config={}", path.display()).into()];
        let mut reload = read(&line).unwrap().reload.unwrap();
        logging::init("warn");
        assert_eq!(reload.again(), "configuration reloaded: nothing has changed");
        write("split-load = 8\nservers = 5\nlog-level = \"error\"\n");
        assert_eq!(reload.again(), "configuration reloaded: log-level = error; restart for servers, split-load");
        assert_eq!(reload.again(), "configuration reloaded: restart for servers, split-load");
        write("split-laod = 8\n");
        let refused = reload.again();
        assert!(refused.starts_with("configuration not reloaded: configuration file"), "{refused}");
        assert!(refused.ends_with("did you mean split-load?"), "{refused}");
        write("split-load = 7\nlog-level = \"loud\"\n");
        assert!(reload.again().contains("line 2: invalid value 'loud' for '--log-level"));
    }
}
