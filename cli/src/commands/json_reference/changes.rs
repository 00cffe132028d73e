//! The documents of commands that change tables, rows, access and servers, for the reference.

use ebla_client::admin::{ExecutionMode, VersionHold};
use ebla_model::access::Permission;
use ebla_model::gc::GcRule;
use ebla_model::id::ServerId;
use ebla_model::key::RowKey;
use ebla_model::schema::TableName;
use ebla_proto::operate::HoldUpgradeReply;
use serde_json::Value;

use crate::commands::{cbt, cluster, documents, family, iam, row, server, up, view};

/// The command, what its document is, and documents that together have every type of every field.
pub(super) fn documents() -> Vec<(&'static str, &'static str, Vec<Value>)> {
    let (table, key) = (table(), RowKey::new("k"));
    vec![
        (
            "ebla up, ebla demo",
            "The addresses of the cluster when it is ready, on one line. `console`, `metrics`, `mounttable` and `mounttable_http` are absent \
             without such a port.",
            up::ready_documents(),
        ),
        (
            "ebla family add, ebla family update, ebla family drop, ebla createfamily, ebla setgcpolicy, ebla deletefamily",
            "The table with all its families, as in `ebla family list`.",
            families(&table),
        ),
        (
            "ebla table delete, ebla deletetable, ebla view delete",
            "The table or the view that was deleted.",
            vec![documents::deleted(&table)],
        ),
        ("ebla deleteallrows", "The table; `rows_deleted` is the text `all`.", vec![cbt::rows_deleted_json(&table)]),
        (
            "ebla row set, ebla set",
            "The key of the row, and how many cells were written.",
            vec![row::set_json(&key, 1)],
        ),
        (
            "ebla row delete, ebla deleterow, ebla deletecolumn",
            "The key of the row, and what was deleted of it: a text.",
            vec![row::delete_json(&key, "row")],
        ),
        (
            "ebla view list",
            "A list of full names, `projects/P/instances/I/tables/T/authorizedViews/V`.",
            vec![view::names_json(&["projects/p/instances/i/tables/t/authorizedViews/v".parse().unwrap()])],
        ),
        (
            "ebla iam test",
            "A list of the permissions that the caller has: of those given, or of all.",
            vec![iam::permissions_json(&[Permission::ALL[0]])],
        ),
        (
            "ebla server undrain",
            "The server, and whether it was drained.",
            vec![server::drain::undrain_json(ServerId::new(1), true)],
        ),
        (
            "ebla server remove",
            "The server, and whether the cluster has forgotten it: not with `--dry-run`.",
            vec![server::drain::remove_json(ServerId::new(1), ExecutionMode::Execute)],
        ),
        (
            "ebla cluster upgrade hold, ebla cluster upgrade continue",
            "Whether the cluster version is held, now and before.",
            vec![cluster::hold_json(&HoldUpgradeReply::default(), VersionHold::Hold, ExecutionMode::Execute)],
        ),
    ]
}

fn table() -> TableName {
    TableName::from_parts("p", "i", "t").unwrap()
}

fn families(table: &TableName) -> Vec<Value> {
    let family = |rule| family::changed_json(table, &[("FAMILY".to_owned(), rule)]);
    vec![family(Some(GcRule::MaxVersions(1))), family(None)]
}
