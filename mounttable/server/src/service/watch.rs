//! The difference between two states of a name.

use std::cmp::Ordering;

use ebla_mounttable_tree::mount::MountedServer;
use ebla_mounttable_tree::table::Resolved;

/// The servers that a name resolves to; `None`: none.
pub type WatchState = Option<Resolved>;

/// Whether a moved deadline alone is reported.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RefreshEvents {
    /// It is not.
    Omit,
    /// It is.
    Include,
}

/// A change of a name's servers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct WatchChange {
    /// New servers.
    pub added: Vec<MountedServer>,
    /// Servers with another kind or deadline.
    pub updated: Vec<MountedServer>,
    /// Servers that are gone.
    pub removed: Vec<MountedServer>,
    /// The name does not resolve any more.
    pub is_gone: bool,
    /// The rest of the name below the servers.
    pub suffix: String,
}

/// The change from `before` to `after`; `None` if there is nothing to report. Both are read once, in the order of the
/// addresses.
pub fn change(before: &WatchState, after: &WatchState, refreshes: RefreshEvents) -> Option<WatchChange> {
    let suffix = |state: &WatchState| state.as_ref().map(|it| it.suffix.clone()).unwrap_or_default();
    let is_worth = |was: &MountedServer, is: &MountedServer| {
        was.target != is.target || (refreshes == RefreshEvents::Include && was.deadline != is.deadline)
    };
    let mut change =
        WatchChange { is_gone: before.is_some() && after.is_none(), suffix: suffix(after), ..WatchChange::default() };
    let (mut old, mut new) = (servers(before).iter().peekable(), servers(after).iter().peekable());
    while let Some(order) = next_order(old.peek(), new.peek()) {
        match order {
            Ordering::Less => change.removed.extend(old.next().cloned()),
            Ordering::Greater => change.added.extend(new.next().cloned()),
            Ordering::Equal => {
                let pair = old.next().zip(new.next()).filter(|(was, is)| is_worth(was, is));
                change.updated.extend(pair.map(|(_, is)| is.clone()));
            }
        }
    }
    let is_nothing = change.added.is_empty() && change.updated.is_empty() && change.removed.is_empty();
    let is_same_place = suffix(before) == change.suffix || after.is_none();
    (!is_nothing || change.is_gone || !is_same_place).then_some(change)
}

fn servers(state: &WatchState) -> &[MountedServer] {
    state.as_ref().map_or(&[], |it| &it.servers)
}

/// Whether the next address is only in the old list (less), only in the new one (greater), or in both; `None` at the end
/// of both.
fn next_order(old: Option<&&MountedServer>, new: Option<&&MountedServer>) -> Option<Ordering> {
    match (old, new) {
        (None, None) => None,
        (Some(_), None) => Some(Ordering::Less),
        (None, Some(_)) => Some(Ordering::Greater),
        (Some(was), Some(is)) => Some(was.address.as_str().cmp(is.address.as_str())),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ebla_model::Micros;

    use super::*;
    use ebla_mounttable_tree::identity::UserId;
    use ebla_mounttable_tree::mount::{Deadline, Target};
    use ebla_mounttable_tree::store::Freshness;

    fn state(servers: &[(&str, i64)]) -> WatchState {
        let server = |(address, until): &(&str, i64)| MountedServer {
            address: address.parse().unwrap(),
            target: Target::Object,
            deadline: Deadline::at(Micros::from_millis(*until)),
            ttl: Duration::ZERO,
            mounter: UserId::server(),
        };
        let servers = servers.iter().map(server).collect();
        Some(Resolved { servers, suffix: String::new(), freshness: Freshness::Recent })
    }

    fn addresses(servers: &[MountedServer]) -> Vec<String> {
        servers.iter().map(|server| server.address.to_string()).collect()
    }

    /// T120
    #[test]
    fn a_refresh_is_reported_only_on_request() {
        let (before, after) = (state(&[("h:1", 5)]), state(&[("h:1", 9)]));
        assert_eq!(change(&before, &after, RefreshEvents::Omit), None);
        assert_eq!(addresses(&change(&before, &after, RefreshEvents::Include).unwrap().updated), ["h:1"]);
        assert_eq!(change(&before, &before, RefreshEvents::Include), None);
    }

    /// T120
    #[test]
    fn servers_come_and_go_and_the_last_takes_the_name_along() {
        let seen = change(&None, &state(&[("h:1", 5)]), RefreshEvents::Omit).unwrap();
        assert_eq!((addresses(&seen.added), seen.is_gone), (vec!["h:1".to_owned()], false));
        let seen =
            change(&state(&[("h:1", 5), ("h:2", 5)]), &state(&[("h:2", 5), ("h:3", 5)]), RefreshEvents::Omit).unwrap();
        assert_eq!((addresses(&seen.added), addresses(&seen.removed)), (vec!["h:3".into()], vec!["h:1".into()]));
        let seen = change(&state(&[("h:1", 5)]), &None, RefreshEvents::Omit).unwrap();
        assert_eq!((addresses(&seen.removed), seen.is_gone), (vec!["h:1".to_owned()], true));
    }

    /// A comparison of each server with each other one would take minutes.
    #[test]
    fn states_of_very_many_servers_are_compared_in_one_pass() {
        let hosts: Vec<_> = (0..200_000).map(|number| format!("h{number:06}:1")).collect();
        let all: Vec<_> = hosts.iter().map(|address| (address.as_str(), 5)).collect();
        let (before, after) = (state(&all[1..]), state(&all[..all.len() - 1]));
        let seen = change(&before, &after, RefreshEvents::Include).unwrap();
        assert_eq!((addresses(&seen.added), seen.updated.len()), (vec!["h000000:1".to_owned()], 0));
        assert_eq!(addresses(&seen.removed), ["h199999:1"]);
    }
}
