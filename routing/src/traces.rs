//! `ebla.trace.ServerTraces`: the records of one server, for the other servers of its cluster.

use std::sync::Arc;

use ebla_model::time::Micros;
use ebla_proto::trace::server_traces_server::ServerTraces;
use ebla_proto::trace::{self as wire, RecordsReply, RecordsRequest};
use ebla_runtime::trace::{FollowerTime, Kept, Origin, Record, Recorder, StageTime};
use tonic::{Request, Response, Status};

/// Which records are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordSelection {
    /// Those that ended at this time or later.
    pub since: Micros,
    /// Whether also those that are kept only because their traces are sampled.
    pub sampled: bool,
    /// Whether also those that failed and were not slow.
    pub failed: bool,
}

impl RecordSelection {
    fn includes(self, record: &Record) -> bool {
        let is_wanted = match record.kept {
            Kept::Slow | Kept::Outlier => true,
            Kept::Failed => self.failed,
            Kept::Sampled => self.sampled,
        };
        is_wanted && record.ended() >= self.since
    }
}

/// The service. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ServerTracesService(Arc<Recorder>);

impl ServerTracesService {
    /// The records of this recorder.
    #[must_use]
    pub const fn new(recorder: Arc<Recorder>) -> Self {
        Self(recorder)
    }
}

#[tonic::async_trait]
impl ServerTraces for ServerTracesService {
    async fn records(&self, request: Request<RecordsRequest>) -> Result<Response<RecordsReply>, Status> {
        let RecordsRequest { since_micros, sampled, failed } = request.into_inner();
        let selection = RecordSelection { since: Micros::new(since_micros), sampled, failed };
        Ok(Response::new(RecordsReply { records: selected_records(&self.0, selection) }))
    }
}

/// The wanted records of a recorder, the oldest first.
#[must_use]
pub fn selected_records(recorder: &Recorder, selection: RecordSelection) -> Vec<wire::Record> {
    let records = recorder.records();
    records.iter().filter(|record| selection.includes(record)).map(|record| record_to_proto(record)).collect()
}

fn record_to_proto(record: &Record) -> wire::Record {
    let tablet = record.tablet.unwrap_or_default();
    let half = |number: u128| u64::try_from(number & u128::from(u64::MAX)).unwrap_or_default();
    wire::Record {
        server: record.server.get(),
        kept: record.kept.name().to_owned(),
        origin: origin_name(record.origin).to_owned(),
        method: record.method.clone().into_owned(),
        trace_high: half(record.trace.get() >> 64),
        trace_low: half(record.trace.get()),
        span: record.span.get(),
        parent: record.parent.map_or(0, |parent| parent.get()),
        began_micros: record.began.get(),
        elapsed_micros: micros(record.elapsed),
        code: record.outcome.code().into(),
        table: record.table.as_ref().map(|table| table.as_str().to_owned()).unwrap_or_default(),
        table_id: tablet.table.get(),
        tablet: tablet.tablet.get(),
        group: tablet.group.get(),
        leader: record.leader.map_or(0, |leader| leader.get()),
        batch: record.batch.map(|batch| wire::Batch {
            term: batch.term.get(),
            index: batch.index.get(),
            writes: batch.writes,
        }),
        request_bytes: record.request_bytes,
        response_bytes: record.response_bytes,
        stages: record.stages.iter().map(stage_to_proto).collect(),
        followers: record.followers.iter().map(follower_to_proto).collect(),
    }
}

fn stage_to_proto(time: &StageTime) -> wire::StageTime {
    wire::StageTime {
        stage: time.stage.name().to_owned(),
        begin_micros: micros(time.begin),
        end_micros: micros(time.end),
        total_micros: micros(time.total),
        count: time.count,
    }
}

fn follower_to_proto(time: &FollowerTime) -> wire::Follower {
    let work = time.work.unwrap_or_default();
    wire::Follower {
        server: time.server.get(),
        sent_micros: micros(time.sent),
        answered_micros: micros(time.answered),
        is_measured: time.work.is_some(),
        queue_micros: micros(work.queue),
        sync_micros: micros(work.sync),
        total_micros: micros(work.total),
    }
}

const fn origin_name(origin: Origin) -> &'static str {
    match origin {
        Origin::Data => "data",
        Origin::Admin => "admin",
        Origin::Server => "server",
        Origin::Master => "master",
    }
}

fn micros(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ebla_model::id::ServerId;
    use ebla_runtime::Clock;
    use ebla_runtime::trace::{Outcome, SampleRate, Stage, TraceOptions};

    use super::*;

    #[test]
    fn records_are_selected_by_time_and_by_what_they_are_kept_for() {
        let clock = Clock::manual();
        let options = TraceOptions { sample: SampleRate::ALWAYS, ..TraceOptions::default() };
        let recorder = Recorder::new(ServerId::new(3), options, clock.clone());
        for (millis, outcome) in [(200, Outcome::OK), (1, Outcome::of_code(5)), (1, Outcome::OK)] {
            let operation = recorder.begin("MutateRow", Origin::Data, None);
            let began = operation.now();
            clock.advance(Duration::from_millis(millis));
            operation.add(Stage::Sync, began, operation.now());
            operation.end(outcome);
        }
        let all = RecordSelection { since: Micros::ZERO, sampled: true, failed: true };
        let kept = |selection| -> Vec<String> {
            selected_records(&recorder, selection).into_iter().map(|record| record.kept).collect()
        };
        assert_eq!(kept(all), ["slow", "failed", "sampled"]);
        assert_eq!(kept(RecordSelection { sampled: false, ..all }), ["slow", "failed"]);
        assert_eq!(kept(RecordSelection { sampled: false, failed: false, ..all }), ["slow"]);
        assert_eq!(kept(RecordSelection { since: clock.wall(), ..all }), ["sampled"]);
        let records = selected_records(&recorder, all);
        let stage = records[0].stages.first().unwrap();
        assert_eq!((records[0].server, records[0].elapsed_micros), (3, 200_000));
        assert_eq!((stage.stage.as_str(), stage.total_micros, stage.count), ("sync", 200_000, 1));
    }
}
