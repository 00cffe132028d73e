//! `ebla cluster list` and `describe`: what clusters register about themselves in Chubby.

use std::collections::BTreeMap;

use ebla_client::Admin;
use ebla_model::capacity::readable_bytes;
use ebla_model::error::{Error, Reason};
use ebla_model::id::ClusterId;
use ebla_proto::operate::DescribeClusterReply;
use ebla_proto::record::ClusterRegistration;
use ebla_runtime::Runtime;
use futures::future::join_all;
use serde_json::{Value, json};

use crate::commands::server::connect;
use crate::commands::{ClusterArguments, within_seconds};
use crate::output::{self, Failure, Format, Table};

/// Lists the clusters at all addresses, each once. An address that does not answer is noted.
///
/// # Errors
/// The last failure, when no address answers.
pub(super) async fn list(cluster: &ClusterArguments, runtime: &Runtime) -> Result<(), Failure> {
    let mut found: BTreeMap<Vec<u8>, DescribeClusterReply> = BTreeMap::new();
    let mut failed = None;
    let addresses = cluster.addresses()?;
    let admins = addresses.iter().map(|address| cluster.admin_at(address, runtime).map(within_seconds));
    let admins = admins.collect::<Result<Vec<_>, Failure>>()?;
    let described = join_all(admins.iter().map(Admin::describe_cluster)).await;
    for (address, described) in addresses.iter().zip(described) {
        match described {
            Ok(reply) => {
                found.insert(reply.cluster.to_vec(), reply);
            }
            Err(error) => {
                let error = explain(error);
                output::note(&format!("no cluster at {address}: {}", error.message));
                failed = Some(error);
            }
        }
    }
    if let (true, Some(error)) = (found.is_empty(), failed) {
        // Its message was written above.
        return Err(Failure { message: String::new(), ..Failure::from(error) });
    }
    let replies: Vec<_> = found.into_values().collect();
    match cluster.output {
        Format::Json => output::print_json(&Value::Array(replies.iter().map(to_json).collect())),
        Format::Table => output::print(&table(&replies)),
    }
    Ok(())
}

/// Shows one cluster.
///
/// # Errors
/// What the cluster answers; when no cluster answers.
pub(super) async fn describe(cluster: &ClusterArguments, runtime: &Runtime) -> Result<(), Failure> {
    let reply = within_seconds(connect(cluster, runtime).await?).describe_cluster().await.map_err(explain)?;
    match cluster.output {
        Format::Json => output::print_json(&to_json(&reply)),
        Format::Table => output::print(&text(&reply)),
    }
    Ok(())
}

/// A master of an earlier release does not know the request.
fn explain(error: Error) -> Error {
    if error.reason != Reason::Unimplemented {
        return error;
    }
    let message =
        "the active master runs an earlier release, which does not register the cluster: `ebla status` shows it";
    Error::new(Reason::FailedPrecondition, message)
}

fn id(reply: &DescribeClusterReply) -> String {
    ClusterId::from_bytes(&reply.cluster).map_or("unknown".to_owned(), |id| id.to_string())
}

fn age(reply: &DescribeClusterReply) -> String {
    format!("{} s ago", reply.age_millis / 1_000)
}

fn table(replies: &[DescribeClusterReply]) -> String {
    let heading = [
        "NAME",
        "ID",
        "SERVERS",
        "TABLES",
        "TABLETS",
        "SIZE",
        "READS/S",
        "WRITES/S",
        "VERSION",
        "RELEASES",
        "REGISTERED",
    ];
    let mut table = Table::new(&heading);
    for reply in replies {
        let Some(of) = &reply.registration else {
            let unknown = std::iter::repeat_n("-".to_owned(), heading.len() - 3);
            let cells = ["-".to_owned(), id(reply)].into_iter().chain(unknown).chain(["not yet".to_owned()]);
            table.row(cells.collect());
            continue;
        };
        table.row(vec![
            of.name.clone(),
            id(reply),
            servers(of),
            of.tables.to_string(),
            of.tablets.to_string(),
            readable_bytes(of.tablet_bytes),
            of.reads_per_second.to_string(),
            of.writes_per_second.to_string(),
            of.active_version.to_string(),
            of.releases.join(","),
            age(reply),
        ]);
    }
    table.render()
}

/// Those that respond, and all if that are more.
fn servers(of: &ClusterRegistration) -> String {
    match of.servers_responding == of.servers {
        true => of.servers.to_string(),
        false => format!("{}/{}", of.servers_responding, of.servers),
    }
}

fn text(reply: &DescribeClusterReply) -> String {
    let id = id(reply);
    let Some(of) = &reply.registration else {
        return format!("cluster {id} is not registered yet: its active master does that within a few seconds\n");
    };
    let masters = match of.masters {
        0 | 1 => "the only one".to_owned(),
        count => format!("one of {count}"),
    };
    let silent = match of.servers.saturating_sub(of.servers_responding) {
        0 => "all respond".to_owned(),
        count => format!("{count} do not respond; the figures below are without them"),
    };
    let mut table = Table::default();
    let mut row = |name: &str, value: String| table.row(vec![name.to_owned(), value]);
    row("name", of.name.clone());
    row("id", id);
    row("registered", format!("{}, by the active master", age(reply)));
    row("master", format!("{}, {masters}", of.master));
    row("tablet servers", format!("{}, {silent}", of.servers));
    row("releases", format!("{}, cluster version {}", of.releases.join(", "), of.active_version));
    row("tables", of.tables.to_string());
    row("tablets", format!("{} in {} groups", of.tablets, of.groups));
    let (one, all) = (readable_bytes(of.tablet_bytes), readable_bytes(of.stored_bytes));
    row("size", format!("{one} in one replica of each tablet, {all} in all"));
    row("traffic", format!("{} reads and {} writes per second", of.reads_per_second, of.writes_per_second));
    table.render()
}

pub(super) fn to_json(reply: &DescribeClusterReply) -> Value {
    let of = reply.registration.as_ref();
    json!({
        "id": id(reply),
        "registered": of.is_some(),
        "age_millis": of.map(|_of| reply.age_millis),
        "name": of.map(|of| &of.name),
        "time_micros": of.map(|of| of.time_micros),
        "master": of.map(|of| &of.master),
        "masters": of.map(|of| of.masters),
        "servers": of.map(|of| of.servers),
        "servers_responding": of.map(|of| of.servers_responding),
        "releases": of.map(|of| &of.releases),
        "active_version": of.map(|of| of.active_version),
        "tables": of.map(|of| of.tables),
        "tablets": of.map(|of| of.tablets),
        "groups": of.map(|of| of.groups),
        "tablet_bytes": of.map(|of| of.tablet_bytes),
        "stored_bytes": of.map(|of| of.stored_bytes),
        "reads_per_second": of.map(|of| of.reads_per_second),
        "writes_per_second": of.map(|of| of.writes_per_second),
    })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn reply(cluster: u128) -> DescribeClusterReply {
        DescribeClusterReply {
            cluster: Bytes::copy_from_slice(&ClusterId::new(cluster).to_bytes()),
            age_millis: 12_345,
            registration: Some(ClusterRegistration {
                name: "web-1".to_owned(),
                master: "m1:8085".to_owned(),
                masters: 2,
                servers: 3,
                servers_responding: 3,
                releases: vec!["0.1.0".to_owned(), "0.2.0".to_owned()],
                active_version: 2,
                tables: 4,
                tablets: 17,
                groups: 5,
                tablet_bytes: 3 << 20,
                stored_bytes: 9 << 20,
                reads_per_second: 120,
                writes_per_second: 30,
                ..Default::default()
            }),
        }
    }

    fn without_ids(shown: &str) -> String {
        shown.replace(&id(&reply(7)), "ID7").replace(&id(&reply(8)), "ID8")
    }

    #[test]
    fn a_cluster_is_described() {
        let expected = "\
name            web-1
id              ID7
registered      12 s ago, by the active master
master          m1:8085, one of 2
tablet servers  3, all respond
releases        0.1.0, 0.2.0, cluster version 2
tables          4
tablets         17 in 5 groups
size            3.0 MiB in one replica of each tablet, 9.0 MiB in all
traffic         120 reads and 30 writes per second
";
        assert_eq!(without_ids(&text(&reply(7))), expected);
        let mut silent = reply(7);
        silent.registration.as_mut().unwrap().servers_responding = 1;
        assert!(text(&silent).contains("3, 2 do not respond; the figures below are without them"));
    }

    #[test]
    fn clusters_are_listed_also_before_they_are_registered() {
        let mut silent = reply(7);
        silent.registration.as_mut().unwrap().servers_responding = 1;
        let new = DescribeClusterReply { registration: None, ..reply(8) };
        let shown = table(&[silent, new.clone()]);
        let words = |line: &str| line.split_whitespace().map(ToOwned::to_owned).collect::<Vec<_>>().join(" ");
        let lines: Vec<_> = shown.lines().map(|line| without_ids(&words(line))).collect();
        assert_eq!(
            lines,
            [
                "NAME ID SERVERS TABLES TABLETS SIZE READS/S WRITES/S VERSION RELEASES REGISTERED",
                "web-1 ID7 1/3 4 17 3.0 MiB 120 30 2 0.1.0,0.2.0 12 s ago",
                "- ID8 - - - - - - - - not yet",
            ]
        );
        assert!(text(&new).contains("is not registered yet"));
        let (full, empty) = (to_json(&reply(7)), to_json(&new));
        let fields = |value: &Value| value.as_object().map(|object| object.keys().cloned().collect::<Vec<_>>());
        assert_eq!(fields(&full), fields(&empty));
        assert_eq!((&full["registered"], &full["tablet_bytes"]), (&json!(true), &json!(3 << 20)));
        assert_eq!((&empty["registered"], &empty["name"]), (&json!(false), &Value::Null));
    }

    #[test]
    fn an_earlier_master_is_explained() {
        let explained = explain(Error::new(Reason::Unimplemented, ""));
        assert!(explained.message.contains("does not register the cluster"), "{explained}");
        let other = Error::new(Reason::Unavailable, "no master");
        assert_eq!(explain(other.clone()), other);
    }
}
