//! Runs the commands of a document.
//!
//! ```text
//!   ```sh                    commands; all blocks of a document are one shell's, in order, and each must succeed
//!   ```sh needs=cbt          skipped with a message if the program is missing; so is its output
//!   ```sh norun              for readers only
//!   ```python file=NAME      a file that later blocks use
//!   ```text                  lines that the block before must print, in this order, possibly among others
//! ```
//!
//! Expected lines are compared word by word. Digits stand for any digits, so that ports, times and ids may differ, and a
//! word `…` stands for all that follows in its line. 127.0.0.1 becomes an address that no other test uses.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use ebla_runtime::Clock;
use ebla_tests::cluster::Node;
use ebla_tests::etcd::Build;
use ebla_tests::network::{Loopback, NodeNetwork as _};

use crate::support;

/// Timeout of a document.
const RUN_MAX: Duration = Duration::from_secs(300);

/// Timeout of the end of programs that were killed.
const END_MAX: Duration = Duration::from_secs(60);

/// A fenced block: the words after the fence, and the lines inside.
#[derive(Debug, PartialEq, Eq)]
struct Block {
    /// The number of its first line in the document.
    line: usize,
    language: String,
    marks: Vec<String>,
    text: String,
}

impl Block {
    fn marked(&self, name: &str) -> Option<&str> {
        self.marks.iter().find_map(|mark| mark.strip_prefix(name)?.strip_prefix('='))
    }

    fn is_run(&self, present: &BTreeSet<&str>) -> bool {
        let has_all = self.marked("needs").is_none_or(|needs| needs.split(',').all(|need| present.contains(need)));
        has_all && !self.marks.iter().any(|mark| mark == "norun")
    }
}

fn blocks(document: &str) -> Vec<Block> {
    let mut found: Vec<Block> = Vec::new();
    let mut is_open = false;
    for (number, line) in (1..).zip(document.lines()) {
        match (line.strip_prefix("```"), is_open) {
            (Some(_), true) => is_open = false,
            (Some(info), false) => {
                let mut words = info.split_whitespace().map(str::to_owned);
                let language = words.next().unwrap_or_default();
                found.push(Block { line: number + 1, language, marks: words.collect(), text: String::new() });
                is_open = true;
            }
            (None, true) => {
                let block = found.last_mut().unwrap();
                block.text.push_str(line);
                block.text.push('\n');
            }
            (None, false) => {}
        }
    }
    found
}

/// Whether a printed line is what the document shows.
fn is_like(shown: &str, printed: &str) -> bool {
    let plain = |word: &str| {
        let mut plain = String::new();
        for c in word.chars().map(|c| if c.is_ascii_digit() { '#' } else { c }) {
            if c != '#' || !plain.ends_with('#') {
                plain.push(c);
            }
        }
        plain
    };
    let mut printed = printed.split_whitespace();
    for word in shown.split_whitespace() {
        if word == "…" {
            return true;
        }
        if printed.next().is_none_or(|is| plain(is) != plain(word)) {
            return false;
        }
    }
    printed.next().is_none()
}

/// The first line that the document shows and that was not printed behind those before it.
fn missing<'a>(shown: &'a str, printed: &str) -> Option<&'a str> {
    let mut printed = printed.lines();
    shown.lines().filter(|line| !line.trim().is_empty()).find(|line| !printed.any(|is| is_like(line, is)))
}

/// What is printed before each block.
fn marker(block: &Block) -> String {
    format!("=== line {} ===", block.line)
}

/// Programs that documents may need and a machine may lack.
fn present() -> BTreeSet<&'static str> {
    let has_cbt = Command::new("cbt").arg("version").output().is_ok();
    let found = [("cbt", has_cbt), ("etcd", Build::Debian.program().is_ok()), ("python", support::python().is_some())];
    found.into_iter().filter(|(_, is_there)| *is_there).map(|(name, _)| name).collect()
}

/// Runs the commands of `document` in an empty folder and compares what they print with what it shows.
///
/// `prepare`: commands to run first.
pub(crate) fn run(document: &Path, prepare: &str) {
    let folder = tempfile::tempdir().unwrap();
    let network = Loopback::claim().unwrap();
    let host = network.host(Node::TabletServer(0));
    let text = std::fs::read_to_string(document).unwrap().replace("127.0.0.1", &host);
    let blocks = blocks(&text);
    let present = present();
    for block in blocks.iter().filter(|block| block.language != "text" && !block.is_run(&present)) {
        eprintln!("line {}: not run ({})", block.line, block.marks.join(" "));
    }
    let python = support::python().map_or("python3".to_owned(), |path| path.display().to_string());
    let mut script = prelude(folder.path(), &host);
    script.push_str(prepare);
    for block in blocks.iter().filter(|block| block.is_run(&present)) {
        if let Some(file) = block.marked("file") {
            let _infallible = write!(script, "cat > {file} <<'END OF FILE'\n{}END OF FILE\n", block.text);
        } else if block.language == "sh" {
            let commands = block.text.replace("~/.cache/ebla/python/bin/python", &python);
            let commands = commands.replace("~/.cache/ebla/bin", "$PROGRAMS");
            let _infallible = write!(script, "echo '{}'\n{commands}", marker(block));
        }
    }
    assert!(script.contains("=== line "), "{} has no commands to run", document.display());
    let printed = execute(folder.path(), &script);
    let mut last: Option<&Block> = None;
    for block in blocks.iter().filter(|block| block.language == "sh" || block.language == "text") {
        if block.language == "sh" {
            last = Some(block).filter(|block| block.is_run(&present));
        } else if let Some(commands) = last.take() {
            let from = printed.split(&marker(commands)).nth(1).unwrap();
            let from = from.split("\n=== line ").next().unwrap();
            let missing = missing(&block.text, from);
            let place = document.display();
            assert!(missing.is_none(), "{place}:{}: no line is like\n{}\n--- in\n{from}", block.line, missing.unwrap());
        }
    }
}

/// The start of the script: programs that exit with this shell, a separate address, exit at the first failure.
fn prelude(folder: &Path, host: &str) -> String {
    let programs = folder.join("programs");
    std::fs::create_dir(&programs).unwrap();
    program(
        &programs.join("ebla"),
        Path::new(support::ebla()),
        &format!("[ \"$1\" = up ] && set -- \"$@\" --listen {host}:8086"),
    );
    if let Ok(etcd) = Build::Debian.program() {
        program(&programs.join("etcd"), &etcd, "");
    }
    let programs = programs.display();
    // The lock is held by the shell and all that it starts, until the last of them has ended: see `wait_for_end`.
    format!(
        "set -eu\nexec 9>running.lock\nflock 9\nPROGRAMS='{programs}'\nPATH=\"$PROGRAMS:$PATH\"\nexport EBLA_ADDR={host}:8086\nunset BIGTABLE_EMULATOR_HOST EBLA_DATA\n"
    )
}

/// A script that becomes `program`, and ends with the shell that calls it, however that ends.
fn program(path: &PathBuf, program: &Path, before: &str) {
    use std::os::unix::fs::PermissionsExt as _;
    let text = format!("#!/bin/sh\n{before}\nexec setpriv --pdeathsig KILL -- '{}' \"$@\"\n", program.display());
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// Waits until the shell and all that it started have ended, because the next document may get the same address.
///
/// The programs in the background are killed when their shell ends, but not waited for by it.
fn wait_for_end(folder: &Path, clock: &Clock) {
    let Ok(lock) = std::fs::File::open(folder.join("running.lock")) else { return };
    let began = clock.monotonic();
    while lock.try_lock().is_err() {
        assert!(clock.monotonic() - began < END_MAX, "programs of a document run on after their shell has ended");
        support::pause();
    }
}

/// The ends of the logs that the document's programs wrote.
fn logs(folder: &Path) -> String {
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let logs = files.filter(|path| path.extension().is_some_and(|extension| extension == "log"));
    logs.fold(String::new(), |text, path| format!("{text}\n--- {}\n{}", path.display(), support::tail(&path)))
}

/// Runs the script; what it printed. A failure fails the test with the end of that and of the logs.
fn execute(folder: &Path, script: &str) -> String {
    let (file, output) = (folder.join("script.sh"), folder.join("output.txt"));
    std::fs::write(&file, script).unwrap();
    let printed = std::fs::File::create(&output).unwrap();
    let mut shell = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "--", "bash"])
        .arg(&file)
        .current_dir(folder)
        .stdin(std::process::Stdio::null())
        .stdout(printed.try_clone().unwrap())
        .stderr(printed)
        .spawn()
        .unwrap();
    let clock = Clock::system();
    let began = clock.monotonic();
    let status = loop {
        if let Some(status) = shell.try_wait().unwrap() {
            break Some(status);
        }
        if clock.monotonic() - began > RUN_MAX {
            shell.kill().unwrap();
            shell.wait().unwrap();
            break None;
        }
        support::pause();
    };
    wait_for_end(folder, &clock);
    assert!(
        status.is_some_and(|status| status.success()),
        "{}: the last lines:\n{}{}",
        status.map_or(format!("not done after {RUN_MAX:?}"), |status| status.to_string()),
        support::tail(&output),
        logs(folder)
    );
    std::fs::read_to_string(output).unwrap()
}

#[test]
fn blocks_are_parsed_and_compared_loosely() {
    let found =
        blocks("# T\n\n```sh needs=cbt\nls\n```\ntext\n```python file=a.py\nprint(1)\n```\n```sh norun\nx\n```\n");
    let languages: Vec<_> = found.iter().map(|block| (block.language.as_str(), block.line)).collect();
    assert_eq!(languages, [("sh", 4), ("python", 8), ("sh", 11)]);
    assert_eq!((found[0].text.as_str(), found[1].marked("file")), ("ls\n", Some("a.py")));
    let has_cbt = BTreeSet::from(["cbt"]);
    assert!(found[0].is_run(&has_cbt) && !found[0].is_run(&BTreeSet::new()) && !found[2].is_run(&has_cbt));
    assert!(is_like("1  127.0.0.1:8086  up", "1 127.9.9.50:40000   up"));
    assert!(is_like("cluster …", "cluster 3f2a   master x"));
    assert!(!is_like("1 up", "1 gone") && !is_like("1 up", "1 up now") && !is_like("1 up now", "1 up"));
    assert_eq!(missing("a 1\n\nc 2\n", "a 7\nb\nc 9\n"), None);
    assert_eq!(missing("c 2\na 1\n", "a 7\nb\nc 9\n"), Some("a 1"));
}

#[test]
fn a_script_has_ended_when_the_last_of_its_programs_has() {
    let folder = tempfile::tempdir().unwrap();
    let script = format!("{}(sleep 0.5; touch ended) &\n", prelude(folder.path(), "127.0.0.1"));
    execute(folder.path(), &script);
    assert!(folder.path().join("ended").exists());
}
