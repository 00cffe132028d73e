//! What `ebla mt` shows: for people as tables, for programs as JSON.

use ebla_mounttable::file::Stickiness;
use ebla_mounttable::table::Usage;
use ebla_mounttable::{Deadline, Standing, Target};
use ebla_mounttable_namespace::{GlobEntry, MountEntry, Node, Server, Who};
use ebla_runtime::Clock;
use serde_json::{Value, json};

use super::Root;
use crate::output::{self, Format};

pub(super) fn found(name: &str, entry: &GlobEntry) -> Value {
    json!({"name": name, "servers": servers(&entry.servers, entry.target), "children": entry.has_children})
}

fn servers(servers: &[Server], target: Target) -> Vec<Value> {
    let server = |server: &Server| {
        json!({
            "address": server.address.as_str(),
            "deadline_micros": (server.deadline != Deadline::FOREVER).then(|| server.deadline.as_micros().get()),
            "mount_table": target == Target::MountTable,
            "leaf": target == Target::Leaf,
        })
    };
    servers.iter().map(server).collect()
}

pub(super) fn resolved(root: &Root, clock: &Clock, entry: &MountEntry) {
    if root.output == Format::Json {
        let servers = servers(&entry.servers, entry.target);
        return output::print_json(&json!({"suffix": entry.suffix, "servers": servers}));
    }
    let mut table = output::Table::new(&["SERVER", "SUFFIX", "EXPIRES"]);
    for server in &entry.servers {
        let expires = if server.deadline == Deadline::FOREVER {
            "never".to_owned()
        } else {
            format!("in {} s", server.deadline.as_micros().since(clock.wall()).as_secs())
        };
        table.row(vec![server.address.to_string(), entry.suffix.clone(), expires]);
    }
    output::print(&table.render());
}

pub(super) fn node(root: &Root, node: &Node) {
    let known = json!({
        "creator": node.creator,
        "created_micros": node.created.get(),
        "sticky": node.stickiness == Stickiness::Sticky,
        "version": node.version,
        "etag": node.etag.as_str(),
        "servers": node.servers,
        "children": node.children,
    });
    facts(root, &known);
}

pub(super) fn caller(root: &Root, who: &Who) {
    let usage = |usage: Usage| json!({"used": usage.used, "limit": usage.limit});
    let known = json!({
        "names": who.names,
        "user": who.user,
        "superuser": who.standing == Standing::Superuser,
        "nodes": usage(who.nodes),
        "servers": usage(who.servers),
    });
    facts(root, &known);
}

fn facts(root: &Root, facts: &Value) {
    match (root.output, facts) {
        (Format::Table, Value::Object(facts)) => {
            let mut table = output::Table::default();
            for (name, value) in facts {
                let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                table.row(vec![name.clone(), value]);
            }
            output::print(&table.render());
        }
        _ => output::print_json(facts),
    }
}
