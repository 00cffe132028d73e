//! `ebla mt perms`: permissions of nodes.

use std::path::PathBuf;

use ebla_mounttable_namespace::{Etag, Namespace};
use ebla_mounttable_tree::identity::BlessingPattern;
use ebla_mounttable_tree::{Permissions, Tag};

use super::{report, show, to_failure};
use crate::output::{self, Failure, Format};

/// Show and change the permissions of a node
///
/// Examples:
///   ebla mt perms get prod
///   ebla mt perms add prod alice Mount Resolve
#[derive(Debug, clap::Subcommand)]
#[command(verbatim_doc_comment)]
pub(super) enum Perms {
    /// Show the permissions of a node, as JSON, and their version on stderr
    ///
    /// Example:
    ///   ebla mt perms get prod
    #[command(verbatim_doc_comment)]
    Get {
        /// Name of the node
        name: String,
    },
    /// Replace the permissions of a node; a missing node is created and not deleted when it is empty
    ///
    /// Examples:
    ///   ebla mt perms set prod '{"Admin":{"In":["alice"]}}'
    ///   ebla mt perms set prod --file perms.json
    #[command(verbatim_doc_comment)]
    Set {
        /// Name of the node
        name: String,
        /// Permissions: {"Admin":{"In":["alice"]}, ...}
        #[arg(required_unless_present = "file")]
        json: Option<String>,
        /// File with the permissions
        #[arg(long, value_name = "FILE", conflicts_with = "json")]
        file: Option<PathBuf>,
        /// Replace the permissions only if they have this version
        #[arg(long, default_value = "")]
        etag: String,
    },
    /// Give permissions to more callers
    ///
    /// Examples:
    ///   ebla mt perms add prod alice Mount Resolve
    ///   ebla mt perms add prod ... Resolve
    #[command(verbatim_doc_comment)]
    Add(Change),
    /// Remove a pattern of callers from the lists of allowed and denied callers
    ///
    /// Example:
    ///   ebla mt perms remove prod alice Mount
    #[command(verbatim_doc_comment)]
    Remove(Change),
    /// Show the caller's permissions on a node, and which entries grant them
    ///
    /// Examples:
    ///   ebla mt perms test prod
    ///   ebla mt perms test prod --who bob
    #[command(verbatim_doc_comment)]
    Test {
        /// Name of the node
        name: String,
        /// Test these names instead of the caller's; needs the tag Admin on the node
        #[arg(long, value_name = "NAMES", value_delimiter = ',')]
        who: Vec<String>,
    },
}

/// A change of a node's permissions.
#[derive(Debug, clap::Args)]
pub(super) struct Change {
    /// Name of the node
    name: String,
    /// Pattern of callers: alice, alice:..., or ... for everybody
    pattern: String,
    /// Tags: Admin, Mount, Read, Create, Resolve
    #[arg(required = true)]
    tags: Vec<String>,
}

pub(super) async fn run(command: Perms, names: &Namespace, format: Format) -> Result<(), Failure> {
    match command {
        Perms::Get { name } => {
            let (permissions, etag) = names.permissions(&name).await.map_err(to_failure)?;
            match format {
                Format::Json => output::print_json(&show::permissions(&permissions, &etag)),
                Format::Table => {
                    output::print(&format!("{permissions}\n"));
                    output::note(&format!("etag {}", etag.as_str()));
                }
            }
            Ok(())
        }
        Perms::Set { name, json, file, etag } => {
            let json = match file {
                Some(file) => std::fs::read_to_string(&file)
                    .map_err(|error| Failure::usage(format!("read {}: {error}", file.display())))?,
                None => json.unwrap_or_default(),
            };
            let permissions = Permissions::from_json(&json).map_err(to_failure)?;
            let seen = Some(etag).filter(|etag| !etag.is_empty()).map(Etag::new);
            names.set_permissions(&name, &permissions, seen.as_ref()).await.map_err(to_failure)?;
            changed(&name, format);
            Ok(())
        }
        Perms::Add(change) => change.make(names, Permissions::add, format).await,
        Perms::Remove(change) => change.make(names, Permissions::clear, format).await,
        Perms::Test { name, who } => {
            let allowed = names.test_permissions(&name, &who).await.map_err(to_failure)?;
            output::print(&show::allowed(format, &allowed));
            Ok(())
        }
    }
}

impl Change {
    /// Applies the change; retried when the permissions were changed concurrently.
    async fn make(
        &self,
        names: &Namespace,
        how: fn(&mut Permissions, &BlessingPattern, &[Tag]),
        format: Format,
    ) -> Result<(), Failure> {
        let pattern = BlessingPattern::new(&self.pattern);
        let tags: Vec<Tag> = self.tags.iter().map(|tag| tag.parse()).collect::<Result<_, _>>().map_err(to_failure)?;
        let change = |mut permissions: Permissions| {
            how(&mut permissions, &pattern, &tags);
            permissions
        };
        names.update_permissions(&self.name, change).await.map_err(to_failure)?;
        changed(&self.name, format);
        Ok(())
    }
}

fn changed(name: &str, format: Format) {
    report(format, &show::permissions_changed(name), || format!("changed the permissions of {name}"));
}
