//! Records of operations, for the tests of what shows them.

use ebla_proto::trace::{Batch, Follower, Record, StageTime};

/// A stage that an operation was in once.
fn stage(stage: &str, begin: u64, end: u64) -> StageTime {
    StageTime { stage: stage.to_owned(), begin_micros: begin, end_micros: end, total_micros: end - begin, count: 1 }
}

/// A write of this table that one server forwards to another, whose disk is slow, and a read that fails. Of the two followers of the write one has
/// an earlier release, and does not report its own times. The leader's record comes first, as if its server had answered first.
pub fn example_records(table: &str) -> Vec<Record> {
    let front = Record {
        server: 1,
        method: "MutateRow".to_owned(),
        trace_low: 0xabc,
        span: 1,
        began_micros: 1_763_879_499_000_000,
        elapsed_micros: 312_400,
        table: table.to_owned(),
        tablet: 7,
        group: 5,
        leader: 2,
        stages: vec![stage("access", 10, 40), stage("lookup", 40, 900), stage("forward", 900, 312_300)],
        ..Record::default()
    };
    let leader = Record {
        server: 2,
        method: "Write".to_owned(),
        trace_low: 0xabc,
        span: 2,
        parent: 1,
        began_micros: 1_763_879_499_001_000,
        elapsed_micros: 311_000,
        table: table.to_owned(),
        tablet: 7,
        group: 5,
        batch: Some(Batch { term: 3, index: 1_041, writes: 12 }),
        stages: vec![
            stage("queue", 100, 4_100),
            stage("sync", 4_200, 309_000),
            stage("replication", 309_000, 310_900),
            stage("apply", 310_900, 310_950),
        ],
        followers: vec![
            Follower {
                server: 3,
                sent_micros: 4_300,
                answered_micros: 310_800,
                is_measured: true,
                queue_micros: 2_000,
                sync_micros: 303_000,
                total_micros: 305_500,
            },
            Follower { server: 4, sent_micros: 4_300, answered_micros: 52_300, ..Follower::default() },
        ],
        ..Record::default()
    };
    let failed = Record {
        server: 3,
        method: "ReadRows".to_owned(),
        trace_low: 0xdef,
        span: 3,
        began_micros: 1_763_879_500_000_000,
        elapsed_micros: 12_500_000,
        code: 14,
        leader: 3,
        stages: vec![StageTime { total_micros: 6_000_000, count: 4, ..stage("retry", 1_000, 12_000_000) }],
        ..Record::default()
    };
    vec![leader, front, failed]
}
