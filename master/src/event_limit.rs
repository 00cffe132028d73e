//! Limits how often an event of one kind, about one server or table, is recorded: calls that are refused again and again, and a table whose
//! use goes up and down about its quota, must not replace all other events. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use ebla_model::cluster_event::NewClusterEvent;
use ebla_model::id::{ServerId, TableId};

/// The time after a recorded event in which others of its kind and subject are not recorded.
pub(crate) const REPEATED_AFTER: Duration = Duration::from_secs(600);
/// How many events are recorded in this time, of all kinds and subjects. A refused call may name any server.
const RECORDED_MAX: usize = 64;

/// The kind, the server and the table of an event.
type EventKey = (&'static str, Option<ServerId>, Option<TableId>);

/// When limited events were recorded.
#[derive(Debug, Default)]
pub(crate) struct EventLimit {
    /// At most [`RECORDED_MAX`], none older than [`REPEATED_AFTER`] at the last call.
    recorded: BTreeMap<EventKey, Duration>,
}

impl EventLimit {
    /// Whether an event of the time `now` must be recorded. `now`: time since boot.
    pub(crate) fn permits(&mut self, event: &NewClusterEvent, now: Duration) -> bool {
        self.recorded.retain(|_subject, at| now.saturating_sub(*at) < REPEATED_AFTER);
        let subject = (event.kind.name(), event.server, event.table);
        if self.recorded.contains_key(&subject) || self.recorded.len() >= RECORDED_MAX {
            return false;
        }
        self.recorded.insert(subject, now);
        true
    }
}

#[cfg(test)]
mod tests {
    use ebla_model::cluster_event::ClusterEventKind;

    use super::*;

    fn refused(server: u64) -> NewClusterEvent {
        NewClusterEvent::new(ClusterEventKind::DrainRefused, "too few servers").of_server(ServerId::new(server))
    }

    #[test]
    fn an_event_is_repeated_only_after_a_while() {
        let mut limit = EventLimit::default();
        let second = Duration::from_secs(1);
        assert!(limit.permits(&refused(1), second));
        assert!(!limit.permits(&refused(1), second * 2), "the same again");
        assert!(limit.permits(&refused(2), second * 2), "of another server");
        let removal = NewClusterEvent::new(ClusterEventKind::RemovalRefused, "").of_server(ServerId::new(1));
        assert!(limit.permits(&removal, second * 2), "of another kind");
        assert!(!limit.permits(&refused(1), REPEATED_AFTER), "one second is missing");
        assert!(limit.permits(&refused(1), REPEATED_AFTER + second));
    }

    #[test]
    fn a_limited_number_of_subjects_is_recorded() {
        let mut limit = EventLimit::default();
        let servers = 1..=3 * RECORDED_MAX as u64;
        let recorded =
            |limit: &mut EventLimit, now| servers.clone().filter(|id| limit.permits(&refused(*id), now)).count();
        assert_eq!(recorded(&mut limit, Duration::ZERO), RECORDED_MAX);
        assert_eq!(recorded(&mut limit, REPEATED_AFTER / 2), 0);
        assert_eq!(recorded(&mut limit, REPEATED_AFTER), RECORDED_MAX, "the first ones are forgotten");
    }
}
