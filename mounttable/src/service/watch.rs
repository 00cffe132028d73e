//! What has changed between two looks at a name.

use crate::mount::MountedServer;
use crate::table::Resolved;

/// What a name leads to; `None` is nowhere.
pub type State = Option<Resolved>;

/// Whether it is worth telling that a deadline has moved and nothing else.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refreshes {
    /// It is not.
    Untold,
    /// It is.
    Told,
}

/// A change of what a name leads to.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Change {
    /// Servers that were not there.
    pub added: Vec<MountedServer>,
    /// Servers that are another sort now, or have another deadline.
    pub updated: Vec<MountedServer>,
    /// Servers that are not there any more.
    pub removed: Vec<MountedServer>,
    /// The name leads nowhere any more.
    pub is_gone: bool,
    /// What is to be asked of the servers now.
    pub suffix: String,
}

/// What has changed from `before` to `after`; `None` if nothing has that is to be told.
pub fn change(before: &State, after: &State, refreshes: Refreshes) -> Option<Change> {
    let servers = |state: &State| state.as_ref().map(|it| it.servers.clone()).unwrap_or_default();
    let suffix = |state: &State| state.as_ref().map(|it| it.suffix.clone()).unwrap_or_default();
    let (old, new) = (servers(before), servers(after));
    let find = |servers: &[MountedServer], wanted: &MountedServer| {
        servers.iter().find(|server| server.address == wanted.address).cloned()
    };
    let is_worth = |was: &MountedServer, is: &MountedServer| {
        was.target != is.target || (refreshes == Refreshes::Told && was.deadline != is.deadline)
    };
    let change = Change {
        added: new.iter().filter(|server| find(&old, server).is_none()).cloned().collect(),
        updated: new.iter().filter(|is| find(&old, is).is_some_and(|was| is_worth(&was, is))).cloned().collect(),
        removed: old.iter().filter(|server| find(&new, server).is_none()).cloned().collect(),
        is_gone: before.is_some() && after.is_none(),
        suffix: suffix(after),
    };
    let is_nothing = change.added.is_empty() && change.updated.is_empty() && change.removed.is_empty();
    let is_same_place = suffix(before) == change.suffix || after.is_none();
    (!is_nothing || change.is_gone || !is_same_place).then_some(change)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ebla_model::Micros;

    use super::*;
    use crate::identity::UserId;
    use crate::mount::{Deadline, Target};
    use crate::store::Freshness;

    fn state(servers: &[(&str, i64)]) -> State {
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
    fn a_refresh_is_told_only_when_asked_for() {
        let (before, after) = (state(&[("h:1", 5)]), state(&[("h:1", 9)]));
        assert_eq!(change(&before, &after, Refreshes::Untold), None);
        assert_eq!(addresses(&change(&before, &after, Refreshes::Told).unwrap().updated), ["h:1"]);
        assert_eq!(change(&before, &before, Refreshes::Told), None);
    }

    /// T120
    #[test]
    fn servers_come_and_go_and_the_last_takes_the_name_along() {
        let seen = change(&None, &state(&[("h:1", 5)]), Refreshes::Untold).unwrap();
        assert_eq!((addresses(&seen.added), seen.is_gone), (vec!["h:1".to_owned()], false));
        let seen =
            change(&state(&[("h:1", 5), ("h:2", 5)]), &state(&[("h:2", 5), ("h:3", 5)]), Refreshes::Untold).unwrap();
        assert_eq!((addresses(&seen.added), addresses(&seen.removed)), (vec!["h:3".into()], vec!["h:1".into()]));
        let seen = change(&state(&[("h:1", 5)]), &None, Refreshes::Untold).unwrap();
        assert_eq!((addresses(&seen.removed), seen.is_gone), (vec!["h:1".to_owned()], true));
    }
}
