//! The page `/debug/`: what the process is, for a person who looks for the cause of a problem.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::sync::Arc;

use ebla_model::capacity::readable_bytes;
use tokio::runtime::Handle;

use crate::metrics::ProcessSource;
use crate::resources::{ResourceProbe, SystemResources};
use crate::tasks::Tasks;

/// Words in the name of an option whose value may be a secret.
const SECRETS: [&str; 5] = ["token", "secret", "password", "key", "credential"];
/// The text in the place of a secret.
const HIDDEN: &str = "(hidden)";

/// What a process tells about itself.
#[derive(Clone, Debug)]
pub struct ProcessInfo {
    /// Its release, role and age.
    pub process: Arc<ProcessSource>,
    /// Its arguments, as [`shown_arguments`] returns them.
    pub arguments: Vec<String>,
    /// The root of its tasks.
    pub tasks: Tasks,
}

impl ProcessInfo {
    /// The page. `arguments`: whether the reader may see them.
    pub(super) fn page(&self, arguments: Arguments) -> String {
        let mut text = String::new();
        let mut line = |name: &str, value: String| {
            // Writing to a string cannot fail.
            let _written = writeln!(text, "{name:<12}{value}");
        };
        line("version", self.process.version().to_owned());
        line("role", self.process.role().to_owned());
        line("pid", std::process::id().to_string());
        line("uptime", format!("{:.0} s", self.process.uptime().as_secs_f64()));
        if let Ok(runtime) = Handle::try_current() {
            let metrics = runtime.metrics();
            line("workers", metrics.num_workers().to_string());
            line("tasks", format!("{} ({} of the servers)", metrics.num_alive_tasks(), self.tasks.count()));
        }
        if let Some(threads) = self.process.threads() {
            line("threads", threads.to_string());
        }
        let resources = SystemResources::new(std::path::Path::new("/"), None);
        if let Some(memory) = resources.memory() {
            line("memory", format!("{} of {}", readable_bytes(memory.used), readable_bytes(memory.limit)));
        }
        if let Some(files) = resources.files() {
            line("open files", format!("{} of {}", files.used, files.limit));
        }
        match arguments {
            Arguments::Shown => line("arguments", self.arguments.join(" ")),
            Arguments::Hidden => {
                line("arguments", "(shown on this machine, and to a certificate of a server)".to_owned())
            }
        }
        text
    }
}

/// Whether the page shows the arguments of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arguments {
    /// It does, without secrets.
    Shown,
    /// It does not.
    Hidden,
}

/// Arguments as the page shows them: values of options that may be secrets are hidden, also the credentials in URLs. Bytes that are no UTF-8
/// are replaced.
#[must_use]
pub fn shown_arguments(arguments: impl IntoIterator<Item = OsString>) -> Vec<String> {
    let mut is_secret = false;
    let shown = arguments.into_iter().map(|argument| {
        let argument = argument.to_string_lossy().into_owned();
        let Some(option) = argument.strip_prefix("--") else {
            return if std::mem::take(&mut is_secret) { HIDDEN.to_owned() } else { without_credentials(argument) };
        };
        let name = option.split_once('=').map_or(option, |(name, _value)| name).to_lowercase();
        let may_be_secret = SECRETS.iter().any(|word| name.contains(word));
        match option.split_once('=') {
            Some((name, _value)) if may_be_secret => format!("--{name}={HIDDEN}"),
            Some(_) => without_credentials(argument),
            None => {
                is_secret = may_be_secret;
                argument
            }
        }
    });
    shown.collect()
}

/// The same text without users and passwords in its URLs, of which it may be a list with commas.
fn without_credentials(text: String) -> String {
    text.split(',').map(|url| url_without_credentials(url.to_owned())).collect::<Vec<_>>().join(",")
}

fn url_without_credentials(text: String) -> String {
    let Some((scheme, rest)) = text.split_once("://") else { return text };
    let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
    match authority.rsplit_once('@') {
        Some((_credentials, host)) => format!("{scheme}://{HIDDEN}@{host}{path}"),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt as _;

    use super::*;
    use crate::clock::Clock;

    fn shown(arguments: &[&str]) -> String {
        shown_arguments(arguments.iter().map(OsString::from)).join(" ")
    }

    #[test]
    fn secrets_are_hidden_in_every_form() {
        assert_eq!(shown(&["ebla", "up", "--token", "abc", "--servers", "3"]), "ebla up --token (hidden) --servers 3");
        assert_eq!(shown(&["--my-Password=x y", "--a=b"]), "--my-Password=(hidden) --a=b");
        assert_eq!(shown(&["--token-keys", "--verbose", "shown"]), "--token-keys --verbose shown");
        assert_eq!(shown(&["--etcd=http://u:p@host:1/x"]), "--etcd=http://(hidden)@host:1/x");
        assert_eq!(shown(&["http://host:1/a@b"]), "http://host:1/a@b");
        let odd = shown_arguments([OsString::from_vec(vec![b'-', b'-', 0xff])]);
        assert_eq!(odd, ["--\u{fffd}"]);
    }

    #[test]
    fn the_page_shows_arguments_only_to_those_who_may_see_them() {
        let process = Arc::new(ProcessSource::new("test", "1.2.3", Clock::system(), None));
        let info = ProcessInfo { process, arguments: vec!["--data".to_owned()], tasks: Tasks::new("test") };
        assert!(info.page(Arguments::Shown).contains("arguments   --data\n"), "{}", info.page(Arguments::Shown));
        let hidden = info.page(Arguments::Hidden);
        assert!(!hidden.contains("--data") && hidden.contains("version     1.2.3\n"), "{hidden}");
    }
}
