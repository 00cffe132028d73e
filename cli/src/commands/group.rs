//! `ebla group`: list, divide.

use ebla_client::admin::GroupStatus;
use ebla_model::capacity::readable_bytes;
use ebla_model::id::{GroupId, ServerId};
use ebla_model::metadata::{GroupDescriptor, Replica};
use ebla_runtime::Runtime;
use serde_json::{Value, json};

use super::{ClusterArguments, tablet};
use crate::output::{self, Failure, Format, Table};

/// List and divide replication groups
///
/// A group is a Raft group: a log and a store on several servers, which hold the tablets of the group.
///
/// Examples:
///   ebla group list
///   ebla group divide 4
#[derive(Debug, clap::Subcommand)]
#[command(verbatim_doc_comment)]
pub enum Group {
    /// List the groups, the servers that hold their replicas, and the number and size of their tablets
    ///
    /// Examples:
    ///   ebla group list
    ///   ebla group list -o json
    ///
    /// Group 1 holds METADATA. The master reads the groups from the servers; one without a replica that responds is missing.
    #[command(verbatim_doc_comment)]
    List {
        /// Which cluster
        #[command(flatten)]
        cluster: ClusterArguments,
    },
    /// Divide a group in two: about half of its data moves to a new group on the same servers
    ///
    /// Example:
    ///   ebla group divide 4
    ///
    /// The tablets move as a whole, so a group with one tablet cannot be divided: split the tablet first.
    #[command(verbatim_doc_comment)]
    Divide {
        /// Which cluster
        #[command(flatten)]
        cluster: ClusterArguments,
        /// Number of the group
        group: u64,
    },
}

/// Carries out the command.
///
/// # Errors
/// What the cluster answers.
pub async fn run(command: Group, runtime: Runtime) -> Result<(), Failure> {
    match command {
        Group::List { cluster } => {
            let groups = cluster.client(&runtime).await?.admin().groups().await?;
            match cluster.output {
                Format::Json => output::print_json(&json!(groups.iter().map(to_json).collect::<Vec<_>>())),
                Format::Table => output::print(&render(&groups)),
            }
        }
        Group::Divide { cluster, group } => {
            let client = cluster.client(&runtime).await?;
            let (left, right, tablets) = client.admin().divide_group(GroupId::new(group)).await?;
            match cluster.output {
                Format::Json => output::print_json(&divide_json(&left, &right, tablets)),
                Format::Table => {
                    let noun = if tablets == 1 { "tablet" } else { "tablets" };
                    output::print(&format!(
                        "{tablets} {noun} moved from group {} to group {}\n",
                        left.group, right.group
                    ));
                }
            }
        }
    }
    Ok(())
}

/// Groups as a table; the leader is marked.
fn render(groups: &[GroupStatus]) -> String {
    let mut table = Table::new(&["GROUP", "SERVERS (* LEADS)", "TABLETS", "SIZE"]);
    for one in groups {
        table.row(vec![
            one.group.group.to_string(),
            tablet::mark_leader(&servers(&one.group), one.leader.map(ServerId::get)),
            one.tablets.to_string(),
            readable_bytes(one.size_bytes),
        ]);
    }
    table.render()
}

fn servers(group: &GroupDescriptor) -> Vec<u64> {
    group.membership.replicas().map(|replica| replica.server.get()).collect()
}

pub(super) fn to_json(one: &GroupStatus) -> Value {
    let replica = |one: Replica| json!({"replica": one.replica.get(), "server": one.server.get()});
    json!({
        "group": one.group.group.get(),
        "replicas": one.group.membership.replicas().map(replica).collect::<Vec<_>>(),
        "leader": one.leader.map(ServerId::get),
        "tablets": one.tablets,
        "size_bytes": one.size_bytes,
    })
}

/// The two groups of one that was divided, and how many tablets are in the new one.
pub(super) fn divide_json(left: &GroupDescriptor, right: &GroupDescriptor, tablets: u64) -> Value {
    json!({
        "group": left.group.get(),
        "new_group": right.group.get(),
        "tablets_moved": tablets,
        "servers": servers(right),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_leader_of_a_group_is_marked() {
        let group = |id, leader| GroupStatus {
            group: GroupDescriptor::initial(GroupId::new(id), &[1, 2, 3].map(ServerId::new)),
            leader,
            tablets: 2,
            size_bytes: 0,
        };
        let shown = render(&[group(1, Some(ServerId::new(2))), group(4, None)]);
        let lines: Vec<Vec<&str>> = shown.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1][..5], ["1", "1", "2*", "3", "2"]);
        assert_eq!(lines[2][..5], ["4", "1", "2", "3", "2"]);
    }
}
