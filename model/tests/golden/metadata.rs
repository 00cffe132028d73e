//! METADATA's row keys, and tablets that split.

use ebla_model::id::{ServerId, TableId, TabletId};
use ebla_model::key::{KeyRange, RowKey};
use ebla_model::metadata::{
    TabletDescriptor, first_tablets, lookup_key, lookup_range, parse_row_key, row_key, table_range,
};

use crate::notation::{error_text, key};
use crate::runner;

#[test]
fn tablets_are_described_and_found() {
    runner::run("metadata", |input| {
        let mut tablet = None;
        input.iter().flat_map(|line| step(&mut tablet, line)).collect()
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
        _ => panic!("not a line of a metadata script: {line}"),
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
