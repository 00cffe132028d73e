//! Rows of the table: writing them, and checking what is read.

use bytes::Bytes;
use ebla_client::{Cluster, Modify, Read, RowWrite};
use ebla_model::Micros;
use ebla_model::aggregate::{AggregateInput, decode_state};
use ebla_model::idempotency::IdempotencyToken;
use ebla_model::key::{RowKey, RowSet};
use ebla_model::mutation::{Mutation, WriteTime};
use ebla_model::rmw::{Operation, Rule};
use ebla_proto::{convert, data};
use futures::TryStreamExt as _;
use prost::Message as _;

use super::fixture::{TABLE, TIMEOUT};

pub(crate) fn key(n: u32) -> RowKey {
    RowKey::new(format!("row-{n:06}"))
}

pub(crate) fn set(qualifier: &'static str, value: impl Into<Bytes>) -> Bytes {
    convert::mutation_to_bytes(&Mutation::SetCell {
        family: "cf".to_owned(),
        qualifier: Bytes::from_static(qualifier.as_bytes()),
        timestamp: WriteTime::Server,
        value: value.into(),
    })
}

pub(crate) fn add(input: i64) -> Bytes {
    convert::mutation_to_bytes(&Mutation::AddToCell {
        family: "sum".to_owned(),
        qualifier: Bytes::from_static(b"q"),
        timestamp: Micros::ZERO,
        input: AggregateInput::Int64(input),
    })
}

pub(crate) fn token(text: &'static str) -> Option<IdempotencyToken> {
    Some(IdempotencyToken { token: Bytes::from_static(text.as_bytes()), started: None })
}

/// Incompressible bytes that depend on the row.
pub(crate) fn payload(n: u32, size: usize) -> Vec<u8> {
    let mut state = u64::from(n) + 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    (0..size).map(|_| next()).collect()
}

pub(crate) async fn write(cluster: &Cluster, from: u32, to: u32, size: usize) {
    let rows = (from..to)
        .map(|n| RowWrite { row: key(n), mutations: vec![set("q", payload(n, size))], token: None })
        .collect();
    let results = cluster.mutate_rows(TABLE, rows, cluster.deadline(TIMEOUT)).await;
    for result in results {
        result.unwrap();
    }
}

/// All rows: key and newest value.
pub(crate) async fn scan(cluster: &Cluster) -> Vec<(RowKey, Bytes)> {
    let read = Read::new(TABLE, RowSet::all());
    let mut parts = cluster.read_rows(read, cluster.deadline(TIMEOUT));
    let mut rows = Vec::new();
    while let Some(part) = parts.try_next().await.unwrap() {
        let response = data::ReadRowsResponse::decode(part.response).unwrap();
        let mut row = RowKey::EMPTY;
        for chunk in response.chunks {
            if !chunk.row_key.is_empty() {
                row = RowKey::new(chunk.row_key.clone());
            }
            if rows.last().is_none_or(|(last, _)| *last != row) {
                rows.push((row.clone(), chunk.value.clone()));
            }
        }
    }
    rows
}

pub(crate) fn expect_rows(rows: &[(RowKey, Bytes)], count: u32, size: usize) {
    assert_eq!(rows.len(), usize::try_from(count).unwrap());
    for (n, (row, value)) in (0..count).zip(rows) {
        assert_eq!(row, &key(n));
        assert_eq!(value.as_ref(), payload(n, size).as_slice());
    }
}

pub(crate) async fn increment(cluster: &Cluster, row: &RowKey) -> i64 {
    let rule =
        Rule { family: "cf".to_owned(), qualifier: Bytes::from_static(b"n"), operation: Operation::Increment(1) };
    let modify = Modify { row: row.clone(), rules: vec![convert::rule_to_bytes(&rule)], token: None };
    let answer = cluster.modify(TABLE, &modify, cluster.deadline(TIMEOUT)).await.unwrap();
    let row = data::ReadModifyWriteRowResponse::decode(answer).unwrap().row.unwrap();
    let value = convert::row_from_proto(&row).unwrap().cells[0].value.clone();
    i64::from_be_bytes(value.as_ref().try_into().unwrap())
}

pub(crate) async fn sum(cluster: &Cluster, row: u32) -> i64 {
    let rows = scan(cluster).await;
    let value = &rows.iter().find(|(found, _)| *found == key(row)).unwrap().1;
    decode_state(value).unwrap()
}
