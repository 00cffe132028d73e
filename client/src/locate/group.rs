//! A group in the location cache: its replicas and its presumed leader, which all its tablets share.

use std::sync::Arc;

use ebla_model::id::{LogId, ServerId};
use ebla_model::key::KeyRange;
use ebla_model::metadata::{GroupDescriptor, TabletDescriptor};

use super::{CachedTablet, LeaderHint, is_rejected};

/// A group in the location cache.
#[derive(Clone, Debug)]
pub(super) struct CachedGroup {
    /// The newest known membership.
    descriptor: GroupDescriptor,
    /// The presumed leader.
    leader: Option<LeaderHint>,
    /// The last presumed leader that did not lead or did not respond. Peers with stale state may name it again.
    rejected_leader: Option<LeaderHint>,
}

impl CachedGroup {
    /// The group of a tablet, without a known leader.
    pub(super) fn new(tablet: &TabletDescriptor) -> Self {
        Self { descriptor: tablet.group_descriptor(), leader: None, rejected_leader: None }
    }

    pub(super) const fn membership_log_id(&self) -> LogId {
        self.descriptor.membership_log_id
    }

    /// A tablet of this group with the newest membership. A descriptor with an older one is copied.
    pub(super) fn tablet(&self, descriptor: &Arc<TabletDescriptor>, range: KeyRange) -> CachedTablet {
        let descriptor = if descriptor.membership_log_id < self.membership_log_id() {
            let membership = self.descriptor.membership.clone();
            let membership_log_id = self.membership_log_id();
            Arc::new(TabletDescriptor { membership, membership_log_id, ..TabletDescriptor::clone(descriptor) })
        } else {
            Arc::clone(descriptor)
        };
        CachedTablet { descriptor, range, leader: self.leader, rejected_leader: self.rejected_leader }
    }

    /// Takes the membership of a tablet's descriptor if it is newer. A leader that is no member any more is forgotten;
    /// a rejected leader gets another chance: it may be a member now.
    pub(super) fn update_membership(&mut self, tablet: &TabletDescriptor) {
        if tablet.membership_log_id > self.membership_log_id() {
            self.descriptor = tablet.group_descriptor();
            self.leader = self.leader.filter(|leader| tablet.membership.replica_on(leader.server).is_some());
            self.rejected_leader = None;
        }
    }

    /// A server named the leader. A hint of an older term, or of a leader that was rejected in its term, has no effect.
    pub(super) fn update_leader(&mut self, hint: LeaderHint) {
        if !is_rejected(self.rejected_leader, hint) && self.leader.is_none_or(|known| known.term <= hint.term) {
            self.leader = Some(hint);
        }
    }

    /// A server served a request as the leader.
    pub(super) fn confirm_leader(&mut self, server: ServerId) {
        let term = self.leader.or(self.rejected_leader).map(|known| known.term).unwrap_or_default();
        self.leader = Some(LeaderHint { server, term });
        self.rejected_leader = None;
    }

    /// A server does not lead, or did not respond.
    pub(super) fn reject_leader(&mut self, server: ServerId) {
        if let Some(known) = self.leader.filter(|known| known.server == server) {
            self.leader = None;
            self.rejected_leader = Some(known);
        }
    }

    /// Nothing is known about the leader.
    pub(super) fn forget_leader(&mut self) {
        self.leader = None;
        self.rejected_leader = None;
    }
}
