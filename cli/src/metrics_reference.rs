//! The reference of metrics, `docs/reference/metrics.md`, as a function of the tables of families that the crates declare.
//!
//! The test below compares the page with the generated one; with `UPDATE=1` it writes the page instead. Another one checks that what
//! `deploy/monitoring` names is in the tables.

use std::collections::BTreeSet;

use ebla_runtime::metrics::{Family, PROCESS_FAMILIES, REGISTRY_FAMILIES};

/// All families with the part of the system that has them, in the order of the page.
pub fn families() -> Vec<(&'static str, &'static Family)> {
    let of = |part: &'static str, families: &[&'static Family]| -> Vec<_> {
        families.iter().map(|family| (part, *family)).collect()
    };
    let server: Vec<&Family> = ebla_tablet_server::metrics::families().collect();
    [
        of("process", PROCESS_FAMILIES),
        of("process", REGISTRY_FAMILIES),
        of("tablet server", &server),
        of("master", ebla_master::metrics::FAMILIES),
        of("mounttable", ebla_mounttable_server::metrics::FAMILIES),
    ]
    .concat()
}

/// The names of all series: a histogram has three.
pub fn series_names() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (_part, family) in families() {
        names.insert(family.name.to_owned());
        if family.kind == ebla_runtime::metrics::Kind::Histogram {
            names.extend(["_bucket", "_sum", "_count"].map(|suffix| format!("{}{suffix}", family.name)));
        }
    }
    names
}

/// The page.
#[cfg(test)]
fn page() -> String {
    let mut text = String::from(HEAD);
    let mut part = "";
    for (of, family) in families() {
        if of != part {
            part = of;
            let title = match part {
                "process" => "Every process",
                "tablet server" => "Tablet servers",
                "master" => "Masters",
                _ => "Mounttables",
            };
            text.push_str(&format!("\n## {title}\n\n| metric | type | labels | what |\n|---|---|---|---|\n"));
        }
        let labels: Vec<String> = family.labels.iter().map(|label| format!("`{label}`")).collect();
        let (name, kind, labels, help) = (family.name, family.kind.as_str(), labels.join(", "), family.help);
        text.push_str(&format!("| `{name}` | {kind} | {labels} | {help} |\n"));
    }
    text
}

#[cfg(test)]
const HEAD: &str = "\
# Metrics

The figures of a process, at `/metrics` of its HTTP port (`--http`): see [Observe](../operate/observe.md#metrics). The page is generated from
the program: `UPDATE=1 cargo test --release -p ebla-cli --lib metrics_reference` regenerates it.

The last word of a name is the unit: seconds, bytes, or none for a number of things; `_total` marks a counter, which begins at zero when the
process starts. A histogram has the series `_bucket`, `_sum` and `_count`. A state, such as whether a disk is slow, is 1 or 0. The label
`server` is the id of a tablet server: a process of `ebla up` has several.

The number of series depends on the number of servers, methods and causes, not on that of tables, tablets, groups or callers.
";

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};
    use std::process::Command;

    use ebla_runtime::metrics::table_faults;

    use super::*;

    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
    }

    #[test]
    fn the_metrics_reference_is_current() {
        let (file, page) = (root().join("docs/reference/metrics.md"), page());
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&file, &page).unwrap();
        }
        let stored = std::fs::read_to_string(&file).unwrap_or_default();
        assert!(
            stored == page,
            "docs/reference/metrics.md is not current: UPDATE=1 cargo test -p ebla-cli --lib metrics_reference"
        );
    }

    #[test]
    fn no_two_families_have_the_same_name() {
        let all: Vec<&Family> = families().into_iter().map(|(_part, family)| family).collect();
        assert_eq!(table_faults(&all), Vec::<String>::new());
    }

    /// The names of our metrics in a text.
    fn named(text: &str) -> BTreeSet<String> {
        let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
        words.filter(|word| word.starts_with("ebla_")).map(str::to_owned).collect()
    }

    #[test]
    fn rules_and_dashboards_name_existing_metrics() {
        let known = series_names();
        let mut seen = 0;
        for file in ["alerts.yml", "alerts-test.yml", "dashboard.json"] {
            let text = std::fs::read_to_string(root().join("deploy/monitoring").join(file)).unwrap();
            let names = named(&text);
            let unknown: Vec<_> = names.difference(&known).collect();
            assert!(unknown.is_empty(), "{file} names unknown metrics: {unknown:?}");
            seen += names.len();
        }
        assert!(seen > 20, "the files name {seen} metrics");
    }

    #[test]
    fn every_alert_has_a_summary_and_a_section_of_the_book() {
        let rules = std::fs::read_to_string(root().join("deploy/monitoring/alerts.yml")).unwrap();
        let book = std::fs::read_to_string(root().join("docs/operate/observe.md")).unwrap();
        let tests = std::fs::read_to_string(root().join("deploy/monitoring/alerts-test.yml")).unwrap();
        let alerts: Vec<&str> = rules.split("- alert: ").skip(1).collect();
        assert!(alerts.len() >= 10);
        for alert in alerts {
            let name = alert.lines().next().unwrap_or_default();
            for field in ["summary: ", "next_step: ", "runbook: docs/operate/observe.md#"] {
                assert!(alert.contains(field), "{name} has no {field}");
            }
            let anchor = name.to_lowercase();
            assert!(alert.contains(&format!("observe.md#{anchor}")), "{name} links to another section");
            assert!(book.contains(&format!("### {name}\n")), "observe.md has no section {name}");
            assert!(tests.contains(&format!("alertname: {name}\n")), "{name} is not tested in alerts-test.yml");
        }
    }

    /// The program promtool: `make promtool` fetches it; an installed one does too.
    fn promtool() -> PathBuf {
        let cache = std::env::var_os("EBLA_CACHE").map(PathBuf::from);
        let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache/ebla")));
        let fetched = cache.map(|cache| cache.join("bin/promtool")).filter(|program| program.is_file());
        fetched.unwrap_or_else(|| "promtool".into())
    }

    /// Fails when promtool does; it may be missing.
    fn check_with_promtool(folder: &Path, arguments: &[&str]) {
        match Command::new(promtool()).args(arguments).current_dir(folder).output() {
            Ok(output) => {
                let shown = [output.stdout, output.stderr].concat();
                assert!(output.status.success(), "promtool {arguments:?}: {}", String::from_utf8_lossy(&shown));
            }
            Err(error) => eprintln!("skipped: there is no promtool (make promtool): {error}"),
        }
    }

    #[test]
    fn promtool_accepts_the_rules_and_their_tests() {
        let folder = root().join("deploy/monitoring");
        for arguments in [&["check", "rules", "alerts.yml"][..], &["test", "rules", "alerts-test.yml"]] {
            check_with_promtool(&folder, arguments);
        }
    }

    #[test]
    fn the_prometheus_of_a_cluster_in_containers_scrapes_every_process() {
        let compose = std::fs::read_to_string(root().join("deploy/compose.yaml")).unwrap();
        let services =
            compose.split("\nservices:\n").nth(1).and_then(|rest| rest.split("\nnetworks:\n").next()).unwrap();
        let names = services.lines().filter_map(|line| line.strip_prefix("  ")?.strip_suffix(':'));
        let processes =
            names.filter(|name| !name.starts_with(' ') && !name.starts_with("etcd-") && *name != "prometheus");
        let expected: BTreeSet<String> = processes.map(|name| format!("{name}:8080")).collect();
        assert!(expected.len() == 9 && compose.contains("EBLA_HTTP: 0.0.0.0:8080\n"), "{expected:?}");
        for (security, has_tls) in [("on", true), ("off", false)] {
            let folder = tempfile::tempdir().unwrap();
            let script = root().join("deploy/prometheus-files.sh");
            let status = Command::new(script).arg(folder.path()).args(["5", security]).status().unwrap();
            assert!(status.success(), "{status}");
            let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
            let targets: serde_json::Value = serde_json::from_str(&read("targets.json")).unwrap();
            let listed = targets.pointer("/0/targets").and_then(serde_json::Value::as_array).unwrap().iter();
            assert_eq!(listed.map(|name| name.as_str().unwrap().to_owned()).collect::<BTreeSet<_>>(), expected);
            assert_eq!(read("prometheus.yml").contains("tls_config:"), has_tls);
            // promtool opens no file of a certificate, but wants it to exist.
            ["ca.crt", "prometheus.crt", "prometheus.key"].iter().for_each(|name| {
                std::fs::write(folder.path().join(name), "").unwrap();
            });
            check_with_promtool(folder.path(), &["check", "config", "prometheus.yml"]);
        }
    }
}
