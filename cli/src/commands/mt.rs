//! `ebla mt`: the client commands of a mounttable.
//!
//! Exit codes: 0 done, 2 usage, 3 not found, 4 denied, 5 conflict, 6 unavailable, 8 inconsistencies found by a check, 1 any
//! other failure.

mod admin;
mod bench;
#[cfg(test)]
mod documents;
mod dump_file;
mod health;
mod list;
mod perms;
mod publish;
mod show;
#[cfg(test)]
mod tests;
mod trace;

#[cfg(test)]
pub(super) use self::documents::documents;

use std::path::{Path, PathBuf};
use std::time::Duration;

use ebla_mounttable_namespace::change::MOUNTS_NOT_FOLLOWED;
use ebla_mounttable_namespace::recipients::TOKEN_WITHHELD;
use ebla_mounttable_namespace::{Builder, ChangeScope, MountOptions, Namespace, Roots, ServerResults};
use ebla_mounttable_tree::table::Subtree;
use ebla_mounttable_tree::{Error, MountMode, Reason, ServerAddress, Target, TargetFlags, naming};
use ebla_runtime::Runtime;
use futures::StreamExt;
use serde_json::Value;

use crate::output::{self, Failure, Format};

/// The default mounttable.
const ROOT: &str = "/127.0.0.1:8101";

/// The default time to live of a mount.
const MOUNT_SECONDS: u32 = 300;

/// Use a mounttable: mount servers under names, resolve, list, permissions
///
/// Examples:
///   ebla mt mount prod/web 10.0.0.1:80
///   ebla mt resolve prod/web
///
/// Exit codes: 0 done, 2 usage, 3 not found, 4 denied, 5 conflict, 6 unavailable, 8 check found inconsistencies, 1 other.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Mt {
    #[command(flatten)]
    root: Root,
    #[command(subcommand)]
    command: Command,
}

/// Options that select the mounttable and the identity of the caller.
#[derive(Clone, Debug, clap::Args)]
pub struct Root {
    /// Address of the mounttable where names start; repeat for several equivalent ones. Default: the addresses in
    /// environment variables whose names start with MT_ROOT, or else 127.0.0.1:8101
    #[arg(long, global = true, value_name = "HOST:PORT")]
    pub root: Vec<String>,
    /// Identity of the caller, accepted by a server with --insecure-dev-identity: names, separated by commas
    #[arg(long = "as", global = true, value_name = "NAMES", env = "MT_IDENTITY")]
    pub identity: Option<String>,
    /// File with the token (JWT) that authenticates the caller at a server with --jwt-keys
    #[arg(long, global = true, value_name = "FILE", env = "MT_TOKEN_FILE", conflicts_with = "identity")]
    pub token_file: Option<PathBuf>,
    /// Send the token although the connection has no TLS: everybody on the network path can read it and use it
    #[arg(long, global = true)]
    pub insecure_token: bool,
    /// Mounted mounttable that receives the token too; repeat for several. Without this only --root and the server of a
    /// name that begins with /HOST:PORT receive it
    #[arg(long, global = true, value_name = "HOST:PORT")]
    pub token_server: Vec<String>,
    /// Let deletions and permissions of names behind a mounted mounttable go to that mounttable. Without this they are refused:
    /// a user who may mount a server could redirect them
    #[arg(long, global = true)]
    pub follow_mounts: bool,
    /// Output format
    #[arg(short = 'o', long = "output", global = true, env = "EBLA_OUTPUT", value_parser = output::layouts(), default_value = "table")]
    pub output: Format,
}

/// The commands.
#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Mount a server under a name, by default for five minutes
    ///
    /// Examples:
    ///   ebla mt mount prod/web 10.0.0.1:80
    ///   ebla mt mount prod/web 10.0.0.1:80 3600 --replace
    ///   ebla mt mount prod/web 10.0.0.1:80 --forever
    ///
    /// Missing nodes above the name are created. Mounting a server again sets a new expiry; `ebla mt
    /// publish` does that as long as it runs.
    #[command(verbatim_doc_comment)]
    Mount {
        /// Name to mount under
        name: String,
        /// Address of the server: HOST:PORT, or /HOST:PORT/NAME for a name in it
        server: String,
        /// Seconds until the mount expires; 0 means never
        #[arg(default_value_t = MOUNT_SECONDS)]
        ttl: u32,
        /// The mount never expires
        #[arg(long, conflicts_with = "ttl")]
        forever: bool,
        /// The server is a mounttable itself
        #[arg(long, conflicts_with = "leaf")]
        mt: bool,
        /// The server is a leaf: it has no names of its own
        #[arg(long)]
        leaf: bool,
        /// Replace existing mounts
        #[arg(long)]
        replace: bool,
    },
    /// Unmount a server from a name, or all servers
    ///
    /// Examples:
    ///   ebla mt unmount prod/web 10.0.0.1:80
    ///   ebla mt unmount prod/web
    #[command(verbatim_doc_comment)]
    Unmount {
        /// Name that the server is mounted under
        name: String,
        /// Address of the server; default: all servers
        server: Option<String>,
    },
    /// Show the servers that a name resolves to
    ///
    /// Examples:
    ///   ebla mt resolve prod/web
    ///   ebla mt resolve prod/web/index --trace
    ///
    /// SUFFIX is the rest of the name, which the server itself resolves.
    #[command(verbatim_doc_comment)]
    Resolve {
        /// Name to resolve
        name: String,
        /// Show each step: which server was asked, what it answered, how long it took
        #[arg(long)]
        trace: bool,
        /// Show what is mounted at the name itself; do not follow a mounttable that is mounted there
        #[arg(short, long, conflicts_with_all = ["trace", "table"])]
        shallow: bool,
        /// Show the mounttable that holds the name, or would hold it
        #[arg(long, conflicts_with = "trace")]
        table: bool,
    },
    /// Show what a name resolves to, and show it again after every change, until Ctrl-C
    ///
    /// Examples:
    ///   ebla mt watch prod/web
    ///   ebla mt watch prod/web --count 1 -o json
    ///
    /// With -o json each result is one line.
    #[command(verbatim_doc_comment)]
    Watch {
        /// Name to watch
        name: String,
        /// Stop after this many results
        #[arg(long, value_name = "N")]
        count: Option<usize>,
    },
    /// List names that match a pattern (follows mounted mounttables)
    ///
    /// Examples:
    ///   ebla mt glob 'prod/*/web-[0-9]'
    ///   ebla mt glob prod/... --long
    #[command(verbatim_doc_comment)]
    Glob {
        /// Pattern: * ? [a-z] within an element of a name; ... as the last element matches everything below
        pattern: String,
        /// Show one line for each server, with its kind and its expiry
        #[arg(short, long)]
        long: bool,
    },
    /// List the children of a name
    ///
    /// Examples:
    ///   ebla mt ls
    ///   ebla mt ls prod --long
    #[command(verbatim_doc_comment)]
    Ls {
        /// Name whose children are listed; default: the root
        #[arg(default_value = "")]
        name: String,
        /// Show one line for each server, with its kind and its expiry
        #[arg(short, long)]
        long: bool,
    },
    /// Show everything below a name as a tree
    ///
    /// Examples:
    ///   ebla mt tree
    ///   ebla mt tree prod --depth 2
    #[command(verbatim_doc_comment)]
    Tree {
        /// Name to start at; default: the root
        #[arg(default_value = "")]
        name: String,
        /// Show at most this many levels
        #[arg(short, long, value_parser = clap::value_parser!(u8).range(1..=64))]
        depth: Option<u8>,
    },
    /// Delete a node; exit code 3 when it does not exist
    ///
    /// Examples:
    ///   ebla mt rm prod/web
    ///   ebla mt rm --recursive prod
    #[command(verbatim_doc_comment)]
    Rm {
        /// Name of the node
        name: String,
        /// Delete everything below it too
        #[arg(short, long)]
        recursive: bool,
    },
    /// Show a node's creator, creation time, version, and number of servers and children
    ///
    /// Example:
    ///   ebla mt stat prod/web
    #[command(verbatim_doc_comment)]
    Stat {
        /// Name of the node
        name: String,
    },
    /// Keep servers mounted while a command runs, or until Ctrl-C
    ///
    /// Examples:
    ///   ebla mt publish prod/web --server 10.0.0.1:80
    ///   ebla mt publish prod/web --server 10.0.0.1:80 -- ./web-server --port 80
    ///   ebla mt publish prod/web --server 10.0.0.1:80 --check http=/health -- ./web-server --port 80
    ///
    /// The command starts when all servers are mounted; if that fails, it does not start. With --check it starts at once,
    /// because it may be the server that must become healthy. `publish` exits with the exit code of the command. At the end
    /// the servers are unmounted.
    #[command(verbatim_doc_comment)]
    Publish {
        /// Names to mount the servers under
        #[arg(required = true)]
        names: Vec<String>,
        /// Address of a server; repeat for several
        #[arg(long, value_name = "HOST:PORT", required = true)]
        server: Vec<String>,
        /// Seconds after which a mount is renewed; it expires 20 seconds later
        #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
        period: u32,
        /// Timeout in seconds of the first mounts; after that the command is not started
        #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..),
            requires = "command", conflicts_with = "check")]
        wait: u32,
        /// The server is a mounttable itself
        #[arg(long, conflicts_with = "leaf")]
        mt: bool,
        /// The server is a leaf: it has no names of its own
        #[arg(long)]
        leaf: bool,
        /// Mount a server only while it is healthy: tcp (it accepts connections), grpc or grpc=SERVICE (grpc.health.v1
        /// says that it serves), http=/PATH (the answer is 2xx), exec=COMMAND (the shell command exits with 0; it finds
        /// the address in $SERVER)
        #[arg(long, value_name = "HOW")]
        check: Option<health::Check>,
        /// Seconds between two health checks; after two failures in a row the server is unmounted
        #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
        check_every: u32,
        /// Command to run, with its arguments, after --
        #[arg(last = true)]
        command: Vec<String>,
    },
    Bench(bench::Bench),
    #[command(subcommand)]
    Perms(perms::Perms),
    /// Show the authenticated caller and their quota use
    ///
    /// Examples:
    ///   ebla mt whoami
    ///   ebla mt whoami --as alice
    #[command(verbatim_doc_comment)]
    Whoami,
    #[command(subcommand)]
    Admin(admin::Admin),
}

/// Carries out the command.
///
/// # Errors
/// What the mounttable answers.
pub async fn run(mt: Mt, runtime: Runtime) -> Result<(), Failure> {
    execute(mt, runtime).await.map_err(with_next_step)
}

/// Adds the next step when no server answered (the address is wrong, or nothing listens there), when a change would follow a
/// mount, and when a mounted server refused a call without the token.
fn with_next_step(failure: Failure) -> Failure {
    let next = if failure.message.contains(&format!("({})", Reason::Unavailable)) {
        "check that a mounttable is running there; start one with `ebla mounttable`, or give another address with --root"
    } else if failure.message.contains(MOUNTS_NOT_FOLLOWED) {
        "--follow-mounts lets them"
    } else if failure.message.contains(TOKEN_WITHHELD) {
        "--token-server HOST:PORT sends it to a server that you trust"
    } else {
        return failure;
    };
    Failure { message: format!("{}; {next}", failure.message), ..failure }
}

async fn execute(Mt { root, command }: Mt, runtime: Runtime) -> Result<(), Failure> {
    let names = root.namespace(&runtime)?;
    let (format, now) = (root.output, runtime.clock.wall());
    match command {
        Command::Mount { name, server, ttl, forever, mt, leaf, replace } => {
            let server: ServerAddress = server.parse().map_err(to_failure)?;
            let mode = if replace { MountMode::Replace } else { MountMode::Add };
            let ttl = Duration::from_secs(if forever { 0 } else { ttl.into() });
            let options =
                MountOptions { ttl, target: Target::from(TargetFlags { serves_mount_table: mt, is_leaf: leaf }), mode };
            let outcomes = names.mount(&name, &server, options).await.map_err(to_failure)?;
            let mounted = done(&outcomes)?;
            if let Some(first) = mounted.first() {
                report(format, &show::mounted(&name, &server, first.deadline), || {
                    show::mounted_line(&name, &server, first.deadline, now)
                });
            }
            if mounted.iter().any(|mounted| mounted.hides_children) {
                output::note(&format!("{name} has children, which are hidden while a server is mounted on it"));
            }
            Ok(())
        }
        Command::Unmount { name, server } => {
            let server: Option<ServerAddress> = server.map(|it| it.parse()).transpose().map_err(to_failure)?;
            let removed = done(&names.unmount(&name, server.as_ref()).await.map_err(to_failure)?)?;
            let removed = removed.into_iter().max().unwrap_or_default();
            report(format, &show::unmounted(&name, removed), || match (removed, &server) {
                (0, Some(server)) => format!("{server} was not mounted under {name}"),
                (0, None) => format!("nothing was mounted under {name}"),
                (removed, _) => format!("unmounted {removed} servers from {name}"),
            });
            Ok(())
        }
        Command::Resolve { name, trace: true, .. } => {
            let resolved = names.trace(&name).await;
            trace::show(format, &resolved);
            let entry = resolved.outcome.map_err(to_failure)?;
            if format == Format::Table {
                output::print(&show::resolved(format, now, &entry));
            }
            Ok(())
        }
        Command::Resolve { name, shallow, table, .. } => {
            let entry = match (shallow, table) {
                (true, _) => names.shallow_resolve(&name).await,
                (_, true) => names.resolve_to_mount_table(&name).await,
                _ => names.resolve(&name).await,
            };
            output::print(&show::resolved(format, now, &entry.map_err(to_failure)?));
            Ok(())
        }
        Command::Watch { name, count } => {
            let mut states = names.watch(&name).take(count.unwrap_or(usize::MAX));
            while let Some(state) = states.next().await {
                output::print(&show::watched(format, runtime.clock.wall(), state.map_err(to_failure)?.as_ref()));
                if output::is_closed() {
                    break;
                }
            }
            Ok(())
        }
        Command::Glob { pattern, long } => {
            list::run(&names, &pattern, "", list::ListingStyle { format, long, now }).await
        }
        Command::Ls { name, long } => list::below(&names, &name, list::ListingStyle { format, long, now }).await,
        Command::Tree { name, depth } => list::tree(&names, &name, depth, format).await,
        Command::Rm { name, recursive } => {
            let subtree = if recursive { Subtree::Delete } else { Subtree::Refuse };
            let deleted = done(&names.delete(&name, subtree).await.map_err(to_failure)?)?;
            let deleted = deleted.into_iter().max().unwrap_or_default();
            if deleted == 0 {
                return Err(to_failure(Error::new(Reason::NoSuchName, format!("{name} does not exist"))));
            }
            report(format, &show::deleted(&name, deleted), || format!("deleted {deleted} nodes"));
            Ok(())
        }
        Command::Stat { name } => {
            let node = names.node(&name).await.map_err(to_failure)?;
            output::print(&show::node(format, &node));
            Ok(())
        }
        Command::Publish { names: called, server, period, wait, mt, leaf, check, check_every, command } => {
            let servers = server.iter().map(|it| it.parse()).collect::<Result<_, Error>>().map_err(to_failure)?;
            let check = check.map(|check| (check, Duration::from_secs(check_every.into())));
            let (target, wait) =
                (Target::from(TargetFlags { serves_mount_table: mt, is_leaf: leaf }), Duration::from_secs(wait.into()));
            let plan = publish::Plan { names: called, servers, period, target, wait, check, command };
            publish::run(&names, &runtime.net, plan).await
        }
        Command::Perms(command) => perms::run(command, &names, format).await,
        Command::Whoami => {
            let who = names.who_am_i().await.map_err(to_failure)?;
            output::print(&show::caller(format, &who));
            Ok(())
        }
        Command::Admin(command) => admin::run(command, &names.operator().map_err(to_failure)?, format).await,
        Command::Bench(command) => bench::run(command, &root, runtime).await,
    }
}

/// The results of the reachable servers; unreachable ones are noted on stderr. Servers of one table are equivalent, so one is enough.
fn done<T: Copy>(outcomes: &ServerResults<T>) -> Result<Vec<T>, Failure> {
    let (mut done, mut unreachable) = (Vec::new(), Vec::new());
    for (_, outcome) in outcomes.each() {
        match outcome {
            Ok(answer) => done.push(*answer),
            Err(error) if error.reason == Reason::Unavailable => unreachable.push(error),
            Err(error) => return Err(to_failure(error.clone())),
        }
    }
    match unreachable.first() {
        Some(error) if done.is_empty() => return Err(to_failure((*error).clone())),
        _ => unreachable
            .iter()
            .for_each(|error| output::note(&format!("done, but one of the servers is unreachable: {}", error.message))),
    }
    Ok(done)
}

/// Reports a change: as JSON on stdout for programs, as a line on stderr for people.
fn report(format: Format, document: &Value, line: impl FnOnce() -> String) {
    match format {
        Format::Json => output::print_json(document),
        Format::Table => output::note(&line()),
    }
}

/// Converts an error of the mounttable into a failure with its exit code.
pub fn to_failure(error: Error) -> Failure {
    let code = match error.reason {
        Reason::BadAddress | Reason::BadName | Reason::BadPattern | Reason::BadPermissions | Reason::BadRequest => 2,
        Reason::NoSuchName | Reason::NoSuchNameRoot => 3,
        Reason::NoAccess | Reason::NotAuthenticated | Reason::MatchesOmitted => 4,
        Reason::BadVersion
        | Reason::Contention
        | Reason::NotEmpty
        | Reason::Root
        | Reason::FlagsConflict
        | Reason::ShadowedByMount => 5,
        Reason::ReadOnly | Reason::Unavailable => 6,
        _ => 1,
    };
    Failure { message: format!("{} ({})", error.message, error.reason), code }
}

/// The namespace of a caller who authenticates with the token in `token_file`, or claims the identity `called`.
///
/// # Errors
/// Usage, when the token cannot be read, or may not be sent on the connections of the builder.
pub(super) fn namespace(
    builder: Builder,
    token_file: Option<&Path>,
    called: Option<&str>,
) -> Result<Namespace, Failure> {
    let builder = match (token_file, called) {
        (Some(path), _) => {
            let unreadable = |error| Failure::usage(format!("read the token in {}: {error}", path.display()));
            builder.token(std::fs::read_to_string(path).map_err(unreadable)?)
        }
        (None, Some(names)) => builder.identity(names),
        (None, None) => builder,
    };
    builder.build().map_err(to_failure)
}

/// A root as a rooted name: adds the leading slash that users may leave out.
pub(super) fn rooted(text: &str) -> String {
    if naming::is_rooted(text) { text.to_owned() } else { format!("/{text}") }
}

impl Root {
    /// The namespace that starts at these roots.
    fn namespace(&self, runtime: &Runtime) -> Result<Namespace, Failure> {
        let roots = self.roots().map_err(to_failure)?;
        let token_servers: Vec<_> = self.token_server.iter().map(|text| rooted(text)).collect();
        let token_servers = Roots::new(token_servers.iter().map(String::as_str)).map_err(to_failure)?;
        let scope = if self.follow_mounts { ChangeScope::MountedTables } else { ChangeScope::NamedTable };
        let builder = Namespace::builder(runtime.clone()).roots(roots).token_servers(token_servers).change_scope(scope);
        let builder = if self.insecure_token { builder.allow_plaintext_token() } else { builder };
        namespace(builder, self.token_file.as_deref(), self.identity.as_deref())
    }

    fn roots(&self) -> Result<Roots, Error> {
        let given: Vec<_> = self.root.iter().map(|text| rooted(text)).collect();
        let variables = std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value)));
        let variables = variables.filter(|(_name, value)| !value.is_empty());
        let variables = variables.map(|(name, value)| (name, rooted(&value.to_string_lossy())));
        let roots = if given.is_empty() {
            Roots::from_environment(variables)?
        } else {
            Roots::new(given.iter().map(String::as_str))?
        };
        if roots.addresses().is_empty() { Roots::new([ROOT]) } else { Ok(roots) }
    }
}
