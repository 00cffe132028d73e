//! `ebla mt`: what a person or a script asks of a mounttable.
//!
//! Exit codes: 0 done, 2 usage, 3 not found, 4 denied, 5 conflict, 6 unavailable, 8 a check has found something, 1 anything
//! else.

mod admin;
mod bench;
mod health;
mod list;
mod perms;
mod publish;
mod saved;
mod show;
#[cfg(test)]
mod tests;
mod trace;

use std::path::{Path, PathBuf};
use std::time::Duration;

use ebla_mounttable::table::Subtree;
use ebla_mounttable::{Error, MountMode, Reason, ServerAddress, Target, naming};
use ebla_mounttable_namespace::{MountOptions, Namespace, Outcomes, Roots};
use ebla_runtime::Runtime;
use futures::StreamExt;

use crate::output::{self, Failure, Format};

/// The mounttable that is asked when none is named.
const ROOT: &str = "/127.0.0.1:8101";

/// Names.
#[derive(Debug, clap::Args)]
pub struct Mt {
    #[command(flatten)]
    root: Root,
    #[command(subcommand)]
    command: Command,
}

/// Which mounttable, and as whom.
#[derive(Clone, Debug, clap::Args)]
pub struct Root {
    /// HOST:PORT of a mounttable, where names begin; several that are equivalent may be given. Without it those in the
    /// variables whose names begin with MT_ROOT, or else 127.0.0.1:8101
    #[arg(long, global = true, value_name = "HOST:PORT")]
    pub root: Vec<String>,
    /// Who calls, as a server with --insecure-dev-identity believes it: names, separated by commas
    #[arg(long = "as", global = true, value_name = "NAMES", env = "MT_IDENTITY")]
    pub identity: Option<String>,
    /// A file with the token (JWT) that tells a server with --jwt-keys who calls
    #[arg(long, global = true, value_name = "FILE", env = "MT_TOKEN_FILE", conflicts_with = "identity")]
    pub token_file: Option<PathBuf>,
    /// How data is shown
    #[arg(short = 'o', long = "output", global = true, env = "EBLA_OUTPUT", value_enum, default_value = "table")]
    pub output: Format,
}

/// What is done with names.
#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Mount a server under a name; nodes on the way are made
    Mount {
        /// The name
        name: String,
        /// The server: HOST:PORT, perhaps with a name in it behind (/HOST:PORT/inner)
        server: String,
        /// For how long, in seconds; 0: for ever
        #[arg(default_value_t = 0)]
        ttl: u32,
        /// The server is a mount table itself
        #[arg(long, conflicts_with = "leaf")]
        mt: bool,
        /// There is nothing below the server
        #[arg(long)]
        leaf: bool,
        /// Instead of what is mounted there
        #[arg(long)]
        replace: bool,
    },
    /// Take a server away, or all of a name's
    Unmount {
        /// The name
        name: String,
        /// The server; without it all
        server: Option<String>,
    },
    /// The servers that a name leads to, and what is to be asked of them
    Resolve {
        /// The name
        name: String,
        /// Show each step on the way: who was asked, who answered, how long it took
        #[arg(long)]
        trace: bool,
        /// What is mounted under the name itself, also if it is a mount table that leads on
        #[arg(short, long, conflicts_with_all = ["trace", "table"])]
        shallow: bool,
        /// The mount table that holds the name, or would hold it
        #[arg(long, conflicts_with = "trace")]
        table: bool,
    },
    /// What a name leads to, and every change of that, until Ctrl-C; with -o json a line for each
    Watch {
        /// The name
        name: String,
        /// End after so many
        #[arg(long, value_name = "N")]
        count: Option<usize>,
    },
    /// What a pattern asks for, also in mounttables that are mounted
    Glob {
        /// The pattern: * ? [a-z] in an element, ... at the end for everything below
        pattern: String,
        /// A line for each server: what it is, and when it ends
        #[arg(short, long)]
        long: bool,
    },
    /// What is right below a name
    Ls {
        /// The name; without it the root
        #[arg(default_value = "")]
        name: String,
        /// A line for each server: what it is, and when it ends
        #[arg(short, long)]
        long: bool,
    },
    /// Everything below a name, as a tree
    Tree {
        /// The name; without it the root
        #[arg(default_value = "")]
        name: String,
        /// Only so many levels
        #[arg(short, long, value_parser = clap::value_parser!(u8).range(1..=64))]
        depth: Option<u8>,
    },
    /// Delete a node
    Rm {
        /// The name
        name: String,
        /// Everything below it too
        #[arg(short, long)]
        recursive: bool,
    },
    /// A node's creator, age, versions
    Stat {
        /// The name
        name: String,
    },
    /// Keep a server mounted while a command runs, or until Ctrl-C
    Publish {
        /// The names
        #[arg(required = true)]
        names: Vec<String>,
        /// The server, HOST:PORT; several may be given
        #[arg(long, value_name = "HOST:PORT", required = true)]
        server: Vec<String>,
        /// How often the mounts are made anew, in seconds; they last 20 longer
        #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
        period: u32,
        /// The server is a mount table itself
        #[arg(long, conflicts_with = "leaf")]
        mt: bool,
        /// There is nothing below the server
        #[arg(long)]
        leaf: bool,
        /// Mounted only while it is healthy: tcp (somebody listens), grpc or grpc=SERVICE (it says so by grpc.health.v1),
        /// http=/PATH (2xx), exec=COMMAND (for the shell, ends with 0; the server is in $SERVER)
        #[arg(long, value_name = "HOW")]
        check: Option<health::Check>,
        /// How often that is looked at, in seconds; after two failures in succession the server is taken away
        #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
        check_every: u32,
        /// The command and its arguments, behind --; its exit code becomes that of this one
        #[arg(last = true)]
        command: Vec<String>,
    },
    /// Measure resolving and mounting
    Bench(bench::Bench),
    /// Who may do what with a node
    #[command(subcommand)]
    Perms(perms::Perms),
    /// Who the mounttable takes the caller for, and what he is charged for
    Whoami,
    /// Look after a mounttable, as one of its superusers: the server of the first root is asked
    #[command(subcommand)]
    Admin(admin::Admin),
}

/// Carries out the command.
///
/// # Errors
/// What the mounttable answers.
pub async fn run(Mt { root, command }: Mt, runtime: Runtime) -> Result<(), Failure> {
    let names = root.namespace(&runtime)?;
    let (format, now) = (root.output, runtime.clock.wall());
    match command {
        Command::Mount { name, server, ttl, mt, leaf, replace } => {
            let server: ServerAddress = server.parse().map_err(refused)?;
            let mode = if replace { MountMode::Replace } else { MountMode::Add };
            let ttl = Duration::from_secs(ttl.into());
            let options = MountOptions { ttl, target: Target::of(mt, leaf), mode };
            let outcomes = names.mount(&name, &server, options).await.map_err(refused)?;
            if done(&outcomes)?.iter().any(|mounted| mounted.hides_children) {
                eprintln!("the name has children, which nobody reaches while a server is mounted on it");
            }
            Ok(())
        }
        Command::Unmount { name, server } => {
            let server: Option<ServerAddress> = server.map(|it| it.parse()).transpose().map_err(refused)?;
            done(&names.unmount(&name, server.as_ref()).await.map_err(refused)?).map(drop)
        }
        Command::Resolve { name, trace: true, .. } => {
            let resolved = names.trace(&name).await;
            trace::show(format, &resolved);
            let entry = resolved.outcome.map_err(refused)?;
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
            output::print(&show::resolved(format, now, &entry.map_err(refused)?));
            Ok(())
        }
        Command::Watch { name, count } => {
            let mut states = names.watch(&name).take(count.unwrap_or(usize::MAX));
            while let Some(state) = states.next().await {
                output::print(&show::watched(format, runtime.clock.wall(), state.map_err(refused)?.as_ref()));
            }
            Ok(())
        }
        Command::Glob { pattern, long } => list::run(&names, &pattern, "", list::Look { format, long, now }).await,
        Command::Ls { name, long } => list::below(&names, &name, list::Look { format, long, now }).await,
        Command::Tree { name, depth } => list::tree(&names, &name, depth, format).await,
        Command::Rm { name, recursive } => {
            let subtree = if recursive { Subtree::Delete } else { Subtree::Refuse };
            done(&names.delete(&name, subtree).await.map_err(refused)?).map(drop)
        }
        Command::Stat { name } => {
            let node = names.node(&name).await.map_err(refused)?;
            output::print(&show::node(format, &node));
            Ok(())
        }
        Command::Publish { names: called, server, period, mt, leaf, check, check_every, command } => {
            let servers = server.iter().map(|it| it.parse()).collect::<Result<_, Error>>().map_err(refused)?;
            let check = check.map(|check| (check, Duration::from_secs(check_every.into())));
            let plan = publish::Plan { names: called, servers, period, target: Target::of(mt, leaf), check, command };
            publish::run(&names, &runtime.net, plan).await
        }
        Command::Perms(command) => perms::run(command, &names, format).await,
        Command::Whoami => {
            let who = names.who_am_i().await.map_err(refused)?;
            output::print(&show::caller(format, &who));
            Ok(())
        }
        Command::Admin(command) => admin::run(command, &names.operator().map_err(refused)?, format).await,
        Command::Bench(command) => bench::run(command, &root, runtime).await,
    }
}

/// What those answered who could be reached; who could not is said on stderr. Servers of one table are equivalent, so one is enough.
fn done<T: Copy>(outcomes: &Outcomes<T>) -> Result<Vec<T>, Failure> {
    let (mut done, mut away) = (Vec::new(), Vec::new());
    for (_, outcome) in outcomes.each() {
        match outcome {
            Ok(answer) => done.push(*answer),
            Err(error) if error.reason == Reason::Unavailable => away.push(error),
            Err(error) => return Err(refused(error.clone())),
        }
    }
    match away.first() {
        Some(error) if done.is_empty() => return Err(refused((*error).clone())),
        _ => away.iter().for_each(|error| eprintln!("done, but not at {}", error.message)),
    }
    Ok(done)
}

/// The failure that a refusal of the mounttable is to the shell.
pub fn refused(error: Error) -> Failure {
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

/// Names that begin at `roots`, for who has the token in that file, or else for who is called so.
///
/// # Errors
/// Usage, when the token cannot be read.
pub(super) fn namespace(
    roots: Roots,
    token_file: Option<&Path>,
    called: Option<&str>,
    runtime: &Runtime,
) -> Result<Namespace, Failure> {
    let builder = Namespace::builder(runtime.clone()).roots(roots);
    let builder = match (token_file, called) {
        (Some(path), _) => {
            let unreadable = |error| Failure::usage(format!("read the token in {}: {error}", path.display()));
            builder.token(std::fs::read_to_string(path).map_err(unreadable)?)
        }
        (None, Some(names)) => builder.identity(names),
        (None, None) => builder,
    };
    builder.build().map_err(refused)
}

/// A root as names have it: a person need not type the slash.
pub(super) fn rooted(text: &str) -> String {
    if naming::is_rooted(text) { text.to_owned() } else { format!("/{text}") }
}

impl Root {
    /// The names that begin there.
    fn namespace(&self, runtime: &Runtime) -> Result<Namespace, Failure> {
        let roots = self.roots().map_err(refused)?;
        namespace(roots, self.token_file.as_deref(), self.identity.as_deref(), runtime)
    }

    fn roots(&self) -> Result<Roots, Error> {
        let given: Vec<_> = self.root.iter().map(|text| rooted(text)).collect();
        let told = std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value)));
        let told = told.filter(|(_name, value)| !value.is_empty());
        let told = told.map(|(name, value)| (name, rooted(&value.to_string_lossy())));
        let roots = if given.is_empty() {
            Roots::from_environment(told)?
        } else {
            Roots::new(given.iter().map(String::as_str))?
        };
        if roots.addresses().is_empty() { Roots::new([ROOT]) } else { Ok(roots) }
    }
}
