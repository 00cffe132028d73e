//! Golden scripts: `testdata/apply/*.txt`. A script is the history of one group, which begins with tablet 7 of table 5; a case
//! is a list of commands that are applied and written in one batch, followed by the replies and the group's cells. A row of
//! another table is shown as `table/row`. A write names its tablet as in `write@8`; without one it is that of table 5 with the row.
//!
//! ```text
//!   families   f g       no rule            at 7                          time of the commands that follow
//!              c         2 versions         write s1.3/2 row change; ...  session s1, sequence 3, lowest outstanding 2
//!              o         age 10             set f:q@5=v   del f:q 5 9   delfam f   delrow   keep text
//!   second 7           at 7 seconds         token text [3]   with this token, first sent in second 3
//!   wait 120           two minutes pass, with a tick in each minute
//!   range a m     of tablet 7               schema 2 f c   droprange 9 a m   drop 9   collect a m 50   tick
//!   create 9 table tablet from to           split at child   the tablet of table 5 with the key
//!   divide 8 9 child                        restart        the stored state is read back
//!   merge 7 9     the tablet 9 gets the rows of the tablet 7
//!   tablets       shows the tablets
//! ```

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use ebla_model::cell::FamilyName;
use ebla_model::command::CallToken;
use ebla_model::gc::GcRule;
use ebla_model::idempotency::{CallKind, IdempotencyToken, TOKENS_BYTES_MAX};
use ebla_model::schema::{Family, TableName, TableState};
use ebla_model::stored_row::parse_stored_row;
use ebla_model::{OperationId, SchemaVersion, Sequence, ServerId, SessionId, TableId};
use parking_lot::Mutex;

use super::*;
use crate::tablet::core::state::MetaEdit;

/// A store as a map.
#[derive(Default)]
struct Stored {
    cells: Mutex<BTreeMap<Vec<u8>, Vec<u8>>>,
}

impl Stored {
    fn write(&self, edits: Vec<CellEdit>) {
        let mut cells = self.cells.lock();
        for edit in edits {
            match edit {
                CellEdit::Put(key, value) => {
                    cells.insert(key, value);
                }
                CellEdit::Delete(key) => {
                    cells.remove(&key);
                }
                CellEdit::DeleteRange(from, to) => cells.retain(|key, _| !is_inside(key, &from, to.as_deref())),
            }
        }
    }
}

impl CellReader for Stored {
    fn keys_if_few(&self, lower: &[u8], upper: Option<&[u8]>) -> Result<Option<Vec<Vec<u8>>>, Error> {
        let keys = self.keys(lower, upper)?;
        Ok((keys.len() <= SINGLE_DELETES_MAX).then_some(keys))
    }

    fn keys(&self, lower: &[u8], upper: Option<&[u8]>) -> Result<Vec<Vec<u8>>, Error> {
        let cells = self.cells.lock();
        Ok(cells.keys().filter(|key| is_inside(key, lower, upper)).cloned().collect())
    }
}

struct History {
    state: GroupState,
    stored: Stored,
    meta: BTreeMap<Vec<u8>, Bytes>,
    time: Micros,
}

const NAMES: [&str; 4] = ["f", "g", "c", "o"];

fn family(name: &str) -> Family {
    let gc = match name {
        "c" => Some(GcRule::MaxVersions(2)),
        "o" => Some(GcRule::MaxAge(Duration::from_micros(10))),
        _ => None,
    };
    Family { id: family_id(name), name: FamilyName::new(name).unwrap(), gc, locality_group: 0, aggregator: None }
}

fn family_id(name: &str) -> FamilyId {
    let at = NAMES.iter().position(|known| *known == name).unwrap_or(8);
    FamilyId::new(u32::try_from(at).unwrap() + 1)
}

/// The table of the scripts.
const TABLE: TableId = TableId::new(5);
/// Its first tablet.
const TABLET: TabletId = TabletId::new(7);

fn schema(version: u64, families: &[&str]) -> TableSchema {
    schema_of(TABLE, version, families)
}

fn schema_of(table: TableId, version: u64, families: &[&str]) -> TableSchema {
    TableSchema {
        table,
        name: TableName::from_parts("p", "inst", "t").unwrap(),
        version: SchemaVersion::new(version),
        families: families.iter().map(|name| family(name)).collect(),
        locality_groups: Vec::new(),
        quotas: Default::default(),
        next_family: FamilyId::new(5),
        deletion_protection: false,
        state: TableState::Active,
    }
}

fn key_range(from: &str, to: &str) -> KeyRange {
    let bound = |text: &str| if text == "-" { RowKey::EMPTY } else { RowKey::copy_from_slice(text.as_bytes()) };
    KeyRange::new(bound(from), (to != "-").then(|| bound(to))).unwrap()
}

impl History {
    fn new() -> Self {
        let servers = [1, 2, 3].map(ServerId::new);
        let mut state = GroupState::fresh(GroupDescriptor::initial(GroupId::new(3), &servers));
        state.add_tablet(schema(1, &NAMES), TABLET, KeyRange::all());
        let meta = BTreeMap::new();
        let mut history = Self { state, stored: Stored::default(), meta, time: Micros::ZERO };
        let saved = history.state.save();
        history.keep(saved);
        history
    }

    fn keep(&mut self, edits: Vec<MetaEdit>) {
        for edit in edits {
            match edit {
                MetaEdit::Put(key, value) => self.meta.insert(key.encode(), value),
                MetaEdit::Delete(key) => self.meta.remove(&key.encode()),
            };
        }
    }

    /// Runs the lines of a case as one batch.
    fn run(&mut self, lines: &[&str]) -> Vec<String> {
        let mut out = Vec::new();
        let mut edits = Vec::new();
        for line in lines {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words.as_slice() {
                ["at", time] => self.time = Micros::new(time.parse().unwrap()),
                ["second", time] => self.time = Micros::from_millis(time.parse::<i64>().unwrap() * 1000),
                ["wait", seconds] => self.wait(seconds.parse().unwrap()),
                ["range", from, to] => {
                    let tablet = self.state.tablets[&TABLET].clone();
                    self.state.put_tablet(TabletDescriptor { range: key_range(from, to), ..tablet });
                }
                ["restart"] => self.restart(),
                ["tablets"] => out.extend(self.state.tablets.values().map(show_tablet)),
                ["divide", tablets @ .., child] => out.extend(self.divide(tablets, child)),
                _ => {
                    let command =
                        Command { time: self.time, elapsed: None, clock: None, kind: parse(&self.state, line) };
                    let mut applier = Applier::new(&mut self.state, &self.stored);
                    applier.resume(std::mem::take(&mut edits));
                    if needs_written_edits(&command.kind) {
                        self.stored.write(applier.take_edits());
                    }
                    let reply = applier.apply(command).unwrap();
                    edits = applier.take_edits();
                    out.extend(show_reply(&reply));
                }
            }
        }
        out.extend(edits.iter().filter_map(show_tombstone));
        self.stored.write(edits);
        let changed = self.state.take_edits();
        self.keep(changed);
        out.extend(self.show_rows());
        out
    }

    /// Time passes as the clock of a leader does: without jumps.
    fn wait(&mut self, mut seconds: i64) {
        while seconds > 0 {
            let step = seconds.min(60);
            seconds -= step;
            self.time = self.time.plus(Duration::from_millis(u64::try_from(step * 1000).unwrap()));
            let command = Command { time: self.time, elapsed: None, clock: None, kind: CommandKind::Tick };
            Applier::new(&mut self.state, &self.stored).apply(command).unwrap();
        }
    }

    fn restart(&mut self) {
        let meta = self.meta.iter().map(|(key, value)| (Bytes::from(key.clone()), value.clone()));
        self.state = GroupState::load(meta).unwrap();
    }

    /// What would move to the new group.
    fn divide(&self, tablets: &[&str], child: &str) -> Vec<String> {
        let tablets: Vec<_> = tablets.iter().map(|tablet| TabletId::new(tablet.parse().unwrap())).collect();
        match divide(&self.state, &tablets, GroupId::new(child.parse().unwrap())) {
            Ok((group, moved)) => {
                let group = format!("group {} from {}", group.group, group.membership_log_id);
                std::iter::once(group).chain(moved.iter().map(show_tablet)).collect()
            }
            Err(refusal) => vec![show_refusal(&refusal)],
        }
    }

    /// Every cell, including those that no reader would see.
    fn show_rows(&self) -> Vec<String> {
        let cells = self.stored.cells.lock();
        let mut rows: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (key, value) in cells.iter() {
            let key = CellKey::decode(key).unwrap();
            let value = codec::decode_value(Bytes::copy_from_slice(value)).unwrap();
            let name = NAMES[usize::try_from(key.family.get()).unwrap() - 1];
            let (qualifier, value) = (String::from_utf8_lossy(&key.qualifier), String::from_utf8_lossy(&value));
            let cell = format!("{name}:{qualifier}@{}={value}", key.timestamp);
            let (table, row) = parse_stored_row(key.row.bytes()).unwrap();
            let row = if table == TABLE { row.to_string() } else { format!("{table}/{row}") };
            rows.entry(row).or_default().push(cell);
        }
        rows.into_iter().map(|(row, cells)| format!("  {row}  {}", cells.join(" "))).collect()
    }
}

/// The tablet of the scripts' table that has a row, or its first one.
fn tablet_of(state: &GroupState, row: &RowKey) -> TabletId {
    let found = state.tablets_of(TABLE).find(|tablet| tablet.range.contains(row.as_bytes()));
    found.map_or(TABLET, |tablet| tablet.tablet)
}

fn parse(state: &GroupState, line: &str) -> CommandKind {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words.as_slice() {
        [write, id, row, ..] if write.starts_with("write") => {
            let changes = line.splitn(4, ' ').nth(3).unwrap();
            let mut parsed = parse_write(state, id, row, changes);
            if let Some((_write, tablet)) = write.split_once('@') {
                parsed.tablet = TabletId::new(tablet.parse().unwrap());
            }
            CommandKind::Write(vec![parsed])
        }
        ["create", operation, table, tablet, from, to] => CommandKind::CreateTablets {
            operation: OperationId::new(operation.parse().unwrap()),
            schema: schema_of(TableId::new(table.parse().unwrap()), 1, &NAMES),
            tablets: vec![NewTablet { tablet: TabletId::new(tablet.parse().unwrap()), range: key_range(from, to) }],
        },
        ["split", at, child] => {
            let at = RowKey::copy_from_slice(at.as_bytes());
            let tablet = tablet_of(state, &at);
            CommandKind::Split { tablet, at, child: TabletId::new(child.parse().unwrap()) }
        }
        ["merge", left, right] => CommandKind::Merge {
            left: TabletId::new(left.parse().unwrap()),
            right: TabletId::new(right.parse().unwrap()),
        },
        ["schema", version, families @ ..] => CommandKind::SetSchema(schema(version.parse().unwrap(), families)),
        ["droprange", operation, from, to] => CommandKind::DropRange {
            operation: OperationId::new(operation.parse().unwrap()),
            table: TABLE,
            range: key_range(from, to),
        },
        ["drop", operation] => {
            CommandKind::Drop { operation: OperationId::new(operation.parse().unwrap()), table: TABLE }
        }
        ["collect", from, to, time] => CommandKind::Collect {
            tablet: TABLET,
            range: key_range(from, to),
            time: Micros::new(time.parse().unwrap()),
        },
        ["tick"] => CommandKind::Tick,
        _ => panic!("not a command: {line}"),
    }
}

fn parse_write(state: &GroupState, id: &str, row: &str, changes: &str) -> RowWrite {
    let row = RowKey::copy_from_slice(row.as_bytes());
    let (session, rest) = id.strip_prefix('s').unwrap().split_once('.').unwrap();
    let (sequence, lowest) = rest.split_once('/').unwrap();
    let mut write = RowWrite {
        tablet: tablet_of(state, &row),
        session: SessionId::new(session.parse().unwrap()),
        sequence: Sequence::new(sequence.parse().unwrap()),
        lowest_outstanding: Sequence::new(lowest.parse().unwrap()),
        row,
        changes: Vec::new(),
        result: None,
        token: None,
    };
    for change in changes.split(';') {
        let words: Vec<&str> = change.split_whitespace().collect();
        match words.as_slice() {
            ["keep", text] => write.result = Some(Bytes::copy_from_slice(text.as_bytes())),
            ["token", text, started @ ..] => write.token = Some(parse_token(text, started)),
            ["none"] => {}
            ["many", column, count] => {
                let count: i64 = count.parse().unwrap();
                write.changes.extend((1..=count).map(|at| set(column, at, "v")));
            }
            words => write.changes.push(parse_change(words)),
        }
    }
    write
}

fn parse_token(text: &str, started: &[&str]) -> CallToken {
    let started = started.first().map(|seconds| Micros::from_millis(seconds.parse::<i64>().unwrap() * 1000));
    CallToken {
        kind: CallKind::Mutate,
        token: IdempotencyToken { token: Bytes::copy_from_slice(text.as_bytes()), started },
    }
}

fn parse_change(words: &[&str]) -> Change {
    let micros = |text: &str| Micros::new(text.parse().unwrap());
    match words {
        ["set", cell] => {
            let (column, rest) = cell.split_once('@').unwrap();
            let (timestamp, value) = rest.split_once('=').unwrap();
            set(column, timestamp.parse().unwrap(), value)
        }
        ["del", column, bounds @ ..] => {
            let (family, qualifier) = column.split_once(':').unwrap();
            Change::DeleteColumn {
                family: family_id(family),
                qualifier: Bytes::copy_from_slice(qualifier.as_bytes()),
                start: bounds.first().map_or(Micros::ZERO, |text| micros(text)),
                end: bounds.get(1).map(|text| micros(text)),
            }
        }
        ["delfam", family] => Change::DeleteFamily(family_id(family)),
        ["delrow"] => Change::DeleteRow,
        _ => panic!("not a change: {words:?}"),
    }
}

fn set(column: &str, timestamp: i64, value: &str) -> Change {
    let (family, qualifier) = column.split_once(':').unwrap();
    Change::SetCell {
        family: family_id(family),
        qualifier: Bytes::copy_from_slice(qualifier.as_bytes()),
        timestamp: Micros::new(timestamp),
        value: Bytes::copy_from_slice(value.as_bytes()),
    }
}

fn show_reply(reply: &Reply) -> Vec<String> {
    match reply {
        Reply::Write(rows) => rows.iter().map(show_row_reply).collect(),
        Reply::Done => vec!["done".to_owned()],
        Reply::Refused(refusal) => vec![show_refusal(refusal)],
        Reply::Split { left, right } => {
            vec![format!("left {}, right {}", show_tablet(left), show_tablet(right))]
        }
        Reply::Import(status) => vec![format!("{status:?}")],
        Reply::Merge(merged) => vec![format!("merged {}", show_tablet(merged))],
    }
}

fn show_tablet(tablet: &TabletDescriptor) -> String {
    let TabletDescriptor { table, tablet, range, generation, group, .. } = tablet;
    format!("{tablet} {range} generation {generation} table {table} group {group}")
}

fn show_row_reply(reply: &RowReply) -> String {
    match reply {
        RowReply::Applied => "applied".to_owned(),
        RowReply::Duplicate(None) => "duplicate".to_owned(),
        RowReply::Duplicate(Some(result)) => format!("duplicate {}", String::from_utf8_lossy(result)),
        RowReply::Refused(refusal) => show_refusal(refusal),
    }
}

fn show_refusal(refusal: &Refusal) -> String {
    format!("refused {:?}: {}", refusal.kind, refusal.message)
}

/// Range tombstones slow readers down, so a script shows where they are written.
fn show_tombstone(edit: &CellEdit) -> Option<String> {
    matches!(edit, CellEdit::DeleteRange(..)).then(|| "(a range tombstone)".to_owned())
}

fn scripts() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/apply");
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

/// The script with each case's actual outcome.
fn transcript(script: &str) -> String {
    let (mut out, mut input) = (String::new(), Vec::new());
    let mut history = History::new();
    let mut lines = script.lines();
    while let Some(line) = lines.next() {
        out.push_str(line);
        out.push('\n');
        if line == "---" {
            for line in history.run(&input) {
                out.push_str(&line);
                out.push('\n');
            }
            input.clear();
            if lines.by_ref().find(|line| line.is_empty()).is_some() {
                out.push('\n');
            }
        } else if !line.is_empty() && !line.starts_with('#') {
            input.push(line);
        }
    }
    assert!(input.is_empty(), "a case has no ---: {input:?}");
    out
}

#[test]
fn golden_scripts_match() {
    let scripts = scripts();
    assert!(!scripts.is_empty(), "no scripts in testdata/apply");
    for path in scripts {
        let expected = std::fs::read_to_string(&path).unwrap();
        let actual = transcript(&expected);
        if actual != expected && std::env::var_os("UPDATE").is_some() {
            std::fs::write(&path, actual).unwrap();
        } else {
            assert_eq!(actual, expected, "{} (UPDATE=1 writes what came out)", path.display());
        }
    }
}

/// A state that is saved and loaded continues unchanged.
#[test]
fn a_state_survives_save_and_load() {
    let mut history = History::new();
    history.run(&["at 100", "write s1.1/1 a set f:q@1=v; keep x", "schema 2 f o", "droprange 3 a b"]);
    let shown =
        |state: &GroupState| format!("{:?}", (&state.sessions, &state.operations, &state.tablets, &state.tables));
    let before = shown(&history.state);
    history.restart();
    assert_eq!(shown(&history.state), before);
    assert_eq!(history.state.tables[&TABLE].schema.version, SchemaVersion::new(2));
    assert_eq!(history.state.time, Micros::new(100));
}

/// A write of a row of its own whose result uses 1 MiB of the memory for tokens.
fn heavy(state: &GroupState, row: u64) -> Command {
    let mut write = parse_write(state, &format!("s1.{row}/{row}"), &row.to_string(), "token tokentoken");
    write.result = Some(Bytes::from(vec![0; 1 << 20]));
    Command { time: Micros::ZERO, elapsed: None, clock: None, kind: CommandKind::Write(vec![write]) }
}

/// The clock of a leader that is a year ahead removes no cell of a family with a maximum age.
#[test]
fn a_jump_of_the_log_s_time_does_not_age_cells() {
    let mut history = History::new();
    let (day, start) = (Duration::from_secs(24 * 3600), Micros::from_millis(1_700_000_000_000));
    let gc = Some(GcRule::MaxAge(day));
    let aged = TableSchema { families: vec![Family { gc, ..family("f") }], ..schema(2, &[]) };
    let mut apply = |time, elapsed, kind| {
        Applier::new(&mut history.state, &history.stored).apply(Command { time, elapsed, clock: None, kind }).unwrap();
        let floor = history.state.canonical().tables[&TABLE].floors.get(&family_id("f")).copied();
        (history.state.time, floor.unwrap_or_default().plus(day))
    };
    apply(start, None, CommandKind::SetSchema(aged));
    let second = Duration::from_secs(1);
    assert_eq!(apply(start.plus(second), Some(second), CommandKind::Tick), (start.plus(second), start.plus(second)));
    let ahead = start.plus(365 * day);
    let (time, floor) = apply(ahead, Some(second), CommandKind::Tick);
    assert_eq!((time, floor), (ahead, start.plus(3 * second)), "the GC time advances twice as fast as time at most");
    // The first command of another leader whose clock is ahead, too.
    let (_, floor) = apply(ahead.plus(365 * day), None, CommandKind::Tick);
    assert_eq!(floor, start.plus(63 * second));
}

/// A full memory refuses new tokens; none is forgotten early, and only time frees space.
#[test]
fn tokens_are_refused_rather_than_forgotten() {
    let mut history = History::new();
    let before = history.state.clone();
    let mut applier = Applier::new(&mut history.state, &history.stored);
    let mut row = 0;
    let refused = loop {
        row += 1;
        match applier.apply(heavy(&before, row)).unwrap() {
            Reply::Write(rows) if rows == [RowReply::Applied] => assert!(row < 64),
            reply => break show_reply(&reply),
        }
    };
    assert_eq!(refused, ["refused NotNow: the group's memory for idempotency tokens is full"]);
    assert_eq!(row, 64);
    assert!(applier.state().tokens.size_bytes() <= TOKENS_BYTES_MAX);
    let light = parse(&before, "write s1.100/100 other token tokentoken");
    assert_eq!(
        applier.apply(Command { time: Micros::ZERO, elapsed: None, clock: None, kind: light }).unwrap(),
        Reply::Write(vec![RowReply::Applied])
    );
    let again = parse(&before, "write s2.1/1 1 token tokentoken");
    let Reply::Write(known) =
        applier.apply(Command { time: Micros::ZERO, elapsed: None, clock: None, kind: again }).unwrap()
    else {
        panic!()
    };
    assert!(matches!(known[..], [RowReply::Duplicate(Some(_))]), "the first of all is still known");
    let later = Command { time: Micros::from_millis(901_000), ..heavy(&before, row + 1) };
    assert_eq!(applier.apply(later).unwrap(), Reply::Write(vec![RowReply::Applied]));
}

/// One write less than a session may have outstanding: 65,535, from the first on.
fn fill_session(state: &mut GroupState, session: SessionId) {
    let window = state.session(session);
    for sequence in 1..65_536 {
        window.record(Sequence::new(sequence), Sequence::new(1), None, Micros::ZERO);
    }
}

/// A session whose first write does not end is refused at last. Nothing of it is forgotten, so that no write is applied twice.
#[test]
fn outstanding_writes_are_refused_rather_than_forgotten() {
    let mut history = History::new();
    fill_session(&mut history.state, SessionId::new(1));
    let refused = "refused NotNow: the session has too many outstanding writes";
    assert_eq!(history.run(&["second 1", "write s1.65536/1 a set f:q@1=x"]), ["applied", "  a  f:q@1=x"]);
    let beyond = history.run(&["write s1.65537/1 a set f:q@1=y; token tokentoken"]);
    assert_eq!(beyond, [refused, "  a  f:q@1=x"]);
    assert_eq!(history.state.tokens.keys().count(), 0, "the token of a refused write is not recorded");
    let others = [
        "restart",
        "write s1.1/1 a set f:q@1=z",
        "write s1.65536/1 a set f:q@1=z",
        "write s1.65537/1 a set f:q@1=y",
        "write s2.1/1 b set f:q@1=x",
    ];
    let shown = history.run(&others);
    assert_eq!(shown, ["duplicate", "duplicate", refused, "applied", "  a  f:q@1=x", "  b  f:q@1=x"]);
    // A refused write does not count as use of the session, which expires 15 minutes after the last applied one.
    let again = "write s1.65537/1 a set f:q@1=y";
    assert_eq!(history.run(&["wait 900", again])[0], refused);
    assert_eq!(history.run(&["wait 1", again])[0], "applied");
}

/// A session that acknowledges responses in time is never full.
#[test]
fn acknowledged_writes_do_not_count_as_outstanding() {
    let mut history = History::new();
    fill_session(&mut history.state, SessionId::new(1));
    let script = ["write s1.65536/65000 a none", "write s1.65537/65000 a none", "write s1.64999/65000 a none"];
    let acknowledged = "refused SessionForgotten: duplicate check impossible: sequence already acknowledged by client";
    assert_eq!(history.run(&script), ["applied", "applied", acknowledged]);
    let window = &history.state.sessions[&SessionId::new(1)];
    assert_eq!((window.lowest_outstanding, window.applied.len()), (Sequence::new(65_000), 538));
}

/// A full group refuses new sessions; none is forgotten early, and only time frees space.
#[test]
fn sessions_are_refused_rather_than_forgotten() {
    let mut history = History::new();
    for session in 1..10_000 {
        let window = history.state.session(SessionId::new(session));
        window.record(Sequence::new(1), Sequence::new(1), None, Micros::from_millis(1000));
    }
    let refused = "refused NotNow: too many sessions write to this group";
    let script = [
        "second 1",
        "write s10000.1/1 a set f:q@1=x",
        "write s10001.1/1 a set f:q@1=y; token tokentoken",
        "write s1.1/1 a set f:q@1=y",
        "write s1.2/1 b set f:q@1=x",
    ];
    let shown = history.run(&script);
    assert_eq!(shown, ["applied", refused, "duplicate", "applied", "  a  f:q@1=x", "  b  f:q@1=x"]);
    assert!(!history.state.sessions.contains_key(&SessionId::new(10_001)));
    assert_eq!((history.state.sessions.len(), history.state.tokens.keys().count()), (10_000, 0));
    // One session is in use; the others expire 15 minutes after their only write.
    assert_eq!(history.run(&["wait 600", "write s1.3/1 b set f:q@1=y"])[0], "applied");
    let new = "write s10001.1/1 a set f:q@1=y";
    assert_eq!(history.run(&["wait 300", new])[0], refused);
    history.run(&["wait 1"]);
    assert_eq!(history.state.sessions.len(), 10_000, "the write itself must remove the expired ones");
    assert_eq!(history.run(&[new, "write s1.3/1 b set f:q@1=z"])[..2], ["applied", "duplicate"]);
    assert!(history.state.sessions.keys().eq(&[1, 10_001].map(SessionId::new)));
}

/// A restarted replica forgets at another time than one that kept running. Their replies are the same.
#[test]
fn the_time_of_forgetting_does_not_change_replies() {
    let mut steady = History::new();
    let script = ["second 0", "write s1.1/1 a set f:q@1=v; token tokentoken; keep x", "second 899", "tick"];
    steady.run(&script);
    let mut restarted = History::new();
    restarted.run(&script);
    restarted.restart();
    for line in ["second 901", "tick"] {
        restarted.run(&[line]);
    }
    let mut answers = Vec::new();
    for history in [&mut steady, &mut restarted] {
        answers.push(history.run(&["second 901", "write s2.1/1 a set f:q@2=v; token tokentoken"]));
        let state = history.state.canonical();
        assert_eq!(state.tokens.keys().count(), 1);
    }
    assert_eq!(answers[0], answers[1]);
    assert_eq!(answers[0].first().map(String::as_str), Some("applied"));
    assert_eq!(steady.state.canonical().tokens, restarted.state.canonical().tokens);
}

/// Both groups of a division know the tokens of their own rows, and no others.
#[test]
fn a_division_divides_the_tokens() {
    let mut history = History::new();
    history.run(&["second 1", "write s1.1/1 a token tokentoken", "write s1.2/2 x token tokentoken; keep answer"]);
    history.run(&["split m 9"]);
    let moves = [TabletId::new(9)];
    let (group, moved) = divide(&history.state, &moves, GroupId::new(4)).unwrap();
    let mut child = history.state.child(group, &moved);
    history.state.remove_tablets(&moves);
    let edits = history.state.take_edits();
    history.keep(edits);
    let kept = |meta: &BTreeMap<Vec<u8>, Bytes>| meta.keys().filter(|key| key.starts_with(b"tokens/")).count();
    assert_eq!((history.state.tokens.keys().count(), kept(&history.meta)), (1, 1));
    assert_eq!(child.tokens.keys().count(), 1);
    let stored = Stored::default();
    let again = parse(&child, "write s2.1/1 x set f:q@1=v; token tokentoken");
    let mut applier = Applier::new(&mut child, &stored);
    let reply =
        applier.apply(Command { time: Micros::from_millis(2000), elapsed: None, clock: None, kind: again }).unwrap();
    assert_eq!(show_reply(&reply), ["duplicate answer"]);
}
