//! `ebla.trace.Traces`: the records of slow, failed and sampled operations of all servers and of the master, for operators.
//!
//! The front collects them from the servers and the active master, and leaves out those of tables that the caller may not see. A record without a
//! table, such as that of a call which was refused, is for administrators. The caller needs `bigtable.tables.get` for a table, because a record
//! contains what that shows of it and no content. Who may not read all families of the table does not see sizes: they depend on hidden cells.
//!
//! A server lists at most [`LISTS_MAX`] times at once. A list asks [`ASKED_AT_ONCE`] servers at once and drops what is not wanted as soon as a
//! server has answered, so its memory does not grow with the cluster.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use ebla_client::channel::Channels;
use ebla_model::error::{Error, Reason};
use ebla_model::id::TableId;
use ebla_model::schema::TableName;
use ebla_model::time::Micros;
use ebla_proto::status::{from_status, to_status};
use ebla_proto::trace::server_traces_client::ServerTracesClient;
use ebla_proto::trace::traces_server::Traces;
use ebla_proto::trace::{ListReply, ListRequest, Record, RecordsRequest, Unreachable};
use ebla_routing::{ChubbyDirectory, RecordSelection, selected_records};
use ebla_runtime::trace::{MASTER, Recorder};
use futures::{Stream, StreamExt as _, stream};
use tokio::sync::Semaphore;
use tonic::{Request, Response, Status};

use super::access::{AccessControl, Caller, RecordRights};

/// The time limit for the records of another server.
const SERVER_TIMEOUT: Duration = Duration::from_secs(3);
/// The records of a list without a limit, and the most that a list has.
const RECORDS_MAX: usize = 1_000;
/// The lists that are made at once. More are refused.
const LISTS_MAX: usize = 2;
/// The servers that a list asks at once.
const ASKED_AT_ONCE: usize = 8;
/// The largest reply of a server: its three rings have 2 MiB each.
const REPLY_BYTES_MAX: usize = 8 << 20;
/// What those who are no administrators learn about a server whose records are missing.
const UNREACHABLE: &str = "its records are missing";

/// The service.
#[derive(Debug)]
pub(super) struct TraceService {
    recorder: Arc<Recorder>,
    directory: ChubbyDirectory,
    access: AccessControl,
    channels: Channels,
    lists: Semaphore,
}

impl TraceService {
    /// Lists the records of `recorder`, and of the other servers and the master that the directory names.
    pub(super) fn new(
        recorder: Arc<Recorder>,
        directory: ChubbyDirectory,
        access: AccessControl,
        channels: Channels,
    ) -> Self {
        Self { recorder, directory, access, channels, lists: Semaphore::new(LISTS_MAX) }
    }

    /// The table that a caller asks for, if they may see records of it; `None`: they ask for no single table.
    fn wanted_table(&self, caller: &Caller, request: &ListRequest) -> Result<Option<TableName>, Error> {
        if request.table.is_empty() {
            return Ok(None);
        }
        let table = request.table.parse::<TableName>()?;
        match self.access.record_rights(caller, Some(&table))? {
            RecordRights::None => Err(self.access.records_denied(&request.table)),
            RecordRights::WithoutSizes | RecordRights::All => Ok(Some(table)),
        }
    }

    async fn list(&self, caller: &Caller, table: Option<TableName>, request: ListRequest) -> Result<ListReply, Error> {
        let Ok(_listing) = self.lists.try_acquire() else { return Err(busy()) };
        let is_administrator = self.access.record_rights(caller, None)? == RecordRights::All;
        let limit = match usize::try_from(request.limit) {
            Ok(limit) if limit > 0 => limit.min(RECORDS_MAX),
            _ => RECORDS_MAX,
        };
        let mut rights = HashMap::new();
        let mut visible = Vec::new();
        let mut unreachable = self.unknown_server(&request);
        let mut replies = std::pin::pin!(self.replies(&request));
        while let Some((server, outcome)) = replies.next().await {
            match outcome {
                Ok(records) => visible.extend(records.into_iter().filter_map(|record| {
                    let name = self.name(&record);
                    let right = *rights.entry(name.clone()).or_insert_with(|| {
                        self.access.record_rights(caller, name.as_ref()).unwrap_or(RecordRights::None)
                    });
                    let is_wanted = table.is_none() || table == name;
                    if is_wanted { shown(record, name.as_ref(), right) } else { None }
                })),
                Err(message) => unreachable.push(Unreachable { server, message }),
            }
            keep_newest(&mut visible, limit);
        }
        if !is_administrator {
            unreachable.iter_mut().for_each(|missing| missing.message = UNREACHABLE.to_owned());
        }
        unreachable.sort_by_key(|missing| missing.server);
        Ok(ListReply { records: visible, unreachable })
    }

    /// The table of a record: the name that its front has recorded, or that of the id.
    fn name(&self, record: &Record) -> Option<TableName> {
        if !record.table.is_empty() {
            return record.table.parse().ok();
        }
        match TableId::new(record.table_id) {
            TableId::METADATA => None,
            table => self.directory.schema(table).map(|schema| schema.name.clone()),
        }
    }

    /// The finding that the only server that is asked does not exist, if that is so.
    fn unknown_server(&self, request: &ListRequest) -> Vec<Unreachable> {
        let server = request.server;
        let is_known = server == 0
            || server == self.recorder.server().get()
            || self.directory.servers().iter().any(|known| known.server == server);
        if is_known {
            return Vec::new();
        }
        let message = "no tablet server with this number is registered; see `ebla server list`".to_owned();
        vec![Unreachable { server, message }]
    }

    /// The records of each server that is asked, and of the active master, in the order in which they answer.
    fn replies(&self, request: &ListRequest) -> impl Stream<Item = (u64, Result<Vec<Record>, String>)> {
        let ListRequest { since_micros, sampled, failed, server: asked, .. } = *request;
        let own = self.recorder.server().get();
        let is_asked = move |server: u64| asked == 0 || asked == server;
        let selection = RecordSelection { since: Micros::new(since_micros), sampled, failed };
        let mine = is_asked(own).then(|| (own, Ok(selected_records(&self.recorder, selection))));
        let others: Vec<_> =
            self.directory.servers().into_iter().map(|server| (server.server, server.address)).collect();
        let others = others.into_iter().filter(move |(server, _address)| *server != own && is_asked(*server));
        // It is no tablet server: who asks for the records of one does not get its records.
        let master = if asked == 0 { self.directory.master() } else { None };
        let others = others.chain(master.map(|master| (MASTER.get(), master.address)));
        let calls = others.map(move |(server, address)| async move {
            let request = RecordsRequest { since_micros, sampled, failed };
            (server, self.records_of(&address, request).await)
        });
        stream::iter(mine).chain(stream::iter(calls).buffer_unordered(ASKED_AT_ONCE))
    }

    async fn records_of(&self, address: &str, request: RecordsRequest) -> Result<Vec<Record>, String> {
        let mut client = ServerTracesClient::new(self.channels.get(address)).max_decoding_message_size(REPLY_BYTES_MAX);
        let mut request = Request::new(request);
        request.set_timeout(SERVER_TIMEOUT);
        match tokio::time::timeout(SERVER_TIMEOUT, client.records(request)).await {
            Ok(Ok(reply)) => Ok(reply.into_inner().records),
            Ok(Err(status)) => match from_status(&status).0 {
                // The master of an earlier release has no records.
                error if error.reason == Reason::Unimplemented => Ok(Vec::new()),
                error => Err(error.message),
            },
            Err(_elapsed) => Err("it did not respond in time".to_owned()),
        }
    }
}

/// The refusal of one list more than [`LISTS_MAX`].
fn busy() -> Error {
    let message =
        format!("this server already makes {LISTS_MAX} lists of operations: repeat in a few seconds, or ask another");
    Error::new(Reason::ResourceExhausted, message)
}

/// A record as a caller with these rights sees it; `None`: they do not.
fn shown(mut record: Record, table: Option<&TableName>, rights: RecordRights) -> Option<Record> {
    record.table = table.map(|table| table.as_str().to_owned()).unwrap_or_default();
    match rights {
        RecordRights::None => return None,
        RecordRights::All => {}
        RecordRights::WithoutSizes => {
            (record.request_bytes, record.response_bytes) = (0, 0);
            if let Some(batch) = &mut record.batch {
                batch.writes = 0;
            }
        }
    }
    Some(record)
}

/// Sorts records by the time at which they began, and removes all but the newest.
fn keep_newest(records: &mut Vec<Record>, limit: usize) {
    records.sort_by_key(|record| (record.began_micros, record.server, record.span));
    records.drain(..records.len().saturating_sub(limit));
}

#[tonic::async_trait]
impl Traces for TraceService {
    async fn list(&self, request: Request<ListRequest>) -> Result<Response<ListReply>, Status> {
        let listed = async {
            let caller = self.access.caller(request.extensions())?;
            let request = request.into_inner();
            let table = self.wanted_table(&caller, &request);
            self.access.audit_traces(&caller, &request.table, &table);
            self.list(&caller, table?, request).await
        };
        listed.await.map(Response::new).map_err(|error| to_status(&error))
    }
}

#[cfg(test)]
mod tests {
    use ebla_proto::trace::Batch;

    use super::*;

    #[test]
    fn who_does_not_read_all_families_sees_no_sizes() {
        let table = "projects/p/instances/i/tables/t".parse::<TableName>().unwrap();
        let batch = Batch { term: 1, index: 2, writes: 3 };
        let record = Record { request_bytes: 10, response_bytes: 20, batch: Some(batch), ..Record::default() };
        assert_eq!(shown(record.clone(), Some(&table), RecordRights::None), None);
        let all = shown(record.clone(), Some(&table), RecordRights::All).unwrap();
        assert_eq!((all.table.as_str(), all.request_bytes, all.response_bytes), (table.as_str(), 10, 20));
        let reduced = shown(record, Some(&table), RecordRights::WithoutSizes).unwrap();
        assert_eq!((reduced.request_bytes, reduced.response_bytes), (0, 0));
        assert_eq!(reduced.batch.map(|batch| (batch.index, batch.writes)), Some((2, 0)));
    }

    #[test]
    fn the_newest_records_are_kept() {
        let of = |began_micros| Record { began_micros, ..Record::default() };
        let mut records: Vec<_> = [5, 1, 4, 2, 3].into_iter().map(of).collect();
        keep_newest(&mut records, 2);
        assert_eq!(records.iter().map(|record| record.began_micros).collect::<Vec<_>>(), [4, 5]);
    }
}
