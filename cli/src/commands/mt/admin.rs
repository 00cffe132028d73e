//! `ebla mt admin`: looking after a mounttable.

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use ebla_mounttable::service::Changes;
use ebla_mounttable::table::Tally;
use ebla_mounttable_namespace::Operator;
use ebla_mounttable_namespace::operate::{Finding, Fix, Limit};
use futures::StreamExt;
use serde_json::{Value, json};
use tempfile::NamedTempFile;
use tokio::sync::oneshot;

use super::saved::{Reader, Writer};
use super::{refused, show};
use crate::output::{self, Failure, Format};

/// A check has found something that is still there.
const FOUND: u8 = 8;

/// Looking after a mounttable.
#[derive(Debug, clap::Subcommand)]
pub(super) enum Admin {
    /// Make the root and the nodes of a permissions file, or change those that are there
    Setup {
        /// Names and what is permitted there, as for ebla mounttable --permissions-file; without it an open root
        file: Option<PathBuf>,
    },
    /// Look at every row and counter, while others go on; exit code 8 when something does not fit
    Check {
        /// Mend what can be mended, and fail only with what is left
        #[arg(long)]
        fix: bool,
    },
    /// Write every row and every counter, a line of JSON for each
    Dump {
        /// Where to, whole or not at all; without it stdout
        file: Option<PathBuf>,
    },
    /// Write what a dump told into a mounttable that holds nothing but a root
    Restore {
        /// The dump
        file: PathBuf,
    },
    /// Remove everything; the table is then set up or restored anew
    Destroy {
        /// The name of the table, so that it is the right one
        table: String,
    },
    /// Remove what was left behind, what has expired, what is empty; servers do that by themselves too
    Sweep,
    /// Put right what users are charged for
    Recount,
    /// Give a user limits of his own
    Limit {
        /// The user, as whoami tells
        user: String,
        /// A number, unlimited, or default: that of everybody
        #[arg(long, value_name = "LIMIT", value_parser = limit, required_unless_present = "servers")]
        nodes: Option<Limit>,
        /// The same, of servers
        #[arg(long, value_name = "LIMIT", value_parser = limit)]
        servers: Option<Limit>,
    },
    /// The limits of everybody, and users with limits of their own
    Limits,
    /// Whether that server refuses every change, until it is told otherwise or restarted
    Readonly {
        /// on or off
        #[arg(value_parser = switch)]
        to: Changes,
    },
    /// What that server has done since it began
    Counters,
}

pub(super) async fn run(command: Admin, operator: &Operator, format: Format) -> Result<(), Failure> {
    let known = match command {
        Admin::Setup { file } => {
            let text = file.map(|file| std::fs::read_to_string(&file).map_err(|error| unreadable(&file, &error)));
            let changed = operator.setup(&text.transpose()?.unwrap_or_default()).await.map_err(refused)?;
            json!({"changed": changed})
        }
        Admin::Check { fix } => {
            let fix = if fix { Fix::Mend } else { Fix::Tell };
            return judge(&operator.check(fix).await.map_err(refused)?, format);
        }
        Admin::Dump { file: None } => {
            return dump(operator, &mut std::io::stdout()).await.map(drop);
        }
        Admin::Dump { file: Some(file) } => tally(dump_to(operator, &file).await?),
        Admin::Restore { file } => restore(operator, &file).await.map(tally)?,
        Admin::Destroy { table } => tally(operator.destroy(&table).await.map_err(refused)?),
        Admin::Sweep => {
            let swept = operator.sweep().await.map_err(refused)?;
            json!({
                "orphans": swept.orphans,
                "intents": swept.intents,
                "deletions": swept.deletions,
                "expired": swept.expired,
                "damaged": swept.damaged,
            })
        }
        Admin::Recount => {
            let corrections = operator.recount().await.map_err(refused)?;
            output::print(&show::corrections(format, &corrections));
            return Ok(());
        }
        Admin::Limit { user, nodes, servers } => {
            let [nodes, servers] = [nodes, servers].map(|limit| limit.unwrap_or(Limit::Unchanged));
            return operator.set_limits(&user, nodes, servers).await.map_err(refused);
        }
        Admin::Limits => {
            output::print(&show::limits(format, &operator.limits().await.map_err(refused)?));
            return Ok(());
        }
        Admin::Readonly { to } => {
            let was = operator.set_changes(to).await.map_err(refused)?;
            json!({"read_only": to == Changes::Refused, "was_read_only": was == Changes::Refused})
        }
        Admin::Counters => {
            let (lookups, requests) = operator.counters().await.map_err(refused)?;
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
    };
    output::print(&show::facts(format, &known));
    Ok(())
}

fn limit(text: &str) -> Result<Limit, String> {
    match text {
        "default" => Ok(Limit::OfEverybody),
        "unlimited" => Ok(Limit::Own(0)),
        _ => match text.parse() {
            Ok(limit @ 1..) => Ok(Limit::Own(limit)),
            _ => Err("neither a number above zero nor unlimited nor default".to_owned()),
        },
    }
}

fn switch(text: &str) -> Result<Changes, String> {
    match text {
        "on" => Ok(Changes::Refused),
        "off" => Ok(Changes::Made),
        _ => Err("neither on nor off".to_owned()),
    }
}

fn tally(tally: Tally) -> Value {
    json!({"rows": tally.rows, "counters": tally.counters})
}

/// Shows what was found; a failure when some of it is still there.
fn judge(findings: &[Finding], format: Format) -> Result<(), Failure> {
    output::print(&show::findings(format, findings));
    let left = findings.iter().filter(|finding| !finding.is_fixed).count();
    if left == 0 {
        return Ok(());
    }
    let next = "what others are just doing is found too: check again, or mend it with --fix";
    Err(Failure { message: format!("{left} things do not fit; {next}"), code: FOUND })
}

async fn dump(operator: &Operator, to: &mut impl Write) -> Result<Tally, Failure> {
    let mut parts = operator.dump().await.map_err(refused)?;
    let mut writer = Writer::begin(BufWriter::new(to))?;
    while let Some(part) = parts.next().await {
        writer.write(part.map_err(refused)?)?;
    }
    Ok(writer.end()?)
}

/// Whole, or not at all.
async fn dump_to(operator: &Operator, file: &Path) -> Result<Tally, Failure> {
    let unwritable = |error: std::io::Error| Failure::usage(format!("write {}: {error}", file.display()));
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut written = NamedTempFile::new_in(folder).map_err(unwritable)?;
    let tally = dump(operator, written.as_file_mut()).await?;
    written.as_file().sync_all().map_err(unwritable)?;
    written.persist(file).map_err(|error| unwritable(error.error))?;
    Ok(tally)
}

/// Looks through the whole file before anything is written.
async fn restore(operator: &Operator, file: &Path) -> Result<Tally, Failure> {
    let open = || {
        let opened = File::open(file).map_err(|error| unreadable(file, &error))?;
        Ok::<_, Failure>(Reader::of(BufReader::new(opened).lines()))
    };
    let bad = |wrong: String| Failure::usage(format!("{}: {wrong}", file.display()));
    for part in open()? {
        part.map_err(bad)?;
    }
    let (tell, told) = oneshot::channel();
    let mut tell = Some(tell);
    let parts = open()?.map(move |part| part.map_err(|wrong| tell.take().map(|tell| tell.send(wrong))));
    // A file that was changed since must not look like one that ends here: what is restored would be taken for all.
    let parts = futures::stream::iter(parts).filter_map(async |part| match part {
        Ok(part) => Some(part),
        Err(_) => std::future::pending().await,
    });
    tokio::select! {
        tally = operator.restore(parts) => tally.map_err(refused),
        Ok(wrong) = told => Err(bad(format!("{wrong}; it was changed meanwhile: destroy what is restored, and begin again"))),
    }
}

fn unreadable(file: &Path, error: &std::io::Error) -> Failure {
    Failure::usage(format!("read {}: {error}", file.display()))
}
