//! The page `/`: the health of the cluster with reasons, what is wrong and what to do, its master, its requests, its servers, and the last events.

use std::time::Duration;

use ebla_client::QuotaMeasurement;
use ebla_client::encoding::time;
use ebla_client::history::TableEvent;
use ebla_client::snapshot::ClusterSnapshot;
use ebla_client::verdict::{Level, Verdict, evaluate};
use ebla_model::error::{Error, Reason};
use ebla_proto::operate::LoadsReply;

use super::{Page, events, note, or_dash, section, servers, state, traffic};
use crate::Context;
use crate::findings::{Finding, Severity, may_be_hot, of_loads, of_servers};
use crate::html::{Html, element, facts, link, row, table, text};
use crate::recent::Selection;

/// Events on the page.
const EVENTS_SHOWN: usize = 10;
/// How long the page waits for events.
const EVENTS_TIMEOUT: Duration = Duration::from_millis(800);
/// How long the page waits for the loads, which only a master has.
const LOADS_TIMEOUT: Duration = Duration::from_millis(800);
/// How many of the busiest tablets are examined.
const TABLETS_EXAMINED: u32 = 100;
/// Problems on the page: a cluster in which every server has one is named by the first of them.
const FINDINGS_SHOWN: usize = 50;

/// The page.
///
/// # Errors
/// As [`Context::snapshot`].
pub async fn page(context: &Context) -> Result<Page, Error> {
    // Without METADATA the rest of the page is what matters.
    let selection = Selection::default();
    let events = tokio::time::timeout(EVENTS_TIMEOUT, context.recent_events(&selection));
    let (snapshot, events, loads) = tokio::join!(context.snapshot(), events, loads(context));
    let late = |_elapsed| Err(Error::new(Reason::Deadline, "METADATA does not answer in time"));
    let (snapshot, events) = (snapshot?, events.unwrap_or_else(late));
    let events = events.map(|events| events::newest(&events, EVENTS_SHOWN).to_vec());
    Ok(render(&snapshot, &loads, &events))
}

/// The loads of the busiest tablets. They are not requested, and empty, when the state that the page has seen last says that none can be hot: the
/// master asks every server for an answer, and the page is rendered once a second. A tablet that becomes hot is shown a second later.
async fn loads(context: &Context) -> Result<LoadsReply, Error> {
    if !context.examine_earlier(may_be_hot).unwrap_or(true) {
        return Ok(LoadsReply::default());
    }
    // Quotas are not measured: that asks every server for each table.
    let admin = context.admin();
    let loads = tokio::time::timeout(LOADS_TIMEOUT, admin.loads(TABLETS_EXAMINED, QuotaMeasurement::Skipped)).await;
    let late = |_elapsed| Err(Error::new(Reason::Deadline, "the master does not answer in time"));
    loads.unwrap_or_else(late)
}

/// The page of these values. Pure.
fn render(
    snapshot: &ClusterSnapshot,
    loads: &Result<LoadsReply, Error>,
    events: &Result<Vec<TableEvent>, Error>,
) -> Page {
    let history = match events {
        Ok(events) => events::newest_first(events),
        Err(error) => note(&format!("events cannot be read: {error}")).into(),
    };
    Page::new("Overview", "ebla status")
        .live("verdict", verdict(&evaluate(snapshot)))
        .live("problems", problems(snapshot, loads))
        .live("cluster", cluster(snapshot))
        .live("traffic", section("Requests", [traffic::cluster(&snapshot.servers)]))
        .live("servers", section("Servers", [servers::table(&snapshot.servers)]))
        .live("events", section("Last events", [history]))
}

fn verdict(verdict: &Verdict) -> Html {
    let class = match verdict.level {
        Level::Healthy => "ok",
        Level::Degraded => "warn",
        Level::Unavailable => "bad",
    };
    let level = element("span").class(class).test_id("verdict").text(verdict.level.name());
    let reasons = verdict.reasons.iter().map(|reason| element("li").test_id("reason").text(reason));
    let list = if verdict.reasons.is_empty() { Html::empty() } else { element("ul").children(reasons).into() };
    element("div").class("verdict").child(level).child(list).into()
}

/// What is wrong with servers and loads: where, since when, and the next step. The worst is first.
fn problems(snapshot: &ClusterSnapshot, loads: &Result<LoadsReply, Error>) -> Html {
    let mut found = of_servers(snapshot);
    found.extend(loads.iter().flat_map(|loads| of_loads(snapshot, loads)));
    found.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    let hidden = found.len().saturating_sub(FINDINGS_SHOWN);
    found.truncate(FINDINGS_SHOWN);
    let mut content: Vec<Html> = Vec::new();
    if found.is_empty() {
        content.push(note("no problem of a tablet server or a busy tablet is known").into());
    } else {
        let heading = ["Severity", "Where", "Check", "Since", "Problem", "Next step"];
        let lines = found.iter().map(problem);
        content.push(element("div").class("scroll").child(table(&heading, lines)).into());
    }
    if hidden > 0 {
        content.push(note(&format!("{hidden} more: ebla doctor shows them")).into());
    }
    if let Err(error) = loads {
        content.push(note(&format!("hot rows and tablets are not checked: {error}")).into());
    }
    section("Problems", content).into()
}

fn problem(finding: &Finding) -> Html {
    let class = match finding.severity {
        Severity::Note => "ok",
        Severity::Warning => "warn",
        Severity::Critical => "bad",
    };
    let named = |what: &str, shown: &str| -> Html {
        element("span").test_id(format!("problem-{}-{what}", finding.check)).text(shown).into()
    };
    row([
        state(class, finding.severity.name()).into(),
        match &finding.page {
            Some(page) => link(page, &finding.place).test_id(format!("problem-{}-place", finding.check)).into(),
            None => named("place", &finding.place),
        },
        text(finding.check),
        named("since", &finding.since.map_or("not known".to_owned(), time)),
        named("what", &finding.problem),
        named("next", &finding.next_step),
    ])
    .into()
}

fn cluster(snapshot: &ClusterSnapshot) -> Html {
    let tablets = match (snapshot.tablets, snapshot.tablets_led) {
        (Some(tablets), Some(led)) => format!("{led} of {tablets} led"),
        (Some(tablets), None) => format!("{tablets}, leaders unknown"),
        (None, _) => "unknown".to_owned(),
    };
    let replicas =
        snapshot.health.as_ref().map(|health| format!("{} of {} live", health.replicas_live, health.replicas_wanted));
    let master = match &snapshot.master_error {
        None => text(or_dash(snapshot.master.as_ref())),
        Some(error) => Html::join([text("none: "), state("bad", error).into()]),
    };
    let mut all = Html::empty();
    all.push(facts(
        "cluster",
        [
            ("id", or_dash(snapshot.cluster.as_ref())),
            ("epoch", or_dash(snapshot.master_epoch)),
            ("tables", or_dash(snapshot.tables)),
            ("tablets", tablets),
            ("replicas", or_dash(replicas)),
            ("servers", snapshot.servers.iter().filter(|server| server.is_reachable).count().to_string()),
        ],
    ));
    all.push(element("p").text("Master ").child(element("span").test_id("cluster-master").child(master)));
    all
}

#[cfg(test)]
mod tests {
    use ebla_client::snapshot::ReplicaLag;
    use ebla_model::capacity::DiskSpace;
    use ebla_proto::operate::{LoadedTablet, ObservedProblem, ProblemKind};
    use ebla_proto::record::{TabletLoad, TabletRecord};

    use super::*;
    use crate::pages::golden::{check, snapshot};

    #[test]
    fn the_overview_is_as_before() {
        let mut state = snapshot();
        check("overview", &render(&state, &Ok(LoadsReply::default()), &Ok(Vec::new())));
        state.master_error = Some("no master is active".to_owned());
        state.health = None;
        let no_loads = Err(Error::new(Reason::Unavailable, "no master is active"));
        check("overview-without-master", &render(&state, &no_loads, &Err(Error::invalid("METADATA <cannot> be read"))));
    }

    #[test]
    fn five_problems_have_a_place_a_time_and_a_next_step() {
        let mut state = snapshot();
        state.servers.iter_mut().for_each(|server| server.is_reachable = true);
        let healthy = problems(&state, &Ok(LoadsReply::default()));
        assert!(!healthy.as_str().contains("problem-"), "{}", healthy.as_str());
        let [first, second, third] = state.servers.as_mut_slice() else { panic!("three servers") };
        (first.clock.is_off, first.clock.offset_micros) = (true, Some(-9_000_000));
        (second.sync.is_slow, second.sync.delay) = (true, Some(Duration::from_millis(712)));
        let (replicas, entries_max, time_max) = (2, 5_000, Duration::from_secs(41));
        third.lag = Some(ReplicaLag { replicas, entries_max, time_max, ..ReplicaLag::default() });
        third.resources.disk = Some(DiskSpace { free_bytes: 10, total_bytes: 100, reserve_bytes: 2 });
        let observed = |(kind, server, tablet): (ProblemKind, u64, u64)| ObservedProblem {
            kind: kind.into(),
            server,
            tablet,
            since_micros: 1_763_879_499_000_000,
        };
        let known = [
            (ProblemKind::ClockOff, 1, 0),
            (ProblemKind::SlowDisk, 2, 0),
            (ProblemKind::Lagging, 3, 0),
            (ProblemKind::DiskNearlyFull, 3, 0),
            (ProblemKind::HotRow, 0, 7),
        ];
        state.problems = known.into_iter().map(observed).collect();
        let load = TabletLoad { reads_per_second: 5_000, hot_row: Some("secret".into()), ..TabletLoad::default() };
        let table = "projects/p/instances/i/tables/web".to_owned();
        let record = TabletRecord { table: 5, tablet: 7, ..TabletRecord::default() };
        let busy = LoadedTablet { table, tablet: Some(record), leader: 2, load: Some(load), ..LoadedTablet::default() };
        let page = problems(&state, &Ok(LoadsReply { tablets: vec![busy], ..LoadsReply::default() }));
        let of = |check: &str, column: &str, words: &str| {
            let (_before, cell) = page.as_str().split_once(&format!("\"problem-{check}-{column}\">")).unwrap();
            let (shown, _after) = cell.split_once('<').unwrap();
            assert!(shown.contains(words), "{check} {column}: {shown}");
        };
        let rows = [
            ("clock", "tablet server 1 at 10.0.0.1:8086", "2025-11-23", "9 s behind", "NTP"),
            ("slow-disk", "tablet server 2 at 10.0.0.2:8086", "2025-11-23", "712 ms", "ebla server drain 2"),
            ("lag", "tablet server 3 at 10.0.0.3:8086", "2025-11-23", "5000 log entries", "restart"),
            ("disk", "tablet server 3 at 10.0.0.3:8086", "2025-11-23", "90 % full", "add tablet servers"),
            (
                "hot-row",
                "tablet 7 of projects/p/instances/i/tables/web on",
                "2025-11-23",
                "5000 requests",
                "ebla tablet list web --load",
            ),
        ];
        for (check, place, since, what, next) in rows {
            [("place", place), ("since", since), ("what", what), ("next", next)]
                .into_iter()
                .for_each(|(column, words)| of(check, column, words));
        }
        for link in ["/servers/1", "/servers/3", "/tables/projects%2Fp%2Finstances%2Fi%2Ftables%2Fweb/tablets"] {
            assert!(page.as_str().contains(&format!("href=\"{link}\"")), "{link}: {}", page.as_str());
        }
        assert!(!page.as_str().contains("secret"), "findings contain no keys of rows");
    }
}
