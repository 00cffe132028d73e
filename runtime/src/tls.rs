//! TLS for every connection of a process: its certificate, the CAs that it trusts, and who is at the other end.
//!
//! ```text
//!   files: certificate, key, CAs --> Contents --> Configs --+--> accept   a listener's handshakes (serve.rs, peer.rs)
//!     checked every few seconds      pure checks            +--> connect  a channel's handshakes (net.rs)
//!                                                                  |
//!                                                           Security::Tls(Identity { role, name })
//! ```
//!
//! Both ends are verified by the same CAs. A server always has a certificate. A client may have one: without it the public services answer, and
//! those between the parts of a cluster refuse. The identity of the other end is a part of [`crate::ConnectionInfo`], where services and later
//! access control find it.
//!
//! Changed files are used for new connections, open ones stay. Files that cannot be used are reported, and the old ones stay in use. While the
//! CA file contains two CAs, certificates of both are accepted: so a CA is replaced without an interruption.
//!
//! The random numbers of TLS are the machine's, not those of [`crate::Rng`]: they must not be repeatable. A simulation uses no TLS.

mod config;
mod handshake;
mod identity;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustls::{ClientConfig, ServerConfig};
use tracing::{info, warn};

use self::config::{Configs, Contents, Fault};
pub(crate) use self::handshake::{HANDSHAKE_RECORD, Refusal, connect, connect_http1, end_tls};
pub use self::identity::{Identity, InvalidIdentity, Role, Security};
use crate::clock::Clock;
use crate::net::Connection;
use crate::serve::Protocol;
use crate::tasks::Tasks;

/// How long a server waits for the handshake of a client. Longer than [`PEER_HANDSHAKE_TIMEOUT`]: the client gives up first.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long our clients wait for the handshake of a server, after the connection is open.
pub const PEER_HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(3);
/// The interval of checks whether the files have changed.
pub const RELOAD_INTERVAL: Duration = Duration::from_secs(2);
/// The interval of checks whether the certificate expires soon.
const EXPIRY_CHECK_INTERVAL: Duration = Duration::from_secs(3_600);
/// A certificate that is valid for less than this time is reported.
const EXPIRY_WARNING: Duration = Duration::from_secs(7 * 24 * 3_600);
/// The largest file that is read: many more certificates than anybody trusts.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The files of a process, all in PEM format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificates of the CAs that are trusted.
    pub ca: PathBuf,
    /// The process's own certificate and key; a server must have them.
    pub own: Option<CertificateFiles>,
}

/// The files of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The certificate, followed by those of intermediate CAs.
    pub certificate: PathBuf,
    /// Its private key, which only the owner of the process may read.
    pub key: PathBuf,
}

/// Why files cannot be used; the message names the file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}: {fault}", file = file.display())]
pub struct TlsError {
    file: PathBuf,
    fault: String,
}

/// What a check of the files has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reload {
    /// They are the same as before.
    Unchanged,
    /// New connections use new files.
    Changed,
}

/// TLS with certificates from files; cheap to clone, and clones change together.
#[derive(Clone)]
pub struct Tls(Arc<Inner>);

struct Inner {
    files: TlsFiles,
    clock: Clock,
    /// What new connections use. Guards one pointer.
    current: Mutex<Arc<Current>>,
}

struct Current {
    contents: Contents,
    configs: Configs,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("files", &self.0.files).finish_non_exhaustive()
    }
}

impl Tls {
    /// Reads and checks the files. Blocks for as long as that takes.
    ///
    /// # Errors
    /// The file that cannot be used, and why: not readable, not PEM, a key that others can read or that does not belong to the certificate, a
    /// certificate that is not valid now or not signed by a CA of the CA file.
    pub fn open(files: TlsFiles, clock: Clock) -> Result<Self, TlsError> {
        let current = Current::read(&files, &clock)?;
        Ok(Self(Arc::new(Inner { files, clock, current: Mutex::new(Arc::new(current)) })))
    }

    /// Reads the files again, and uses them for new connections if they have changed. Blocks for as long as that takes.
    ///
    /// # Errors
    /// As [`Self::open`]; the previous contents stay in use.
    pub fn reload(&self) -> Result<Reload, TlsError> {
        let contents = read_all(&self.0.files)?;
        if self.current().contents == contents {
            return Ok(Reload::Unchanged);
        }
        let current = Arc::new(Current::new(contents, &self.0.files, &self.0.clock)?);
        *self.0.current.lock() = current;
        Ok(Reload::Changed)
    }

    /// Starts the task that checks every [`RELOAD_INTERVAL`] whether the files have changed, until `tasks` is stopped. It also warns when the
    /// certificate is about to expire.
    pub fn watch(&self, tasks: &Tasks) {
        let tls = self.clone();
        tasks.spawn_until_stopped("reload certificates", async move {
            let (mut failed, mut until_warning) = (None, Duration::ZERO);
            loop {
                if until_warning.is_zero() {
                    tls.warn_if_expiring();
                    until_warning = EXPIRY_CHECK_INTERVAL;
                }
                tokio::time::sleep(RELOAD_INTERVAL).await;
                until_warning = until_warning.saturating_sub(RELOAD_INTERVAL);
                // Three small files that the machine has in memory.
                match tls.reload() {
                    Ok(Reload::Unchanged) => failed = None,
                    Ok(Reload::Changed) => {
                        failed = None;
                        until_warning = Duration::ZERO;
                        info!("new connections use the changed certificate files");
                    }
                    // Once for each cause: files may be wrong for a long time.
                    Err(error) if failed.as_ref() != Some(&error) => {
                        warn!(%error, "changed certificate files are not usable; the previous ones stay in use");
                        failed = Some(error);
                    }
                    Err(_same) => {}
                }
            }
        });
    }

    /// The files.
    #[must_use]
    pub fn files(&self) -> &TlsFiles {
        &self.0.files
    }

    /// The identity in the process's own certificate, if it has one.
    #[must_use]
    pub fn identity(&self) -> Option<Identity> {
        self.current().configs.identity.clone()
    }

    /// Checks that servers can use these files.
    ///
    /// # Errors
    /// When there is no certificate, or it is not one of a server.
    pub fn check_server(&self) -> Result<(), TlsError> {
        self.server_config(Protocol::Http2).map(drop)
    }

    /// Completes the handshake of an accepted connection within [`HANDSHAKE_TIMEOUT`].
    pub(crate) async fn accept(&self, protocol: Protocol, connection: Connection) -> Result<Connection, Refusal> {
        let handshake = handshake::accept(self, protocol, connection);
        let timed_out =
            |_elapsed| Err(Refusal::Failed(io::Error::new(io::ErrorKind::TimedOut, "the handshake timed out")));
        tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake).await.unwrap_or_else(timed_out)
    }

    fn current(&self) -> Arc<Current> {
        Arc::clone(&self.0.current.lock())
    }

    fn client_config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.current().configs.client)
    }

    fn server_config(&self, protocol: Protocol) -> Result<Arc<ServerConfig>, TlsError> {
        let current = self.current();
        let Some(server) = &current.configs.server else {
            let (file, fault) = match &self.0.files.own {
                Some(own) => (&own.certificate, "the certificate is not one of a server: `ebla cert server` makes one"),
                None => (&self.0.files.ca, "a server with a CA file needs a certificate and a key too"),
            };
            return Err(TlsError { file: file.clone(), fault: fault.to_owned() });
        };
        Ok(Arc::clone(match protocol {
            Protocol::Http2 => &server.http2,
            Protocol::Http1AndHttp2 => &server.http1_and_http2,
            Protocol::Http1 => &server.http1,
        }))
    }

    /// Whether the process's own certificate expires within 7 days.
    #[must_use]
    pub fn is_expiring(&self) -> bool {
        self.current().configs.expires_within(EXPIRY_WARNING, &self.0.clock)
    }

    fn warn_if_expiring(&self) {
        if self.is_expiring() {
            let file = self.0.files.own.as_ref().map(|own| own.certificate.display().to_string()).unwrap_or_default();
            warn!(file, "the certificate expires within 7 days: replace the files, no restart is necessary");
        }
    }
}

impl Current {
    fn read(files: &TlsFiles, clock: &Clock) -> Result<Self, TlsError> {
        Self::new(read_all(files)?, files, clock)
    }

    fn new(contents: Contents, files: &TlsFiles, clock: &Clock) -> Result<Self, TlsError> {
        let configs = Configs::new(&contents, clock).map_err(|fault| located(files, fault))?;
        Ok(Self { contents, configs })
    }
}

fn located(files: &TlsFiles, fault: Fault) -> TlsError {
    let own = files.own.as_ref();
    let (file, fault) = match fault {
        Fault::Ca(fault) => (Some(&files.ca), fault),
        Fault::Certificate(fault) => (own.map(|own| &own.certificate), fault),
        Fault::Key(fault) => (own.map(|own| &own.key), fault),
    };
    TlsError { file: file.unwrap_or(&files.ca).clone(), fault }
}

fn read_all(files: &TlsFiles) -> Result<Contents, TlsError> {
    let own = match &files.own {
        Some(own) => {
            refuse_readable_key(&own.key)?;
            Some((read(&own.certificate)?, read(&own.key)?))
        }
        None => None,
    };
    Ok(Contents { ca: read(&files.ca)?, own })
}

fn read(file: &Path) -> Result<Vec<u8>, TlsError> {
    let failed = |fault: String| TlsError { file: file.to_path_buf(), fault };
    let length = std::fs::metadata(file).map_err(|error| failed(error.to_string()))?.len();
    if length > FILE_BYTES_MAX {
        return Err(failed(format!("it has {length} bytes, and at most {FILE_BYTES_MAX} are allowed")));
    }
    std::fs::read(file).map_err(|error| failed(error.to_string()))
}

/// Refuses a private key that every user of the machine can read. Its group may: some systems mount secrets so.
fn refuse_readable_key(file: &Path) -> Result<(), TlsError> {
    use std::os::unix::fs::PermissionsExt as _;
    let failed = |fault: String| TlsError { file: file.to_path_buf(), fault };
    let mode = std::fs::metadata(file).map_err(|error| failed(error.to_string()))?.permissions().mode();
    if mode & 0o007 == 0 {
        return Ok(());
    }
    let file = file.display();
    Err(failed(format!(
        "every user of this machine may read the private key: run `chmod 600 {file}`; if others could read it, make a new one"
    )))
}

#[cfg(test)]
pub(crate) mod tests;
