//! Sends a request to the leader of the tablet that contains a key, or to the leader of a group, and applies an operation
//! to all tablets of a range.
//!
//! METADATA may be stale; the servers' responses correct it. Each tablet returns the range that it covers, and the
//! next request starts at its end, so a concurrent split leaves nothing out.

use std::collections::VecDeque;
use std::time::Duration;

use ebla_client::Deadline;
use ebla_model::error::{Error, ErrorKind, Reason};
use ebla_model::id::{ServerId, TableId};
use ebla_model::key::{KeyRange, RowKey};
use ebla_model::metadata::{GroupDescriptor, TabletDescriptor, obsolete_row_keys};
use ebla_proto::control::apply_request::Kind;
use ebla_proto::{convert, tablet};
use futures::future::BoxFuture;

use crate::active::ActiveMaster;
use crate::observation;
use crate::server_client::RpcError;

/// The delay after a first round in which no server accepted the request; it doubles up to [`RETRY_DELAY_MAX`].
const RETRY_DELAY_MIN: Duration = Duration::from_millis(20);
/// See [`RETRY_DELAY_MIN`].
const RETRY_DELAY_MAX: Duration = Duration::from_secs(1);

/// A tablet as far as it is known, and its presumed leader.
#[derive(Clone, Debug)]
pub(crate) struct KnownTablet {
    pub(crate) descriptor: TabletDescriptor,
    pub(crate) leader: Option<ServerId>,
}

impl KnownTablet {
    /// The servers to try, the presumed leader first.
    fn servers(&self) -> VecDeque<ServerId> {
        let mut servers: VecDeque<ServerId> = self.leader.into_iter().collect();
        let others = self.descriptor.membership.replicas().map(|replica| replica.server);
        servers.extend(others.filter(|server| Some(*server) != self.leader));
        servers
    }
}

/// The known tablets of one table, in key order.
#[derive(Debug)]
pub(crate) struct TableMap {
    master: ActiveMaster,
    table: TableId,
    tablets: Vec<KnownTablet>,
}

impl TableMap {
    /// Reads the tablets from METADATA.
    pub(crate) async fn read(master: &ActiveMaster, table: TableId, deadline: Deadline) -> Result<Self, Error> {
        let mut map = Self { master: master.clone(), table, tablets: Vec::new() };
        map.refresh(deadline).await?;
        Ok(map)
    }

    async fn refresh(&mut self, deadline: Deadline) -> Result<(), Error> {
        let mut entries = self.master.metadata().read_table(self.table, deadline).await?;
        // A row that a merge has left behind overlaps the row of the merged tablet.
        let obsolete = obsolete_row_keys(entries.iter().map(|entry| &entry.descriptor));
        entries.retain(|entry| !obsolete.contains(&entry.key));
        let known = entries.into_iter().map(|entry| KnownTablet {
            leader: entry.leader.map(|leader| leader.server),
            descriptor: entry.descriptor,
        });
        self.tablets = known.collect();
        Ok(())
    }

    /// The tablet that contains a key.
    pub(crate) fn at(&self, key: &RowKey) -> Option<&KnownTablet> {
        let after = self.tablets.partition_point(|known| known.descriptor.range.start() <= key);
        self.tablets.get(after.checked_sub(1)?).filter(|known| known.descriptor.range.contains(key.as_bytes()))
    }

    /// Takes a descriptor from a server: it replaces older tablets that overlap it.
    pub(crate) fn learn(&mut self, descriptor: TabletDescriptor, leader: Option<ServerId>) {
        if leader.is_none() && self.at(descriptor.range.start()).is_some_and(|known| known.descriptor == descriptor) {
            return;
        }
        let covers = |known: &KnownTablet| known.descriptor.range.intersect(&descriptor.range).is_some();
        let newer = |known: &KnownTablet| known.descriptor.generation > descriptor.generation;
        if descriptor.table != self.table || self.tablets.iter().any(|known| covers(known) && newer(known)) {
            return;
        }
        self.tablets.retain(|known| !covers(known));
        let place = self.tablets.partition_point(|known| known.descriptor.range.start() < descriptor.range.start());
        self.tablets.insert(place, KnownTablet { descriptor, leader });
    }

    fn learn_all(&mut self, detail: &tablet::TabletError) {
        let leader = detail.leader.map(|leader| ServerId::new(leader.server));
        for message in &detail.descriptors {
            if let Ok(descriptor) = convert::descriptor_from_proto(message) {
                let hint = leader.filter(|server| descriptor.membership.replica_on(*server).is_some());
                self.learn(descriptor, hint);
            }
        }
    }

    /// Sends `call` to the leader of the tablet that contains `key`, following hints and retrying until the deadline.
    ///
    /// # Errors
    /// Those of the leader that a retry cannot help; `Deadline` after the deadline.
    pub(crate) async fn send_to_leader<T, F>(&mut self, key: &RowKey, deadline: Deadline, call: F) -> Result<T, Error>
    where
        F: Fn(ActiveMaster, ServerId, TabletDescriptor) -> BoxFuture<'static, Result<T, RpcError>>,
    {
        let mut delay = RETRY_DELAY_MIN;
        loop {
            let known = self.at(key).cloned();
            let last = match &known {
                Some(known) => match self.round(known, &call).await {
                    Ok(answer) => return Ok(answer),
                    Err(error) if is_final(&error) => return Err(error),
                    Err(error) => error,
                },
                None => {
                    Error::new(Reason::NoLeader, format!("METADATA lists no tablet of table {} at the key", self.table))
                }
            };
            if self.has_newer_than(known.as_ref(), key) {
                continue;
            }
            let runtime = self.master.runtime();
            if deadline.remaining(&runtime.clock) <= delay {
                return Err(timed_out(&last));
            }
            tokio::time::sleep(runtime.rng.jitter(delay)).await;
            delay = (delay * 2).min(RETRY_DELAY_MAX);
            self.refresh(deadline).await?;
        }
    }

    /// Whether a server reported a newer tablet with the key, so that METADATA need not be read. Generations only
    /// grow, so this is true a bounded number of times.
    fn has_newer_than(&self, known: Option<&KnownTablet>, key: &RowKey) -> bool {
        let generation = |known: &KnownTablet| known.descriptor.generation;
        self.at(key).is_some_and(|now| known.is_none_or(|before| generation(before) < generation(now)))
    }

    /// Tries the servers of a tablet one after another; a response may name the leader, which is tried next.
    async fn round<T, F>(&mut self, known: &KnownTablet, call: &F) -> Result<T, Error>
    where
        F: Fn(ActiveMaster, ServerId, TabletDescriptor) -> BoxFuture<'static, Result<T, RpcError>>,
    {
        let mut queue = known.servers();
        let mut tried = Vec::new();
        let mut last = Error::new(Reason::NoLeader, "the tablet has no replicas");
        while let Some(server) = queue.pop_front() {
            if tried.contains(&server) {
                continue;
            }
            tried.push(server);
            let failed = match call(self.master.clone(), server, known.descriptor.clone()).await {
                Ok(answer) => return Ok(answer),
                Err(failed) => failed,
            };
            self.learn_all(&failed.detail);
            if let Some(leader) = failed.detail.leader {
                queue.push_front(ServerId::new(leader.server));
            }
            if is_final(&failed.error) || failed.error.kind == ErrorKind::RefreshAndRetry {
                return Err(failed.error);
            }
            last = failed.error;
        }
        Err(last)
    }
}

/// Sends `call` to the leader of a group, following hints and retrying until the deadline. `group`: its last known
/// descriptor; reports of the servers correct it.
///
/// # Errors
/// Those of the leader that a retry cannot help; `Deadline` after the deadline.
pub(crate) async fn send_to_group_leader<T, F>(
    master: &ActiveMaster,
    group: &GroupDescriptor,
    deadline: Deadline,
    call: F,
) -> Result<T, Error>
where
    F: Fn(ActiveMaster, ServerId, GroupDescriptor) -> BoxFuture<'static, Result<T, RpcError>>,
{
    let (mut group, mut leader, mut delay) = (group.clone(), None, RETRY_DELAY_MIN);
    loop {
        let last = match group_round(master, &group, leader, &call).await {
            Ok(answer) => return Ok(answer),
            Err(error) if is_final(&error) => return Err(error),
            Err(error) => error,
        };
        let runtime = master.runtime();
        if deadline.remaining(&runtime.clock) <= delay {
            return Err(timed_out(&last));
        }
        tokio::time::sleep(runtime.rng.jitter(delay)).await;
        delay = (delay * 2).min(RETRY_DELAY_MAX);
        let snapshot = observation::observe_reports(master).await?;
        leader = snapshot.leader_reports().get(&group.group).map(|(server, _report)| *server);
        group = snapshot.groups().remove(&group.group).unwrap_or(group);
    }
}

/// Tries the servers of a group one after another; a response may name the leader, which is tried next.
pub(crate) async fn group_round<T, F>(
    master: &ActiveMaster,
    group: &GroupDescriptor,
    leader: Option<ServerId>,
    call: &F,
) -> Result<T, Error>
where
    F: Fn(ActiveMaster, ServerId, GroupDescriptor) -> BoxFuture<'static, Result<T, RpcError>>,
{
    let members = group.membership.replicas().map(|replica| replica.server);
    let mut queue: VecDeque<ServerId> = leader.into_iter().chain(members).collect();
    let mut tried = Vec::new();
    let mut last = Error::new(Reason::NoLeader, "the group has no replicas");
    while let Some(server) = queue.pop_front() {
        if tried.contains(&server) {
            continue;
        }
        tried.push(server);
        let failed = match call(master.clone(), server, group.clone()).await {
            Ok(answer) => return Ok(answer),
            Err(failed) => failed,
        };
        if let Some(leader) = failed.detail.leader {
            queue.push_front(ServerId::new(leader.server));
        }
        if is_final(&failed.error) {
            return Err(failed.error);
        }
        last = failed.error;
    }
    Err(last)
}

/// Whether a retry cannot help.
pub(crate) fn is_final(error: &Error) -> bool {
    matches!(error.kind, ErrorKind::FixRequest | ErrorKind::GiveUp) && error.reason != Reason::Deadline
}

fn timed_out(last: &Error) -> Error {
    Error::new(Reason::Deadline, format!("not finished in time; the change continues in the background: {last}"))
}

/// Applies one step at every tablet that overlaps `range`. A group applies it once, for all its tablets of the table,
/// however often it is sent.
///
/// # Errors
/// As [`TableMap::send_to_leader`]; the tablets before the one that failed have applied it.
pub(crate) async fn apply_to_range(
    master: &ActiveMaster,
    table: TableId,
    range: &KeyRange,
    kind: &Kind,
    deadline: Deadline,
) -> Result<(), Error> {
    let mut map = TableMap::read(master, table, deadline).await?;
    let mut cursor = range.start().clone();
    loop {
        let covered = apply_at(&mut map, &cursor, kind, deadline).await?;
        match covered.range.end() {
            Some(end) if range.end().is_none_or(|last| end < last) => cursor = end.clone(),
            _ => return Ok(()),
        }
    }
}

/// Applies one step at the tablet that contains `cursor`. Returns the descriptor of that tablet.
pub(crate) async fn apply_at(
    map: &mut TableMap,
    cursor: &RowKey,
    kind: &Kind,
    deadline: Deadline,
) -> Result<TabletDescriptor, Error> {
    let at = cursor.clone();
    let call = |master: ActiveMaster, server, tablet: TabletDescriptor| {
        let (kind, at) = (kind.clone(), at.clone());
        Box::pin(async move {
            let covered = master.servers().apply(server, &tablet, kind).await?;
            if covered.range.contains(at.as_bytes()) {
                return Ok(covered);
            }
            // It was split meanwhile, and the key belongs to the other half. The step was applied here, so nothing is
            // lost.
            let detail =
                tablet::TabletError { descriptors: vec![convert::descriptor_to_proto(&covered)], ..Default::default() };
            Err(RpcError { error: Error::new(Reason::WrongTablet, "the tablet was split"), detail })
        }) as BoxFuture<'static, _>
    };
    let covered: TabletDescriptor = map.send_to_leader(cursor, deadline, call).await?;
    map.learn(covered.clone(), None);
    Ok(covered)
}
