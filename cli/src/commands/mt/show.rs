//! The output of `ebla mt`: tables for people, JSON for programs. Pure; `testdata/mt` has golden files.

use ebla_model::Micros;
use ebla_mounttable_namespace::operate::{AllLimits, Finding, WriteMode};
use ebla_mounttable_namespace::{Allowed, Etag, GlobEntry, MountEntry, Node, Server, Who};
use ebla_mounttable_tree::file::Stickiness;
use ebla_mounttable_tree::store::caching::{LookupCounts, RequestCounts};
use ebla_mounttable_tree::table::{Correction, Limits, NodeChange, Swept, Tally, Usage};
use ebla_mounttable_tree::{Deadline, Permissions, Privilege, ServerAddress, Target};
use serde_json::{Map, Value, json};

use crate::output::{self, Format};

/// A name of a listing and its servers, as a line for people.
pub(super) fn line(name: &str, entry: &GlobEntry) -> String {
    let addresses: Vec<_> = entry.servers.iter().map(|server| server.address.as_str()).collect();
    format!("{}\n", format!("{name}  {}", addresses.join(" ")).trim_end())
}

/// The same with one line for each server: its kind, and when it expires.
pub(super) fn long(name: &str, entry: &GlobEntry, now: Micros) -> String {
    let kind = match entry.target {
        Target::MountTable => "table",
        Target::Leaf => "leaf",
        Target::Object => "object",
    };
    let line = |server: &Server| format!("{name}  {}  {kind}  {}\n", server.address, expires(server, now));
    match entry.servers.as_slice() {
        [] => format!("{name}  -\n"),
        servers => servers.iter().map(line).collect(),
    }
}

/// The same as JSON.
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

/// The result of a resolution. Tables show the seconds until a mount expires, JSON the microseconds since the epoch.
pub(super) fn resolved(format: Format, now: Micros, entry: &MountEntry) -> String {
    if format == Format::Json {
        let servers = servers(&entry.servers, entry.target);
        return output::json_text(&json!({"suffix": entry.suffix, "servers": servers}));
    }
    let mut table = output::Table::new(&["SERVER", "SUFFIX", "EXPIRES"]);
    for server in &entry.servers {
        table.row(vec![server.address.to_string(), entry.suffix.clone(), expires(server, now)]);
    }
    table.render()
}

fn expires(server: &Server, now: Micros) -> String {
    if server.deadline == Deadline::FOREVER {
        return "never".to_owned();
    }
    format!("in {} s", server.deadline.as_micros().since(now).as_secs())
}

/// A new mount, as JSON.
pub(super) fn mounted(name: &str, server: &ServerAddress, deadline: Deadline) -> Value {
    let deadline = (deadline != Deadline::FOREVER).then(|| deadline.as_micros().get());
    json!({"name": name, "server": server.as_str(), "deadline_micros": deadline})
}

/// The same for people, with a hint how to renew it.
pub(super) fn mounted_line(name: &str, server: &ServerAddress, deadline: Deadline, now: Micros) -> String {
    if deadline == Deadline::FOREVER {
        return format!("mounted {server} under {name}; it never expires: remove it with `ebla mt unmount`");
    }
    let seconds = deadline.as_micros().since(now).as_secs_f64();
    let at = output::time(deadline.as_micros());
    format!(
        "mounted {server} under {name}; it expires in {seconds:.0} s, at {at}: mount it again before that, or use `ebla mt publish`"
    )
}

/// How many servers were unmounted, as JSON.
pub(super) fn unmounted(name: &str, servers: u32) -> Value {
    json!({"name": name, "unmounted": servers})
}

/// How many nodes were deleted, as JSON.
pub(super) fn deleted(name: &str, nodes: u64) -> Value {
    json!({"name": name, "deleted": nodes})
}

/// Permissions and their version, as JSON.
pub(super) fn permissions(permissions: &Permissions, etag: &Etag) -> Value {
    json!({"permissions": permissions, "etag": etag.as_str()})
}

/// The node whose permissions were changed, as JSON.
pub(super) fn permissions_changed(name: &str) -> Value {
    json!({"name": name, "changed": true})
}

/// What a watched name resolves to now; JSON on one line.
pub(super) fn watched(format: Format, now: Micros, state: Option<&MountEntry>) -> String {
    match (format, state) {
        (Format::Json, None) => "{\"servers\":null}\n".to_owned(),
        (Format::Json, Some(entry)) => {
            format!("{}\n", json!({"suffix": entry.suffix, "servers": servers(&entry.servers, entry.target)}))
        }
        (Format::Table, None) => "no servers\n\n".to_owned(),
        (Format::Table, Some(entry)) => format!("{}\n", resolved(format, now, entry)),
    }
}

/// Facts about a node.
pub(super) fn node(format: Format, node: &Node) -> String {
    let (created, at) = match format {
        Format::Table => ("created", json!(output::time(node.created))),
        Format::Json => ("created_micros", json!(node.created.get())),
    };
    let known = json!({
        "creator": node.creator,
        created: at,
        "sticky": node.stickiness == Stickiness::Sticky,
        "version": node.version,
        "etag": node.etag.as_str(),
        "servers": node.servers,
        "children": node.children,
    });
    facts(format, &known)
}

/// Permissions of a caller, with the entries that grant them.
pub(super) fn allowed(format: Format, allowed: &[Allowed]) -> String {
    let columns = ["tag", "granted_by", "pattern"];
    let row = |it: &Allowed| vec![json!(it.tag), json!(it.granted_by), json!(it.pattern)];
    rows(format, &columns, allowed.iter().map(row))
}

/// Findings of a check.
pub(super) fn findings(format: Format, findings: &[Finding]) -> String {
    let columns = ["kind", "place", "message", "fixed"];
    let row = |it: &Finding| vec![json!(it.kind), json!(it.place), json!(it.message), json!(it.is_fixed)];
    rows(format, &columns, findings.iter().map(row))
}

/// What a permissions file changes, for people; nothing if there is no change.
pub(super) fn node_changes(changes: &[NodeChange]) -> String {
    if changes.is_empty() {
        return String::new();
    }
    let row = |it: &NodeChange| node_change(it).into_iter().map(|(_, value)| value).collect();
    rows(Format::Table, &["name", "before", "after"], changes.iter().map(row))
}

/// The result of a setup; JSON contains the changes.
pub(super) fn setup(format: Format, changed: u64, changes: &[NodeChange]) -> String {
    match format {
        Format::Table => facts(format, &json!({"changed": changed})),
        Format::Json => {
            let changes = changes.iter().map(|it| {
                Value::Object(node_change(it).map(|(key, value)| (key.to_owned(), value)).into_iter().collect())
            });
            output::json_text(&json!({"changed": changed, "changes": changes.collect::<Vec<_>>()}))
        }
    }
}

/// Permissions as they are written in a permissions file; the root's name is empty.
fn node_change(change: &NodeChange) -> [(&'static str, Value); 3] {
    let before = change.before.as_ref().map(ToString::to_string);
    [("name", json!(change.name.to_string())), ("before", json!(before)), ("after", json!(change.after.to_string()))]
}

/// Counters that were corrected.
pub(super) fn corrections(format: Format, corrections: &[Correction]) -> String {
    let row = |it: &Correction| vec![json!(it.counter), json!(it.was), json!(it.is)];
    rows(format, &["counter", "was", "is"], corrections.iter().map(row))
}

/// Limits of users; the first line has the default limits and no user.
pub(super) fn limits(format: Format, limits: &AllLimits) -> String {
    let limit = |limit: Option<i64>| match limit {
        None => json!("default"),
        Some(0) => json!("unlimited"),
        Some(limit) => json!(limit),
    };
    let row = |user: Value, limits: Limits| vec![user, limit(limits.nodes), limit(limits.servers)];
    let everybody = row(Value::Null, limits.everybody);
    let own = limits.own.iter().map(|(user, limits)| row(json!(user), *limits));
    rows(format, &["user", "nodes", "servers"], std::iter::once(everybody).chain(own))
}

/// The user whose limits were changed, as JSON.
pub(super) fn limits_changed(user: &str) -> Value {
    json!({"user": user, "changed": true})
}

/// How many rows and counters were dumped, restored or destroyed.
pub(super) fn tally(tally: Tally) -> Value {
    json!({"rows": tally.rows, "counters": tally.counters})
}

/// What a sweep has removed.
pub(super) fn swept(swept: Swept) -> Value {
    json!({
        "orphans": swept.orphans,
        "intents": swept.intents,
        "deletions": swept.deletions,
        "expired": swept.expired,
        "damaged": swept.damaged,
    })
}

/// Whether a server refuses changes, now and before.
pub(super) fn write_mode(to: WriteMode, was: WriteMode) -> Value {
    json!({"read_only": to == WriteMode::ReadOnly, "was_read_only": was == WriteMode::ReadOnly})
}

/// The counters of a server.
pub(super) fn counters(lookups: LookupCounts, requests: RequestCounts) -> Value {
    json!({
        "hits": lookups.hits,
        "misses": lookups.misses,
        "joined": lookups.joined,
        "stale": lookups.stale,
        "reads": requests.reads,
        "changes": requests.changes,
        "counters": requests.counters,
    })
}

/// Rows as a table with headings in capitals, or as a JSON list of objects.
fn rows(format: Format, columns: &[&str], rows: impl Iterator<Item = Vec<Value>>) -> String {
    let named = |row: Vec<Value>| columns.iter().map(|column| (*column).to_owned()).zip(row).collect::<Map<_, _>>();
    match format {
        Format::Json => output::json_text(&rows.map(named).map(Value::Object).collect()),
        Format::Table => {
            let heading: Vec<_> = columns.iter().map(|column| column.replace('_', " ").to_uppercase()).collect();
            let heading: Vec<_> = heading.iter().map(String::as_str).collect();
            let mut table = output::Table::new(&heading);
            rows.for_each(|row| table.row(row.iter().map(text).collect()));
            table.render()
        }
    }
}

/// A value as text.
fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        value => value.to_string(),
    }
}

/// The caller's identity as authenticated by the mounttable, and the quota use.
pub(super) fn caller(format: Format, who: &Who) -> String {
    let usage = |usage: Usage| json!({"used": usage.used, "limit": usage.limit});
    let known = json!({
        "names": who.names,
        "user": who.user,
        "superuser": who.privilege == Privilege::Superuser,
        "nodes": usage(who.nodes),
        "servers": usage(who.servers),
    });
    facts(format, &known)
}

pub(super) fn facts(format: Format, facts: &Value) -> String {
    match (format, facts) {
        (Format::Table, Value::Object(facts)) => {
            let mut table = output::Table::default();
            for (name, value) in facts {
                table.row(vec![name.clone(), text(value)]);
            }
            table.render()
        }
        _ => output::json_text(facts),
    }
}
