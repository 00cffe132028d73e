//! Log filter and log output.

use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// Log filter: a default level, and levels for parts of the program.
///
/// openraft logs each step of its protocol, so it stays at `error` unless the filter names it. Two of its targets are off: they
/// log an error for each request to a stopped group, which the caller gets anyway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFilter(String);

/// A text that is not a log filter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{part:?} is not a log level: use off, error, warn, info, debug or trace, or TARGET=LEVEL such as ebla_master=debug, separated by commas"
)]
pub struct InvalidLogFilter {
    part: String,
}

/// The crate that is limited to errors unless the filter names it.
const CHATTY: &str = "openraft";
/// Its default levels.
const CHATTY_LEVELS: &str = ",openraft=error,openraft::raft::raft_inner=off,openraft::core::heartbeat=off";

impl FromStr for LogFilter {
    type Err = InvalidLogFilter;

    fn from_str(text: &str) -> Result<Self, InvalidLogFilter> {
        let mut names_chatty = false;
        let mut is_off = false;
        for part in text.split(',').map(str::trim) {
            let invalid = || InvalidLogFilter { part: part.to_owned() };
            // A target without a level would mean "everything", and a mistyped level would look like such a target.
            let (target, level) = part.rsplit_once('=').unwrap_or(("", part));
            LevelFilter::from_str(level).ok().filter(|_level| !level.is_empty()).ok_or_else(invalid)?;
            if part.contains('=') && target.is_empty() {
                return Err(invalid());
            }
            names_chatty |= target.starts_with(CHATTY);
            is_off |= target.is_empty() && level.eq_ignore_ascii_case("off");
        }
        let added = if names_chatty || is_off { "" } else { CHATTY_LEVELS };
        let filter = format!("{text}{added}");
        EnvFilter::try_new(&filter).map_err(|_error| InvalidLogFilter { part: text.to_owned() })?;
        Ok(Self(filter))
    }
}

impl fmt::Display for LogFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Sends logs to standard error. The first call in a process wins; later ones, as in tests, have no effect.
pub fn init_filtered(filter: &LogFilter) {
    let filter = EnvFilter::new(&filter.0);
    let builder =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_filter_reloading();
    let handle = builder.reload_handle();
    if builder.try_init().is_ok() {
        let set: SetFilter = Box::new(move |filter| handle.reload(filter).is_ok());
        let _first_counts = SET_FILTER.set(set);
    }
}

/// Replaces the filter of the log; whether that succeeded.
type SetFilter = Box<dyn Fn(EnvFilter) -> bool + Send + Sync>;
/// For the log that [`init_filtered`] has set up.
static SET_FILTER: OnceLock<SetFilter> = OnceLock::new();

/// The log of this process was not set up by [`init_filtered`], so its filter cannot be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the log of this process was set up by another library: restart the process with the new filter")]
pub struct NotOurLog;

/// Replaces the filter of the log while the process runs.
///
/// # Errors
/// When the log was not set up by [`init_filtered`].
pub fn set_filter(filter: &LogFilter) -> Result<(), NotOurLog> {
    let set = SET_FILTER.get().ok_or(NotOurLog)?;
    if set(EnvFilter::new(&filter.0)) { Ok(()) } else { Err(NotOurLog) }
}

/// As [`init_filtered`]; with `info` when `filter` is not a valid [`LogFilter`].
pub fn init(filter: &str) {
    init_filtered(&filter.parse().unwrap_or_else(|_invalid| LogFilter("info".to_owned())));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openraft_logs_errors_only_unless_the_filter_names_it() {
        let filter = |text: &str| text.parse::<LogFilter>().map(|filter| filter.to_string());
        assert_eq!(filter("info").unwrap(), format!("info{CHATTY_LEVELS}"));
        assert_eq!(filter("warn,ebla_master=debug").unwrap(), format!("warn,ebla_master=debug{CHATTY_LEVELS}"));
        assert_eq!(filter("info,openraft=debug").unwrap(), "info,openraft=debug");
        assert_eq!(filter("info,openraft::core=trace").unwrap(), "info,openraft::core=trace");
        assert_eq!(filter("off").unwrap(), "off");
        assert_eq!(filter("INFO").unwrap(), format!("INFO{CHATTY_LEVELS}"));
    }

    #[test]
    fn a_filter_that_names_no_level_is_refused_with_the_levels_that_exist() {
        for text in ["inof", "", "warn,", "ebla_master=loud", "=info", "ebla_master", "warn;info"] {
            let refused = text.parse::<LogFilter>().unwrap_err().to_string();
            assert!(refused.contains("error, warn, info, debug or trace"), "{text}: {refused}");
        }
    }
}
