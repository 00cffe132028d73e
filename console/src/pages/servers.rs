//! The pages `/servers` and `/servers/{id}`: tablet servers, their resources, and the drain of one.

use ebla_client::snapshot::ServerSnapshot;
use ebla_client::verdict::evaluate;
use ebla_model::capacity::{WriteState, readable_bytes};
use ebla_model::error::{Error, Reason};
use ebla_proto::operate::DrainState;

use super::{Page, note, or_dash, section, server_link, state, traffic};
use crate::Context;
use crate::context::Actions;
use crate::html::{Html, Path, action_form, element, facts, row, text};

/// The list.
///
/// # Errors
/// As [`Context::snapshot`].
pub async fn list(context: &Context) -> Result<Page, Error> {
    let snapshot = context.snapshot().await?;
    Ok(render_list(&snapshot.servers))
}

/// One server.
///
/// # Errors
/// `InvalidArgument` for no number, `NotFound` for an unknown one; otherwise as [`Context::snapshot`].
pub async fn one(context: &Context, server: &str) -> Result<Page, Error> {
    let id: u64 = server.parse().map_err(|_| Error::invalid(format!("{server} is no number of a server")))?;
    let snapshot = context.snapshot().await?;
    let about: Vec<String> = evaluate(&snapshot).reasons;
    let found = snapshot.servers.iter().find(|one| one.id == id);
    let found = found.ok_or_else(|| Error::new(Reason::NotFound, format!("the cluster has no tablet server {id}")))?;
    Ok(render_one(found, &about, context.config().actions))
}

fn render_list(servers: &[ServerSnapshot]) -> Page {
    Page::new("Servers", "ebla server list").live("servers", table(servers))
}

/// The state of a server in a word, with its colour.
fn state_of(server: &ServerSnapshot) -> Html {
    let class = match server.state() {
        "up" | "drained" => "ok",
        "draining" => "warn",
        _ => "bad",
    };
    let word = state(class, server.state());
    match server.writes {
        WriteState::Accepts => word.into(),
        WriteState::Refuses => Html::join([word.into(), text(", refuses writes: disk")]),
    }
}

/// The servers as a table, for this page and the first one.
pub(super) fn table(servers: &[ServerSnapshot]) -> Html {
    let line = |server: &ServerSnapshot| {
        let named = |name: &str, shown: String| -> Html {
            element("span").test_id(format!("server-{}-{name}", server.id)).text(shown).into()
        };
        let part = |part: u64, all: u64| format!("{} of {}", readable_bytes(part), readable_bytes(all));
        row([
            Html::from(server_link(server.id)),
            named("address", or_dash(server.address.as_ref())),
            element("span").test_id(format!("server-{}-state", server.id)).child(state_of(server)).into(),
            named("zone", or_dash(server.zone.as_ref())),
            named("replicas", or_dash(server.replicas)),
            named("leads", or_dash(server.leads)),
            named("requests", traffic::rate(server)),
            named("reads", traffic::reads(server)),
            named("writes", traffic::writes(server)),
            named("size", or_dash(server.size_bytes.map(readable_bytes))),
            named("log", or_dash(server.log_bytes.map(readable_bytes))),
            named("disk", or_dash(server.resources.disk.map(|disk| part(disk.free_bytes, disk.total_bytes)))),
            named("memory", or_dash(server.resources.memory.map(|memory| part(memory.used, memory.limit)))),
        ])
    };
    let heading = [
        "Server",
        "Address",
        "State",
        "Zone",
        "Replicas",
        "Leads",
        "Requests/s",
        "Reads p50, p99",
        "Writes p50, p99",
        "Size",
        "Log",
        "Disk free",
        "Memory",
    ];
    element("div").class("scroll").child(crate::html::table(&heading, servers.iter().map(line))).into()
}

fn render_one(server: &ServerSnapshot, reasons: &[String], actions: Actions) -> Page {
    let named = format!("tablet server {}", server.id);
    let mine: Vec<Html> = reasons
        .iter()
        .filter(|reason| reason.contains(&named))
        .map(|reason| element("li").text(reason).into())
        .collect();
    let about = if mine.is_empty() { Html::empty() } else { element("ul").class("warn").children(mine).into() };
    let files = server.resources.files.map(|files| format!("{} of {}", files.used, files.limit));
    let offset = server.clock.offset_micros.map(|micros| format!("{micros} µs"));
    let values = facts(
        "server",
        [
            ("address", or_dash(server.address.as_ref())),
            ("lease", if server.is_registered { "held" } else { "none" }.to_owned()),
            ("answers", if server.is_reachable { "yes" } else { "no answer" }.to_owned()),
            ("release", or_dash(server.release.as_ref())),
            ("zone", or_dash(server.zone.as_ref())),
            ("replicas", or_dash(server.replicas)),
            ("assigned", or_dash(server.assigned)),
            ("leads", or_dash(server.leads)),
            ("requests per second", traffic::rate(server)),
            ("reads p50 p99", traffic::reads(server)),
            ("writes p50 p99", traffic::writes(server)),
            ("size", or_dash(server.size_bytes.map(readable_bytes))),
            ("log", or_dash(server.log_bytes.map(readable_bytes))),
            ("open files", or_dash(files)),
            ("clock offset", or_dash(offset)),
            ("sync", or_dash(server.sync.delay.map(|delay| format!("{:.1} ms", delay.as_secs_f64() * 1000.0)))),
        ],
    );
    let state = element("p").text("State ").child(element("span").test_id("server-state").child(state_of(server)));
    let drain = section("Drain", [drain(server, actions)]);
    Page::new(format!("Tablet server {}", server.id), "ebla server list")
        .live("server", Html::join([Html::from(state), about, values.into()]))
        .fixed(drain)
}

/// The form that drains the server or ends its drain; in its place the command, while pages only show.
fn drain(server: &ServerSnapshot, actions: Actions) -> Html {
    let (change, label, meaning) = match server.drain {
        DrainState::None => ("drain", "Drain", "moves all replicas of this server to other servers"),
        DrainState::Draining | DrainState::Drained => {
            ("undrain", "End the drain", "lets this server get replicas again")
        }
    };
    let command = format!("ebla server {change} {}", server.id);
    if actions == Actions::ReadOnly {
        return Html::join([
            element("code").text(&command).into(),
            Html::from(note(&format!("{meaning}. This console only shows; --console-admin makes it a button."))),
        ]);
    }
    let to = Path::of(&["servers", &server.id.to_string(), change]);
    let form = action_form(&to).attr("data-confirm", format!("{label}: {meaning}. Continue?"));
    form.child(element("button").test_id(change).text(label)).child(note(meaning)).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::golden::{check, snapshot};

    #[test]
    fn servers_are_shown_as_before() {
        let state = snapshot();
        check("servers", &render_list(&state.servers));
        let reasons = ["tablet server 3 does not answer".to_owned(), "tablet server 1 refuses writes".to_owned()];
        check("server", &render_one(&state.servers[2], &reasons, Actions::ReadOnly));
        let form = render_one(&state.servers[0], &[], Actions::Permitted);
        assert!(form.parts[1].html.as_str().contains("action=\"/servers/1/drain\" method=\"post\""));
        let drained = ServerSnapshot { drain: DrainState::Drained, ..state.servers[0].clone() };
        assert!(drain(&drained, Actions::Permitted).as_str().contains("/servers/1/undrain"));
    }
}
