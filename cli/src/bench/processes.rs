//! The processor time of the processes that a system is made of, from /proc.

use std::fs;

use ebla_model::error::Error;

/// Processes of one system; none: its processor time is not known.
#[derive(Clone, Debug, Default)]
pub struct Processes(Vec<u32>);

/// Microseconds in one tick of /proc's clock, which Linux fixes at a hundredth of a second.
const TICK_MICROS: u64 = 10_000;

impl Processes {
    /// `PID,PID…`.
    ///
    /// # Errors
    /// When one is no number.
    pub fn parse(list: &str) -> Result<Self, Error> {
        let pid = |pid: &str| pid.parse().map_err(|_| Error::invalid(format!("{pid:?} is no process id")));
        list.split(',').map(pid).collect::<Result<_, _>>().map(Self)
    }

    /// This process: the load generator.
    #[must_use]
    pub fn own() -> Self {
        Self(vec![std::process::id()])
    }

    /// Processor time since they were started, in microseconds; `None` when there are none, or one has ended.
    #[must_use]
    pub fn cpu_micros(&self) -> Option<u64> {
        let times: Option<Vec<u64>> = self.0.iter().map(|pid| one(*pid)).collect();
        times.filter(|times| !times.is_empty()).map(|times| times.iter().sum())
    }
}

fn one(pid: u32) -> Option<u64> {
    ticks(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?).map(|ticks| ticks * TICK_MICROS)
}

/// User and system time. The name of the program, in brackets, may hold anything; the 12th and 13th field after it count.
fn ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut next = || fields.next()?.parse::<u64>().ok();
    Some(next()? + next()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_and_system_time_are_found_after_any_name() {
        let stat = "42 (a ) b) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20 0 1";
        assert_eq!(ticks(stat), Some(300));
        assert_eq!(ticks("42 (a"), None);
    }

    #[test]
    fn no_process_has_no_time() {
        assert_eq!(Processes::default().cpu_micros(), None);
        assert!(Processes::own().cpu_micros().is_some());
        assert!(Processes::parse("1,x").is_err());
    }
}
