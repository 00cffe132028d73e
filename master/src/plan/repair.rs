//! Which replicas are made elsewhere, which are made again where they should be, and which are superfluous.
//!
//! ```text
//!   member of a tablet     its server answers and has it          sound
//!                          ... and calls it damaged               lost, at once
//!                          ... and does not have it               made again (empty) after a third of the grace, lost after it
//!                          is gone (see `suspicion`)              lost after the grace, else away
//!
//!   two sets of voters     finish that change
//!   a learner              finish what it was added for, or take it out when that has passed
//!   a lost voter           replace it by one on the least loaded server without the tablet
//!   too few voters         add one, where an odd number is in reach
//!   no majority left       tell: a group that cannot commit cannot change itself
//! ```
//!
//! Urgent is what can bear least: the root tablet, METADATA, then tablets by how many more of their replicas may be lost.
//! Changes under way are bounded over the cluster and for each server that receives one, since every new replica costs a
//! copy of a tablet.
//!
//! **Superfluous** is a replica that its tablet's leader does not count among the members, said by a leader that a majority has just
//! confirmed and whose membership is committed, of one set of voters and the last in its log. Nothing less proves it: a
//! follower may be behind, a deposed leader may know nothing of a replica that was added since.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use ebla_model::id::{ReplicaId, ServerId, TableId, TabletId};
use ebla_model::metadata::{Replica, TabletDescriptor};

use super::suspicion::{Suspect, Suspicions};
use super::{Action, is_kept};
use crate::cluster::{Cluster, ReplicaReport};

/// Changes of replicas under way at most.
const AT_ONCE: usize = 4;
/// New replicas on their way to one server at most.
const INCOMING: usize = 2;
/// A replica that its server does not have is made again after this part of the grace: a split may be about to make it.
const ABSENT_PART: u32 = 3;

/// The times after which something that is missing is looked at again.
#[must_use]
pub fn pauses(grace: Duration) -> [Duration; 2] {
    [grace / ABSENT_PART, grace]
}

/// What a plan depends on beside the picture.
#[derive(Clone, Debug)]
pub struct Circumstances {
    /// Time since boot.
    pub now: Duration,
    /// How long a server may be gone.
    pub grace: Duration,
    /// Replicas that a tablet should have.
    pub replicas: usize,
    /// Since when who has been missing.
    pub suspicions: Suspicions,
    /// The tablets whose replicas are being changed, and the server that gets one.
    pub under_way: BTreeMap<TabletId, Option<ServerId>>,
}

/// A change of a tablet's replicas, to be ordered from its leader. With neither addition nor removal a change that was left
/// half way is finished.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The tablet as its leader has it.
    pub tablet: TabletDescriptor,
    /// Its leader.
    pub leader: ServerId,
    /// What is added.
    pub add: Option<Addition>,
    /// What is removed.
    pub remove: Option<ReplicaId>,
}

/// A replica that becomes a voter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addition {
    /// A new one, on this server.
    On(ServerId),
    /// One that is a learner already.
    Learner(Replica),
}

impl Addition {
    /// Where it is made.
    #[must_use]
    pub const fn server(self) -> ServerId {
        match self {
            Self::On(server) => server,
            Self::Learner(replica) => replica.server,
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "change-replicas table={} tablet={}", self.tablet.table, self.tablet.tablet)?;
        match self.add {
            Some(Addition::On(server)) => write!(f, " add-on={server}")?,
            Some(Addition::Learner(learner)) => write!(f, " promote={}@{}", learner.replica, learner.server)?,
            None => {}
        }
        match self.remove {
            Some(replica) => write!(f, " remove={replica}"),
            None => Ok(()),
        }
    }
}

/// What to do about replicas, the most urgent change first, what removes last.
pub(super) fn repair(cluster: &Cluster, around: &Circumstances) -> Vec<Action> {
    let ward = Ward::new(cluster, around);
    let mut actions = ward.hopeless();
    actions.extend(ward.absent());
    let mut cases: Vec<Case<'_>> = ward.cases().collect();
    cases.sort_by_key(Case::urgency);
    let mut budget = Budget::new(cluster, around);
    actions.extend(cases.iter().filter_map(|case| Some(Action::ChangeReplicas(budget.change(case)?))));
    actions.extend(ward.superfluous());
    actions
}

/// How a member of a tablet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Condition {
    Sound,
    /// Missing, not for long enough.
    Away,
    Lost,
}

/// What a tablet needs.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Need {
    /// One set of voters.
    Settle,
    /// A learner that is a voter, and perhaps one voter less.
    Promote(Replica, Option<ReplicaId>),
    /// A member less.
    Remove(ReplicaId),
    /// Another replica for this one, which may be where that is if there is no other place.
    Replace(Replica),
    /// One more.
    Add,
}

/// A tablet that needs something.
struct Case<'a> {
    leader: ServerId,
    tablet: &'a TabletDescriptor,
    need: Need,
    sound: usize,
}

impl Case<'_> {
    /// The smaller, the sooner: METADATA first, then by how many more replicas can be lost.
    fn urgency(&self) -> (u8, usize, usize, TabletId) {
        let class = match (self.tablet.tablet, self.tablet.table) {
            (TabletId::ROOT, _) => 0,
            (_, TableId::METADATA) => 1,
            _ => 2,
        };
        let majority = voters(self.tablet).len() / 2 + 1;
        (class, self.sound.saturating_sub(majority), self.sound, self.tablet.tablet)
    }
}

/// The tablets under treatment, with what decides about them.
struct Ward<'a> {
    cluster: &'a Cluster,
    around: &'a Circumstances,
    led: BTreeMap<TabletId, (ServerId, &'a ReplicaReport)>,
}

impl<'a> Ward<'a> {
    fn new(cluster: &'a Cluster, around: &'a Circumstances) -> Self {
        Self { cluster, around, led: cluster.led() }
    }

    /// The tablets that are led, are there to stay, and are not being changed.
    fn patients(&self) -> impl Iterator<Item = (ServerId, &'a ReplicaReport)> {
        let led = self.led.values().copied();
        led.filter(|(_leader, report)| self.is_open(&report.descriptor))
    }

    fn is_open(&self, tablet: &TabletDescriptor) -> bool {
        is_kept(self.cluster, tablet.table) && !self.around.under_way.contains_key(&tablet.tablet)
    }

    fn cases(&self) -> impl Iterator<Item = Case<'a>> {
        self.patients().filter_map(|(leader, report)| {
            let tablet = &report.descriptor;
            let sound = self.in_condition(tablet, Condition::Sound).len();
            Some(Case { leader, tablet, need: self.need(tablet)?, sound })
        })
    }

    fn need(&self, tablet: &TabletDescriptor) -> Option<Need> {
        if !tablet.membership.is_uniform() {
            return Some(Need::Settle);
        }
        let (voters, lost) = (voters(tablet), self.in_condition(tablet, Condition::Lost));
        let has_majority = 2 * self.in_condition(tablet, Condition::Sound).len() > voters.len();
        if let Some(learner) = tablet.membership.replicas().find(|replica| !voters.contains(&replica.replica)) {
            let is_wanted = !lost.is_empty() || voters.len() < self.goal(tablet);
            return match self.condition(tablet, learner) {
                Condition::Away => None,
                Condition::Sound if is_wanted => Some(Need::Promote(learner, leaver(&lost, learner))),
                Condition::Sound | Condition::Lost => Some(Need::Remove(learner.replica)),
            };
        }
        match lost.first() {
            Some(_lost) if !has_majority => None,
            Some(lost) if voters.len() > self.around.replicas => Some(Need::Remove(lost.replica)),
            Some(lost) => Some(Need::Replace(*lost)),
            None if voters.len() < self.goal(tablet) && self.is_calm(tablet) => Some(Need::Add),
            None => None,
        }
    }

    /// How many voters a tablet should have as things are. An even number bears no more losses than the odd one below,
    /// so it is not aimed at unless it was asked for.
    fn goal(&self, tablet: &TabletDescriptor) -> usize {
        let members: BTreeSet<ServerId> = tablet.membership.replicas().map(|replica| replica.server).collect();
        let free = self.cluster.loads().into_keys().filter(|server| !members.contains(server)).count();
        let (wanted, possible) = (self.around.replicas, members.len() + free);
        if possible >= wanted { wanted } else { possible - usize::from(possible.is_multiple_of(2)) }
    }

    fn is_calm(&self, tablet: &TabletDescriptor) -> bool {
        self.in_condition(tablet, Condition::Sound).len() == voters(tablet).len()
    }

    /// The voters in this condition; damaged ones first among the lost.
    fn in_condition(&self, tablet: &TabletDescriptor, condition: Condition) -> Vec<Replica> {
        let voters = voters(tablet);
        let members = tablet.membership.replicas().filter(|replica| voters.contains(&replica.replica));
        let mut found: Vec<Replica> = members.filter(|member| self.condition(tablet, *member) == condition).collect();
        found.sort_by_key(|member| !self.is_damaged(tablet.tablet, *member));
        found
    }

    fn condition(&self, tablet: &TabletDescriptor, member: Replica) -> Condition {
        let gone = |suspect| self.around.suspicions.is_gone(suspect, self.around.now, self.around.grace);
        let missing = |suspect| if gone(suspect) { Condition::Lost } else { Condition::Away };
        if self.is_damaged(tablet.tablet, member) {
            return Condition::Lost;
        }
        let Some(server) = self.cluster.servers.get(&member.server) else {
            let suspect = Suspect::Server(member.server);
            // One that does not answer the master and answers its leader does its work.
            let is_suspected = self.around.suspicions.is_gone(suspect, self.around.now, Duration::ZERO);
            return if is_suspected { missing(suspect) } else { Condition::Sound };
        };
        let Some(report) = &server.report else { return Condition::Away };
        let is_it = |here: &ReplicaReport| here.descriptor.tablet == tablet.tablet && here.replica == member.replica;
        if report.replicas.iter().any(is_it) {
            return Condition::Sound;
        }
        missing(Suspect::Replica(member.server, tablet.tablet, member.replica))
    }

    fn is_damaged(&self, tablet: TabletId, member: Replica) -> bool {
        let report = self.cluster.servers.get(&member.server).and_then(|server| server.report.as_ref());
        report.is_some_and(|report| report.damaged.contains(&(tablet, member.replica)))
    }

    /// Tablets that cannot help themselves any more: told, never acted upon.
    fn hopeless(&self) -> Vec<Action> {
        let known = self.cluster.known_tablets().into_values();
        let newest =
            known.map(|tablet| self.led.get(&tablet.tablet).map_or(tablet, |(_leader, report)| &report.descriptor));
        let lost = newest.filter(|tablet| self.is_open(tablet)).filter_map(|tablet| {
            let (lost, of) = (self.in_condition(tablet, Condition::Lost).len(), voters(tablet).len());
            (2 * lost >= of).then_some(Action::TellLost { table: tablet.table, tablet: tablet.tablet, lost, of })
        });
        lost.collect()
    }

    /// Members that their server does not have: one that missed the split which made them, for example.
    fn absent(&self) -> Vec<Action> {
        let (now, wait) = (self.around.now, self.around.grace / ABSENT_PART);
        let mut made = Vec::new();
        for (_leader, report) in self.patients() {
            let tablet = &report.descriptor;
            if self.cluster.plans.contains_key(&tablet.table) {
                // The making of the table sees to it.
                continue;
            }
            let missing = tablet.membership.replicas().filter(|member| {
                let suspect = Suspect::Replica(member.server, tablet.tablet, member.replica);
                self.around.suspicions.is_gone(suspect, now, wait)
            });
            made.extend(missing.map(|replica| Action::MakeReplica { tablet: tablet.clone(), replica }));
        }
        made
    }

    fn superfluous(&self) -> Vec<Action> {
        let sure = strangers(self.cluster).into_iter().filter(|stranger| stranger.leads.settled);
        let drops = sure.filter(|stranger| self.is_open(&stranger.leads.descriptor));
        let drop = |Stranger { server, tablet, replica, .. }| Action::DropReplica { server, tablet, replica };
        drops.map(drop).collect()
    }
}

/// A replica that the leader of its tablet does not count among the members, and what that leader says.
struct Stranger<'a> {
    server: ServerId,
    tablet: TabletId,
    replica: ReplicaId,
    leads: &'a ReplicaReport,
}

fn strangers(cluster: &Cluster) -> Vec<Stranger<'_>> {
    let led = cluster.led();
    let running = cluster.reports().map(|(server, report)| (server, report.descriptor.tablet, report.replica));
    let all: BTreeSet<_> = running.chain(cluster.silent()).collect();
    let stranger = |(server, tablet, replica)| {
        let (_leader, leads) = *led.get(&tablet)?;
        let is_member = leads.descriptor.membership.server_of(replica) == Some(server);
        (!is_member).then_some(Stranger { server, tablet, replica, leads })
    };
    all.into_iter().filter_map(stranger).collect()
}

/// Whether a replica seems to be superfluous and its tablet's leader was not sure: worth another look soon.
#[must_use]
pub fn is_unsure(cluster: &Cluster) -> bool {
    strangers(cluster).iter().any(|stranger| !stranger.leads.settled)
}

/// Who leaves when the learner becomes a voter: the one whose place it takes on its server, or the first of the lost.
fn leaver(lost: &[Replica], learner: Replica) -> Option<ReplicaId> {
    let same_place = lost.iter().find(|one| one.server == learner.server);
    same_place.or_else(|| lost.first()).map(|one| one.replica)
}

fn voters(tablet: &TabletDescriptor) -> BTreeSet<ReplicaId> {
    tablet.membership.voters.last().cloned().unwrap_or_default()
}

/// What may still be begun, and where.
struct Budget<'a> {
    cluster: &'a Cluster,
    left: usize,
    incoming: BTreeMap<ServerId, usize>,
    loads: BTreeMap<ServerId, u64>,
}

impl<'a> Budget<'a> {
    fn new(cluster: &'a Cluster, around: &Circumstances) -> Self {
        let mut budget = Self {
            cluster,
            left: AT_ONCE.saturating_sub(around.under_way.len()),
            incoming: BTreeMap::new(),
            loads: cluster.loads(),
        };
        for server in around.under_way.values().flatten() {
            budget.expect(*server);
        }
        budget
    }

    /// The change that a case needs, if it may be made now.
    fn change(&mut self, case: &Case<'_>) -> Option<Change> {
        if self.left == 0 {
            return None;
        }
        let (add, remove) = match &case.need {
            Need::Settle => (None, None),
            Need::Promote(learner, leaver) => (Some(Addition::Learner(*learner)), *leaver),
            Need::Remove(member) => (None, Some(*member)),
            Need::Replace(lost) => (Some(Addition::On(self.place(case.tablet, Some(*lost))?)), Some(lost.replica)),
            Need::Add => (Some(Addition::On(self.place(case.tablet, None)?)), None),
        };
        self.left -= 1;
        if let Some(add) = add {
            self.expect(add.server());
        }
        Some(Change { tablet: case.tablet.clone(), leader: case.leader, add, remove })
    }

    /// The least loaded server that has nothing of the tablet; where there is none, the place of the lost replica, if its
    /// server lives. `None` as well when all that could take it are busy with others.
    fn place(&self, tablet: &TabletDescriptor, lost: Option<Replica>) -> Option<ServerId> {
        let mut free: Vec<(u64, ServerId)> = Vec::new();
        for (server, load) in &self.loads {
            if !self.holds(*server, tablet) {
                free.push((*load, *server));
            }
        }
        if free.is_empty() {
            free.extend(lost.and_then(|lost| Some((*self.loads.get(&lost.server)?, lost.server))));
        }
        free.retain(|(_load, server)| self.incoming.get(server).is_none_or(|count| *count < INCOMING));
        free.into_iter().min().map(|(_load, server)| server)
    }

    /// Whether a server has a replica of the tablet, or should have, or still has one that is superfluous.
    fn holds(&self, server: ServerId, tablet: &TabletDescriptor) -> bool {
        let report = self.cluster.servers.get(&server).and_then(|server| server.report.as_ref());
        tablet.membership.replica_on(server).is_some()
            || report.is_some_and(|report| {
                report.replicas.iter().any(|replica| replica.descriptor.tablet == tablet.tablet)
                    || report.damaged.iter().chain(&report.idle).any(|(silent, _replica)| *silent == tablet.tablet)
            })
    }

    fn expect(&mut self, server: ServerId) {
        *self.incoming.entry(server).or_default() += 1;
        if let Some(load) = self.loads.get_mut(&server) {
            *load += 1;
        }
    }
}
