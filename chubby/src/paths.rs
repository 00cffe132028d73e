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
//! | `counters/<name>` | the next free id in decimal | whoever takes ids |

use ebla_model::id::{OperationId, ServerId, TableId};
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
}
