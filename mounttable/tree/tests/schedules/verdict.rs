//! The checks after a schedule, on the table itself.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use ebla_mounttable_tree::key::name_of;
use ebla_mounttable_tree::store::Family;
use ebla_mounttable_tree::table::Problem;
use ebla_mounttable_tree::{NodeName, Reason};

use crate::scheduler::{Draw, alone, run};
use crate::workload::{Call, Note, World, caller, name};

/// The findings. The first six must be zero.
#[derive(Clone, Default, Debug)]
pub(crate) struct Verdict {
    /// Schedules or calls that did not finish.
    pub(crate) stuck: usize,
    /// Acknowledged mounts that are missing although nobody removed them.
    pub(crate) lost: usize,
    /// Names that resolve and are missing in listings.
    pub(crate) hidden: usize,
    /// Nodes of a deleted directory that reappear when it is created again.
    pub(crate) resurrected: usize,
    /// Rows and intents that a sweep left behind.
    pub(crate) unswept: usize,
    /// Wrong quota counters without crashes, or after a recount.
    pub(crate) mischarged: usize,
    /// Mounts that had to be there.
    pub(crate) promised: usize,
    /// Nodes in listings.
    pub(crate) listed: usize,
    /// Invisible rows before the sweep.
    pub(crate) residue: usize,
}

impl Verdict {
    pub(crate) fn is_good(&self) -> bool {
        self.stuck + self.lost + self.hidden + self.resurrected + self.unswept + self.mischarged == 0
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.stuck += other.stuck;
        self.lost += other.lost;
        self.hidden += other.hidden;
        self.resurrected += other.resurrected;
        self.unswept += other.unswept;
        self.mischarged += other.mischarged;
        self.promised += other.promised;
        self.listed += other.listed;
        self.residue += other.residue;
    }
}

/// Runs one schedule and checks its outcome.
pub(crate) fn of_schedule(seed: u64, crashes_per_thousand: u64) -> Verdict {
    let mut draw = Draw::seeded(seed);
    let world = World::new();
    if draw.chance(1, 3) {
        alone(world.call(Call::Mount("p/c", "h:9"))).unwrap();
    }
    let tasks = world.tasks(&mut draw);
    let mut verdict =
        Verdict { stuck: usize::from(!run(tasks, &mut draw, crashes_per_thousand)), ..Verdict::default() };
    let notes = world.notes.borrow().clone();
    let failed = |note: &&Note| matches!(&note.outcome, Some(Err(error)) if !is_expected(error.reason));
    verdict.stuck += notes.iter().filter(failed).count();
    promises(&world, &notes, &mut verdict);
    visible(&world, &mut verdict);
    // A sweep would remove what might reappear, so only some schedules sweep first.
    if draw.chance(1, 2) {
        sweep(&world, &mut verdict);
    }
    resurrection(&world, &mut verdict);
    sweep(&world, &mut verdict);
    if crashes_per_thousand == 0 {
        verdict.mischarged += wrong_counters(&world);
    }
    alone(world.table.recount()).unwrap();
    verdict.mischarged += wrong_counters(&world);
    verdict
}

fn wrong_counters(world: &World) -> usize {
    let findings = alone(world.table.check()).unwrap();
    findings.iter().filter(|finding| finding.problem == Problem::Counter).count()
}

/// Errors that concurrent calls may cause: a deleted name, a mount on the path.
fn is_expected(reason: Reason) -> bool {
    matches!(reason, Reason::NoSuchName | Reason::ShadowedByMount)
}

/// Every acknowledged mount is there, unless a call that ended after the start of the mount may have removed it.
fn promises(world: &World, notes: &[Note], verdict: &mut Verdict) {
    for mount in notes.iter().filter(|note| note.outcome == Some(Ok(()))) {
        let Call::Mount(at, server) = mount.call else { continue };
        let takes_it = |note: &&Note| match note.call {
            Call::Delete(deleted) => name(at).suffix_below(&name(deleted)).is_some(),
            Call::Unmount(from, taken) => from == at && taken == server,
            _ => false,
        };
        if notes.iter().filter(takes_it).any(|note| note.ended.is_none_or(|ended| ended > mount.began)) {
            continue;
        }
        verdict.promised += 1;
        let found = alone(world.table.resolve(&caller("root"), &name(at)));
        let is_there = found.is_ok_and(|found| {
            // A later mount further up hides the name without removing anything.
            !found.suffix.is_empty() || found.servers.iter().any(|one| one.address.as_str() == server)
        });
        verdict.lost += usize::from(!is_there);
    }
}

/// All names from the root down, as listed.
fn listed(world: &World) -> BTreeSet<NodeName> {
    let mut found = BTreeSet::new();
    let mut queue = VecDeque::from([NodeName::root()]);
    while let Some(node) = queue.pop_front() {
        queue.extend(alone(world.table.children(&node)).unwrap());
        found.insert(node);
    }
    found
}

fn rows(world: &World) -> Vec<NodeName> {
    world.memory.rows().keys().map(|key| name_of(key).unwrap()).collect()
}

/// Every name that resolves is listed.
pub(crate) fn visible(world: &World, verdict: &mut Verdict) {
    let before = rows(world);
    let shown = listed(world);
    verdict.listed += shown.len() - 1;
    for node in before {
        let is_shown = shown.contains(&node);
        let resolves = alone(world.table.resolve(&caller("root"), &node)).is_ok_and(|found| found.suffix.is_empty());
        verdict.hidden += usize::from(resolves && !is_shown);
        verdict.residue += usize::from(!is_shown && rows(world).contains(&node));
    }
}

/// `p` is deleted and created again by another caller: no node that was below it may be there.
pub(crate) fn resurrection(world: &World, verdict: &mut Verdict) {
    alone(world.call(Call::Delete("p"))).unwrap();
    alone(world.call(Call::Mount("p/other", "h:8"))).unwrap();
    for old in ["p/c", "p/d", "p/c/e"] {
        let found = alone(world.table.resolve(&caller("root"), &name(old)));
        verdict.resurrected += usize::from(!found.is_err_and(|error| error.reason == Reason::NoSuchName));
    }
}

/// After a sweep every row is listed and no intent is left.
pub(crate) fn sweep(world: &World, verdict: &mut Verdict) {
    world.memory.advance(Duration::from_secs(60));
    // A row below an orphan becomes an orphan when that is removed: each round handles one more level.
    for _ in 0..3 {
        alone(world.table.sweep()).unwrap();
    }
    let shown = listed(world);
    verdict.unswept += rows(world).iter().filter(|node| !shown.contains(node)).count();
    let is_intent = |family: Family, value: &str| family == Family::Children && value.starts_with('P');
    for row in world.memory.rows().values() {
        verdict.unswept += row.iter().filter(|((family, _), cell)| is_intent(*family, &cell.value)).count();
    }
}
