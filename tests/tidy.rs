//! Rules of the project that a machine can check, as ordinary tests; each failure says what to do.
//!
//! They cover the dependencies between crates, the layers of the tablet server, the purity of decisions, the single place of
//! gRPC codes, paths and links in documents, the table of contents of the book, descriptions of every call of the public API
//! and every environment variable, the signatures of public functions ([`signatures`]), the type of locks ([`locks`]), the
//! list of components ([`components`]), and the vocabulary ([`words`]). `docs/inside/style.md` explains the rules.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may fail, and then says where"
)]

#[path = "tidy/components.rs"]
mod components;
#[path = "tidy/locks.rs"]
mod locks;
#[path = "tidy/signatures.rs"]
mod signatures;
#[path = "tidy/words.rs"]
mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The folders of the crates; a crate inside the folder of another one is listed with its path.
const CRATES: [&str; 16] = [
    "model",
    "proto",
    "runtime",
    "chubby",
    "storage",
    "client",
    "routing",
    "tablet-server",
    "master",
    "mounttable/tree",
    "mounttable/server",
    "mounttable/namespace",
    "console",
    "workload",
    "cli",
    "tests",
];

/// Layers of the tablet server, highest first. A file names only layers below its own.
const LAYERS: [&str; 4] = ["front", "router", "tablet", "raft"];

/// Decisions that must stay functions of values (docs/inside/style.md, rule 9).
const PURE: [&str; 55] = [
    "model/src",
    "master/src/cluster.rs",
    "master/src/health.rs",
    "master/src/lag.rs",
    "master/src/plan",
    "master/src/problems.rs",
    "tablet-server/src/capacity/disk_gate.rs",
    "tablet-server/src/front/call_limit.rs",
    "tablet-server/src/heat/collect.rs",
    "tablet-server/src/maintenance/hot_tablets.rs",
    "tablet-server/src/tablet/core/state.rs",
    "tablet-server/src/tablet/core/state/loader.rs",
    "tablet-server/src/tablet/core/state/moves.rs",
    "tablet-server/src/tablet/core/apply.rs",
    "tablet-server/src/tablet/core/apply/moves.rs",
    "tablet-server/src/tablet/heat/sketch.rs",
    "tablet-server/src/tablet/lifecycle/recovery.rs",
    "tablet-server/src/tablet/lifecycle/split_point.rs",
    "tablet-server/src/tablet/write/gather.rs",
    "tablet-server/src/router/plan.rs",
    "client/src/locate/messages.rs",
    "client/src/locate/pending.rs",
    "client/src/locate/resolver.rs",
    "client/src/locate/cache.rs",
    "client/src/retry.rs",
    "client/src/waterfall.rs",
    "mounttable/tree/src/glob",
    "mounttable/tree/src/access.rs",
    "mounttable/tree/src/address.rs",
    "mounttable/tree/src/error.rs",
    "mounttable/tree/src/file.rs",
    "mounttable/tree/src/identity.rs",
    "mounttable/tree/src/key.rs",
    "mounttable/tree/src/mount.rs",
    "mounttable/tree/src/name.rs",
    "mounttable/tree/src/naming.rs",
    "mounttable/tree/src/node.rs",
    "mounttable/tree/src/outage.rs",
    "mounttable/tree/src/rules.rs",
    "mounttable/server/src/service/watch.rs",
    "mounttable/tree/src/store/cache.rs",
    "mounttable/tree/src/store/filters.rs",
    "mounttable/namespace/src/cache.rs",
    "mounttable/namespace/src/entry.rs",
    "mounttable/namespace/src/glob/frontier.rs",
    "mounttable/namespace/src/publisher/schedule.rs",
    "mounttable/namespace/src/recipients.rs",
    "mounttable/namespace/src/resolve.rs",
    "mounttable/namespace/src/roots.rs",
    "tests/harness/faults/draw.rs",
    "tests/harness/faults/driver.rs",
    "tests/harness/faults/fault.rs",
    "tests/harness/faults/rates.rs",
    "tests/harness/faults/schedule.rs",
    "tests/harness/faults/view.rs",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path.as_ref()).unwrap_or_else(|e| panic!("read {}: {e}", path.as_ref().display()))
}

/// Every file below `folder` whose name ends in `suffix`, in order.
fn files(folder: &Path, suffix: &str) -> Vec<PathBuf> {
    if folder.is_file() {
        return vec![folder.to_path_buf()];
    }
    let mut found = Vec::new();
    let Ok(entries) = fs::read_dir(folder) else { return found };
    for entry in entries.map(|entry| entry.unwrap().path()) {
        let name = entry.file_name().unwrap().to_string_lossy().into_owned();
        if entry.is_dir() && name != "target" && !name.starts_with('.') {
            found.extend(files(&entry, suffix));
        } else if name.ends_with(suffix) {
            found.push(entry);
        }
    }
    found.sort();
    found
}

fn sources() -> Vec<PathBuf> {
    CRATES.iter().flat_map(|name| files(&root().join(name), ".rs")).collect()
}

fn relative(path: &Path) -> String {
    path.strip_prefix(root()).unwrap().display().to_string()
}

/// The file without comments and inline tests.
fn production(path: &Path) -> String {
    if relative(path).ends_with("tests.rs") || relative(path).contains("/tests/") {
        return String::new();
    }
    let text = read(path);
    let tests = ["#[cfg(test)]\nmod tests {", "#[cfg(test)]\npub(crate) mod tests {"];
    let text = tests.iter().fold(text.as_str(), |text, start| text.split(start).next().unwrap_or_default());
    text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

fn report(what: &str, found: Vec<String>) {
    assert!(found.is_empty(), "{what}\n  {}", found.join("\n  "));
}

/// `crate -> crates` as the table headed "may depend on" in ARCHITECTURE.md gives them.
fn allowed_edges() -> BTreeMap<String, BTreeSet<String>> {
    let text = read(root().join("ARCHITECTURE.md"));
    let table = text.lines().skip_while(|line| !line.contains("| may depend on |")).skip(2);
    table
        .take_while(|line| line.starts_with('|'))
        .map(|line| {
            let cells: Vec<_> = line.split('|').map(|cell| cell.trim().replace('`', "")).collect();
            let names = cells[2].split(',').map(|name| name.trim().to_string());
            (cells[1].clone(), names.filter(|name| CRATES.contains(&name.as_str())).collect())
        })
        .collect()
}

#[test]
fn crates_depend_only_along_the_edges_of_the_architecture() {
    let allowed = allowed_edges();
    let mut wrong = Vec::new();
    for name in CRATES {
        let Some(edges) = allowed.get(name) else {
            wrong.push(format!("{name} has no row in ARCHITECTURE.md's table"));
            continue;
        };
        let manifest = read(root().join(name).join("Cargo.toml"));
        let section = manifest.split("[dependencies]").nth(1).unwrap_or_default();
        let section = section.split("\n[").next().unwrap_or_default();
        for used in section.lines().filter_map(|line| line.strip_prefix("ebla-")) {
            let used = used.split(['.', ' ', '=']).next().unwrap();
            if !edges.iter().any(|edge| edge.replace('/', "-") == used) {
                wrong.push(format!("{name} depends on {used}"));
            }
        }
    }
    report("these edges are not in ARCHITECTURE.md's table: remove them, or argue them in a decision record", wrong);
}

#[test]
fn layers_of_the_tablet_server_name_only_lower_ones() {
    let mut wrong = Vec::new();
    for (depth, layer) in LAYERS.iter().enumerate() {
        for path in files(&root().join("tablet-server/src").join(layer), ".rs") {
            let text = production(&path);
            for upper in &LAYERS[..depth] {
                if text.contains(&format!("crate::{upper}")) || text.contains(&format!("super::{upper}")) {
                    wrong.push(format!("{} names {upper}", relative(&path)));
                }
            }
        }
    }
    report("data flows front -> router -> tablet -> raft; invert the dependency with a trait", wrong);
}

#[test]
fn decisions_are_pure() {
    const BANNED: [&str; 6] = ["tokio", "std::fs", "std::net", "Instant", "async ", "SystemTime"];
    let mut wrong = Vec::new();
    for place in PURE {
        let found = files(&root().join(place), ".rs");
        assert!(!found.is_empty(), "{place} is listed as pure and does not exist: correct the list");
        for path in found {
            let text = production(&path);
            wrong.extend(
                BANNED.iter().filter(|word| text.contains(**word)).map(|word| format!("{}: {word}", relative(&path))),
            );
        }
    }
    report("these files contain decisions: pass time, bytes and randomness as values", wrong);
}

#[test]
fn grpc_codes_are_named_in_one_file() {
    const CONSTRUCTORS: [&str; 14] = [
        "tonic::Code",
        " Code::",
        "(Code::",
        "Status::invalid_argument",
        "Status::not_found",
        "Status::internal",
        "Status::unavailable",
        "Status::unimplemented",
        "Status::aborted",
        "Status::failed_precondition",
        "Status::already_exists",
        "Status::deadline_exceeded",
        "Status::resource_exhausted",
        "Status::unknown",
    ];
    let mut wrong = Vec::new();
    for path in sources() {
        let name = relative(&path);
        if name.starts_with("proto/") || name.starts_with("tests/") {
            continue;
        }
        let text = production(&path);
        wrong.extend(CONSTRUCTORS.iter().filter(|word| text.contains(**word)).map(|word| format!("{name}: {word}")));
    }
    report("raise a model::Error and let proto::status choose the code", wrong);
}

/// It can start while one or two of them are down.
#[test]
fn a_mounttable_of_containers_knows_several_tablet_servers() {
    let compose = read(root().join("deploy/compose.yaml"));
    let seeds = compose.lines().find_map(|line| line.trim().strip_prefix("CLUSTER: ")).unwrap();
    let seeds: BTreeSet<&str> = seeds.split(',').collect();
    assert!(seeds.len() >= 3, "deploy/compose.yaml: a mounttable knows only {seeds:?}; name three tablet servers");
}

#[test]
fn every_source_file_starts_with_module_documentation() {
    let wrong = sources().iter().filter(|path| !read(path).starts_with("//!")).map(|path| relative(path)).collect();
    report("start these files with `//!`: purpose, invariants, non-goals", wrong);
}

#[test]
fn ignored_tests_say_why() {
    let wrong = sources().iter().filter(|path| read(path).contains("#[ignore]\n")).map(|path| relative(path)).collect();
    report("write #[ignore = \"reason\"], or repair the test", wrong);
}

#[test]
fn every_folder_is_in_the_code_map() {
    let map = read(root().join("ARCHITECTURE.md"));
    let mut missing = Vec::new();
    for name in CRATES {
        let source = root().join(name).join("src");
        for entry in fs::read_dir(&source).into_iter().flatten().map(|entry| entry.unwrap().path()) {
            let folder = entry.file_name().unwrap().to_string_lossy().into_owned();
            if entry.is_dir() && folder != "tests" && !map.contains(&format!("`{name}/src/{folder}`")) {
                missing.push(format!("{name}/src/{folder}"));
            }
        }
    }
    report("give these folders a line in ARCHITECTURE.md's code map", missing);
}

#[test]
fn documents_name_only_paths_that_exist() {
    let mut documents = files(&root().join("docs"), ".md");
    // Reports are dated and name files of their time.
    documents.retain(|path| !relative(path).starts_with("docs/reports/"));
    documents.extend(["ARCHITECTURE.md", "README.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(|name| root().join(name)));
    let mut missing = Vec::new();
    for document in documents {
        for word in read(&document).split('`').skip(1).step_by(2) {
            let first = word.split('/').next().unwrap_or_default();
            let is_path = word.contains('/') && (CRATES.contains(&first) || ["docs", "deploy", ".ci"].contains(&first));
            let plain = word.chars().all(|c| c.is_ascii_alphanumeric() || "/_.-".contains(c));
            if is_path && plain && !root().join(word).exists() {
                missing.push(format!("{}: {word}", relative(&document)));
            }
        }
    }
    report("these documents name files that do not exist", missing);
}

#[test]
fn every_meta_key_of_the_storage_layout_is_described() {
    let layout = read(root().join("storage/src/store/layout.rs"));
    let formats = read(root().join("docs/reference/formats.md"));
    let body = layout.split("pub enum MetaKey").nth(1).expect("layout.rs declares MetaKey");
    let body = body.split("\n}").next().unwrap();
    // The documentation of each variant begins with its key: `sessions/<id>`.
    let keys = body.lines().filter_map(|line| line.trim().strip_prefix("/// `")?.split(['`', '<']).next());
    let keys: Vec<_> = keys.map(str::to_string).collect();
    assert!(!keys.is_empty(), "no variant of MetaKey says its key");
    let missing = keys.into_iter().filter(|key| !formats.contains(&format!("`{key}`"))).collect();
    report("describe these meta keys in docs/reference/formats.md", missing);
}

#[test]
fn golden_files_are_used_and_end_in_a_newline() {
    let mut wrong = Vec::new();
    for name in CRATES {
        let folder = root().join(name).join("testdata");
        let code: String = files(&root().join(name), ".rs").iter().map(read).collect();
        for path in files(&folder, ".txt") {
            if !read(&path).ends_with('\n') {
                wrong.push(format!("{} does not end in a newline", relative(&path)));
            }
            let group = path.parent().unwrap().file_name().unwrap().to_string_lossy().into_owned();
            let file = path.file_name().unwrap().to_string_lossy().into_owned();
            if !code.contains(&group) && !code.contains(&file) {
                wrong.push(format!("{} is read by no test", relative(&path)));
            }
        }
    }
    report("golden files", wrong);
}

/// The rows of the table below `heading`, without its header.
fn table_below<'a>(document: &'a str, heading: &str) -> Vec<Vec<&'a str>> {
    let lines = document.lines().skip_while(|line| *line != heading).skip(1);
    let rows = lines.skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|')).skip(2);
    rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

#[test]
fn the_api_page_summarises_every_service() {
    let document = read(root().join("docs/reference/api.md"));
    let expected = ebla_proto::services::CATALOGUE.iter().map(|service| {
        let names = |is_served: bool| {
            let such = service.calls.iter().filter(|call| call.instead.is_none() == is_served);
            let names: Vec<_> = such.map(|call| call.name).collect();
            if names.is_empty() { "none".to_owned() } else { names.join(", ") }
        };
        format!("| `{}` | {} | {} |", service.name, names(true), names(false))
    });
    let missing = expected.filter(|row| !document.lines().any(|line| line == row)).collect();
    report("update docs/reference/api.md from proto/build/services.rs", missing);
}

#[test]
fn the_api_is_described_call_by_call() {
    let document = read(root().join("docs/reference/api.md"));
    let mut wrong = Vec::new();
    for service in ebla_proto::services::CATALOGUE {
        let described = table_below(&document, &format!("## {}", service.name));
        let expected: Vec<_> = service.calls.iter().map(|call| (call.name, call.instead)).collect();
        if described.len() != expected.len() {
            wrong.push(format!("{} has {} calls, described are {}", service.name, expected.len(), described.len()));
        }
        for (row, (name, instead)) in described.iter().zip(expected) {
            let is_right = match instead {
                Some(instead) => *row == [name, "refused", instead],
                None => row.len() == 3 && row[..2] == [name, "served"],
            };
            if !is_right {
                wrong.push(format!("{}/{name}: {row:?}", service.name));
            }
        }
    }
    report("docs/reference/api.md must match proto/build/services.rs, in its order", wrong);
}

#[test]
fn every_external_crate_is_justified() {
    let manifest = read(root().join("Cargo.toml"));
    let record = read(root().join("docs/inside/decisions/0003-dependencies.md"));
    let section = manifest.split("[workspace.dependencies]").nth(1).unwrap();
    let section = section.split("\n[").next().unwrap();
    let missing = section
        .lines()
        .filter_map(|line| line.split_once('=').map(|(name, _)| name.trim().to_string()))
        .filter(|name| !name.is_empty() && !name.starts_with('#') && !name.starts_with("ebla-"))
        .filter(|name| !record.contains(&format!("`{name}`")))
        .collect();
    report("give these crates a line in docs/inside/decisions/0003-dependencies.md", missing);
}

/// Every document of the repository.
fn documents() -> Vec<PathBuf> {
    files(&root(), ".md")
}

/// The lines of a document outside its fenced blocks.
fn unfenced(text: &str) -> Vec<&str> {
    let mut is_code = false;
    let mut lines = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            lines.push(line);
        }
    }
    lines
}

/// The targets of a document's links, those in code left out.
fn links(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in unfenced(text) {
        let prose: String = line.split('`').step_by(2).collect::<Vec<_>>().join("code");
        let targets = prose.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        found.extend(targets.map(str::to_owned));
    }
    found
}

/// The anchors of a document's headings, as GitHub and mdBook make them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for heading in unfenced(text).into_iter().filter(|line| line.starts_with('#')) {
        let title = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = title.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        let anchor: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect();
        let repeated = (1..).map(|number| format!("{anchor}-{number}"));
        let free = std::iter::once(anchor.clone()).chain(repeated).find(|anchor| !found.contains(anchor));
        found.extend(free);
    }
    found
}

#[test]
fn anchors_match_those_of_renderers() {
    let page = "# One `two`, three\n\n```sh\n# no heading\n```\n## Same\n## Same\n";
    assert_eq!(anchors(page), ["one-two-three", "same", "same-1"].map(str::to_owned).into());
    assert_eq!(links("[a](b.md#c) `[d](e)` and [f](g)\n```\n[h](i)\n```"), ["b.md#c", "g"]);
}

#[test]
fn links_of_documents_are_valid() {
    let mut wrong = Vec::new();
    let mut checked = 0;
    for document in documents() {
        for link in links(&read(&document)) {
            if ["http://", "https://", "mailto:"].iter().any(|scheme| link.starts_with(scheme)) {
                continue;
            }
            checked += 1;
            let (path, anchor) =
                link.split_once('#').map_or((link.as_str(), None), |(path, anchor)| (path, Some(anchor)));
            let target = if path.is_empty() { document.clone() } else { document.parent().unwrap().join(path) };
            let is_there = target.exists() && anchor.is_none_or(|anchor| anchors(&read(&target)).contains(anchor));
            if !is_there {
                wrong.push(format!("{}: {link}", relative(&document)));
            }
        }
    }
    assert!(checked > 50, "only {checked} links were found: the search for links is broken");
    report("these links are broken", wrong);
}

#[test]
fn every_page_of_the_book_is_in_its_table_of_contents() {
    let book = root().join("docs");
    let summary = book.join("SUMMARY.md");
    let listed = links(&read(&summary));
    let mut wrong: Vec<_> = listed
        .iter()
        .filter(|page| !book.join(page).exists() || page.starts_with("..") || page.contains('#'))
        .map(|page| format!("{page} is listed and is no page of the book"))
        .collect();
    for page in files(&book, ".md").into_iter().filter(|page| *page != summary) {
        let page = page.strip_prefix(&book).unwrap().display().to_string();
        match listed.iter().filter(|listed| **listed == page).count() {
            1 => {}
            times => wrong.push(format!("{page} is listed {times} times")),
        }
    }
    report("list each page of docs/ once in docs/SUMMARY.md", wrong);
}

#[test]
fn the_readme_is_read_in_two_minutes() {
    let text = read(root().join("README.md"));
    let mut wrong: Vec<_> = (1..)
        .zip(text.lines())
        .filter(|(_, line)| line.chars().count() > 100)
        .map(|(number, line)| format!("line {number} has {} columns", line.chars().count()))
        .collect();
    if text.lines().count() > 100 {
        wrong.push(format!("it has {} lines", text.lines().count()));
    }
    report("README.md has at most 100 lines of at most 100 columns: move what is more into the book", wrong);
}

#[test]
fn documents_contain_no_machine_specific_paths() {
    const PLACES: [&str; 5] = ["/root/", "/home/", "/Users/", "/work/", "/tmp/"];
    let mut wrong = Vec::new();
    for document in documents() {
        for (number, line) in (1..).zip(read(&document).lines()) {
            let named = PLACES.iter().filter(|place| line.contains(**place));
            wrong.extend(named.map(|place| format!("{}:{number}: {place}", relative(&document))));
        }
    }
    report("write paths that exist on every machine: relative ones, or ~/", wrong);
}

#[test]
fn sources_name_only_documents_that_exist() {
    let mut naming = sources();
    naming.extend(files(&root().join("deploy"), ""));
    naming.extend(["Makefile", "Cargo.toml", "clippy.toml"].map(|name| root().join(name)));
    let mut missing = Vec::new();
    for path in naming {
        for rest in read(&path).split("docs/").skip(1) {
            let name: String = rest.chars().take_while(|c| c.is_ascii_alphanumeric() || "/_.-".contains(*c)).collect();
            let name = name.trim_end_matches('.');
            if name.ends_with(".md") && !root().join("docs").join(name).exists() {
                missing.push(format!("{}: docs/{name}", relative(&path)));
            }
        }
    }
    report("these files name documents that do not exist", missing);
}

/// Whether a word is the name of one of our environment variables.
fn is_variable(word: &str) -> bool {
    let rest = word.strip_prefix("EBLA_").or_else(|| word.strip_prefix("MT_")).unwrap_or_default();
    !rest.is_empty() && rest.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
}

/// Names of environment variables that the repository reads: as literals in code, as words in scripts.
fn variables() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for path in sources() {
        let text = read(&path);
        // Inline tests use made-up names.
        let tests = ["#[cfg(test)]\nmod tests {", "#[cfg(test)]\npub(crate) mod tests {"];
        let text = tests.iter().fold(text.as_str(), |text, start| text.split(start).next().unwrap_or_default());
        found.extend(text.split('"').filter(|word| is_variable(word)).map(str::to_owned));
        for call in ["env::var(\"", "env::var_os(\""] {
            found.extend(text.split(call).skip(1).filter_map(|rest| rest.split('"').next()).map(str::to_owned));
        }
    }
    let mut scripts = files(&root().join("deploy"), "");
    scripts.extend(files(&root().join("storage/rocksdb"), ".sh"));
    scripts.push(root().join("Makefile"));
    for path in scripts {
        let text = read(path);
        let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        found.extend(words.filter(|word| is_variable(word)).map(str::to_owned));
    }
    // Cargo's, for build scripts.
    found.remove("OUT_DIR");
    found
}

#[test]
fn every_environment_variable_is_described() {
    let document = read(root().join("docs/reference/environment.md"));
    let first_cells = document.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let described: BTreeSet<_> = first_cells.map(str::to_owned).collect();
    let read = variables();
    let mut wrong: Vec<_> = read.difference(&described).map(|name| format!("{name} has no row")).collect();
    let gone = described.iter().filter(|name| is_variable(name) && !read.contains(*name));
    wrong.extend(gone.map(|name| format!("{name} is read nowhere")));
    report("docs/reference/environment.md must list exactly the variables that are read", wrong);
}

/// The messages that a document's tables explain: the first cells, in backticks.
fn explained(document: &str) -> Vec<String> {
    let rows = document.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` |"));
    rows.map(|(message, _)| message.to_owned()).collect()
}

#[test]
fn messages_explained_in_the_book_are_in_the_program() {
    let code: String = sources().iter().map(|path| production(path)).collect();
    let observe = read(root().join("docs/operate/observe.md"));
    let lines = observe.split("### Log lines").nth(1).expect("observe.md has a section of log lines");
    let pages = ["docs/operate/troubleshooting.md", "docs/operate/threats.md"];
    let pages = pages.iter().flat_map(|page| explained(&read(root().join(page))));
    let messages: Vec<_> = explained(lines).into_iter().chain(pages).collect();
    assert!(messages.len() > 40, "only {} messages were found: the search for them is broken", messages.len());
    // A `…` stands for a value.
    let is_there = |message: &str| message.split('…').all(|part| code.contains(part.trim()));
    let gone = messages.into_iter().filter(|message| !is_there(message)).collect();
    report(
        "docs/operate/{observe,troubleshooting,threats}.md explain messages that are no longer in the program",
        gone,
    );
}

/// The external crates, with features, that cargo builds for a selection of our crates.
fn dependencies(selection: &[&str]) -> BTreeSet<String> {
    let tree = ["tree", "--offline", "--prefix", "none", "--edges", "normal,build,dev", "--format", "{p} [{f}]"];
    let output = Command::new(env!("CARGO")).args(tree).args(selection).current_dir(root()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).unwrap();
    let external = lines.lines().map(|line| line.trim_end_matches(" (*)")).filter(|line| !line.contains(" (/"));
    external.map(str::to_owned).collect()
}

#[test]
fn a_crate_alone_has_the_features_of_the_workspace() {
    let all = dependencies(&["--workspace"]);
    let mut wrong = Vec::new();
    for package in ["ebla-model", "ebla-storage", "ebla-client", "ebla-mounttable-server", "ebla-cli"] {
        wrong.extend(dependencies(&["-p", package]).difference(&all).map(|line| format!("{package}: {line}")));
    }
    report("run `cargo hakari generate`; otherwise `cargo build -p` compiles these again", wrong);
}
