//! METADATA's row keys, tablets that split and merge, and the order of writes to their rows.

use std::collections::BTreeMap;

use ebla_model::id::{GroupId, ServerId, TableId, TabletId};
use ebla_model::key::{KeyRange, RowKey};
use ebla_model::metadata::{
    GroupDescriptor, RowUpdate, TabletDescriptor, first_tablets, lookup_key, lookup_range, metadata_split_point,
    obsolete_rows, parse_row_key, row_key, row_update, rows_after, rows_near, table_range,
};

use crate::notation::{error_text, key};
use crate::runner;

#[test]
fn tablets_are_described_and_found() {
    runner::run("metadata", |input| {
        let (mut tablet, mut rows) = (None, BTreeMap::new());
        let outputs = input.iter().map(|line| match line.split_once(' ') {
            Some(("listed", row)) => {
                let row = descriptor(row);
                rows.insert(row.row_key(), row);
                Vec::new()
            }
            Some(("update", of)) => vec![row_update_text(&descriptor(of), &rows)],
            _ if *line == "obsolete" => obsolete_rows(rows.values()).into_iter().map(short).collect(),
            _ => step(&mut tablet, line),
        });
        outputs.flatten().collect()
    });
}

fn step(tablet: &mut Option<TabletDescriptor>, line: &str) -> Vec<String> {
    match line.split_whitespace().collect::<Vec<_>>().as_slice() {
        ["row", table, end] => vec![row_key(id(table), bound(end).as_ref()).to_string()],
        ["lookup", table, name] => {
            vec![lookup_key(id(table), &key(name)).to_string(), lookup_range(id(table), &key(name)).to_string()]
        }
        ["table", table] => vec![table_range(id(table)).to_string()],
        ["parse", name] => vec![match parse_row_key(&key(name)) {
            Ok((table, end)) => format!("table {table} end {}", end.map_or("-".into(), |end| end.to_string())),
            Err(error) => error_text(&error),
        }],
        ["first", servers @ ..] => first_tablets(&ids(servers)).iter().map(tablet_text).collect(),
        ["tablet", number, start, end, servers @ ..] => {
            let range = KeyRange::new(key(start), bound(end)).unwrap();
            let made = TabletDescriptor::initial(
                TableId::new(7),
                TabletId::new(number.parse().unwrap()),
                range,
                &ids(servers),
            );
            let text = tablet_text(&made);
            *tablet = Some(made);
            vec![text]
        }
        ["learner", replica, server] => {
            let tablet = tablet.as_mut().unwrap();
            tablet.membership.replicas.insert(replica.parse().unwrap(), server.parse().unwrap());
            vec![tablet_text(tablet)]
        }
        ["joint"] => {
            let tablet = tablet.as_mut().unwrap();
            let voters = tablet.membership.voters[0].iter().copied().take(1).collect();
            tablet.membership.voters.push(voters);
            vec![tablet_text(tablet)]
        }
        ["split", at, child] => match tablet.as_ref().unwrap().split(&key(at), TabletId::new(child.parse().unwrap())) {
            Some((left, right)) => vec![tablet_text(&left), tablet_text(&right)],
            None => vec!["no split".into()],
        },
        // METADATA's tablets are 1, the root, and others.
        ["merge-metadata", left, right] => {
            let of_metadata = |text: &str| {
                let (tablet, range) = text.split_once(':').unwrap();
                let (start, end) = range.split_once("..").unwrap();
                TabletDescriptor { table: TableId::METADATA, ..descriptor(&format!("{tablet} {start} {end} 1")) }
            };
            vec![of_metadata(right).merge(&of_metadata(left)).map_or("no merge".into(), |merged| short(&merged))]
        }
        // `split-metadata start end row=bytes…`
        ["split-metadata", start, end, rows @ ..] => {
            let start = if *start == "-" { RowKey::EMPTY } else { key(start) };
            let range = KeyRange::new(start, bound(end)).unwrap();
            let row = |row: &&str| row.split_once('=').map(|(row, bytes)| (key(row), bytes.parse().unwrap())).unwrap();
            let rows: Vec<(RowKey, u64)> = rows.iter().map(row).collect();
            vec![metadata_split_point(&range, &rows).map_or("no split".into(), |at| at.to_string())]
        }
        ["merge", tablets @ ..] => {
            let [left, right] = [0, 4].map(|at| descriptor(&tablets[at..at + 4].join(" ")));
            vec![right.merge(&left).map_or("no merge".into(), |merged| short(&merged))]
        }
        _ => panic!("not a line of a metadata script: {line}"),
    }
}

/// `tablet start end generation`, in table 7.
fn descriptor(text: &str) -> TabletDescriptor {
    let words: Vec<&str> = text.split_whitespace().collect();
    let [tablet, start, end, generation] = words[..] else { panic!("not a descriptor: {text}") };
    let start = if start == "-" { RowKey::EMPTY } else { key(start) };
    let range = KeyRange::new(start, bound(end)).unwrap();
    let group = GroupDescriptor::initial(GroupId::new(3), &[ServerId::new(1)]);
    group.tablet(TableId::new(7), tablet.parse().unwrap(), range, generation.parse().unwrap())
}

fn short(tablet: &TabletDescriptor) -> String {
    format!("{} {} generation {}", tablet.tablet, tablet.range, tablet.generation)
}

/// What the writer of a tablet's row reads and decides.
fn row_update_text(tablet: &TabletDescriptor, rows: &BTreeMap<RowKey, TabletDescriptor>) -> String {
    let is_listed = rows.get(&tablet.row_key()).is_some_and(|own| own.generation == tablet.generation);
    let after = rows_after(tablet).filter(|_after| !is_listed);
    let read: Vec<_> = [Some(rows_near(tablet)), after].into_iter().flatten().collect();
    let is_read = |row: &RowKey| read.iter().any(|range| range.contains(row.as_bytes()));
    let near: Vec<_> = rows.iter().filter(|(row, _)| is_read(row)).map(|(_, one)| one.clone()).collect();
    match row_update(tablet, &near) {
        RowUpdate::Wait => "wait".to_owned(),
        RowUpdate::Write(superfluous) if superfluous.is_empty() => "write".to_owned(),
        RowUpdate::Write(superfluous) => {
            format!("write, remove {}", superfluous.iter().map(short).collect::<Vec<_>>().join(", "))
        }
    }
}

fn id(text: &str) -> TableId {
    text.parse().unwrap()
}

fn ids(servers: &[&str]) -> Vec<ServerId> {
    servers.iter().map(|server| server.parse().unwrap()).collect()
}

fn bound(text: &str) -> Option<RowKey> {
    (text != "-").then(|| key(text))
}

fn tablet_text(tablet: &TabletDescriptor) -> String {
    let replicas: Vec<_> = tablet.membership.replicas().map(|it| format!("{}@{}", it.replica, it.server)).collect();
    let sets: Vec<_> = tablet
        .membership
        .voters
        .iter()
        .map(|set| format!("{:?}", set.iter().map(|id| id.get()).collect::<Vec<_>>()))
        .collect();
    format!(
        "table {} tablet {} {} generation {} replicas {} voters {} since {}",
        tablet.table,
        tablet.tablet,
        tablet.range,
        tablet.generation,
        replicas.join(" "),
        sets.join("+"),
        tablet.membership_log_id
    )
}
