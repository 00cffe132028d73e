//! A fake cluster in memory: tablets with leaders and generations over one map of rows, and events that tests schedule.
//!
//! Servers respond as real ones do: wrong generation, not the leader, wrong tablet. A write is applied once for each
//! (session, sequence), as long as the session is remembered, and every application is counted, so that a test detects a
//! duplicate.
//! The tests of `routing` use this file too.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ebla_model::cell::{Cell, FamilyName, Row};
use ebla_model::error::{Error, Reason};
use ebla_model::filter::CompiledFilter;
use ebla_model::id::{ClusterId, ServerId, TableId, TabletId, Term};
use ebla_model::key::{KeyRange, RowKey, RowSet};
use ebla_model::metadata::{
    DESCRIPTOR_QUALIFIER, LOCATION_FAMILY, Membership, TabletDescriptor, first_tablets, root_range,
};
use ebla_model::mutation::{Mutation, WriteTime};
use ebla_model::schema::TableName;
use ebla_model::session::IDLE_MAX;
use ebla_model::time::Micros;
use ebla_proto::convert::{LargeRows, MessageSizes, RowMessage, RowMessages};
use ebla_proto::{convert, record, tablet};
use futures::future::BoxFuture;
use futures::stream::{StreamExt, unfold};
use parking_lot::{Mutex, MutexGuard};
use prost::Message;
use tokio::time::Instant;

use super::client::directory::{Directory, Freshness};
use super::client::read::whole_rows;
use super::client::transport::{CallError, ReadStream, Target, Transport};

/// The table of the tests.
pub(crate) const TABLE: TableId = TableId::new(5);
/// Rows in one batch of a read.
const BATCH_ROWS: usize = 3;
/// The message sizes for a caller that accepts split rows.
const SIZES: MessageSizes = MessageSizes { rows_max: 500, part: 200 };

/// An event in the cluster.
#[derive(Clone, Debug)]
pub(crate) enum ClusterEvent {
    Split {
        at: &'static str,
    },
    /// The tablet that begins at this key gets the rows of the tablet before it.
    Merge {
        at: &'static str,
    },
    Lead {
        key: &'static str,
        server: u64,
    },
    /// The next writes are applied, but their responses are lost.
    LoseResponses(u32),
    /// The next writes are rejected as busy.
    Busy(u32),
    /// No replica of the tablet with this key leads.
    NoLeader {
        key: &'static str,
    },
    /// No replica of METADATA leads.
    MetadataElection,
    /// All replicas of the tablet with this key move to other servers, which METADATA lists. The old replicas do not
    /// know.
    Move {
        key: &'static str,
    },
}

#[derive(Clone, Debug)]
struct FakeTablet {
    descriptor: TabletDescriptor,
    leader: Option<ServerId>,
    term: Term,
}

#[derive(Default)]
pub(crate) struct ClusterState {
    tablets: BTreeMap<TabletId, FakeTablet>,
    rows: BTreeMap<(TableId, RowKey), Row>,
    next_tablet: u64,
    next_time: i64,
    /// The applied writes, and when.
    applied_ids: BTreeMap<(Bytes, u64), Instant>,
    /// The largest distance of a write from the lowest outstanding one of its session.
    pub(crate) held_back_max: u64,
    responses_to_lose: u32,
    busy_responses: u32,
    /// The scheduled events, by step.
    script: VecDeque<(u64, ClusterEvent)>,
    pub(crate) down: BTreeSet<ServerId>,
    /// Steps so far: read messages and writes.
    pub(crate) steps: u64,
    /// Calls of any kind, by table.
    pub(crate) calls: BTreeMap<TableId, u64>,
    /// The number of requests for the root tablet.
    pub(crate) root_requests: u64,
    /// How often mutations were applied to a row.
    pub(crate) applied: BTreeMap<RowKey, u64>,
}

/// The cluster, its transport and its directory.
#[derive(Clone, Default)]
pub(crate) struct Fake(Arc<Mutex<ClusterState>>);

pub(crate) fn key(text: &str) -> RowKey {
    RowKey::copy_from_slice(text.as_bytes())
}

impl Fake {
    /// Three servers, METADATA, and [`TABLE`] split at these keys; the servers lead its tablets in turn.
    pub(crate) fn new(cuts: &[&str]) -> Self {
        let servers: Vec<ServerId> = (1..=3).map(ServerId::new).collect();
        let fake = Self::default();
        let mut state = fake.state();
        state.next_tablet = 10;
        for descriptor in first_tablets(&servers) {
            state.add(descriptor, 1);
        }
        let mut start = RowKey::EMPTY;
        for (number, end) in cuts.iter().map(|cut| Some(key(cut))).chain([None]).enumerate() {
            let tablet = state.new_tablet();
            let range = KeyRange::new(start, end.clone()).unwrap();
            state.add(TabletDescriptor::initial(TABLE, tablet, range, &servers), 1 + number as u64 % 3);
            start = end.unwrap_or_default();
        }
        drop(state);
        fake
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, ClusterState> {
        self.0.lock()
    }

    /// Schedules an event at the given step from now.
    pub(crate) fn schedule(&self, step: u64, event: ClusterEvent) {
        let mut state = self.state();
        let step = state.steps + step;
        state.script.push_back((step, event));
    }

    pub(crate) fn trigger(&self, event: ClusterEvent) {
        self.state().trigger(event);
    }

    pub(crate) fn fill(&self, rows: usize) -> Vec<RowKey> {
        let keys: Vec<RowKey> = (0..rows).map(|row| key(&format!("r{row:04}"))).collect();
        let mut state = self.state();
        for key in &keys {
            state.set(TABLE, key, "f", b"q", 1_000, Bytes::from_static(b"v"));
        }
        keys
    }

    /// Writes a cell of [`TABLE`].
    pub(crate) fn put(&self, row: &RowKey, qualifier: &[u8], value: Bytes) {
        self.state().set(TABLE, row, "f", qualifier, 1_000, value);
    }

    /// The current rows of [`TABLE`].
    pub(crate) fn rows(&self) -> Vec<Row> {
        let state = self.state();
        state.rows.iter().filter(|((of, _), _)| *of == TABLE).map(|(_, row)| row.clone()).collect()
    }

    pub(crate) fn value(&self, row: &RowKey) -> Option<Bytes> {
        let state = self.state();
        state.rows.get(&(TABLE, row.clone())).and_then(|row| row.cells.first()).map(|cell| cell.value.clone())
    }
}

impl ClusterState {
    fn new_tablet(&mut self) -> TabletId {
        self.next_tablet += 1;
        TabletId::new(self.next_tablet - 1)
    }

    fn add(&mut self, descriptor: TabletDescriptor, leader: u64) {
        self.list(&descriptor);
        let tablet = FakeTablet { descriptor, leader: Some(ServerId::new(leader)), term: Term::new(1) };
        self.tablets.insert(tablet.descriptor.tablet, tablet);
    }

    fn list(&mut self, descriptor: &TabletDescriptor) {
        let value = convert::descriptor_to_bytes(descriptor);
        let row = descriptor.row_key();
        self.set(TableId::METADATA, &row, LOCATION_FAMILY, DESCRIPTOR_QUALIFIER, 0, value);
    }

    fn set(&mut self, table: TableId, row: &RowKey, family: &str, qualifier: &[u8], timestamp: i64, value: Bytes) {
        let cell = Cell::new(
            FamilyName::new(family).unwrap(),
            Bytes::copy_from_slice(qualifier),
            Micros::new(timestamp),
            value,
        );
        let row = self.rows.entry((table, row.clone())).or_insert_with(|| Row::empty(row.clone()));
        row.cells.retain(|other| !(other.is_same_column(&cell) && other.timestamp == cell.timestamp));
        row.cells.push(cell);
        row.cells.sort_by(Cell::order);
    }

    fn holder(&mut self, table: TableId, row: &str) -> &mut FakeTablet {
        let holds = |tablet: &&mut FakeTablet| {
            tablet.descriptor.table == table && tablet.descriptor.range.contains(row.as_bytes())
        };
        self.tablets.values_mut().find(holds).unwrap()
    }

    fn trigger(&mut self, event: ClusterEvent) {
        match event {
            ClusterEvent::Split { at } => {
                let child = self.new_tablet();
                let parent = self.holder(TABLE, at);
                let Some((left, right)) = parent.descriptor.split(&key(at), child) else { return };
                parent.descriptor = left;
                let right = FakeTablet { descriptor: right, ..parent.clone() };
                self.tablets.insert(child, right);
                // METADATA stays stale on purpose.
            }
            ClusterEvent::Merge { at } => {
                let ends_here = |tablet: &&FakeTablet| {
                    tablet.descriptor.table == TABLE && tablet.descriptor.range.end() == Some(&key(at))
                };
                let left = self.tablets.values().find(ends_here).unwrap().descriptor.clone();
                self.tablets.remove(&left.tablet);
                let right = self.holder(TABLE, at);
                // Tablets of one group have one leader; here both may have their own, and the right one's counts.
                right.descriptor =
                    right.descriptor.merge(&TabletDescriptor { group: right.descriptor.group, ..left }).unwrap();
                // METADATA stays stale on purpose.
            }
            ClusterEvent::Lead { key, server } => {
                let tablet = self.holder(TABLE, key);
                tablet.leader = Some(ServerId::new(server));
                tablet.term = tablet.term.next();
            }
            ClusterEvent::NoLeader { key } => self.holder(TABLE, key).leader = None,
            ClusterEvent::MetadataElection => {
                let of_metadata = self.tablets.values_mut().filter(|one| one.descriptor.table == TableId::METADATA);
                of_metadata.for_each(|one| one.leader = None);
            }
            ClusterEvent::Move { key } => {
                let servers: Vec<ServerId> = (4..=6).map(ServerId::new).collect();
                let tablet = self.holder(TABLE, key);
                tablet.descriptor.membership = Membership::initial(&servers);
                let membership = &mut tablet.descriptor.membership_log_id;
                membership.index = membership.index.next();
                tablet.leader = servers.first().copied();
                tablet.term = tablet.term.next();
                let now = tablet.descriptor.clone();
                self.list(&now);
            }
            ClusterEvent::LoseResponses(count) => self.responses_to_lose = count,
            ClusterEvent::Busy(count) => self.busy_responses = count,
        }
    }

    fn step(&mut self) {
        self.steps += 1;
        while let Some((step, _event)) = self.script.front()
            && *step <= self.steps
        {
            let (_step, event) = self.script.pop_front().unwrap();
            self.trigger(event);
        }
    }

    /// The requested tablet, if the server leads it and the generation matches.
    fn admit(&mut self, server: ServerId, header: Option<&tablet::Header>) -> Result<TabletDescriptor, CallError> {
        self.admit_to(server, header, false)
    }

    /// As [`Self::admit`]; `any_replica`: the server need not lead a tablet of METADATA.
    fn admit_to(
        &mut self,
        server: ServerId,
        header: Option<&tablet::Header>,
        any_replica: bool,
    ) -> Result<TabletDescriptor, CallError> {
        let header = header.unwrap();
        let table = TableId::new(header.table);
        *self.calls.entry(table).or_default() += 1;
        if self.down.contains(&server) {
            return Err(Error::new(Reason::Unavailable, "cannot connect").into());
        }
        let Some(tablet) = self.tablets.get(&TabletId::new(header.tablet)).cloned() else {
            return Err(self.reject(Reason::WrongTablet, table, None));
        };
        if tablet.descriptor.membership.replica_on(server).is_none() {
            // A removed replica: it knows no leader.
            let detail = tablet::TabletError { reason: Reason::NoLeader.name().to_owned(), ..Default::default() };
            return Err(CallError::new(Error::new(Reason::NoLeader, "no leader"), Some(detail)));
        }
        let is_follower_allowed = any_replica && table == TableId::METADATA;
        if tablet.leader != Some(server) && !is_follower_allowed {
            let reason = if tablet.leader.is_some() { Reason::NotLeader } else { Reason::NoLeader };
            let hint = tablet.leader.map(|leader| record::LeaderHint { server: leader.get(), term: tablet.term.get() });
            return Err(self.reject(reason, table, hint));
        }
        if tablet.descriptor.generation.get() != header.generation {
            return Err(self.reject(Reason::WrongTablet, table, None));
        }
        Ok(tablet.descriptor)
    }

    fn reject(&self, reason: Reason, table: TableId, leader: Option<record::LeaderHint>) -> CallError {
        let hints = self.tablets.values().map(|tablet| &tablet.descriptor).filter(|one| one.table == table);
        let detail = tablet::TabletError {
            reason: reason.name().to_owned(),
            descriptors: hints.map(convert::descriptor_to_proto).collect(),
            leader,
            retry_after_micros: (reason == Reason::Busy).then_some(1_000),
        };
        CallError::new(Error::new(reason, "rejected"), Some(detail))
    }

    fn mutate(&mut self, table: TableId, row: &RowKey, mutations: &[Bytes]) {
        self.next_time += 1_000;
        let now = self.next_time;
        for mutation in mutations {
            match convert::mutation_from_bytes(mutation).unwrap() {
                Mutation::SetCell { family, qualifier, timestamp, value } => {
                    let timestamp = match timestamp {
                        WriteTime::Server => now,
                        WriteTime::At(at) => at.get(),
                    };
                    self.set(table, row, &family, &qualifier, timestamp, value);
                }
                Mutation::DeleteRow => drop(self.rows.remove(&(table, row.clone()))),
                Mutation::DeleteColumn { family, qualifier, .. } => {
                    if let Some(row) = self.rows.get_mut(&(table, row.clone())) {
                        row.cells.retain(|cell| cell.family.as_str() != family || cell.qualifier != qualifier);
                    }
                }
                other => panic!("the fake does not support {other:?}"),
            }
        }
        *self.applied.entry(row.clone()).or_default() += 1;
    }

    /// Runs `apply` once for each id; then may lose the response.
    fn apply_once(&mut self, id: Option<tablet::WriteId>, apply: impl FnOnce(&mut Self)) -> Result<(), CallError> {
        let id = id.unwrap();
        if self.busy_responses > 0 {
            self.busy_responses -= 1;
            return Err(self.reject(Reason::Busy, TABLE, None));
        }
        self.held_back_max = self.held_back_max.max(id.sequence - id.lowest_outstanding);
        let (id, now) = ((id.session, id.sequence), Instant::now());
        if self.applied_ids.get(&id).is_none_or(|at| now.duration_since(*at) > IDLE_MAX) {
            self.applied_ids.insert(id, now);
            apply(self);
        }
        if self.responses_to_lose > 0 {
            self.responses_to_lose -= 1;
            return Err(Error::new(Reason::OutcomeUnknown, "connection lost").into());
        }
        Ok(())
    }

    /// The next rows of a read; `remaining`: its unread rows.
    fn batch(
        &self,
        range: &KeyRange,
        request: &tablet::ReadRequest,
        remaining: &RowSet,
        sent: u64,
    ) -> tablet::ReadReply {
        let table = TableId::new(request.header.unwrap().table);
        let wanted = remaining.clamp(range);
        let filter = request
            .filter
            .as_ref()
            .map(|filter| CompiledFilter::compile(convert::filter_from_bytes(filter).unwrap()).unwrap());
        let mut rows: Vec<Row> = self
            .rows
            .iter()
            .filter(|((of, key), _row)| *of == table && wanted.contains(key.as_bytes()))
            .map(|(_key, row)| {
                filter.as_ref().map_or_else(|| row.clone(), |filter| filter.apply(row.clone(), &|| false).unwrap())
            })
            .filter(|row| !row.cells.is_empty())
            .collect();
        if request.reversed {
            rows.reverse();
        }
        let left = if request.limit == 0 { usize::MAX } else { usize::try_from(request.limit - sent).unwrap() };
        let size = if table == TableId::METADATA { left } else { BATCH_ROWS };
        let more = rows.len() > size && left > size;
        rows.truncate(size.min(left));
        tablet::ReadReply {
            response: convert::rows_to_response(&rows).encode_to_vec().into(),
            rows: rows.len() as u64,
            last_row: rows.last().map(|row| row.key.bytes().clone()).unwrap_or_default(),
            finished: !more,
            ..Default::default()
        }
    }
}

struct FakeRead {
    fake: Fake,
    server: ServerId,
    request: tablet::ReadRequest,
    rows: RowSet,
    sent: u64,
    is_finished: bool,
    /// The unsent messages of the last batch.
    parts: VecDeque<tablet::ReadReply>,
}

/// The messages of a batch for a caller that accepts split rows.
fn parts(batch: &tablet::ReadReply) -> VecDeque<tablet::ReadReply> {
    let rows = whole_rows(batch.response.clone()).unwrap();
    let part = |message: RowMessage| tablet::ReadReply {
        response: message.response,
        rows: message.rows,
        last_row: message.last_row.map(|key| key.bytes().clone()).unwrap_or_default(),
        row_open: message.is_open,
        ..Default::default()
    };
    let mut parts: VecDeque<_> = RowMessages::new(rows, LargeRows::Split, SIZES).map(part).collect();
    let last = parts.pop_back().unwrap_or_default();
    parts.push_back(tablet::ReadReply { finished: batch.finished, ..last });
    parts
}

impl FakeRead {
    fn next(mut self) -> Option<(Result<tablet::ReadReply, CallError>, Self)> {
        if self.is_finished {
            return None;
        }
        let fake = self.fake.clone();
        let mut state = fake.state();
        state.step();
        let range = match state.admit_to(self.server, self.request.header.as_ref(), self.request.any_replica) {
            Ok(descriptor) => descriptor.range,
            Err(error) => {
                self.is_finished = true;
                return Some((Err(error), self));
            }
        };
        if let Some(part) = self.parts.pop_front() {
            self.is_finished = part.finished;
            return Some((Ok(part), self));
        }
        let reply = state.batch(&range, &self.request, &self.rows, self.sent);
        self.sent += reply.rows;
        if reply.rows > 0 {
            let last = RowKey::new(reply.last_row.clone());
            self.rows = if self.request.reversed { self.rows.before(&last) } else { self.rows.after(&last) };
        }
        if self.request.split_rows {
            self.parts = parts(&reply);
        }
        let reply = self.parts.pop_front().unwrap_or(reply);
        self.is_finished = reply.finished;
        Some((Ok(reply), self))
    }
}

impl Transport for Fake {
    fn read<'a>(
        &'a self,
        target: &'a Target,
        request: tablet::ReadRequest,
        _timeout: Duration,
    ) -> BoxFuture<'a, Result<ReadStream, CallError>> {
        Box::pin(async move {
            tokio::task::yield_now().await;
            let rows = request.rows.iter().map(|range| convert::key_range_from_proto(range).unwrap());
            let rows = RowSet::from_ranges(rows);
            let (fake, server, parts) = (self.clone(), target.server, VecDeque::new());
            let reading = FakeRead { fake, server, request, rows, sent: 0, is_finished: false, parts };
            Ok(unfold(reading, |reading| async move { reading.next() }).boxed())
        })
    }

    fn write<'a>(
        &'a self,
        target: &'a Target,
        request: tablet::WriteRequest,
        _timeout: Duration,
    ) -> BoxFuture<'a, Result<tablet::WriteReply, CallError>> {
        Box::pin(async move {
            tokio::task::yield_now().await;
            let mut state = self.state();
            state.step();
            let descriptor = state.admit(target.server, request.header.as_ref())?;
            let mut results = Vec::new();
            let mut lost = None;
            for row in request.rows {
                let key = RowKey::new(row.row);
                assert!(descriptor.range.contains(key.as_bytes()), "{key} is not in {}", descriptor.range);
                match state.apply_once(row.id, |state| state.mutate(descriptor.table, &key, &row.mutations)) {
                    Ok(()) => results.push(tablet::RowResult::default()),
                    Err(error) if error.detail.is_some() => results.push(tablet::RowResult {
                        error: Some(tablet::RowError {
                            reason: error.error.reason.name().to_owned(),
                            message: error.error.message,
                        }),
                    }),
                    Err(error) => lost = Some(error),
                }
            }
            lost.map_or(Ok(tablet::WriteReply { results }), Err)
        })
    }

    fn check<'a>(
        &'a self,
        target: &'a Target,
        request: tablet::CheckRequest,
        _timeout: Duration,
    ) -> BoxFuture<'a, Result<tablet::CheckReply, CallError>> {
        Box::pin(async move {
            tokio::task::yield_now().await;
            let mut state = self.state();
            state.step();
            let descriptor = state.admit(target.server, request.header.as_ref())?;
            let row = RowKey::new(request.row);
            let held =
                state.rows.get(&(descriptor.table, row.clone())).cloned().unwrap_or_else(|| Row::empty(row.clone()));
            let predicate = request.predicate.as_ref().map(|filter| convert::filter_from_bytes(filter).unwrap());
            let matched = match predicate {
                Some(predicate) => CompiledFilter::compile(predicate).unwrap().matches(&held, &|| false).unwrap(),
                None => !held.cells.is_empty(),
            };
            let chosen = if matched { request.then } else { request.otherwise };
            state.apply_once(request.id, |state| state.mutate(descriptor.table, &row, &chosen))?;
            Ok(tablet::CheckReply { matched })
        })
    }

    fn modify<'a>(
        &'a self,
        _target: &'a Target,
        _request: tablet::ModifyRequest,
        _timeout: Duration,
    ) -> BoxFuture<'a, Result<tablet::ModifyReply, CallError>> {
        Box::pin(async { Err(Error::unimplemented("the fake does not support modify").into()) })
    }

    fn sample<'a>(
        &'a self,
        target: &'a Target,
        request: tablet::SampleRequest,
        _timeout: Duration,
    ) -> BoxFuture<'a, Result<tablet::SampleReply, CallError>> {
        Box::pin(async move {
            let descriptor = self.state().admit(target.server, request.header.as_ref())?;
            let last_row = self.rows().last().map(|row| row.key.bytes().clone()).unwrap_or_default();
            let descriptor = Some(convert::descriptor_to_proto(&descriptor));
            Ok(tablet::SampleReply { size_bytes: 100, descriptor, last_row })
        })
    }
}

impl Directory for Fake {
    fn cluster(&self) -> Option<ClusterId> {
        None
    }

    fn root(&self) -> BoxFuture<'_, Result<TabletDescriptor, Error>> {
        let mut state = self.state();
        state.root_requests += 1;
        let root = state.tablets[&TabletId::ROOT].descriptor.clone();
        assert_eq!(root.range, root_range());
        Box::pin(std::future::ready(Ok(root)))
    }

    fn address(&self, server: ServerId) -> BoxFuture<'_, Option<String>> {
        Box::pin(std::future::ready(Some(format!("server-{server}:1"))))
    }

    fn table<'a>(&'a self, _name: &'a TableName, _fresh: Freshness) -> BoxFuture<'a, Result<Option<TableId>, Error>> {
        Box::pin(std::future::ready(Ok(Some(TABLE))))
    }
}
