//! The paths of Chubby's files (ARCHITECTURE.md, "Chubby's files"). They are spelled only here.
//!
//! | path | value | written by |
//! |---|---|---|
//! | `cluster` | `ebla.record.Cluster` | the first master |
//! | `master` | `ebla.record.Master`, leased | the active master; its create revision is the master epoch |
//! | `candidates/<incarnation>` | `ebla.record.Master`, leased | each master, active or standby |
//! | `behind` | `ebla.record.Behind`, while Chubby lacks changes that servers have seen | the master |
//! | `root` | `ebla.record.TabletDescriptor` of the root tablet | the master, the root tablet's leader |
//! | `servers/<id>` | `ebla.record.Server`, leased | that tablet server |
//! | `lost/<server>` | `ebla.record.LostServer`: its replicas were given up, it never registers again | the master |
//! | `drained/<server>` | `ebla.record.DrainedServer`: its replicas move to other servers, and it gets no new ones | the master |
//! | `tables/<id>` | `ebla.record.TableSchema` | the master |
//! | `deleted/<table>` | `ebla.record.DeletedTable`, until no replica can have a tablet of the deleted table | the master |
//! | `names/<project>/<instance>/<table>` | the table's id in decimal | the master |
//! | `groups/<id>` | `ebla.record.GroupPlan`, while first replicas of a new group may be missing | the master |
//! | `plans/<table>` | `ebla.record.TablePlan`, until the groups have created a new table's tablets | the master |
//! | `operations/<id>` | `ebla.control.ApplyRequest`, until every group has applied it | the master |
//! | `finished/<id>` | `ebla.record.FinishedOperation`, the last hundred | the master |
//! | `instances/<project>/<instance>` | `ebla.record.Instance`, for each instance that was created | the master |
//! | `profiles/<project>/<instance>/<profile>` | `ebla.record.AppProfile` | the master |
//! | `access/instances/<project>/<instance>` | `ebla.record.InstanceAccess`: the policy of an instance | the master |
//! | `access/tables/<id>` | `ebla.record.TableAccess`: the policies of a table and its families | the master |
//! | `views/<table>/<view>` | `ebla.record.AuthorizedView`: an authorized view of a table, with its policy | the master |
//! | `events/<number>` | `ebla.record.ClusterEvent`: what has happened to the cluster, the last five hundred | the master |
//! | `registration` | `ebla.record.ClusterRegistration`: the cluster's name, size, versions and traffic, every 30 s | the master |
//! | `counters/<name>` | the next free id in decimal | every process that allocates ids |

use ebla_model::admin::app_profile::AppProfileName;
use ebla_model::admin::instance::{InstanceName, Instances, ProjectName};
use ebla_model::id::{GroupId, Incarnation, OperationId, ServerId, TableId};
use ebla_model::schema::TableName;

/// The cluster's identity and state.
pub const CLUSTER: &str = "cluster";
/// What shows that Chubby lacks changes. While it exists, changes are refused.
pub const BEHIND: &str = "behind";
/// The lock of the active master.
pub const MASTER: &str = "master";
/// All masters that run.
pub const CANDIDATES: &str = "candidates/";
/// Where the root tablet is.
pub const ROOT: &str = "root";
/// All registered tablet servers.
pub const SERVERS: &str = "servers/";
/// Tablet servers whose replicas were given up.
pub const LOST: &str = "lost/";
/// Tablet servers that are drained.
pub const DRAINED: &str = "drained/";
/// All schemas.
pub const TABLES: &str = "tables/";
/// Tables that were deleted and of which a replica may still have tablets.
pub const DELETED: &str = "deleted/";
/// All table names.
pub const NAMES: &str = "names/";
/// New groups.
pub const GROUPS: &str = "groups/";
/// First tablets of tables that are being created.
pub const PLANS: &str = "plans/";
/// Admin operations in progress.
pub const OPERATIONS: &str = "operations/";
/// Operations that have finished.
pub const FINISHED: &str = "finished/";
/// All instances that were created.
pub const INSTANCES: &str = "instances/";
/// All app profiles.
pub const PROFILES: &str = "profiles/";
/// All policies.
pub const ACCESS: &str = "access/";
/// The policies of instances.
pub const INSTANCE_ACCESS: &str = "access/instances/";
/// The policies of tables.
pub const TABLE_ACCESS: &str = "access/tables/";
/// All authorized views.
pub const VIEWS: &str = "views/";
/// What has happened to the cluster.
pub const EVENTS: &str = "events/";
/// The cluster's description of itself.
pub const REGISTRATION: &str = "registration";
/// All id counters.
pub const COUNTERS: &str = "counters/";

/// An event of the cluster. Paths ascend by number.
#[must_use]
pub fn event(number: u64) -> String {
    format!("{EVENTS}{number:020}")
}

/// The number of a path under [`EVENTS`].
#[must_use]
pub fn parse_event(path: &str) -> Option<u64> {
    path.strip_prefix(EVENTS)?.parse().ok()
}

/// Whether a file is for people alone: no process decides by it, and it changes often.
#[must_use]
pub fn is_informational(path: &str) -> bool {
    path == REGISTRATION || path.starts_with(EVENTS)
}

/// A master that runs.
#[must_use]
pub fn candidate(incarnation: Incarnation) -> String {
    format!("{CANDIDATES}{:016x}", incarnation.get())
}

/// A registered tablet server.
#[must_use]
pub fn server(id: ServerId) -> String {
    format!("{SERVERS}{id}")
}

/// The server of a path under [`SERVERS`].
#[must_use]
pub fn parse_server(path: &str) -> Option<ServerId> {
    path.strip_prefix(SERVERS)?.parse().ok()
}

/// The record of a tablet server whose replicas were given up.
#[must_use]
pub fn lost(id: ServerId) -> String {
    format!("{LOST}{id}")
}

/// The record of a tablet server that is drained.
#[must_use]
pub fn drained(id: ServerId) -> String {
    format!("{DRAINED}{id}")
}

/// The server of a path under [`DRAINED`].
#[must_use]
pub fn parse_drained(path: &str) -> Option<ServerId> {
    path.strip_prefix(DRAINED)?.parse().ok()
}

/// A table's schema.
#[must_use]
pub fn table(id: TableId) -> String {
    format!("{TABLES}{id}")
}

/// The table of a path under [`TABLES`].
#[must_use]
pub fn parse_table(path: &str) -> Option<TableId> {
    path.strip_prefix(TABLES)?.parse().ok()
}

/// The record of a table's deletion.
#[must_use]
pub fn deleted(id: TableId) -> String {
    format!("{DELETED}{id}")
}

/// The table of a path under [`DELETED`].
#[must_use]
pub fn parse_deleted(path: &str) -> Option<TableId> {
    path.strip_prefix(DELETED)?.parse().ok()
}

/// A group that is being created.
#[must_use]
pub fn group(id: GroupId) -> String {
    format!("{GROUPS}{id}")
}

/// The group of a path under [`GROUPS`].
#[must_use]
pub fn parse_group(path: &str) -> Option<GroupId> {
    path.strip_prefix(GROUPS)?.parse().ok()
}

/// The first tablets of a table that is being created.
#[must_use]
pub fn plan(id: TableId) -> String {
    format!("{PLANS}{id}")
}

/// The table of a path under [`PLANS`].
#[must_use]
pub fn parse_plan(path: &str) -> Option<TableId> {
    path.strip_prefix(PLANS)?.parse().ok()
}

/// An admin operation in progress.
#[must_use]
pub fn operation(id: OperationId) -> String {
    format!("{OPERATIONS}{id}")
}

/// The operation of a path under [`OPERATIONS`].
#[must_use]
pub fn parse_operation(path: &str) -> Option<OperationId> {
    path.strip_prefix(OPERATIONS)?.parse().ok()
}

/// An operation that has finished.
#[must_use]
pub fn finished(id: OperationId) -> String {
    format!("{FINISHED}{id}")
}

/// The operation of a path under [`FINISHED`].
#[must_use]
pub fn parse_finished(path: &str) -> Option<OperationId> {
    path.strip_prefix(FINISHED)?.parse().ok()
}

/// An instance that was created.
#[must_use]
pub fn instance(name: &InstanceName) -> String {
    format!("{INSTANCES}{}/{}", name.project(), name.instance())
}

/// All created instances of a project.
#[must_use]
pub fn instances(project: &ProjectName) -> String {
    format!("{INSTANCES}{}/", project.id())
}

/// An app profile.
#[must_use]
pub fn profile(name: &AppProfileName) -> String {
    format!("{}{}", profiles(&Instances::One(name.instance().clone())), name.id())
}

/// All app profiles of these instances.
#[must_use]
pub fn profiles(of: &Instances) -> String {
    match of {
        Instances::One(name) => format!("{PROFILES}{}/{}/", name.project(), name.instance()),
        Instances::All(project) => format!("{PROFILES}{}/", project.id()),
    }
}

/// The policy of an instance.
#[must_use]
pub fn instance_access(project: &str, instance: &str) -> String {
    format!("{INSTANCE_ACCESS}{project}/{instance}")
}

/// The policies of a table and its families.
#[must_use]
pub fn table_access(id: TableId) -> String {
    format!("{TABLE_ACCESS}{id}")
}

/// The table of a path under [`TABLE_ACCESS`].
#[must_use]
pub fn parse_table_access(path: &str) -> Option<TableId> {
    path.strip_prefix(TABLE_ACCESS)?.parse().ok()
}

/// All authorized views of a table.
#[must_use]
pub fn views(table: TableId) -> String {
    format!("{VIEWS}{table}/")
}

/// An authorized view of a table.
#[must_use]
pub fn view(table: TableId, id: &str) -> String {
    format!("{VIEWS}{table}/{id}")
}

/// The table of a path under [`VIEWS`], and the name of the view within it.
#[must_use]
pub fn parse_view(path: &str) -> Option<(TableId, &str)> {
    let (table, id) = path.strip_prefix(VIEWS)?.split_once('/')?;
    Some((table.parse().ok()?, id))
}

/// The file that maps a table name to its id.
#[must_use]
pub fn name(table: &TableName) -> String {
    format!("{}{}", instance_names(table.project(), table.instance()), table.table())
}

/// All table names of an instance.
#[must_use]
pub fn instance_names(project: &str, instance: &str) -> String {
    format!("{NAMES}{project}/{instance}/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_parse_back() {
        assert_eq!(parse_server(&server(ServerId::new(3))), Some(ServerId::new(3)));
        assert_eq!(parse_table(&table(TableId::new(9))), Some(TableId::new(9)));
        assert_eq!(parse_deleted(&deleted(TableId::new(9))), Some(TableId::new(9)));
        assert_eq!(parse_drained(&drained(ServerId::new(3))), Some(ServerId::new(3)));
        assert_eq!(parse_view(&view(TableId::new(9), "v")), Some((TableId::new(9), "v")));
        assert_eq!(parse_table_access(&table_access(TableId::new(9))), Some(TableId::new(9)));
        assert_eq!(parse_server("tables/3"), None);
        assert_eq!(parse_server("servers/x"), None);
    }

    #[test]
    fn a_name_separates_project_and_instance() {
        let table: TableName = "projects/p/instances/inst/tables/t".parse().unwrap();
        assert_eq!(name(&table), "names/p/inst/t");
    }

    #[test]
    fn instances_and_profiles_have_paths() {
        let name: AppProfileName = "projects/p/instances/inst/appProfiles/a".parse().unwrap();
        assert_eq!(profile(&name), "profiles/p/inst/a");
        assert_eq!(instance(name.instance()), "instances/p/inst");
        assert_eq!(instances(&"projects/p".parse().unwrap()), "instances/p/");
        assert_eq!(profiles(&"projects/p/instances/-".parse().unwrap()), "profiles/p/");
        assert_eq!(parse_finished(&finished(OperationId::new(3))), Some(OperationId::new(3)));
    }
}
