//! `ebla iam`: policies of instances, tables, column families and authorized views.

use bytes::Bytes;
use ebla_client::StoredPolicy;
use ebla_model::access::{Member, Permission, Policy, Resource, Role};
use ebla_model::error::{Error, Reason};
use ebla_runtime::Runtime;
use serde_json::{Value, json};

use super::ClusterArguments;
use crate::output::{self, Failure, Format, Table};

/// How often a change is tried again after somebody else's change of the same policy.
const ATTEMPTS: u32 = 10;

/// Show and change who may do what: policies of instances, tables, families and views
///
/// Examples:
///   ebla iam get web
///   ebla iam set web --add roles/bigtable.reader=user:alice@example.org
///   ebla iam set web --family private --add roles/ebla.familyReader=group:staff
///   ebla iam test web
#[derive(Debug, clap::Subcommand)]
#[command(verbatim_doc_comment)]
pub enum Iam {
    /// Show the policy of the instance, a table, a column family or an authorized view
    ///
    /// Examples:
    ///   ebla iam get
    ///   ebla iam get web
    ///   ebla iam get web --family private
    #[command(verbatim_doc_comment)]
    Get {
        /// Which cluster
        #[command(flatten)]
        cluster: ClusterArguments,
        /// Which policy
        #[command(flatten)]
        of: Target,
    },
    /// Add members to roles and remove them, all or none
    ///
    /// Examples:
    ///   ebla iam set --add roles/bigtable.admin=group:operators
    ///   ebla iam set web --add roles/bigtable.user=user:alice@example.org --remove roles/bigtable.reader=allAuthenticatedUsers
    ///   ebla iam set web --family private --add roles/ebla.familyAdmin=group:staff --add roles/ebla.familyReader=subject:job-7
    ///   ebla iam set web --view german --add roles/bigtable.reader=group:partners
    ///   ebla iam set web --replace --add roles/bigtable.admin=group:operators
    ///
    /// Roles of instances, tables and views: roles/bigtable.viewer, reader, user, admin. Roles of column families: roles/ebla.familyReader,
    /// familyWriter, familyAdmin. A column family with a member of any role is accessible to its members only, a column family without
    /// members to everybody who has access to the table.
    #[command(verbatim_doc_comment)]
    Set {
        /// Which cluster
        #[command(flatten)]
        cluster: ClusterArguments,
        /// Which policy
        #[command(flatten)]
        of: Target,
        /// ROLE=MEMBER to add; repeat for several
        #[arg(long, value_name = "ROLE=MEMBER", value_parser = parse_binding)]
        add: Vec<(Role, Member)>,
        /// ROLE=MEMBER to remove; repeat for several
        #[arg(long, value_name = "ROLE=MEMBER", value_parser = parse_binding, required_unless_present = "add")]
        remove: Vec<(Role, Member)>,
        /// Replace the policy by the members of --add instead of changing it, also one that is damaged and cannot be read: the lists of
        /// the table's column families are then lost
        #[arg(long, requires = "add", conflicts_with = "remove")]
        replace: bool,
    },
    /// Show which permissions the caller has
    ///
    /// Examples:
    ///   ebla iam test web
    ///   ebla iam test web bigtable.tables.readRows
    #[command(verbatim_doc_comment)]
    Test {
        /// Which cluster
        #[command(flatten)]
        cluster: ClusterArguments,
        /// Of what
        #[command(flatten)]
        of: Target,
        /// Permissions to test [default: all]; the exit code is 7 if one is missing
        #[arg(value_name = "PERMISSION")]
        permissions: Vec<Permission>,
    },
}

/// What a policy belongs to.
#[derive(Debug, clap::Args)]
pub struct Target {
    /// Name of the table [default: the instance]
    table: Option<String>,
    /// A column family of the table
    #[arg(long, value_name = "FAMILY", requires = "table")]
    family: Option<String>,
    /// An authorized view of the table
    #[arg(long, value_name = "VIEW", requires = "table", conflicts_with = "family")]
    view: Option<String>,
}

impl Target {
    fn resource(&self, cluster: &ClusterArguments) -> Result<Resource, Failure> {
        let name = match (&self.table, &self.family, &self.view) {
            (Some(table), Some(family), _) => format!("{}/columnFamilies/{family}", cluster.table(table)?),
            (Some(table), None, Some(view)) => format!("{}/authorizedViews/{view}", cluster.table(table)?),
            (Some(table), None, None) => cluster.table(table)?.to_string(),
            (None, ..) => format!("projects/{}/instances/{}", cluster.project, cluster.instance),
        };
        Ok(name.parse::<Resource>()?)
    }
}

pub(super) fn parse_binding(text: &str) -> Result<(Role, Member), String> {
    let (role, member) =
        text.split_once('=').ok_or("expected ROLE=MEMBER, such as roles/bigtable.reader=user:EMAIL")?;
    let role = role.parse().map_err(|error: Error| error.message)?;
    Ok((role, member.parse().map_err(|error: Error| error.message)?))
}

/// Carries out the command.
///
/// # Errors
/// What the cluster answers; an exit code without a message when a tested permission is missing.
pub async fn run(command: Iam, runtime: Runtime) -> Result<(), Failure> {
    match command {
        Iam::Get { cluster, of } => {
            let resource = of.resource(&cluster)?;
            let stored = cluster.client(&runtime).await?.admin().policy(&resource).await?;
            show(&cluster, &resource, &stored);
            Ok(())
        }
        Iam::Set { cluster, of, add, remove, replace } => {
            let resource = of.resource(&cluster)?;
            let admin = cluster.client(&runtime).await?.admin();
            if replace {
                // Without an etag: the former policy is not read.
                let stored = admin.set_policy(&resource, &Policy::new(add)?, Bytes::new()).await?;
                show(&cluster, &resource, &stored);
                return Ok(());
            }
            for _attempt in 0..ATTEMPTS {
                let before = admin.policy(&resource).await?;
                let next = changed(&before.policy, &add, &remove)?;
                match admin.set_policy(&resource, &next, before.etag).await {
                    Err(error) if error.reason == Reason::Conflict => {}
                    stored => {
                        show(&cluster, &resource, &stored?);
                        return Ok(());
                    }
                }
            }
            Err(Failure::other("others change the policy all the time; nothing was changed, try again"))
        }
        Iam::Test { cluster, of, permissions } => {
            let resource = of.resource(&cluster)?;
            let asked = if permissions.is_empty() { Permission::ALL } else { &permissions };
            let granted = cluster.client(&runtime).await?.admin().test_permissions(&resource, asked).await?;
            match cluster.output {
                Format::Json => output::print_json(&permissions_json(&granted)),
                Format::Table => granted.iter().for_each(|one| output::print(&format!("{one}\n"))),
            }
            let is_missing = permissions.iter().any(|one| !granted.contains(one));
            if is_missing { Err(Failure { message: String::new(), code: 7 }) } else { Ok(()) }
        }
    }
}

/// The policy with members added and then removed.
fn changed(before: &Policy, add: &[(Role, Member)], remove: &[(Role, Member)]) -> Result<Policy, Error> {
    let present =
        before.bindings().flat_map(|(role, members)| members.iter().map(move |member| (role, member.clone())));
    let all: Vec<_> = present.chain(add.iter().cloned()).filter(|binding| !remove.contains(binding)).collect();
    Policy::new(all)
}

fn show(cluster: &ClusterArguments, resource: &Resource, stored: &StoredPolicy) {
    match cluster.output {
        Format::Json => output::print_json(&to_json(&stored.policy)),
        Format::Table if stored.policy.is_empty() => output::note(&format!("{resource} has no policy")),
        Format::Table => {
            let mut table = Table::new(&["ROLE", "MEMBER"]);
            for (role, members) in stored.policy.bindings() {
                members.iter().for_each(|member| table.row(vec![role.to_string(), member.to_string()]));
            }
            output::print(&table.render());
        }
    }
}

/// The names of permissions.
pub(super) fn permissions_json(permissions: &[Permission]) -> Value {
    permissions.iter().map(|one| json!(one.name())).collect()
}

/// As Google's tools show it, without the etag.
pub(super) fn to_json(policy: &Policy) -> Value {
    let binding = |(role, members): (Role, &std::collections::BTreeSet<Member>)| {
        let members: Vec<_> = members.iter().map(ToString::to_string).collect();
        json!({"role": role.name(), "members": members})
    };
    json!({"bindings": policy.bindings().map(binding).collect::<Vec<_>>()})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_added_and_removed() {
        let binding = |text: &str| parse_binding(text).unwrap();
        let (alice, bob) = (binding("roles/bigtable.reader=subject:alice"), binding("roles/bigtable.user=subject:bob"));
        let both = changed(&Policy::default(), &[alice.clone(), bob.clone()], &[]).unwrap();
        assert_eq!(changed(&both, &[], &[alice]).unwrap(), Policy::new([bob.clone()]).unwrap());
        assert_eq!(
            to_json(&Policy::new([bob]).unwrap()),
            json!({
                "bindings": [{"role": "roles/bigtable.user", "members": ["subject:bob"]}]
            })
        );
        for wrong in ["", "roles/bigtable.reader", "reader=subject:a", "roles/bigtable.reader=a"] {
            assert!(parse_binding(wrong).is_err(), "{wrong}");
        }
    }
}
