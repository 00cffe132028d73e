//! The read-back: through each endpoint that answers, each kind of rows in each slot, page by page.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ebla_client::Direction;
use ebla_model::cell::Row;
use ebla_model::error::{Error, ErrorKind, Reason};
use ebla_model::key::{KeyRange, RowKey};

use super::blind_writes::Content;
use super::check::scans::{self, Scan};
use super::finding::{Anomaly, Finding};
use super::history::{Action, Moment, Operation, Outcome, Prefix, Process};
use super::load::{PAUSE, Shared, StaticRows};
use super::rows::{self, Bank, Kind, Slot};
use super::store::{Endpoint, Store};
use super::worker::torn_boundaries;

/// Rows per page: about a megabyte of the largest rows.
const PAGE_ROWS: u64 = 500;

/// Results of the read-back besides those in the history.
#[derive(Default)]
pub(super) struct Found {
    pub(super) findings: Vec<Finding>,
    pub(super) read_through: Vec<String>,
    pub(super) silent: Vec<String>,
}

/// Reads all rows through every endpoint that answers, and records the results as reads.
///
/// # Errors
/// The last error, when no endpoint could be read to the end.
pub(super) async fn run<S: Store>(
    shared: &Shared,
    endpoints: &[Endpoint<S>],
    static_rows: StaticRows,
) -> Result<Found, Error> {
    let mut found = Found::default();
    let nothing = KeyRange::single(RowKey::new("00/"));
    let probes = endpoints.iter().map(|endpoint| page(shared, endpoint, &nothing, 1));
    let mut last_error = Error::invalid("there is no endpoint to read back through");
    for (endpoint, probe) in endpoints.iter().zip(futures::future::join_all(probes).await) {
        let answer = match probe {
            Ok(_) => Box::pin(read(shared, endpoint, static_rows, &mut found.findings)).await,
            Err(error) => Err(error),
        };
        match answer {
            Ok(()) => found.read_through.push(endpoint.name.clone()),
            Err(error) => {
                found.silent.push(endpoint.name.clone());
                last_error = error.context(&format!("read back through {}", endpoint.name));
            }
        }
    }
    if found.read_through.is_empty() { Err(last_error) } else { Ok(found) }
}

async fn read<S: Store>(
    shared: &Shared,
    endpoint: &Endpoint<S>,
    static_rows: StaticRows,
    findings: &mut Vec<Finding>,
) -> Result<(), Error> {
    for slot in shared.layout.slots() {
        for kind in [Kind::Bank, Kind::Count, Kind::List, Kind::Register] {
            read_recorded(shared, endpoint, slot, kind, findings).await?;
        }
    }
    read_blind(shared, endpoint, findings).await?;
    for boundary in (0..shared.layout.boundaries()).filter(|_| static_rows == StaticRows::Written) {
        read_boundary(shared, endpoint, Slot(boundary), findings).await?;
    }
    Ok(())
}

/// Reads rows with recorded operations; missing rows are recorded as reads too.
async fn read_recorded<S: Store>(
    shared: &Shared,
    endpoint: &Endpoint<S>,
    slot: Slot,
    kind: Kind,
    findings: &mut Vec<Finding>,
) -> Result<(), Error> {
    let range = shared.layout.range(slot, kind);
    let mut missing: BTreeSet<String> = shared.with(|state| {
        let known = state.history.rows.keys();
        known.filter(|row| range.contains(row.as_bytes())).cloned().collect()
    });
    let began = shared.now();
    let mut seen: Vec<(Row, Moment, Moment)> = Vec::new();
    pages(shared, endpoint, range, |row, start, end| seen.push((row, start, end))).await?;
    for (row, start, end) in seen {
        let name = rows::text_of(&row.key);
        missing.remove(&name);
        note(shared, kind, &name, Some(&row), start, end, findings);
    }
    let now = shared.now();
    for name in missing {
        note(shared, kind, &name, None, began, now, findings);
    }
    Ok(())
}

/// Records the contents of a row as a read.
fn note(
    shared: &Shared,
    kind: Kind,
    name: &str,
    row: Option<&Row>,
    start: Moment,
    end: Moment,
    findings: &mut Vec<Finding>,
) {
    let mut text = None;
    let action = match kind {
        Kind::List => row.map_or(Ok(String::new()), rows::list_text).map(|list| {
            let prefix = Prefix::of(&list);
            text = Some(list);
            Action::List { list: prefix }
        }),
        Kind::Count => row.map_or(Ok(0), rows::count).map(|count| Action::Count { count }),
        Kind::Register => row.map_or(Ok(None), rows::register).map(|value| Action::Read { value }),
        Kind::Bank | Kind::Row => Bank::read(row).map(|bank| Action::Read { value: bank.map(|(_, mark)| mark) }),
    };
    match action {
        Ok(action) => shared.with(|state| {
            let history = Arc::make_mut(&mut state.history);
            if let Some(text) = text {
                history.note_text(name, &text);
            }
            history.note(name, Operation { by: Process::ReadBack, start, end, outcome: Outcome::Ok, action });
        }),
        Err(what) => {
            findings.push(Finding::new(Anomaly::Torn, name, "one whole transaction", what));
            shared.with(|state| Arc::make_mut(&mut state.history).torn.insert(name.to_owned()));
        }
    }
}

/// Reads and checks the blind rows of all slots. The same finding through several endpoints is recorded once.
async fn read_blind<S: Store>(
    shared: &Shared,
    endpoint: &Endpoint<S>,
    findings: &mut Vec<Finding>,
) -> Result<(), Error> {
    let mut contents: BTreeMap<String, Content> = BTreeMap::new();
    for slot in shared.layout.slots() {
        let range = shared.layout.range(slot, Kind::Row);
        pages(shared, endpoint, range, |row, _, _| {
            contents.insert(rows::text_of(&row.key), rows::blind_content(&row));
        })
        .await?;
    }
    let history = shared.with(|state| state.history.clone());
    let wrong = history.blind.check(&contents, |version| history.may_have_sent(version));
    for finding in wrong {
        if !findings.contains(&finding) {
            findings.push(finding);
        }
    }
    Ok(())
}

/// Reads and checks the rows around a boundary: the static ones must exist.
async fn read_boundary<S: Store>(
    shared: &Shared,
    endpoint: &Endpoint<S>,
    boundary: Slot,
    findings: &mut Vec<Finding>,
) -> Result<(), Error> {
    let keys = shared.layout.boundary(boundary);
    let (Some(low), Some(high)) = (keys.first(), keys.last()) else { return Ok(()) };
    let end = RowKey::new(high.clone()).successor();
    let Some(range) = KeyRange::new(RowKey::new(low.clone()), Some(end)) else { return Ok(()) };
    let mut found = Vec::new();
    pages(shared, endpoint, range, |row, _, _| found.push(row)).await?;
    let seen: Vec<_> = found.iter().map(|row| rows::text_of(&row.key)).collect();
    let direction = Direction::Ascending;
    let required: Vec<_> = keys.iter().filter(|key| rows::is_static(key)).cloned().collect();
    let layout = Some(&shared.layout);
    let scan = Scan { range: &keys, required: &required, direction, limit: 0, seen: &seen, layout };
    for finding in scans::check(&scan).into_iter().chain(torn_boundaries(&found)) {
        if !findings.contains(&finding) {
            findings.push(finding);
        }
    }
    Ok(())
}

/// All rows of a range, in order, with the times of their calls.
async fn pages<S: Store>(
    shared: &Shared,
    endpoint: &Endpoint<S>,
    range: KeyRange,
    mut each: impl FnMut(Row, Moment, Moment),
) -> Result<(), Error> {
    let mut rest = Some(range);
    while let Some(range) = rest {
        let start = shared.now();
        let found = page(shared, endpoint, &range, PAGE_ROWS).await?;
        let end = shared.now();
        let is_full = u64::try_from(found.len()).unwrap_or(u64::MAX) >= PAGE_ROWS;
        let next = found.last().map(|row| row.key.successor()).filter(|_| is_full);
        rest = next.and_then(|next| KeyRange::new(next, range.end().cloned()));
        found.into_iter().for_each(|row| each(row, start, end));
    }
    Ok(())
}

/// One page, retried until the retry timeout.
async fn page<S: Store>(
    shared: &Shared,
    endpoint: &Endpoint<S>,
    range: &KeyRange,
    limit: u64,
) -> Result<Vec<Row>, Error> {
    let deadline = shared.clock.monotonic() + shared.plan.retry_timeout;
    loop {
        let call = endpoint.store.scan(range, Direction::Ascending, limit);
        let answer = tokio::time::timeout(shared.plan.call_timeout, call).await;
        match answer.unwrap_or_else(|_| Err(Error::new(Reason::Deadline, "timed out"))) {
            Ok(found) => return Ok(found),
            Err(error) if error.kind == ErrorKind::FixRequest => return Err(error),
            Err(error) if shared.clock.monotonic() > deadline => return Err(error),
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}
