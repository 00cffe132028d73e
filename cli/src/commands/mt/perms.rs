//! `ebla mt perms`: who may do what with a node.

use std::path::PathBuf;

use ebla_mounttable::identity::BlessingPattern;
use ebla_mounttable::{Permissions, Tag};
use ebla_mounttable_namespace::{Etag, Namespace};
use serde_json::{Value, json};

use super::{refused, show};
use crate::output::{self, Failure, Format};

/// Permissions of a node.
#[derive(Debug, clap::Subcommand)]
pub(super) enum Perms {
    /// Show them, as JSON, with their version on stderr
    Get {
        /// The name
        name: String,
    },
    /// Replace them; the node is made if it is not there, and stays
    Set {
        /// The name
        name: String,
        /// {"Admin":{"In":["alice"]}, ...}
        #[arg(required_unless_present = "file")]
        json: Option<String>,
        /// A file with the same
        #[arg(long, value_name = "FILE", conflicts_with = "json")]
        file: Option<PathBuf>,
        /// Only if they are still of this version
        #[arg(long, default_value = "")]
        etag: String,
    },
    /// Let callers in, beside those who are
    Add(Change),
    /// Take a pattern out of the lists of who is let in and of who is kept out
    Remove(Change),
    /// What the caller may do, and why
    Test {
        /// The name
        name: String,
        /// Not the caller, but whoever has these names; for who has Admin there
        #[arg(long, value_name = "NAMES", value_delimiter = ',')]
        who: Vec<String>,
    },
}

/// A pattern in some lists of a node.
#[derive(Debug, clap::Args)]
pub(super) struct Change {
    /// The name
    name: String,
    /// Whoever is called so: alice, alice:..., or ... for everybody
    pattern: String,
    /// Admin, Mount, Read, Create, Resolve
    #[arg(required = true)]
    tags: Vec<String>,
}

pub(super) async fn run(command: Perms, names: &Namespace, format: Format) -> Result<(), Failure> {
    match command {
        Perms::Get { name } => {
            let (permissions, etag) = names.permissions(&name).await.map_err(refused)?;
            let value: Value =
                serde_json::from_str(&permissions.to_json()).map_err(|error| Failure::other(error.to_string()))?;
            match format {
                Format::Json => output::print_json(&json!({"permissions": value, "etag": etag.as_str()})),
                Format::Table => {
                    output::print(&format!("{permissions}\n"));
                    eprintln!("etag {}", etag.as_str());
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
            let permissions = Permissions::from_json(&json).map_err(refused)?;
            let seen = Some(etag).filter(|etag| !etag.is_empty()).map(Etag::new);
            names.set_permissions(&name, &permissions, seen.as_ref()).await.map_err(refused)
        }
        Perms::Add(change) => change.make(names, Permissions::add).await,
        Perms::Remove(change) => change.make(names, Permissions::clear).await,
        Perms::Test { name, who } => {
            let allowed = names.test_permissions(&name, &who).await.map_err(refused)?;
            output::print(&show::allowed(format, &allowed));
            Ok(())
        }
    }
}

impl Change {
    /// Worked out anew when others were quicker.
    async fn make(
        &self,
        names: &Namespace,
        how: fn(&mut Permissions, &BlessingPattern, &[Tag]),
    ) -> Result<(), Failure> {
        let pattern = BlessingPattern::new(&self.pattern);
        let tags: Vec<Tag> = self.tags.iter().map(|tag| tag.parse()).collect::<Result<_, _>>().map_err(refused)?;
        let change = |mut permissions: Permissions| {
            how(&mut permissions, &pattern, &tags);
            permissions
        };
        names.update_permissions(&self.name, change).await.map_err(refused)
    }
}
