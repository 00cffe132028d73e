//! The names of Chubby's files (ARCHITECTURE.md, "Chubby's files"). No other place spells one.
//!
//! | path | value | who writes |
//! |---|---|---|
//! | `cluster` | `ebla.record.Cluster` | the first master |
//! | `master` | `ebla.record.Master`, leased | the master in office; its create revision is the epoch |
//! | `root` | `ebla.record.TabletDescriptor` of the root tablet | the master, the root tablet's leader |
//! | `servers/<id>` | `ebla.record.Server`, leased | that tablet server |
//! | `tables/<id>` | `ebla.record.TableSchema` | the master |
//! | `names/<project>/<instance>/<table>` | the table's id in decimal | the master |
//! | `plans/<table>` | `ebla.record.TablePlan`, while replicas of a new table may be missing | the master |
//! | `operations/<id>` | `ebla.control.ApplyRequest`, until every tablet has applied it | the master |
//! | `finished/<id>` | `ebla.record.FinishedOperation`, the last hundred | the master |
//! | `instances/<project>/<instance>` | `ebla.record.Instance`, of one that was created | the master |
//! | `profiles/<project>/<instance>/<profile>` | `ebla.record.AppProfile` | the master |
//! | `counters/<name>` | the next free id in decimal | whoever takes ids |

use ebla_model::app_profile::AppProfileName;
use ebla_model::id::{OperationId, ServerId, TableId};
use ebla_model::instance::{InstanceName, Instances, ProjectName};
use ebla_model::schema::TableName;

/// The cluster's identity and state.
pub const CLUSTER: &str = "cluster";
/// The lock of the master in office.
pub const MASTER: &str = "master";
/// Where the root tablet is.
pub const ROOT: &str = "root";
/// All tablet servers that live.
pub const SERVERS: &str = "servers/";
/// All schemas.
pub const TABLES: &str = "tables/";
/// All names of tables.
pub const NAMES: &str = "names/";
/// First tablets of tables that are being made.
pub const PLANS: &str = "plans/";
/// Admin operations under way.
pub const OPERATIONS: &str = "operations/";
/// Operations that are done.
pub const FINISHED: &str = "finished/";
/// All instances that were created.
pub const INSTANCES: &str = "instances/";
/// All app profiles.
pub const PROFILES: &str = "profiles/";
/// All id counters.
pub const COUNTERS: &str = "counters/";

/// A tablet server that lives.
#[must_use]
pub fn server(id: ServerId) -> String {
    format!("{SERVERS}{id}")
}

/// The server that a path under [`SERVERS`] names.
#[must_use]
pub fn parse_server(path: &str) -> Option<ServerId> {
    path.strip_prefix(SERVERS)?.parse().ok()
}

/// A table's schema.
#[must_use]
pub fn table(id: TableId) -> String {
    format!("{TABLES}{id}")
}

/// The table that a path under [`TABLES`] names.
#[must_use]
pub fn parse_table(path: &str) -> Option<TableId> {
    path.strip_prefix(TABLES)?.parse().ok()
}

/// The first tablets of a table that is being made.
#[must_use]
pub fn plan(id: TableId) -> String {
    format!("{PLANS}{id}")
}

/// The table that a path under [`PLANS`] names.
#[must_use]
pub fn parse_plan(path: &str) -> Option<TableId> {
    path.strip_prefix(PLANS)?.parse().ok()
}

/// An admin operation under way.
#[must_use]
pub fn operation(id: OperationId) -> String {
    format!("{OPERATIONS}{id}")
}

/// The operation that a path under [`OPERATIONS`] names.
#[must_use]
pub fn parse_operation(path: &str) -> Option<OperationId> {
    path.strip_prefix(OPERATIONS)?.parse().ok()
}

/// An operation that is done.
#[must_use]
pub fn finished(id: OperationId) -> String {
    format!("{FINISHED}{id}")
}

/// The operation that a path under [`FINISHED`] names.
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

/// Which table a name stands for.
#[must_use]
pub fn name(table: &TableName) -> String {
    format!("{}{}", instance_names(table.project(), table.instance()), table.table())
}

/// All names of the tables of an instance.
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
        assert_eq!(parse_server("tables/3"), None);
        assert_eq!(parse_server("servers/x"), None);
    }

    #[test]
    fn a_name_keeps_project_and_instance_apart() {
        let table: TableName = "projects/p/instances/inst/tables/t".parse().unwrap();
        assert_eq!(name(&table), "names/p/inst/t");
    }

    #[test]
    fn instances_and_profiles_have_places() {
        let name: AppProfileName = "projects/p/instances/inst/appProfiles/a".parse().unwrap();
        assert_eq!(profile(&name), "profiles/p/inst/a");
        assert_eq!(instance(name.instance()), "instances/p/inst");
        assert_eq!(instances(&"projects/p".parse().unwrap()), "instances/p/");
        assert_eq!(profiles(&"projects/p/instances/-".parse().unwrap()), "profiles/p/");
        assert_eq!(parse_finished(&finished(OperationId::new(3))), Some(OperationId::new(3)));
    }
}
