//! What a page may use: clients of the cluster with the viewer's identity, and what the process says about itself.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ebla_client::history::TableEvent;
use ebla_client::snapshot::{self, ClusterSnapshot};
use ebla_client::{Admin, BearerToken, Client, Cluster};
use ebla_model::access::{Permission, Resource};
use ebla_model::error::{Error, Reason};
use ebla_model::schema::TableName;
use ebla_mounttable_namespace::{Namespace, Roots};
use ebla_mounttable_tree::naming;
use ebla_runtime::http_port::Place;
use ebla_runtime::{Blocking, BlockingError, Runtime};
use futures::future::{Either, join_all, select};
use parking_lot::Mutex;

use crate::recent::{EVENTS_MAX, RecentEvents, Selection};

/// The timeout of a call for a page. A page as a whole has [`crate::site::PAGE_TIMEOUT`].
const CALL_TIMEOUT: Duration = Duration::from_secs(4);
/// How long the state of the cluster is awaited while an earlier one is known. The master waits for METADATA, which has no leader for a
/// moment when the server of its leader was killed; that must be visible at once.
const SNAPSHOT_PATIENCE: Duration = Duration::from_millis(500);
/// How long a server has to answer then.
const PING_TIMEOUT: Duration = Duration::from_millis(500);
/// How old the earlier state may be. It also is the longest time for which a lost right is not noticed, because the state of a viewer is the
/// proof of their right.
const EARLIER_AGE: Duration = Duration::from_secs(5);
/// How long the history of a tablet is not read again for the same open page: it changes rarely, and METADATA has it with the events of all
/// tablets of the table.
const HISTORY_AGE: Duration = Duration::from_secs(15);
/// How long a token that the cluster has accepted is not verified again for the same open page.
const VERIFIED_AGE: Duration = Duration::from_secs(5);
/// The project and the instance of tables that are named by their last part alone, as in commands.
pub(crate) const DEFAULT_PARENT: (&str, &str) = ("dev", "dev");

/// Whether the cluster has access control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessMode {
    /// Every caller may do everything: the console is for this machine, and for certificates of the cluster.
    Open,
    /// Each call needs a token: viewers log in.
    Tokens,
}

/// Whether pages may change something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Actions {
    /// They only show.
    ReadOnly,
    /// They have forms that drain servers and write cells, with the viewer's rights.
    Permitted,
}

/// An option of the process with its value and where that comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Its name, as in the configuration file.
    pub key: String,
    /// Its value as text; empty when it is not set.
    pub value: String,
    /// Where the value comes from: `flag`, `variable`, `file`, `default` or `unset`.
    pub origin: &'static str,
    /// Its environment variable, if it has one.
    pub variable: Option<String>,
    /// Whether SIGHUP changes it.
    pub is_reloadable: bool,
}

/// The console of a process.
#[derive(Clone, Debug)]
pub struct ConsoleConfig {
    /// The public API of a tablet server of this process, `host:port`.
    pub api: String,
    /// The handle of this tablet server, for METADATA.
    pub cluster: Cluster,
    /// Whether the cluster has access control.
    pub access: AccessMode,
    /// Whether pages may change something.
    pub actions: Actions,
    /// The roots of the mounttable, rooted names such as `/127.0.0.1:8101`; none: there is no mounttable page.
    pub mounttable: Vec<String>,
    /// The role and the release of the process, for people.
    pub process: String,
    /// The command that shows the configuration, such as `ebla config show`.
    pub configuration_command: String,
    /// The options of the process.
    pub configuration: Vec<Setting>,
}

/// The events of a tablet, and when they were read, on the monotonic clock.
type ReadHistory = (Duration, Vec<TableEvent>);

/// What a page may use.
#[derive(Clone)]
pub struct Context {
    config: Arc<ConsoleConfig>,
    /// The identity of the viewer. With access control there always is one: without a token a call would have the identity of this
    /// process's certificate.
    token: Option<BearerToken>,
    place: Place,
    /// Without an identity: one connection for all viewers.
    admin: Admin,
    /// Shared by all viewers who may see them.
    recent: RecentEvents,
    /// The last state of the cluster that this viewer has seen on a page that is still open. Locked to copy or replace it.
    earlier: Arc<Mutex<Option<(Duration, ClusterSnapshot)>>>,
    /// When the cluster has accepted the token last. Locked to copy or replace it.
    verified: Arc<Mutex<Option<Duration>>>,
    /// The history of a tablet, as it was read last for this open page. Locked to copy or replace it.
    history: Arc<Mutex<Option<ReadHistory>>>,
    /// Renders large pages.
    rendering: Blocking,
    runtime: Runtime,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("api", &self.config.api).field("token", &self.token).finish_non_exhaustive()
    }
}

impl Context {
    /// For a viewer with this token, who is at this place. With access control there must be a token.
    pub(crate) fn new(
        config: Arc<ConsoleConfig>,
        token: Option<BearerToken>,
        place: Place,
        admin: Admin,
        recent: RecentEvents,
        rendering: Blocking,
        runtime: Runtime,
    ) -> Self {
        assert!(config.access == AccessMode::Open || token.is_some(), "a viewer without identity has no context");
        // Calls go to the tablet server of this process. Without TLS the token has come here in clear text already (decision 0030).
        let token = token.map(BearerToken::allow_plaintext);
        let (earlier, verified, history) = (Arc::default(), Arc::default(), Arc::default());
        Self { config, token, place, admin, recent, earlier, verified, history, rendering, runtime }
    }

    /// The console's configuration.
    #[must_use]
    pub fn config(&self) -> &ConsoleConfig {
        &self.config
    }

    /// Clock and network.
    #[must_use]
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Admin calls as the viewer. The server checks their rights.
    #[must_use]
    pub fn admin(&self) -> Admin {
        self.admin.clone().with_timeout(CALL_TIMEOUT).with_token(self.token.clone())
    }

    /// Reads and writes of the public API as the viewer. The server checks their rights.
    #[must_use]
    pub fn data(&self) -> Client {
        let client = Client::endpoint(&self.config.api, self.runtime.clone());
        client.with_token(self.token.clone()).with_timeout(CALL_TIMEOUT)
    }

    /// A client that reads METADATA with the identity of this process: tablets with their keys, events, lookups. METADATA has no
    /// rights of its own, so with access control it is for viewers who may call the operators' API: administrators.
    ///
    /// # Errors
    /// `PermissionDenied` for other viewers; with access control also each error of the call that proves the right.
    pub async fn metadata(&self) -> Result<Client, Error> {
        self.require_administrator().await?;
        let client = Client::in_process(self.config.cluster.clone(), &self.config.api, self.runtime.clone());
        Ok(client.with_timeout(CALL_TIMEOUT))
    }

    /// The last events of a selection, at most [`EVENTS_MAX`], ascending by time; they may be a few seconds old.
    ///
    /// # Errors
    /// As [`Self::metadata`]; `NotFoundTable`; `Unavailable` or `Deadline` when METADATA cannot be read.
    pub(crate) async fn recent_events(&self, selection: &Selection) -> Result<Arc<[TableEvent]>, Error> {
        let client = self.metadata().await?;
        let accepts = |event: &_| selection.accepts(event);
        let read = client.last_tablet_events(selection.table.as_ref(), EVENTS_MAX, accepts);
        self.recent.get(selection, &self.runtime.clock, read).await
    }

    /// The history of the tablet of this page: as `read` finds it, or as it was read within the last 15 s. The caller has checked the rights
    /// of the viewer.
    ///
    /// # Errors
    /// Those of `read`; they are not kept.
    pub(crate) async fn history(
        &self,
        read: impl Future<Output = Result<Vec<TableEvent>, Error>> + Send,
    ) -> Result<Vec<TableEvent>, Error> {
        let now = self.runtime.clock.monotonic();
        let known = self.history.lock().clone().filter(|(read_at, _)| now.saturating_sub(*read_at) < HISTORY_AGE);
        if let Some((_read_at, events)) = known {
            return Ok(events);
        }
        let events = read.await?;
        *self.history.lock() = Some((now, events.clone()));
        Ok(events)
    }

    /// What `render` makes of values, on a thread that serves no requests: a large page takes many milliseconds.
    ///
    /// # Errors
    /// `Busy` when too many pages wait for these threads; `Internal` when `render` fails.
    pub(crate) async fn render<T, F>(&self, render: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        self.rendering.run_if_awaited(render).await.map_err(|error| {
            let reason = if error == BlockingError::Panicked { Reason::Internal } else { Reason::Busy };
            Error::new(reason, format!("the page cannot be rendered: {error}"))
        })
    }

    /// A client as [`Self::metadata`], whose cache of locations is empty.
    ///
    /// # Errors
    /// As [`Self::metadata`]; `Unavailable` when this process does not serve.
    pub async fn fresh_metadata(&self) -> Result<Client, Error> {
        self.require_administrator().await?;
        let client = Client::connect_cluster(&self.config.api, self.runtime.clone()).await?;
        Ok(client.with_timeout(CALL_TIMEOUT))
    }

    /// Returns for viewers whose token the cluster accepts, whatever they may do; without access control at once. What a viewer uses before
    /// any call of the cluster proves the token needs this: a stream, and connections to other servers.
    ///
    /// # Errors
    /// `Unauthenticated` for an invalid token; `Unavailable` or `Deadline` when this process does not serve.
    pub async fn verify(&self) -> Result<(), Error> {
        let now = self.runtime.clock.monotonic();
        let is_recent = |accepted_at: Duration| now.saturating_sub(accepted_at) < VERIFIED_AGE;
        if self.token.is_none() || self.verified.lock().is_some_and(is_recent) {
            return Ok(());
        }
        accepts_identity(&self.admin()).await?;
        *self.verified.lock() = Some(now);
        Ok(())
    }

    /// Returns for viewers who may do everything: with access control those whom the operators' API accepts, or has given the state of the cluster
    /// for this open page within the last 5 s.
    ///
    /// # Errors
    /// `PermissionDenied` for other viewers; with access control also each error of the call that proves the right.
    pub async fn require_administrator(&self) -> Result<(), Error> {
        match self.config.access {
            AccessMode::Open => Ok(()),
            AccessMode::Tokens if self.examine_earlier(|_state| ()).is_some() => Ok(()),
            AccessMode::Tokens => self.admin().status().await.map(drop).map_err(only_administrators),
        }
    }

    /// Returns for viewers who may see the options of this process, which name files and addresses: administrators; without access control
    /// those on this machine and parts of the cluster, as for the arguments in `/debug/`.
    ///
    /// # Errors
    /// `PermissionDenied` for other viewers; otherwise as [`Self::require_administrator`].
    pub async fn require_operator_of_process(&self) -> Result<(), Error> {
        if self.config.access == AccessMode::Open && !matches!(self.place, Place::Local | Place::Member) {
            let message = "the options of a process are shown on its machine, and to a certificate of a server";
            return Err(Error::new(Reason::PermissionDenied, message));
        }
        self.require_administrator().await
    }

    /// The state of the cluster. Without access control also while there is no master.
    ///
    /// # Errors
    /// When this process does not answer; with access control for viewers who are no administrators, and while there is no master.
    pub async fn snapshot(&self) -> Result<ClusterSnapshot, Error> {
        let fetched = match self.examine_earlier(ClusterSnapshot::clone) {
            None => self.fetch_snapshot().await?,
            Some(earlier) => {
                let fetch = Box::pin(self.fetch_snapshot());
                match select(fetch, Box::pin(tokio::time::sleep(SNAPSHOT_PATIENCE))).await {
                    Either::Left((fetched, _patience)) => fetched?,
                    Either::Right(((), fetch)) => match self.ask_servers(earlier).await {
                        Some(changed) => return Ok(changed),
                        None => fetch.await?,
                    },
                }
            }
        };
        self.set_earlier(fetched.clone());
        Ok(fetched)
    }

    /// What `examine` finds in the state of the cluster that this open page has seen last; `None`: it has seen none within the last 5 s.
    pub(crate) fn examine_earlier<T>(&self, examine: impl FnOnce(&ClusterSnapshot) -> T) -> Option<T> {
        let now = self.runtime.clock.monotonic();
        let earlier = self.earlier.lock();
        let (seen_at, state) = earlier.as_ref()?;
        (now.saturating_sub(*seen_at) < EARLIER_AGE).then(|| examine(state))
    }

    /// Sets the state of the cluster that this open page has seen last: now.
    pub(crate) fn set_earlier(&self, state: ClusterSnapshot) {
        *self.earlier.lock() = Some((self.runtime.clock.monotonic(), state));
    }

    /// An earlier state with the servers that do not answer any more; `None` when there are none.
    async fn ask_servers(&self, mut known: ClusterSnapshot) -> Option<ClusterSnapshot> {
        let ask = known.servers.iter().map(|server| async move {
            match (server.is_reachable, &server.address) {
                (true, Some(address)) => snapshot::answers(address, PING_TIMEOUT, &self.runtime).await,
                (was, _) => was,
            }
        });
        let answers = join_all(ask).await;
        let has_changed = known.servers.iter().zip(&answers).any(|(server, answers)| server.is_reachable != *answers);
        known.servers.iter_mut().zip(answers).for_each(|(server, answers)| server.is_reachable = answers);
        has_changed.then_some(known)
    }

    async fn fetch_snapshot(&self) -> Result<ClusterSnapshot, Error> {
        match self.config.access {
            AccessMode::Open => {
                snapshot::fetch(std::slice::from_ref(&self.config.api), Some(CALL_TIMEOUT), None, &self.runtime).await
            }
            // Its fallback reads METADATA with the identity of this process.
            AccessMode::Tokens => self.admin().status().await.map(Into::into).map_err(only_administrators),
        }
    }

    /// A namespace that begins at the mounttable, as the viewer. It sends the token to each server of a rooted name, and connects there: pass
    /// it only names that [`Self::require_own_name`] accepts.
    ///
    /// # Errors
    /// `FailedPrecondition` when the process has no mounttable, or its connections no TLS and the viewer a token; `InvalidArgument` when its address is
    /// wrong; otherwise as [`Self::verify`].
    pub async fn names(&self) -> Result<Namespace, Error> {
        if self.config.mounttable.is_empty() {
            let message =
                "this process knows no mounttable: start `ebla up --mounttable`, or a tablet server with --publish-to";
            return Err(Error::new(Reason::FailedPrecondition, message));
        }
        self.verify().await?;
        let roots = Roots::new(self.config.mounttable.iter().map(String::as_str)).map_err(of_names)?;
        let builder = Namespace::builder(self.runtime.clone()).roots(roots.clone()).timeout(CALL_TIMEOUT);
        let builder = match &self.token {
            Some(token) => builder.token(token.text_for(&self.runtime.net)?).token_servers(roots),
            None => builder,
        };
        builder.build().map_err(of_names)
    }

    /// Returns for relative names, and for rooted names of this console's mounttable. Addresses of pages can come from anywhere, so a name
    /// in them must not choose the server that receives the viewer's token, nor make this process connect to any other address.
    ///
    /// # Errors
    /// `PermissionDenied` for the name of another server.
    pub fn require_own_name(&self, name: &str) -> Result<(), Error> {
        if is_own_name(&self.config.mounttable, name) {
            return Ok(());
        }
        let message = "the console asks only its own mounttable; `ebla mt ls NAME` and `ebla mt resolve NAME` ask the server of a rooted name";
        Err(Error::new(Reason::PermissionDenied, message))
    }
}

/// Whether a name is relative, or its server is one of these roots. Pure. Another spelling of a root's address is another server.
fn is_own_name(roots: &[String], name: &str) -> bool {
    let (address, _name) = naming::split_address(name);
    !naming::is_rooted(name) || roots.iter().any(|root| naming::split_address(root).0 == address)
}

/// Returns when the cluster accepts the identity of these calls, whatever it may do.
///
/// # Errors
/// `Unauthenticated` for an invalid token; others when the server does not answer, or the token may not be sent there.
pub(crate) async fn accepts_identity(admin: &Admin) -> Result<(), Error> {
    // The only call whose answer every caller with an identity gets.
    let parent = Resource::Instance(format!("projects/{}/instances/{}", DEFAULT_PARENT.0, DEFAULT_PARENT.1).parse()?);
    admin.test_permissions(&parent, Permission::ALL.get(..1).unwrap_or_default()).await.map(drop)
}

/// The refusal of the operators' API in the words of a page.
fn only_administrators(error: Error) -> Error {
    if error.reason != Reason::PermissionDenied {
        return error;
    }
    let message = "this page is for administrators of the cluster (--administrators); tables and their rows are for those with a role";
    Error::new(Reason::PermissionDenied, message)
}

/// An error of the mounttable as one of the console.
pub(crate) fn of_names(error: ebla_mounttable_tree::Error) -> Error {
    use ebla_mounttable_tree::Reason as Names;
    let reason = match error.reason {
        Names::NoSuchName | Names::NoSuchNameRoot => Reason::NotFound,
        Names::NoAccess => Reason::PermissionDenied,
        Names::Unavailable => Reason::Unavailable,
        _ => Reason::InvalidArgument,
    };
    Error::new(reason, format!("{} ({})", error.message, error.reason))
}

/// The full name of a table that a path or a field names: its last part, or all of it.
///
/// # Errors
/// `InvalidArgument` for a name that the API does not allow.
pub(crate) fn table_name(given: &str) -> Result<TableName, Error> {
    if given.contains('/') { given.parse() } else { TableName::from_parts(DEFAULT_PARENT.0, DEFAULT_PARENT.1, given) }
}

/// The shortest text that [`table_name`] reads as this table.
pub(crate) fn short_name(table: &TableName) -> &str {
    if (table.project(), table.instance()) == DEFAULT_PARENT { table.table() } else { table.as_str() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rooted_name_is_of_this_console_only_at_its_roots() {
        let roots = ["/127.0.0.1:8101/in".to_owned(), "/names:8101".to_owned()];
        for own in ["", "a/b", "127.0.0.1:1/a", "/127.0.0.1:8101", "/127.0.0.1:8101/other", "//names:8101//a/"] {
            assert!(is_own_name(&roots, own), "{own}");
        }
        for other in [
            "/",
            "/evil.example:1/x",
            "//evil.example:1/x",
            "/127.0.0.1:8102",
            "/names:8101#/a",
            "/@6@tcp@evil.example:1@@00@s@x@@/a",
            "/(names:8101)@evil.example:1/a",
            "/names:8101@evil.example:1",
            "/dns:///names:8101",
        ] {
            assert!(!is_own_name(&roots, other), "{other}");
        }
        assert!(!is_own_name(&[], "/a:1") && is_own_name(&[], "a"));
    }
}
