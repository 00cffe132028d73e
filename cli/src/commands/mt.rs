//! `ebla mt`: what a person or a script asks of a mounttable.
//!
//! Exit codes: 0 done, 2 usage, 3 not found, 4 denied, 5 conflict, 6 unavailable, 1 anything else.

mod bench;
mod list;
mod publish;
mod show;
#[cfg(test)]
mod tests;
mod trace;

use std::path::{Path, PathBuf};
use std::time::Duration;

use ebla_mounttable::table::Subtree;
use ebla_mounttable::{Error, MountMode, Permissions, Reason, ServerAddress, Target, naming};
use ebla_mounttable_namespace::{Etag, MountOptions, Namespace, Roots};
use ebla_runtime::Runtime;
use serde_json::{Value, json};

use crate::output::{self, Failure, Format};

/// The mounttable that is asked when none is named.
const ROOT: &str = "/127.0.0.1:8101";

/// Which mounttable, and as whom.
#[derive(Clone, Debug, clap::Args)]
pub struct Root {
    /// HOST:PORT of a mounttable, where names begin; several that are equivalent may be given. Without it those in the
    /// variables whose names begin with MT_ROOT, or else 127.0.0.1:8101
    #[arg(long, value_name = "HOST:PORT")]
    pub root: Vec<String>,
    /// Who calls, as a server with --insecure-dev-identity believes it: names, separated by commas
    #[arg(long = "as", value_name = "NAMES", env = "MT_IDENTITY")]
    pub identity: Option<String>,
    /// A file with the token (JWT) that tells a server with --jwt-keys who calls
    #[arg(long, value_name = "FILE", env = "MT_TOKEN_FILE", conflicts_with = "identity")]
    pub token_file: Option<PathBuf>,
    /// How data is shown
    #[arg(short = 'o', long = "output", env = "EBLA_OUTPUT", value_enum, default_value = "table")]
    pub output: Format,
}

/// Names.
#[derive(Debug, clap::Subcommand)]
pub enum Mt {
    /// Mount a server under a name; nodes on the way are made
    Mount {
        /// Which mounttable
        #[command(flatten)]
        root: Root,
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
        /// Which mounttable
        #[command(flatten)]
        root: Root,
        /// The name
        name: String,
        /// The server; without it all
        server: Option<String>,
    },
    /// The servers that a name leads to, and what is to be asked of them
    Resolve {
        /// Which mounttable
        #[command(flatten)]
        root: Root,
        /// The name
        name: String,
        /// Show each step on the way: who was asked, who answered, how long it took
        #[arg(long)]
        trace: bool,
    },
    /// What a pattern asks for, also in mounttables that are mounted
    Glob {
        /// Which mounttable
        #[command(flatten)]
        root: Root,
        /// The pattern: * ? [a-z] in an element, ... at the end for everything below
        pattern: String,
    },
    /// What is right below a name
    Ls {
        /// Which mounttable
        #[command(flatten)]
        root: Root,
        /// The name; without it the root
        #[arg(default_value = "")]
        name: String,
    },
    /// Delete a node
    Rm {
        /// Which mounttable
        #[command(flatten)]
        root: Root,
        /// The name
        name: String,
        /// Everything below it too
        #[arg(short, long)]
        recursive: bool,
    },
    /// A node's creator, age, versions
    Stat {
        /// Which mounttable
        #[command(flatten)]
        root: Root,
        /// The name
        name: String,
    },
    /// Keep a server mounted while a command runs, or until Ctrl-C
    Publish {
        /// Which mounttable
        #[command(flatten)]
        root: Root,
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
        /// The command and its arguments, behind --; its exit code becomes that of this one
        #[arg(last = true)]
        command: Vec<String>,
    },
    /// Measure resolving and mounting
    Bench(bench::Bench),
    /// Who may do what with a node
    #[command(subcommand)]
    Perms(Perms),
    /// Who the mounttable takes the caller for, and what he is charged for
    Whoami {
        /// Which mounttable
        #[command(flatten)]
        root: Root,
    },
}

/// Permissions of a node.
#[derive(Debug, clap::Subcommand)]
pub enum Perms {
    /// Show them, as JSON, with their version on stderr
    Get {
        /// Which mounttable
        #[command(flatten)]
        root: Root,
        /// The name
        name: String,
    },
    /// Replace them; the node is made if it is not there, and stays
    Set {
        /// Which mounttable
        #[command(flatten)]
        root: Root,
        /// The name
        name: String,
        /// {"Admin":{"In":["alice"]}, ...}
        json: String,
        /// Only if they are still of this version
        #[arg(long, default_value = "")]
        etag: String,
    },
}

/// Carries out the command.
///
/// # Errors
/// What the mounttable answers.
pub async fn run(command: Mt, runtime: Runtime) -> Result<(), Failure> {
    match command {
        Mt::Mount { root, name, server, ttl, mt, leaf, replace } => {
            let server: ServerAddress = server.parse().map_err(refused)?;
            let mode = if replace { MountMode::Replace } else { MountMode::Add };
            let ttl = Duration::from_secs(ttl.into());
            let options = MountOptions { ttl, target: Target::of(mt, leaf), mode };
            let outcomes = root.namespace(&runtime)?.mount(&name, &server, options).await.map_err(refused)?;
            if outcomes.all().map_err(refused)?.iter().any(|mounted| mounted.hides_children) {
                eprintln!("the name has children, which nobody reaches while a server is mounted on it");
            }
            Ok(())
        }
        Mt::Unmount { root, name, server } => {
            let server: Option<ServerAddress> = server.map(|it| it.parse()).transpose().map_err(refused)?;
            let outcomes = root.namespace(&runtime)?.unmount(&name, server.as_ref()).await;
            outcomes.and_then(|outcomes| outcomes.all()).map(drop).map_err(refused)
        }
        Mt::Resolve { root, name, trace } => {
            let resolved = root.namespace(&runtime)?.trace(&name).await;
            if trace {
                trace::show(root.output, &resolved);
            }
            let entry = resolved.outcome.map_err(refused)?;
            if !(trace && root.output == Format::Json) {
                output::print(&show::resolved(root.output, runtime.clock.wall(), &entry));
            }
            Ok(())
        }
        Mt::Glob { root, pattern } => list::run(&root, &runtime, &pattern, "").await,
        Mt::Ls { root, name } => list::below(&root, &runtime, &name).await,
        Mt::Rm { root, name, recursive } => {
            let subtree = if recursive { Subtree::Delete } else { Subtree::Refuse };
            let outcomes = root.namespace(&runtime)?.delete(&name, subtree).await;
            outcomes.and_then(|outcomes| outcomes.all()).map(drop).map_err(refused)
        }
        Mt::Stat { root, name } => {
            let node = root.namespace(&runtime)?.node(&name).await.map_err(refused)?;
            output::print(&show::node(root.output, &node));
            Ok(())
        }
        Mt::Publish { root, names, server, period, mt, leaf, command } => {
            let servers = server.iter().map(|it| it.parse()).collect::<Result<_, Error>>().map_err(refused)?;
            let plan = publish::Plan { names, servers, period, target: Target::of(mt, leaf), command };
            publish::run(&root.namespace(&runtime)?, plan).await
        }
        Mt::Bench(command) => bench::run(command, runtime).await,
        Mt::Perms(Perms::Get { root, name }) => {
            let (permissions, etag) = root.namespace(&runtime)?.permissions(&name).await.map_err(refused)?;
            let value: Value =
                serde_json::from_str(&permissions.to_json()).map_err(|error| Failure::other(error.to_string()))?;
            match root.output {
                Format::Json => output::print_json(&json!({"permissions": value, "etag": etag.as_str()})),
                Format::Table => {
                    output::print(&format!("{permissions}\n"));
                    eprintln!("etag {}", etag.as_str());
                }
            }
            Ok(())
        }
        Mt::Perms(Perms::Set { root, name, json, etag }) => {
            let permissions = Permissions::from_json(&json).map_err(refused)?;
            let seen = Some(etag).filter(|etag| !etag.is_empty()).map(Etag::new);
            let names = root.namespace(&runtime)?;
            names.set_permissions(&name, &permissions, seen.as_ref()).await.map_err(refused)
        }
        Mt::Whoami { root } => {
            let who = root.namespace(&runtime)?.who_am_i().await.map_err(refused)?;
            output::print(&show::caller(root.output, &who));
            Ok(())
        }
    }
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
