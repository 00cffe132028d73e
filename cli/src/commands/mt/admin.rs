//! `ebla mt admin`: administration of a mounttable.

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use ebla_mounttable_namespace::Operator;
use ebla_mounttable_namespace::operate::WriteMode;
use ebla_mounttable_namespace::operate::{Finding, Fix, Limit};
use ebla_mounttable_tree::table::Tally;
use futures::StreamExt;
use tempfile::NamedTempFile;
use tokio::sync::oneshot;

use super::dump_file::{DumpReader, DumpWriter};
use super::{report, show, to_failure};
use crate::output::{self, Failure, Format};

/// Exit code: a check has found inconsistencies that are not repaired.
const FOUND: u8 = 8;

/// Exit code: existing permissions differ.
const CONFLICT: u8 = 5;

/// Administer a mounttable as one of its superusers; uses the first --root
///
/// Examples:
///   ebla mt admin check --as admin
///   ebla mt admin dump names.jsonl --as admin
#[derive(Debug, clap::Subcommand)]
#[command(verbatim_doc_comment)]
pub(super) enum Admin {
    /// Create the root and the nodes of a permissions file; show first what changes
    ///
    /// Existing nodes that the file lists with other permissions are changed only with --overwrite: somebody may have
    /// granted or revoked rights since. Without it nothing is changed in this case, and the exit code is 5.
    ///
    /// Examples:
    ///   ebla mt admin setup
    ///   ebla mt admin setup permissions.json --dry-run
    ///   ebla mt admin setup permissions.json --overwrite
    #[command(verbatim_doc_comment)]
    Setup {
        /// JSON file with nodes and their permissions, as for `ebla mounttable --permissions-file`; default: only a root,
        /// open to all callers if the mounttable runs with --insecure-dev-identity, otherwise closed
        file: Option<PathBuf>,
        /// Change existing nodes that the file lists with other permissions
        #[arg(long)]
        overwrite: bool,
        /// Show what would change, and change nothing
        #[arg(long, conflicts_with = "overwrite")]
        dry_run: bool,
    },
    /// Check every row and counter while the mounttable serves; exit code 8 when something is inconsistent
    ///
    /// Examples:
    ///   ebla mt admin check
    ///   ebla mt admin check --fix
    #[command(verbatim_doc_comment)]
    Check {
        /// Repair inconsistencies, and fail only when some remain
        #[arg(long)]
        fix: bool,
    },
    /// Write every row and every counter, one line of JSON for each
    ///
    /// Example:
    ///   ebla mt admin dump names.jsonl
    #[command(verbatim_doc_comment)]
    Dump {
        /// File to write atomically; default: stdout
        file: Option<PathBuf>,
    },
    /// Restore a dump into a mounttable that holds only a root
    ///
    /// Example:
    ///   ebla mt admin restore names.jsonl
    #[command(verbatim_doc_comment)]
    Restore {
        /// File with the dump
        file: PathBuf,
    },
    /// Delete everything; afterwards the table must be set up or restored
    ///
    /// Example:
    ///   ebla mt admin destroy mounttable
    #[command(verbatim_doc_comment)]
    Destroy {
        /// Name of the table, as a confirmation
        table: String,
    },
    /// Delete expired mounts, empty nodes and leftovers now; servers also do that periodically
    ///
    /// Example:
    ///   ebla mt admin sweep
    #[command(verbatim_doc_comment)]
    Sweep,
    /// Recount the nodes and servers that users are charged for
    ///
    /// Example:
    ///   ebla mt admin recount
    #[command(verbatim_doc_comment)]
    Recount,
    /// Set the limits of a user
    ///
    /// Examples:
    ///   ebla mt admin limit alice --nodes 50000
    ///   ebla mt admin limit alice --nodes default --servers unlimited
    #[command(verbatim_doc_comment)]
    Limit {
        /// User, as `ebla mt whoami` shows it
        user: String,
        /// Maximum number of nodes: a number, unlimited, or default
        #[arg(long, value_name = "LIMIT", value_parser = parse_limit, required_unless_present = "servers")]
        nodes: Option<Limit>,
        /// Maximum number of servers: a number, unlimited, or default
        #[arg(long, value_name = "LIMIT", value_parser = parse_limit)]
        servers: Option<Limit>,
    },
    /// Show the default limits, and the users with individual limits
    ///
    /// Example:
    ///   ebla mt admin limits
    #[command(verbatim_doc_comment)]
    Limits,
    /// Make the server refuse all changes until it is switched back or restarted
    ///
    /// Examples:
    ///   ebla mt admin readonly on
    ///   ebla mt admin readonly off
    #[command(verbatim_doc_comment)]
    Readonly {
        /// on or off
        #[arg(value_parser = parse_switch)]
        to: WriteMode,
    },
    /// Show the counters of the server since it started
    ///
    /// Example:
    ///   ebla mt admin counters
    #[command(verbatim_doc_comment)]
    Counters,
}

pub(super) async fn run(command: Admin, operator: &Operator, format: Format) -> Result<(), Failure> {
    let known = match command {
        Admin::Setup { file, overwrite, dry_run } => {
            let text = file.map(|file| std::fs::read_to_string(&file).map_err(|error| unreadable(&file, &error)));
            let text = text.transpose()?.unwrap_or_default();
            let mode = match (dry_run, overwrite) {
                (true, _) => SetupMode::DryRun,
                (false, true) => SetupMode::Overwrite,
                (false, false) => SetupMode::CreateOnly,
            };
            return set_up(operator, &text, mode, format).await;
        }
        Admin::Check { fix } => {
            let fix = if fix { Fix::Repair } else { Fix::Report };
            return report_findings(&operator.check(fix).await.map_err(to_failure)?, format);
        }
        Admin::Dump { file: None } => {
            // A failed write to stdout is reported at the end, as for every command.
            return dump(operator, &mut Stdout).await.map(drop).or_else(|failure| match output::is_closed() {
                true => Ok(()),
                false => Err(failure),
            });
        }
        Admin::Dump { file: Some(file) } => show::tally(dump_to(operator, &file).await?),
        Admin::Restore { file } => restore(operator, &file).await.map(show::tally)?,
        Admin::Destroy { table } => show::tally(operator.destroy(&table).await.map_err(to_failure)?),
        Admin::Sweep => show::swept(operator.sweep().await.map_err(to_failure)?),
        Admin::Recount => {
            let corrections = operator.recount().await.map_err(to_failure)?;
            output::print(&show::corrections(format, &corrections));
            return Ok(());
        }
        Admin::Limit { user, nodes, servers } => {
            let [nodes, servers] = [nodes, servers].map(|limit| limit.unwrap_or(Limit::Unchanged));
            operator.set_limits(&user, nodes, servers).await.map_err(to_failure)?;
            report(format, &show::limits_changed(&user), || format!("changed the limits of {user}"));
            return Ok(());
        }
        Admin::Limits => {
            output::print(&show::limits(format, &operator.limits().await.map_err(to_failure)?));
            return Ok(());
        }
        Admin::Readonly { to } => {
            let was = operator.set_write_mode(to).await.map_err(to_failure)?;
            show::write_mode(to, was)
        }
        Admin::Counters => {
            let (lookups, requests) = operator.counters().await.map_err(to_failure)?;
            show::counters(lookups, requests)
        }
    };
    output::print(&show::facts(format, &known));
    Ok(())
}

/// What a setup may do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SetupMode {
    /// Create nodes. If existing ones would change, nothing is done.
    CreateOnly,
    /// Create nodes, and change existing ones.
    Overwrite,
    /// Nothing: only the changes are shown.
    DryRun,
}

/// Shows what a permissions file changes, then applies it if `mode` allows that.
async fn set_up(operator: &Operator, file: &str, mode: SetupMode, format: Format) -> Result<(), Failure> {
    let changes = operator.preview_setup(file).await.map_err(to_failure)?;
    let overwritten = changes.iter().filter(|change| change.before.is_some()).count();
    let is_refused = mode == SetupMode::CreateOnly && overwritten > 0;
    if format == Format::Table {
        output::print(&show::node_changes(&changes));
    }
    let changed = match mode {
        SetupMode::DryRun => 0,
        _ if is_refused => 0,
        SetupMode::CreateOnly | SetupMode::Overwrite => operator.setup(file).await.map_err(to_failure)?,
    };
    output::print(&show::setup(format, changed, &changes));
    if is_refused {
        let message = format!(
            "nothing was changed: the file has other permissions for {overwritten} existing nodes, shown above. Repeat with \
             --overwrite to change them, or remove them from the file"
        );
        return Err(Failure { message, code: CONFLICT });
    }
    Ok(())
}

fn parse_limit(text: &str) -> Result<Limit, String> {
    match text {
        "default" => Ok(Limit::Default),
        "unlimited" => Ok(Limit::Own(0)),
        _ => match text.parse() {
            Ok(limit @ 1..) => Ok(Limit::Own(limit)),
            _ => Err("expected a number above zero, unlimited or default".to_owned()),
        },
    }
}

fn parse_switch(text: &str) -> Result<WriteMode, String> {
    match text {
        "on" => Ok(WriteMode::ReadOnly),
        "off" => Ok(WriteMode::ReadWrite),
        _ => Err("expected on or off".to_owned()),
    }
}

/// Writes with [`output::print_bytes`], which records failures.
struct Stdout;

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        output::print_bytes(bytes);
        if output::is_closed() { Err(std::io::ErrorKind::BrokenPipe.into()) } else { Ok(bytes.len()) }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Shows the findings; fails when some of them are not repaired.
fn report_findings(findings: &[Finding], format: Format) -> Result<(), Failure> {
    output::print(&show::findings(format, findings));
    if format == Format::Table && findings.is_empty() {
        output::note("no inconsistencies found");
    }
    let left = findings.iter().filter(|finding| !finding.is_fixed).count();
    if left == 0 {
        return Ok(());
    }
    let next = "changes in progress are reported too: check again, or repair with --fix";
    Err(Failure { message: format!("inconsistencies: {left}; {next}"), code: FOUND })
}

async fn dump(operator: &Operator, to: &mut impl Write) -> Result<Tally, Failure> {
    let mut parts = operator.dump().await.map_err(to_failure)?;
    let mut writer = DumpWriter::begin(BufWriter::new(to))?;
    while let Some(part) = parts.next().await {
        writer.write(part.map_err(to_failure)?)?;
    }
    Ok(writer.end()?)
}

/// Writes a dump to a file atomically.
async fn dump_to(operator: &Operator, file: &Path) -> Result<Tally, Failure> {
    let unwritable = |error: std::io::Error| Failure::usage(format!("write {}: {error}", file.display()));
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut written = NamedTempFile::new_in(folder).map_err(unwritable)?;
    let tally = dump(operator, written.as_file_mut()).await?;
    written.as_file().sync_all().map_err(unwritable)?;
    written.persist(file).map_err(|error| unwritable(error.error))?;
    Ok(tally)
}

/// Validates the whole file before anything is written.
async fn restore(operator: &Operator, file: &Path) -> Result<Tally, Failure> {
    let open = || {
        let opened = File::open(file).map_err(|error| unreadable(file, &error))?;
        Ok::<_, Failure>(DumpReader::of(BufReader::new(opened).lines()))
    };
    let bad = |wrong: String| Failure::usage(format!("{}: {wrong}", file.display()));
    for part in open()? {
        part.map_err(bad)?;
    }
    let (sender, changed) = oneshot::channel();
    let mut sender = Some(sender);
    let parts = open()?.map(move |part| part.map_err(|wrong| sender.take().map(|sender| sender.send(wrong))));
    // When the file was changed since the validation, the stream must not end here: a partial restore would look complete.
    let parts = futures::stream::iter(parts).filter_map(async |part| match part {
        Ok(part) => Some(part),
        Err(_) => std::future::pending().await,
    });
    tokio::select! {
        tally = operator.restore(parts) => tally.map_err(to_failure),
        Ok(wrong) = changed => Err(bad(format!("{wrong}; the file was changed during the restore: delete everything with `ebla mt admin destroy`, and restore again"))),
    }
}

fn unreadable(file: &Path, error: &std::io::Error) -> Failure {
    Failure::usage(format!("read {}: {error}", file.display()))
}
