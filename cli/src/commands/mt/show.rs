//! What `ebla mt` shows, as text: for people as tables, for programs as JSON. Pure; `testdata/mt` has it word by word.

use ebla_model::Micros;
use ebla_mounttable::file::Stickiness;
use ebla_mounttable::table::Usage;
use ebla_mounttable::{Deadline, Standing, Target};
use ebla_mounttable_namespace::{GlobEntry, MountEntry, Node, Server, Who};
use serde_json::{Value, json};

use crate::output::{self, Format};

/// A name of a listing and its servers, for people.
pub(super) fn line(name: &str, entry: &GlobEntry) -> String {
    let addresses: Vec<_> = entry.servers.iter().map(|server| server.address.as_str()).collect();
    format!("{}\n", format!("{name}  {}", addresses.join(" ")).trim_end())
}

/// The same for programs.
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

/// What a name leads to. People read in how many seconds a server ends, programs at which microsecond since the epoch.
pub(super) fn resolved(format: Format, now: Micros, entry: &MountEntry) -> String {
    if format == Format::Json {
        let servers = servers(&entry.servers, entry.target);
        return output::document(&json!({"suffix": entry.suffix, "servers": servers}));
    }
    let mut table = output::Table::new(&["SERVER", "SUFFIX", "EXPIRES"]);
    for server in &entry.servers {
        let expires = if server.deadline == Deadline::FOREVER {
            "never".to_owned()
        } else {
            format!("in {} s", server.deadline.as_micros().since(now).as_secs())
        };
        table.row(vec![server.address.to_string(), entry.suffix.clone(), expires]);
    }
    table.render()
}

/// What is known of a node.
pub(super) fn node(format: Format, node: &Node) -> String {
    let known = json!({
        "creator": node.creator,
        "created_micros": node.created.get(),
        "sticky": node.stickiness == Stickiness::Sticky,
        "version": node.version,
        "etag": node.etag.as_str(),
        "servers": node.servers,
        "children": node.children,
    });
    facts(format, &known)
}

/// Whom a mounttable takes the caller for.
pub(super) fn caller(format: Format, who: &Who) -> String {
    let usage = |usage: Usage| json!({"used": usage.used, "limit": usage.limit});
    let known = json!({
        "names": who.names,
        "user": who.user,
        "superuser": who.standing == Standing::Superuser,
        "nodes": usage(who.nodes),
        "servers": usage(who.servers),
    });
    facts(format, &known)
}

fn facts(format: Format, facts: &Value) -> String {
    match (format, facts) {
        (Format::Table, Value::Object(facts)) => {
            let mut table = output::Table::default();
            for (name, value) in facts {
                let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                table.row(vec![name.clone(), value]);
            }
            table.render()
        }
        _ => output::document(facts),
    }
}
