//! Events of a tablet: what has happened to it and why, as METADATA's `events` family records it (paper section 5.1).

use std::fmt;

/// What has happened to a tablet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TabletEventKind {
    /// It was created with its table.
    Created,
    /// It is one of the halves of a tablet.
    Split,
    /// It has the rows of another one too, which is gone.
    Merged,
    /// It has arrived in another group.
    Moved,
    /// The other group could not take it: it is served where it was.
    MoveRefused,
    /// Its group was divided, and it belongs to the new one.
    Divided,
    /// The replicas of its group have changed.
    ReplicasChanged,
    /// Another replica leads its group, or the same one again.
    LeaderElected,
}

impl TabletEventKind {
    /// All kinds.
    pub const ALL: [Self; 8] = [
        Self::Created,
        Self::Split,
        Self::Merged,
        Self::Moved,
        Self::MoveRefused,
        Self::Divided,
        Self::ReplicasChanged,
        Self::LeaderElected,
    ];

    /// Its name in METADATA and in outputs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Split => "split",
            Self::Merged => "merged",
            Self::Moved => "moved",
            Self::MoveRefused => "move-refused",
            Self::Divided => "group-divided",
            Self::ReplicasChanged => "replicas-changed",
            Self::LeaderElected => "leader-elected",
        }
    }
}

/// Why it has happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TabletEventCause {
    /// By order of an operator, or of a client of the admin API.
    #[default]
    Operator,
    /// The tablet or the group was too large.
    Size,
    /// The tablet was too busy.
    Load,
    /// The tablets were small and not used much.
    Small,
    /// By order of the master: a repair, or an operator through it.
    Master,
    /// An election.
    Election,
}

impl TabletEventCause {
    /// Its name in METADATA, in requests between servers and in outputs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Operator => "operator",
            Self::Size => "size",
            Self::Load => "load",
            Self::Small => "small",
            Self::Master => "master",
            Self::Election => "election",
        }
    }

    /// The cause that a request names; [`Self::Operator`] for a name of another release, and for none.
    #[must_use]
    pub fn from_name(name: &str) -> Self {
        let all = [Self::Size, Self::Load, Self::Small, Self::Master, Self::Election];
        all.into_iter().find(|cause| cause.name() == name).unwrap_or_default()
    }
}

impl fmt::Display for TabletEventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An event that must be recorded. Its time is that of the record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewTabletEvent {
    /// What has happened.
    pub kind: TabletEventKind,
    /// Why.
    pub cause: TabletEventCause,
    /// More about it, for people.
    pub detail: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_found_by_their_names() {
        use TabletEventCause::{Election, Load, Master, Operator, Size, Small};
        for cause in [Operator, Size, Load, Small, Master, Election] {
            assert_eq!(TabletEventCause::from_name(cause.name()), cause);
        }
        assert_eq!(TabletEventCause::from_name("of a later release"), Operator);
    }
}
