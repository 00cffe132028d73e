//! `ebla debug`: what helps a person who looks for the cause of a problem.

use std::path::{Path, PathBuf};

use ebla_model::error::{Error, Reason};
use ebla_runtime::Runtime;
use tempfile::NamedTempFile;

use super::new_file::{Existing, unusable};
use super::{ClusterArguments, doctor};
use crate::address::Addresses;
use crate::bundle::{self, Collection, Keys};
use crate::output::{self, Failure, Format};
use crate::process::is_loopback;

/// Where `ebla up` has its HTTP port.
const DEFAULT_HTTP: &str = "127.0.0.1:8080";

/// Collect what helps with a problem
///
/// Example:
///   ebla debug zip problem.zip
#[derive(Debug, clap::Subcommand)]
#[command(verbatim_doc_comment)]
#[expect(missing_docs, reason = "documentation of a variant would replace the help of its command")]
pub enum Debug {
    Zip(Box<Zip>),
}

/// Write status, findings, versions, tables, tablets, events, slow operations, metrics and configurations to a zip file
///
/// No values of cells, no tokens and no private keys are written; keys of rows, such as bounds of tablets, only with --with-keys. Names of
/// tables and families and addresses of processes are. The file has a list of its parts, README.txt; a part that cannot be collected is
/// listed with its error. A part has at most 8 MiB, all together have 64 MiB. With access control it needs the token of an administrator.
///
/// Metrics and arguments of processes come from their HTTP ports (--http). Without --http that of ebla up is read if the cluster is on this
/// machine.
///
/// Examples:
///   ebla debug zip problem.zip
///   ebla debug zip problem.zip --http 10.0.0.1:9090,10.0.0.2:9090 --config /etc/ebla/tablet-server.toml
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Zip {
    /// Which cluster
    #[command(flatten)]
    pub cluster: ClusterArguments,
    /// The file to write
    pub file: PathBuf,
    /// HTTP ports of processes, for their metrics and arguments
    #[arg(long, value_name = "HOST:PORT,…")]
    pub http: Option<Addresses>,
    /// A configuration file to include, without its secrets; repeat for several
    #[arg(long = "config", value_name = "FILE")]
    pub configurations: Vec<PathBuf>,
    /// Include keys of rows
    #[arg(long)]
    pub with_keys: bool,
    /// Replace the file if it exists
    #[arg(long)]
    pub replace: bool,
}

/// Carries out the command.
///
/// # Errors
/// When the file cannot be written or exists; when the caller is no administrator.
pub async fn run(debug: Debug, runtime: Runtime) -> Result<(), Failure> {
    match debug {
        Debug::Zip(zip) => self::zip(*zip, runtime).await,
    }
}

async fn zip(zip: Zip, runtime: Runtime) -> Result<(), Failure> {
    let Zip { cluster, file, http, configurations, with_keys, replace } = zip;
    let existing = Existing::from(replace);
    existing.check(&[&file])?;
    let folder = bundle::check_folder(&file).map_err(Failure::usage)?;
    let facts = Box::pin(doctor::facts(&cluster, &runtime)).await?;
    let client = match &facts.unreachable {
        Some(error) => Err(error.clone()),
        None => cluster.client(&runtime).await.map_err(|failure| failure.message),
    };
    let http = match http {
        Some(given) => given.list().to_vec(),
        None => default_http(&facts.addresses, &runtime).await,
    };
    let keys = Keys::from(with_keys);
    let collection = Collection { facts: &facts, client, http, configurations, keys };
    let collected = Box::pin(bundle::collect(collection, &runtime)).await;
    write(&folder, &file, existing, |written| collected.write(written, keys, facts.now))?;
    match cluster.output {
        Format::Json => output::print_json(&collected.to_json()),
        Format::Table => output::print(&collected.table().render()),
    }
    output::note(&format!("wrote {}; look through it before you pass it on", file.display()));
    Ok(())
}

/// The HTTP port of `ebla up`, if the cluster is on this machine and a process of Ebla has the port.
async fn default_http(addresses: &[String], runtime: &Runtime) -> Vec<String> {
    let is_here = addresses.iter().all(|address| is_loopback(address));
    if is_here && bundle::is_of_ebla(&runtime.net, DEFAULT_HTTP).await {
        vec![DEFAULT_HTTP.to_owned()]
    } else {
        Vec::new()
    }
}

/// Writes the file as a whole, readable by its owner alone: a reader sees the former file, none, or the complete new one.
fn write(
    folder: &Path,
    file: &Path,
    existing: Existing,
    content: impl FnOnce(&std::fs::File) -> std::io::Result<()>,
) -> Result<(), Failure> {
    let failed = |error: std::io::Error| unusable(file, &error);
    let unfinished = NamedTempFile::new_in(folder).map_err(failed)?;
    content(unfinished.as_file()).and_then(|()| unfinished.as_file().sync_all()).map_err(failed)?;
    let placed = match existing {
        Existing::Replaced => unfinished.persist(file).map(drop),
        Existing::Kept => unfinished.persist_noclobber(file).map(drop),
    };
    placed.map_err(|refused| match refused.error.kind() {
        std::io::ErrorKind::AlreadyExists => {
            let message = format!("{} exists: --replace replaces it", file.display());
            Error::new(Reason::AlreadyExists, message).into()
        }
        _ => unusable(file, &refused.error),
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn the_file_is_private_and_replaces_nothing_by_itself() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("x.zip");
        let write = |text: &'static str, existing| {
            write(folder.path(), &file, existing, |mut written| written.write_all(text.as_bytes()))
        };
        write("one", Existing::Kept).unwrap();
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(write("two", Existing::Kept).unwrap_err().code, 4);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "one");
        write("two", Existing::Replaced).unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "two");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file is left");
    }
}
