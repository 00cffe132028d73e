//! The data API over a fake cluster: one server, METADATA and one or two tables, as values.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use ebla_client::{CallError, ClusterOptions, Directory, ReadStream, Target, Transport};
use ebla_model::{
    Cell, ClusterId, FamilyName, KeyRange, Micros, Row, RowKey, ServerId, TabletDescriptor, TabletId,
    metadata::{self, first_tablets},
    mutation::{Mutation, WriteTime},
};
use ebla_proto::{
    convert::{
        descriptor_to_bytes, descriptor_to_proto, key_range_from_proto, mutation_from_bytes, mutation_to_bytes,
        rows_to_response,
    },
    tablet,
};
use ebla_runtime::Runtime;
use futures::{TryStreamExt, future::BoxFuture};
use parking_lot::Mutex;
use prost::Message;
use tonic::Code;

use ebla_client::Freshness;
use ebla_model::{Reason, TableId, TableName};

use super::*;

const NAME: &str = "projects/p/instances/i/tables/t";
const SERVER: ServerId = ServerId::new(1);

/// A cluster of one server, in memory. Rows have one cell each.
#[derive(Default)]
struct Fake {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The directory's cached value, and the current one.
    cached: Option<TableId>,
    fresh: Option<TableId>,
    tablets: Vec<TabletDescriptor>,
    rows: BTreeMap<Bytes, Bytes>,
}

impl Fake {
    /// A table that is split at each of `splits`.
    fn with_table(table: TableId, splits: &[&'static str]) -> Arc<Self> {
        let fake = Self::default();
        {
            let mut state = fake.state.lock();
            (state.cached, state.fresh) = (Some(table), Some(table));
            let mut rest = Some(KeyRange::all());
            for (tablet, end) in (10..).zip(splits.iter().copied().map(Some).chain([None])) {
                let whole = rest.take().unwrap();
                let (range, remaining) = match end.map(|end| whole.split_at(&RowKey::new(end)).unwrap()) {
                    Some((left, right)) => (left, Some(right)),
                    None => (whole, None),
                };
                rest = remaining;
                state.tablets.push(TabletDescriptor::initial(table, TabletId::new(tablet), range, &[SERVER]));
            }
        }
        Arc::new(fake)
    }

    fn service(self: &Arc<Self>) -> DataService {
        let runtime = Runtime::system("test");
        let clock = runtime.clock.clone();
        let options = ClusterOptions { directory: self.clone(), transport: self.clone(), runtime, home: Some(SERVER) };
        DataService::new(Cluster::new(options), clock)
    }

    /// The rows of METADATA: one for each tablet, its own two included.
    fn metadata_rows(&self) -> Vec<Row> {
        let mut tablets = first_tablets(&[SERVER]).to_vec();
        tablets.extend(self.state.lock().tablets.iter().cloned());
        let mut rows: Vec<_> = tablets.iter().map(metadata_row).collect();
        rows.sort_by(|a, b| a.key.cmp(&b.key));
        rows
    }

    fn user_rows(&self) -> Vec<Row> {
        let rows = self.state.lock().rows.clone();
        rows.into_iter().map(|(key, value)| row(key, "f", "q", value)).collect()
    }

    fn is_hosted(&self, tablet: u64) -> bool {
        self.state.lock().tablets.iter().any(|known| known.tablet.get() == tablet)
    }

    fn read_now(&self, request: &tablet::ReadRequest) -> Result<tablet::ReadReply, CallError> {
        let header = request.header.unwrap();
        let rows = match header.table {
            0 => self.metadata_rows(),
            _ if self.is_hosted(header.tablet) => self.user_rows(),
            _ => return Err(Error::new(Reason::TabletDropped, "gone").into()),
        };
        let ranges: Vec<_> = request.rows.iter().map(|range| key_range_from_proto(range).unwrap()).collect();
        let asked = |row: &Row| ranges.iter().any(|range| range.contains(row.key.as_bytes()));
        let mut rows: Vec<_> = rows.into_iter().filter(asked).collect();
        if request.limit > 0 {
            rows.truncate(usize::try_from(request.limit).unwrap());
        }
        Ok(tablet::ReadReply {
            response: rows_to_response(&rows).encode_to_vec().into(),
            rows: u64::try_from(rows.len()).unwrap(),
            last_row: rows.last().map(|row| row.key.bytes().clone()).unwrap_or_default(),
            finished: true,
            rows_seen: u64::try_from(rows.len()).unwrap(),
            ..Default::default()
        })
    }

    fn write_now(&self, request: &tablet::WriteRequest) -> Result<tablet::WriteReply, CallError> {
        if !self.is_hosted(request.header.unwrap().tablet) {
            return Err(Error::new(Reason::TabletDropped, "gone").into());
        }
        let results = request.rows.iter().map(|row| tablet::RowResult { error: self.apply(row).err() }).collect();
        Ok(tablet::WriteReply { results })
    }

    fn apply(&self, row: &tablet::RowMutations) -> Result<(), tablet::RowError> {
        for mutation in &row.mutations {
            match mutation_from_bytes(mutation) {
                Ok(Mutation::SetCell { family, value, .. }) if family == "f" => {
                    self.state.lock().rows.insert(row.row.clone(), value);
                }
                _ => {
                    let reason = Reason::NotFoundFamily.name().to_owned();
                    return Err(tablet::RowError { reason, message: "no such family".into() });
                }
            }
        }
        Ok(())
    }
}

fn row(key: Bytes, family: &str, qualifier: &'static str, value: Bytes) -> Row {
    let cell = Cell::new(FamilyName::new(family).unwrap(), qualifier.into(), Micros::new(1000), value);
    Row { key: RowKey::new(key), cells: vec![cell] }
}

fn metadata_row(tablet: &TabletDescriptor) -> Row {
    let key = metadata::row_key(tablet.table, tablet.range.end());
    row(key.bytes().clone(), metadata::LOCATION_FAMILY, "descriptor", descriptor_to_bytes(tablet))
}

impl Directory for Fake {
    fn cluster(&self) -> Option<ClusterId> {
        None
    }

    fn root(&self) -> BoxFuture<'_, Result<TabletDescriptor, Error>> {
        let [root, _] = first_tablets(&[SERVER]);
        Box::pin(async move { Ok(root) })
    }

    fn address(&self, _: ServerId) -> BoxFuture<'_, Option<String>> {
        Box::pin(async { Some("here:1".to_owned()) })
    }

    fn table<'a>(&'a self, name: &'a TableName, freshness: Freshness) -> BoxFuture<'a, Result<Option<TableId>, Error>> {
        Box::pin(async move {
            let mut state = self.state.lock();
            if freshness == Freshness::Fresh {
                state.cached = state.fresh;
            }
            Ok(state.cached.filter(|_| name.as_str() == NAME))
        })
    }
}

impl Transport for Fake {
    fn read<'a>(
        &'a self,
        _: &'a Target,
        request: tablet::ReadRequest,
        _: Duration,
    ) -> BoxFuture<'a, Result<ReadStream, CallError>> {
        Box::pin(async move {
            let reply = self.read_now(&request)?;
            Ok(stream::iter([Ok(reply)]).boxed())
        })
    }

    fn write<'a>(
        &'a self,
        _: &'a Target,
        request: tablet::WriteRequest,
        _: Duration,
    ) -> BoxFuture<'a, Result<tablet::WriteReply, CallError>> {
        Box::pin(async move { self.write_now(&request) })
    }

    fn check<'a>(
        &'a self,
        _: &'a Target,
        request: tablet::CheckRequest,
        _: Duration,
    ) -> BoxFuture<'a, Result<tablet::CheckReply, CallError>> {
        Box::pin(async move {
            let matched = self.state.lock().rows.contains_key(&request.row);
            Ok(tablet::CheckReply { matched })
        })
    }

    fn modify<'a>(
        &'a self,
        _: &'a Target,
        request: tablet::ModifyRequest,
        _: Duration,
    ) -> BoxFuture<'a, Result<tablet::ModifyReply, CallError>> {
        Box::pin(async move {
            let row = data::Row { key: request.row, families: Vec::new() };
            let response = data::ReadModifyWriteRowResponse { row: Some(row) };
            Ok(tablet::ModifyReply { response: response.encode_to_vec().into() })
        })
    }

    fn sample<'a>(
        &'a self,
        _: &'a Target,
        request: tablet::SampleRequest,
        _: Duration,
    ) -> BoxFuture<'a, Result<tablet::SampleReply, CallError>> {
        Box::pin(async move {
            let tablet = request.header.unwrap().tablet;
            let state = self.state.lock();
            let descriptor = state.tablets.iter().find(|known| known.tablet.get() == tablet).map(descriptor_to_proto);
            Ok(tablet::SampleReply { size_bytes: 100, descriptor, ..Default::default() })
        })
    }
}

fn set(family: &str, value: &'static str) -> Bytes {
    mutation_to_bytes(&Mutation::SetCell {
        family: family.to_owned(),
        qualifier: Bytes::from("q"),
        timestamp: WriteTime::Server,
        value: Bytes::from(value),
    })
}

async fn write(service: &DataService, key: &'static str, family: &str) -> Result<(), Status> {
    let request = data::MutateRowRequest {
        table_name: NAME.into(),
        row_key: key.into(),
        mutations: vec![set(family, key)],
        ..Default::default()
    };
    service.mutate_row(Request::new(request)).await.map(drop)
}

/// Keys of all rows.
async fn keys(service: &DataService, request: data::ReadRowsRequest) -> Result<Vec<Bytes>, Status> {
    let request = data::ReadRowsRequest { table_name: NAME.into(), ..request };
    let messages: Vec<_> = service.read_rows(Request::new(request)).await?.into_inner().try_collect().await?;
    let decode = |message: &Encoded<_>| data::ReadRowsResponse::decode(message.bytes().clone()).unwrap().chunks;
    Ok(messages.iter().flat_map(decode).map(|chunk| chunk.row_key).collect())
}

#[tokio::test]
async fn rows_are_written_and_read_over_all_tablets() {
    let service = Fake::with_table(TableId::new(5), &["h", "p"]).service();
    for key in ["z", "a", "m", "p", "h"] {
        write(&service, key, "f").await.unwrap();
    }
    assert_eq!(keys(&service, data::ReadRowsRequest::default()).await.unwrap(), ["a", "h", "m", "p", "z"]);
    let limited = data::ReadRowsRequest { rows_limit: 2, ..Default::default() };
    assert_eq!(keys(&service, limited).await.unwrap(), ["a", "h"]);
    let rows = Some(data::RowSet { row_keys: vec!["z".into(), "m".into(), "n".into()], row_ranges: Vec::new() });
    let some = data::ReadRowsRequest { rows, ..Default::default() };
    assert_eq!(keys(&service, some).await.unwrap(), ["m", "z"]);
}

#[tokio::test]
async fn statistics_end_a_read_that_requested_them() {
    let service = Fake::with_table(TableId::new(5), &["h"]).service();
    write(&service, "a", "f").await.unwrap();
    let request_stats_view = data::read_rows_request::RequestStatsView::RequestStatsFull.into();
    let request = data::ReadRowsRequest { table_name: NAME.into(), request_stats_view, ..Default::default() };
    let messages: Vec<_> =
        service.read_rows(Request::new(request)).await.unwrap().into_inner().try_collect().await.unwrap();
    let last = data::ReadRowsResponse::decode(messages.last().unwrap().bytes().clone()).unwrap();
    assert_eq!((messages.len(), last.request_stats.is_some()), (2, true));
}

#[tokio::test]
async fn a_table_that_is_missing_is_not_found() {
    let fake = Fake::with_table(TableId::new(5), &[]);
    let service = fake.service();
    let other = data::ReadRowsRequest { table_name: NAME.replace("tables/t", "tables/u"), ..Default::default() };
    let status = service.read_rows(Request::new(other)).await.err().unwrap();
    assert_eq!(status.code(), Code::NotFound);
    *fake.state.lock() = State::default();
    assert_eq!(write(&service, "a", "f").await.unwrap_err().code(), Code::NotFound);
}

#[tokio::test]
async fn a_table_that_was_just_created_is_found() {
    let fake = Fake::with_table(TableId::new(5), &[]);
    fake.state.lock().cached = None;
    write(&fake.service(), "a", "f").await.unwrap();
}

#[tokio::test]
async fn a_recreated_table_is_resolved_again() {
    let fake = Fake::with_table(TableId::new(5), &[]);
    let service = fake.service();
    write(&service, "a", "f").await.unwrap();
    {
        let mut state = fake.state.lock();
        state.tablets = vec![TabletDescriptor::initial(TableId::new(6), TabletId::new(20), KeyRange::all(), &[SERVER])];
        state.fresh = Some(TableId::new(6));
    }
    write(&service, "b", "f").await.unwrap();
    assert_eq!(keys(&service, data::ReadRowsRequest::default()).await.unwrap(), ["a", "b"]);
}

#[tokio::test]
async fn a_bulk_write_reports_the_outcome_of_each_entry() {
    let fake = Fake::with_table(TableId::new(5), &["m"]);
    let entry = |row_key: &'static str, family: &str| data::mutate_rows_request::Entry {
        row_key: row_key.into(),
        mutations: vec![set(family, "v")],
        idempotency: None,
    };
    let entries = vec![entry("z", "f"), entry("", "f"), entry("b", "nope"), entry("a", "f")];
    let request = data::MutateRowsRequest { table_name: NAME.into(), entries, ..Default::default() };
    let answer = fake.service().mutate_rows(Request::new(request)).await.unwrap().into_inner();
    let messages: Vec<_> = answer.try_collect().await.unwrap();
    let code = |entry: &data::mutate_rows_response::Entry| (entry.index, entry.status.as_ref().unwrap().code);
    let outcomes: Vec<_> = messages.iter().flat_map(|message| &message.entries).map(code).collect();
    let expected = [Code::Ok, Code::InvalidArgument, Code::NotFound, Code::Ok].map(i32::from);
    assert_eq!(outcomes, (0..).zip(expected).collect::<Vec<_>>());
    assert_eq!(fake.state.lock().rows.keys().cloned().collect::<Vec<_>>(), ["a", "z"]);
}

#[tokio::test]
async fn samples_are_the_tablets_ends() {
    let service = Fake::with_table(TableId::new(5), &["h", "p"]).service();
    let request = data::SampleRowKeysRequest { table_name: NAME.into(), ..Default::default() };
    let answer = service.sample_row_keys(Request::new(request)).await.unwrap().into_inner();
    let samples: Vec<_> = answer.map_ok(|sample| (sample.row_key, sample.offset_bytes)).try_collect().await.unwrap();
    assert_eq!(samples, [("h".into(), 100), ("p".into(), 200), (Bytes::new(), 300)]);
}

#[tokio::test]
async fn conditions_and_increments_reach_their_row() {
    let service = Fake::with_table(TableId::new(5), &["h"]).service();
    write(&service, "k", "f").await.unwrap();
    let check = |row_key: &'static str| data::CheckAndMutateRowRequest {
        table_name: NAME.into(),
        row_key: row_key.into(),
        true_mutations: vec![set("f", "v")],
        ..Default::default()
    };
    for (row_key, expected) in [("k", true), ("other", false)] {
        let answer = service.check_and_mutate_row(Request::new(check(row_key))).await.unwrap();
        assert_eq!(answer.into_inner().predicate_matched, expected);
    }
    let request = data::ReadModifyWriteRowRequest {
        table_name: NAME.into(),
        row_key: "k".into(),
        rules: vec![Bytes::new()],
        ..Default::default()
    };
    let answer = service.read_modify_write_row(Request::new(request)).await.unwrap().into_inner();
    let answer = data::ReadModifyWriteRowResponse::decode(answer.bytes().clone()).unwrap();
    assert_eq!(answer.row.unwrap().key, "k");
}

#[tokio::test]
async fn unsupported_calls_are_refused_with_their_name_and_advice() {
    let service = Fake::with_table(TableId::new(5), &[]).service();
    let status = service.prepare_query(Request::new(data::PrepareQueryRequest::default())).await.unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented);
    assert!(status.message().contains("PrepareQuery") && status.message().contains("with ReadRows"), "{status}");
}
