//! Reading everything back: through each address that answers, each kind of rows in each slot, page by page.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ebla_client::Direction;
use ebla_model::cell::Row;
use ebla_model::error::{Error, ErrorKind, Reason};
use ebla_model::key::{KeyRange, RowKey};

use super::check::scans::{self, Scan};
use super::finding::{Anomaly, Finding};
use super::history::{Action, Moment, Operation, Outcome, Prefix, Process};
use super::ledger::Content;
use super::load::{PAUSE, Shared};
use super::rows::{self, Bank, Kind, Slot};
use super::store::{Access, Store};
use super::worker::half_borders;

/// Rows of one page: about a megabyte of the largest.
const PAGE_ROWS: u64 = 500;

/// What reading back found, beyond what it put into the history.
#[derive(Default)]
pub(super) struct Found {
    pub(super) findings: Vec<Finding>,
    pub(super) read_through: Vec<String>,
    pub(super) silent: Vec<String>,
}

/// Reads all rows through every way that answers, and notes what it sees as reads. `with_borders`: whether the rows that
/// stand still were made.
///
/// # Errors
/// The last error, when no way answered to the end.
pub(super) async fn run<S: Store>(shared: &Shared, through: &[Access<S>], with_borders: bool) -> Result<Found, Error> {
    let mut found = Found::default();
    let nothing = KeyRange::single(RowKey::new("00/"));
    let probes = through.iter().map(|access| page(shared, access, &nothing, 1));
    let mut last_error = Error::invalid("there is nothing to read back through");
    for (access, probe) in through.iter().zip(futures::future::join_all(probes).await) {
        let answer = match probe {
            Ok(_) => Box::pin(read(shared, access, with_borders, &mut found.findings)).await,
            Err(error) => Err(error),
        };
        match answer {
            Ok(()) => found.read_through.push(access.name.clone()),
            Err(error) => {
                found.silent.push(access.name.clone());
                last_error = error.context(&format!("read back through {}", access.name));
            }
        }
    }
    if found.read_through.is_empty() { Err(last_error) } else { Ok(found) }
}

async fn read<S: Store>(
    shared: &Shared,
    access: &Access<S>,
    with_borders: bool,
    findings: &mut Vec<Finding>,
) -> Result<(), Error> {
    for slot in shared.layout.slots() {
        for kind in [Kind::Bank, Kind::Count, Kind::List, Kind::Register] {
            read_kept(shared, access, slot, kind, findings).await?;
        }
    }
    read_ledger(shared, access, findings).await?;
    for border in (0..shared.layout.borders()).filter(|_| with_borders) {
        read_border(shared, access, Slot(border), findings).await?;
    }
    Ok(())
}

/// Rows whose operations are kept: what is there is noted as read, and so is what is not.
async fn read_kept<S: Store>(
    shared: &Shared,
    access: &Access<S>,
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
    pages(shared, access, range, |row, start, end| seen.push((row, start, end))).await?;
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

/// Notes what a row holds as a read of it.
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
            findings.push(Finding::new(Anomaly::Half, name, "one transaction, whole", what));
            shared.with(|state| Arc::make_mut(&mut state.history).half.insert(name.to_owned()));
        }
    }
}

/// The ledger's rows of all slots, compared at once. What several addresses show the same is told once.
async fn read_ledger<S: Store>(shared: &Shared, access: &Access<S>, findings: &mut Vec<Finding>) -> Result<(), Error> {
    let mut contents: BTreeMap<String, Content> = BTreeMap::new();
    for slot in shared.layout.slots() {
        let range = shared.layout.range(slot, Kind::Row);
        pages(shared, access, range, |row, _, _| {
            contents.insert(rows::text_of(&row.key), rows::ledger_content(&row));
        })
        .await?;
    }
    let history = shared.with(|state| state.history.clone());
    let wrong = history.ledger.check(&contents, |version| history.may_have_sent(version));
    for finding in wrong {
        if !findings.contains(&finding) {
            findings.push(finding);
        }
    }
    Ok(())
}

/// The rows about a border: those that stand still must be there.
async fn read_border<S: Store>(
    shared: &Shared,
    access: &Access<S>,
    border: Slot,
    findings: &mut Vec<Finding>,
) -> Result<(), Error> {
    let keys = shared.layout.border(border);
    let (Some(low), Some(high)) = (keys.first(), keys.last()) else { return Ok(()) };
    let end = RowKey::new(high.clone()).successor();
    let Some(range) = KeyRange::new(RowKey::new(low.clone()), Some(end)) else { return Ok(()) };
    let mut found = Vec::new();
    pages(shared, access, range, |row, _, _| found.push(row)).await?;
    let seen: Vec<_> = found.iter().map(|row| rows::text_of(&row.key)).collect();
    let direction = Direction::Ascending;
    let scan = Scan { range: &keys, direction, limit: 0, seen: &seen, layout: &shared.layout };
    for finding in scans::check(&scan).into_iter().chain(half_borders(&found)) {
        if !findings.contains(&finding) {
            findings.push(finding);
        }
    }
    Ok(())
}

/// All rows of a range, in order, with the time of the call that brought them.
async fn pages<S: Store>(
    shared: &Shared,
    access: &Access<S>,
    range: KeyRange,
    mut each: impl FnMut(Row, Moment, Moment),
) -> Result<(), Error> {
    let mut rest = Some(range);
    while let Some(range) = rest {
        let start = shared.now();
        let found = page(shared, access, &range, PAGE_ROWS).await?;
        let end = shared.now();
        let is_full = u64::try_from(found.len()).unwrap_or(u64::MAX) >= PAGE_ROWS;
        let next = found.last().map(|row| row.key.successor()).filter(|_| is_full);
        rest = next.and_then(|next| KeyRange::new(next, range.end().cloned()));
        found.into_iter().for_each(|row| each(row, start, end));
    }
    Ok(())
}

/// One page, asked for until the patience is over.
async fn page<S: Store>(shared: &Shared, access: &Access<S>, range: &KeyRange, limit: u64) -> Result<Vec<Row>, Error> {
    let deadline = shared.clock.monotonic() + shared.plan.patience;
    loop {
        let call = access.store.scan(range, Direction::Ascending, limit);
        let answer = tokio::time::timeout(shared.plan.deadline, call).await;
        match answer.unwrap_or_else(|_| Err(Error::new(Reason::Deadline, "no answer in time"))) {
            Ok(found) => return Ok(found),
            Err(error) if error.kind == ErrorKind::FixRequest => return Err(error),
            Err(error) if shared.clock.monotonic() > deadline => return Err(error),
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}
