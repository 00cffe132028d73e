//! `ebla mt`: what a person or a script asks of a mounttable.
//!
//! Exit codes: 0 done, 2 usage, 3 not found, 4 denied, 5 conflict, 6 unavailable, 1 anything else.

use std::time::Duration;

use ebla_mounttable::service::identity::DEVELOPMENT_HEADER;
use ebla_mounttable::service::messages;
use ebla_mounttable::{Error, Permissions, Reason};
use ebla_proto::mounttable as wire;
use ebla_proto::mounttable::glob_reply::Reply;
use ebla_proto::mounttable::mount_table_client::MountTableClient;
use ebla_runtime::{Clock, Runtime};
use serde_json::{Value, json};
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use crate::output::{self, Failure, Format};

/// How long a call may take.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Which mounttable, and as whom.
#[derive(Clone, Debug, clap::Args)]
pub struct Root {
    /// HOST:PORT of a mounttable
    #[arg(long, value_name = "HOST:PORT", env = "MT_ROOT", default_value = "127.0.0.1:8101")]
    pub root: String,
    /// Who calls, as a server with --insecure-dev-identity believes it: names, separated by commas
    #[arg(long = "as", value_name = "NAMES", env = "MT_IDENTITY")]
    pub identity: Option<String>,
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
    },
    /// What a pattern asks for
    Glob {
        /// Which mounttable
        #[command(flatten)]
        root: Root,
        /// The pattern: * ? [a-z] in an element, ... at the end for everything below
        pattern: String,
        /// The node that is asked
        #[arg(long, default_value = "")]
        receiver: String,
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
            let ttl_millis = u64::from(ttl).saturating_mul(1_000);
            let message =
                wire::MountRequest { name, server, ttl_millis, replace, serves_mount_table: mt, is_leaf: leaf };
            let reply = answer(client(&root, &runtime).mount(request(&root, message)?).await)?;
            if reply.shadowed_children {
                eprintln!("the name has children, which nobody reaches while a server is mounted on it");
            }
            Ok(())
        }
        Mt::Unmount { root, name, server } => {
            let message = wire::UnmountRequest { name, server: server.unwrap_or_default() };
            answer(client(&root, &runtime).unmount(request(&root, message)?).await).map(drop)
        }
        Mt::Resolve { root, name } => {
            let message = wire::ResolveRequest { name, max_servers: 0 };
            let entry = answer(client(&root, &runtime).resolve(request(&root, message)?).await)?;
            show_resolved(&root, &runtime.clock, &entry);
            Ok(())
        }
        Mt::Glob { root, pattern, receiver } => glob(&root, &runtime, receiver, pattern).await,
        Mt::Ls { root, name } => glob(&root, &runtime, name, "*".to_owned()).await,
        Mt::Rm { root, name, recursive } => {
            let message = wire::DeleteRequest { name, subtree: recursive, expected_version: String::new() };
            answer(client(&root, &runtime).delete(request(&root, message)?).await).map(drop)
        }
        Mt::Stat { root, name } => {
            let message = wire::GetNodeRequest { name };
            let node = answer(client(&root, &runtime).get_node(request(&root, message)?).await)?;
            show_node(&root, &node);
            Ok(())
        }
        Mt::Perms(Perms::Get { root, name }) => {
            let message = wire::GetPermissionsRequest { name };
            let reply = answer(client(&root, &runtime).get_permissions(request(&root, message)?).await)?;
            let permissions =
                messages::permissions_from_wire(&reply.permissions.unwrap_or_default()).map_err(refused)?;
            let value: Value =
                serde_json::from_str(&permissions.to_json()).map_err(|error| Failure::other(error.to_string()))?;
            match root.output {
                Format::Json => output::print_json(&json!({"permissions": value, "etag": reply.etag})),
                Format::Table => {
                    output::print(&format!("{permissions}\n"));
                    eprintln!("etag {}", reply.etag);
                }
            }
            Ok(())
        }
        Mt::Perms(Perms::Set { root, name, json, etag }) => {
            let permissions = Permissions::from_json(&json).map_err(refused)?;
            let permissions = Some(messages::permissions_to_wire(&permissions));
            let message = wire::SetPermissionsRequest { name, permissions, etag };
            answer(client(&root, &runtime).set_permissions(request(&root, message)?).await).map(drop)
        }
        Mt::Whoami { root } => {
            let reply = answer(client(&root, &runtime).who_am_i(request(&root, wire::WhoAmIRequest {})?).await)?;
            show_caller(&root, &reply);
            Ok(())
        }
    }
}

/// The failure that a refusal of the mounttable is to the shell.
pub fn refused(error: Error) -> Failure {
    let code = match error.reason {
        Reason::BadAddress | Reason::BadName | Reason::BadPattern | Reason::BadPermissions | Reason::BadRequest => 2,
        Reason::NoSuchName | Reason::NoSuchNameRoot => 3,
        Reason::NoAccess | Reason::MatchesOmitted => 4,
        Reason::BadVersion
        | Reason::Contention
        | Reason::NotEmpty
        | Reason::Root
        | Reason::FlagsConflict
        | Reason::ShadowedByMount => 5,
        Reason::Unavailable => 6,
        _ => 1,
    };
    Failure { message: format!("{} ({})", error.message, error.reason), code }
}

fn client(root: &Root, runtime: &Runtime) -> MountTableClient<Channel> {
    MountTableClient::new(runtime.net.channel(&root.root))
}

fn request<M>(root: &Root, message: M) -> Result<Request<M>, Failure> {
    let mut request = Request::new(message);
    request.set_timeout(TIMEOUT);
    if let Some(names) = &root.identity {
        let wrong = |_| Failure::usage(format!("{names:?} cannot be sent as names"));
        request.metadata_mut().insert(DEVELOPMENT_HEADER, names.parse().map_err(wrong)?);
    }
    Ok(request)
}

fn answer<T>(answer: Result<Response<T>, Status>) -> Result<T, Failure> {
    answer.map(Response::into_inner).map_err(|status| refused(messages::error(&status)))
}

/// Lists as it comes; whether something was left out is said on stderr.
async fn glob(root: &Root, runtime: &Runtime, receiver: String, pattern: String) -> Result<(), Failure> {
    let message = wire::GlobRequest { receiver, pattern };
    let mut replies = answer(client(root, runtime).glob(request(root, message)?).await)?;
    let mut entries = Vec::new();
    let next = |status: Status| refused(messages::error(&status));
    while let Some(reply) = replies.message().await.map_err(next)? {
        match reply.reply {
            Some(Reply::Entry(entry)) if root.output == Format::Json => {
                entries.push(json!({"name": entry.name, "servers": servers(&entry), "children": entry.has_children}));
            }
            Some(Reply::Entry(entry)) => {
                let addresses: Vec<_> = entry.servers.iter().map(|server| server.address.as_str()).collect();
                let line = format!("{}  {}", entry.name, addresses.join(" "));
                output::print(&format!("{}\n", line.trim_end()));
            }
            Some(Reply::Error(error)) => {
                let failure = error.failure.unwrap_or_default();
                eprintln!("{}: {} ({})", error.name, failure.message, failure.reason);
            }
            Some(Reply::Summary(_)) | None => {}
        }
    }
    if root.output == Format::Json {
        output::print_json(&Value::Array(entries));
    }
    Ok(())
}

fn servers(entry: &wire::Entry) -> Vec<Value> {
    let server = |server: &wire::Server| {
        json!({
            "address": server.address,
            "deadline_micros": server.deadline_micros,
            "mount_table": server.serves_mount_table,
            "leaf": server.is_leaf,
        })
    };
    entry.servers.iter().map(server).collect()
}

fn show_resolved(root: &Root, clock: &Clock, entry: &wire::Entry) {
    if root.output == Format::Json {
        return output::print_json(&json!({"suffix": entry.name, "servers": servers(entry)}));
    }
    let mut table = output::Table::new(&["SERVER", "SUFFIX", "EXPIRES"]);
    for server in &entry.servers {
        let expires = match server.deadline_micros {
            Some(deadline) => {
                let left = ebla_model::Micros::new(deadline).since(clock.wall());
                format!("in {} s", left.as_secs())
            }
            None => "never".to_owned(),
        };
        table.row(vec![server.address.clone(), entry.name.clone(), expires]);
    }
    output::print(&table.render());
}

fn show_node(root: &Root, node: &wire::GetNodeReply) {
    let facts = json!({
        "creator": node.creator,
        "created_micros": node.created_micros,
        "sticky": node.sticky,
        "version": node.version,
        "etag": node.etag,
        "servers": node.servers,
        "children": node.children,
    });
    show_facts(root, &facts);
}

fn show_caller(root: &Root, caller: &wire::WhoAmIReply) {
    let usage = |usage: &Option<wire::Usage>| {
        let usage = usage.unwrap_or_default();
        json!({"used": usage.used, "limit": usage.limit})
    };
    let facts = json!({
        "names": caller.names,
        "user": caller.user,
        "superuser": caller.superuser,
        "nodes": usage(&caller.nodes),
        "servers": usage(&caller.servers),
    });
    show_facts(root, &facts);
}

fn show_facts(root: &Root, facts: &Value) {
    match (root.output, facts) {
        (Format::Table, Value::Object(facts)) => {
            let mut table = output::Table::default();
            for (name, value) in facts {
                let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                table.row(vec![name.clone(), value]);
            }
            output::print(&table.render());
        }
        _ => output::print_json(facts),
    }
}
