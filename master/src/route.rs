//! Sends an order to the leader of the tablet that holds a key, and walks an operation over a table key by key.
//!
//! METADATA may be behind; the servers' answers correct it. Each tablet answers what it covers, and the walk goes on there,
//! so a split under way leaves nothing out.

use std::collections::VecDeque;
use std::time::Duration;

use ebla_client::Deadline;
use ebla_model::error::{Error, ErrorKind, Reason};
use ebla_model::id::{ServerId, TableId};
use ebla_model::key::{KeyRange, RowKey};
use ebla_model::metadata::TabletDescriptor;
use ebla_proto::control::apply_request::Kind;
use ebla_proto::{convert, tablet};
use futures::future::BoxFuture;

use crate::office::Office;
use crate::orders::Refused;

/// The pause after a first round in which no server would; it doubles up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(20);
/// See [`PAUSE_MIN`].
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// A tablet as far as it is known, and who may lead it.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub(crate) descriptor: TabletDescriptor,
    pub(crate) leader: Option<ServerId>,
}

impl Known {
    /// The servers to ask, the presumed leader first.
    fn servers(&self) -> VecDeque<ServerId> {
        let mut servers: VecDeque<ServerId> = self.leader.into_iter().collect();
        let others = self.descriptor.membership.replicas().map(|replica| replica.server);
        servers.extend(others.filter(|server| Some(*server) != self.leader));
        servers
    }
}

/// The tablets of one table as they are known, in key order.
#[derive(Debug)]
pub(crate) struct TableMap {
    office: Office,
    table: TableId,
    tablets: Vec<Known>,
}

impl TableMap {
    /// What METADATA lists.
    pub(crate) async fn read(office: &Office, table: TableId, deadline: Deadline) -> Result<Self, Error> {
        let mut map = Self { office: office.clone(), table, tablets: Vec::new() };
        map.refresh(deadline).await?;
        Ok(map)
    }

    async fn refresh(&mut self, deadline: Deadline) -> Result<(), Error> {
        let entries = self.office.metadata().read_table(self.table, deadline).await?;
        let known = entries
            .into_iter()
            .map(|entry| Known { leader: entry.leader.map(|leader| leader.server), descriptor: entry.descriptor });
        self.tablets = known.collect();
        Ok(())
    }

    /// The tablet that holds a key.
    pub(crate) fn at(&self, key: &RowKey) -> Option<&Known> {
        self.tablets.iter().find(|known| known.descriptor.range.contains(key.as_bytes()))
    }

    /// Believes a server: its word replaces what overlaps and is older.
    pub(crate) fn learn(&mut self, descriptor: TabletDescriptor, leader: Option<ServerId>) {
        let covers = |known: &Known| known.descriptor.range.intersect(&descriptor.range).is_some();
        let newer = |known: &Known| known.descriptor.generation > descriptor.generation;
        if descriptor.table != self.table || self.tablets.iter().any(|known| covers(known) && newer(known)) {
            return;
        }
        self.tablets.retain(|known| !covers(known));
        let place = self.tablets.partition_point(|known| known.descriptor.range.start() < descriptor.range.start());
        self.tablets.insert(place, Known { descriptor, leader });
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

    /// Sends `order` to the leader of the tablet that holds `key`, wherever it turns out to be, until the deadline.
    ///
    /// # Errors
    /// What the leader says, if trying again cannot help. `Deadline` when the time is over.
    pub(crate) async fn order<T, F>(&mut self, key: &RowKey, deadline: Deadline, order: F) -> Result<T, Error>
    where
        F: Fn(Office, ServerId, TabletDescriptor) -> BoxFuture<'static, Result<T, Refused>>,
    {
        let mut pause = PAUSE_MIN;
        loop {
            let known = self.at(key).cloned();
            let last = match &known {
                Some(known) => match self.round(known, &order).await {
                    Ok(answer) => return Ok(answer),
                    Err(error) if is_final(&error) => return Err(error),
                    Err(error) => error,
                },
                None => Error::new(Reason::NoLeader, format!("METADATA lists no tablet of table {} there", self.table)),
            };
            if self.knows_better_than(known.as_ref(), key) {
                continue;
            }
            let runtime = self.office.runtime();
            if deadline.remaining(&runtime.clock) <= pause {
                return Err(over(&last));
            }
            tokio::time::sleep(runtime.rng.jitter(pause)).await;
            pause = (pause * 2).min(PAUSE_MAX);
            self.refresh(deadline).await?;
        }
    }

    /// Whether a server told of a newer tablet with the key: then METADATA need not be asked. Generations only grow, so
    /// this is true a bounded number of times.
    fn knows_better_than(&self, known: Option<&Known>, key: &RowKey) -> bool {
        let generation = |known: &Known| known.descriptor.generation;
        self.at(key).is_some_and(|now| known.is_none_or(|before| generation(before) < generation(now)))
    }

    /// Asks the servers of a tablet one after another; each answer may say who is to be asked next.
    async fn round<T, F>(&mut self, known: &Known, order: &F) -> Result<T, Error>
    where
        F: Fn(Office, ServerId, TabletDescriptor) -> BoxFuture<'static, Result<T, Refused>>,
    {
        let mut waiting = known.servers();
        let mut asked = Vec::new();
        let mut last = Error::new(Reason::NoLeader, "the tablet has no replicas");
        while let Some(server) = waiting.pop_front() {
            if asked.contains(&server) {
                continue;
            }
            asked.push(server);
            let refused = match order(self.office.clone(), server, known.descriptor.clone()).await {
                Ok(answer) => return Ok(answer),
                Err(refused) => refused,
            };
            self.learn_all(&refused.detail);
            if let Some(leader) = refused.detail.leader {
                waiting.push_front(ServerId::new(leader.server));
            }
            if is_final(&refused.error) || refused.error.kind == ErrorKind::RefreshAndRetry {
                return Err(refused.error);
            }
            last = refused.error;
        }
        Err(last)
    }
}

/// Whether asking again cannot help.
fn is_final(error: &Error) -> bool {
    matches!(error.kind, ErrorKind::FixRequest | ErrorKind::GiveUp) && error.reason != Reason::Deadline
}

fn over(last: &Error) -> Error {
    Error::new(Reason::Deadline, format!("not finished in time, it goes on in the background: {last}"))
}

/// Applies one step at every tablet that holds a part of `range`. Tablets apply it once however often it is sent.
///
/// # Errors
/// As [`TableMap::order`]; the tablets before the one that failed have applied it.
pub(crate) async fn walk(
    office: &Office,
    table: TableId,
    range: &KeyRange,
    kind: &Kind,
    deadline: Deadline,
) -> Result<(), Error> {
    let mut map = TableMap::read(office, table, deadline).await?;
    let mut cursor = range.start().clone();
    loop {
        let covered = step(&mut map, &cursor, kind, deadline).await?;
        match covered.range.end() {
            Some(end) if range.end().is_none_or(|last| end < last) => cursor = end.clone(),
            _ => return Ok(()),
        }
    }
}

/// One step at the tablet that holds `cursor`; answers what that tablet covers.
pub(crate) async fn step(
    map: &mut TableMap,
    cursor: &RowKey,
    kind: &Kind,
    deadline: Deadline,
) -> Result<TabletDescriptor, Error> {
    let at = cursor.clone();
    let order = |office: Office, server, tablet: TabletDescriptor| {
        let (kind, at) = (kind.clone(), at.clone());
        Box::pin(async move {
            let covered = office.orders().apply(server, &tablet, kind).await?;
            if covered.range.contains(at.as_bytes()) {
                return Ok(covered);
            }
            // It was split since, and the key belongs to another half. Nothing was lost: the step was applied here.
            let detail =
                tablet::TabletError { descriptors: vec![convert::descriptor_to_proto(&covered)], ..Default::default() };
            Err(Refused { error: Error::new(Reason::WrongTablet, "the tablet was split"), detail })
        }) as BoxFuture<'static, _>
    };
    let covered: TabletDescriptor = map.order(cursor, deadline, order).await?;
    map.learn(covered.clone(), None);
    Ok(covered)
}
