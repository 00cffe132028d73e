//! The figures as Markdown tables, as JSON and as a picture.

use serde_json::{Value, json};

use super::PaperWorkload;
use super::figures::{Figures, Measurement};
use super::plot::{self, Line};

/// The figures as Markdown tables, each below a line that explains it.
#[must_use]
pub fn markdown(figures: &Figures) -> String {
    let smallest = figures.servers().first().copied().unwrap_or(1);
    let paper = |head: &str| vec![format!("paper, {head}")];
    let published = |workload: PaperWorkload| workload.published();
    let lost = |workload: PaperWorkload| percent(Some(ratio(published(workload).fifty, published(workload).one)));
    let sections = [
        section(
            "Rows per second under quotas, all tablet servers together; with half the range of the passes:",
            table(figures, Vec::new(), |_| Vec::new(), |one| void_or(one, rate_with_spread(one))),
        ),
        section(
            "The same per tablet server:",
            table(
                figures,
                [paper("1 server"), paper("50 servers")].concat(),
                |workload| vec![published(workload).one.to_string(), published(workload).fifty.to_string()],
                |one| void_or(one, whole(one.rate().map(|rate| rate / servers(one)))),
            ),
        ),
        section(
            &format!("Efficiency: the rate per tablet server relative to {smallest}, in percent:"),
            table(
                figures,
                paper("50 servers"),
                |workload| vec![lost(workload)],
                |one| void_or(one, percent(figures.efficiency(one.workload, one.servers, Measurement::rate))),
            ),
        ),
        section(
            "Work at a fixed rate without quotas, processor time per row in microseconds: of all tablet servers, and after the \
             plus sign of master and etcd:",
            table(figures, Vec::new(), |_| Vec::new(), work),
        ),
        section(
            &format!("Efficiency by work: the capacity per tablet server relative to {smallest}, in percent:"),
            table(
                figures,
                Vec::new(),
                |_| Vec::new(),
                |one| percent(figures.efficiency(one.workload, one.servers, Measurement::capacity)),
            ),
        ),
    ];
    sections.concat() + &remarks(figures)
}

/// The rates as a picture in SVG: one line per workload, over the number of servers.
#[must_use]
pub fn svg(figures: &Figures) -> String {
    let points = |workload| {
        let rate = |servers| Some((servers, figures.get(workload, servers)?.rate()?));
        figures.servers().into_iter().filter_map(rate).collect()
    };
    let lines: Vec<_> = PaperWorkload::ALL
        .into_iter()
        .map(|workload| Line { name: workload.name(), points: points(workload) })
        .collect();
    plot::svg("Rows per second under equal processor quotas", "tablet servers", &lines)
}

/// All rounds as JSON.
#[must_use]
pub fn json(figures: &Figures) -> Value {
    let one = |one: &Measurement| {
        let rounds = one.quota.iter().map(|round| {
            json!({
                "rows_per_second": round.rows_per_second,
                "throttled": round.throttled,
                "machine_busy": round.machine_busy,
                "generator_cores": round.generator_cores,
                "void": round.void_reason(),
            })
        });
        let work = one.work.iter().map(|round| {
            json!({
                "rows": round.rows,
                "seconds": round.took.as_secs_f64(),
                "server_cpu_seconds": round.servers.iter().map(|time| time.as_secs_f64()).collect::<Vec<_>>(),
                "other_cpu_seconds": round.others.map(|time| time.as_secs_f64()),
            })
        });
        json!({
            "workload": one.workload.name(),
            "servers": one.servers,
            "rows_per_second": one.rate(),
            "efficiency": figures.efficiency(one.workload, one.servers, Measurement::rate),
            "micros_per_row": one.micros_per_row(),
            "capacity_rows_per_second": one.capacity(),
            "capacity_efficiency": figures.efficiency(one.workload, one.servers, Measurement::capacity),
            "quota_rounds": rounds.collect::<Vec<_>>(),
            "work_rounds": work.collect::<Vec<_>>(),
        })
    };
    json!({
        "measurements": figures.measurements().map(one).collect::<Vec<_>>(),
        "failures": figures.failures.iter().map(|(servers, what)| json!({"servers": servers, "what": what})).collect::<Vec<_>>(),
    })
}

fn section(title: &str, table: String) -> String {
    format!("{title}\n\n{table}\n")
}

/// A row for each workload and a column for each number of servers, and then the columns `more`.
fn table(
    figures: &Figures,
    more: Vec<String>,
    more_cells: impl Fn(PaperWorkload) -> Vec<String>,
    cell: impl Fn(&Measurement) -> String,
) -> String {
    let numbers = figures.servers();
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let numbered = numbers.iter().map(u64::to_string).collect();
    let heading = [vec!["workload, tablet servers:".to_owned()], numbered, more].concat();
    let rule = format!("|{}\n", "---|".repeat(heading.len()));
    let row = |workload: PaperWorkload| {
        let cells = numbers.iter().map(|servers| figures.get(workload, *servers).map(&cell).unwrap_or_default());
        line([vec![workload.name().to_owned()], cells.collect(), more_cells(workload)].concat())
    };
    let rows: String = PaperWorkload::ALL.into_iter().map(row).collect();
    line(heading) + &rule + &rows
}

/// What is void or failed, one line each.
fn remarks(figures: &Figures) -> String {
    let void = figures.measurements().flat_map(|one| {
        let reasons = one.quota.iter().filter_map(|round| round.void_reason());
        reasons.map(|reason| format!("- void, {} with {}: {reason}\n", one.workload.name(), counted(one.servers)))
    });
    let failed = figures.failures.iter().map(|(servers, what)| format!("- failed, {}: {what}\n", counted(*servers)));
    void.chain(failed).collect()
}

fn counted(servers: u64) -> String {
    format!("{servers} server{}", if servers == 1 { "" } else { "s" })
}

fn void_or(one: &Measurement, text: String) -> String {
    if one.is_void() { "void".to_owned() } else { text }
}

fn rate_with_spread(one: &Measurement) -> String {
    let spread = one.spread().map(|spread| format!(" ±{:.0} %", spread * 100.0)).unwrap_or_default();
    whole(one.rate()) + &spread
}

fn work(one: &Measurement) -> String {
    let digits = |micros: Option<f64>| micros.map(|micros| format!("{micros:.1}")).unwrap_or_default();
    let others = one.others_micros_per_row().map(|others| format!(" + {others:.1}")).unwrap_or_default();
    digits(one.micros_per_row()) + &others
}

fn whole(figure: Option<f64>) -> String {
    figure.map(|figure| format!("{figure:.0}")).unwrap_or_default()
}

fn percent(share: Option<f64>) -> String {
    whole(share.map(|share| share * 100.0))
}

#[expect(clippy::cast_precision_loss, reason = "published figures are small")]
fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole as f64
}

#[expect(clippy::cast_precision_loss, reason = "few servers")]
fn servers(one: &Measurement) -> f64 {
    one.servers as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::paper::figures::tests::example;

    fn rows(text: &str, workload: &str) -> Vec<String> {
        text.lines().filter(|line| line.starts_with(&format!("| {workload} |"))).map(str::to_owned).collect()
    }

    #[test]
    fn the_tables_stand_beside_the_figures_of_the_paper() {
        let text = markdown(&example());
        assert_eq!(
            rows(&text, "random reads"),
            [
                "| random reads | 1000 ±10 % | 1800 |",
                "| random reads | 1000 | 900 | 1212 | 593 |",
                "| random reads | 100 | 90 | 49 |",
                "| random reads | 50.0 + 2.0 | 55.0 + 1.0 |",
                "| random reads | 100 | 83 |",
            ]
        );
        assert_eq!(rows(&text, "scans")[0], "| scans |  | void |");
        assert!(text.contains("- void, scans with 2 servers: a server was throttled in only 10 % of the periods\n"));
        assert!(text.contains("- void, random reads with 2 servers: a server was throttled in only 20 %"));
        assert!(text.ends_with("- failed, 2 servers: create: a | b\n"));
    }

    #[test]
    fn json_has_every_round() {
        let json = json(&example());
        assert_eq!(json["measurements"][0]["rows_per_second"], 1_000.0);
        assert_eq!(json["measurements"][1]["quota_rounds"][1]["throttled"][1], 0.2);
        assert_eq!(json["measurements"][1]["work_rounds"][0]["server_cpu_seconds"][0], 0.06);
        assert_eq!(json["measurements"][2]["rows_per_second"], Value::Null);
        assert_eq!(json["failures"][0]["servers"], 2);
    }

    #[test]
    fn the_picture_has_a_line_for_each_workload_that_counts() {
        let picture = svg(&example());
        assert_eq!(picture.matches("<polyline").count(), 1);
        assert!(picture.contains(">random reads</text>") && !picture.contains(">scans</text>"));
    }
}
