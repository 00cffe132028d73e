//! Clusters of processes with TLS and access control: certificates, tokens, and the callers that a suite has.
//!
//! | caller | identity | what it may do |
//! |---|---|---|
//! | operator | the certificate of a client | everything: it is an administrator of the configuration |
//! | observer | the certificate of a mounttable | read METADATA, so it learns where tablets are; it has no rights for tables |
//! | user | a token, on connections without a certificate | what policies and lists of families grant it: see [`Callers::grant`] |
//!
//! Without security all three are the same connections without TLS, and everybody may do everything.

use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use bytes::Bytes;
use ebla_client::{Admin, BearerToken, Client};
use ebla_model::access::{Member, Permission, Policy, Resource, Role};
use ebla_model::schema::TableName;
use ebla_runtime::tls::{CertificateFiles, TlsFiles};
use ebla_runtime::{Clock, Runtime, Tls};
use tempfile::TempDir;

use crate::child::POLL;
use crate::cluster::Node;
use crate::network::NodeNetwork;
use crate::process::Plan;

/// The names of the callers in certificates and in the token.
const OPERATOR: &str = "operator";
const OBSERVER: &str = "observer";
/// The subject of the token of a user.
pub const USER: &str = "load";
/// What tokens contain and tablet servers expect.
const ISSUER: &str = "https://login.example.org";
const AUDIENCE: &str = "ebla";
/// The instance of the mounttables' table.
const MOUNTTABLES: &str = "projects/dev/instances/dev";
/// Life of the token of a user, longer than any run.
const TOKEN_LIFE: &str = "7d";
/// Timeout until a policy is effective on all servers, usually a second.
const EFFECTIVE_MAX: Duration = Duration::from_secs(30);

/// Whether a cluster has TLS and access control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Security {
    /// Both.
    On,
    /// None.
    Off,
}

impl Security {
    /// The value of `EBLA_SECURITY` for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::On => "on",
            Self::Off => "off",
        }
    }
}

/// The CA of a cluster under test and the certificates that it has issued, made by `ebla cert` of the program under test.
#[derive(Clone, Debug)]
pub struct Certificates {
    program: PathBuf,
    folder: PathBuf,
}

impl Certificates {
    /// A new CA in `folder`, which must not exist.
    ///
    /// # Errors
    /// When `program` fails; with its output.
    pub fn init(program: &Path, folder: PathBuf) -> io::Result<Self> {
        let made = Self { program: program.to_path_buf(), folder };
        made.cert(&["init"])?;
        Ok(made)
    }

    /// Runs `ebla cert` for this CA.
    ///
    /// # Errors
    /// When it fails; with its output.
    pub fn cert(&self, arguments: &[&str]) -> io::Result<()> {
        run(Command::new(&self.program).arg("cert").args(arguments).arg("--dir").arg(&self.folder))
    }

    /// Issues the certificates of nodes, each with the address that it listens at.
    ///
    /// # Errors
    /// As [`Self::cert`].
    pub fn issue(&self, nodes: &[(Node, String)]) -> io::Result<()> {
        nodes.iter().try_for_each(|(node, host)| {
            let role = match node {
                Node::Etcd(_) => "other",
                Node::Master(_) => "master",
                Node::TabletServer(_) => "tablet-server",
                Node::Mounttable(_) => "mounttable",
            };
            self.cert(&["server", &node.to_string(), "--role", role, "--host", host])
        })
    }

    /// The folder of all files.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// A file of the folder.
    #[must_use]
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// `runtime` with connections that use the certificate `name`, or none, and trust this CA. Files that change are read again.
    ///
    /// # Errors
    /// When the files cannot be used.
    pub fn runtime(&self, name: Option<&str>, runtime: &Runtime) -> io::Result<Runtime> {
        runtime_as(&self.folder, name, runtime)
    }
}

/// The callers of a cluster under test.
#[derive(Debug)]
pub struct Callers {
    /// An administrator, for operator calls and for tables.
    pub operator: Runtime,
    /// A caller of tablets, to learn where they are.
    pub observer: Runtime,
    /// Connections of a user; its calls have [`Self::token`].
    pub user: Runtime,
    /// The token of a user; `None` without security.
    pub token: Option<BearerToken>,
    security: Security,
    /// What signs further tokens.
    tokens: Option<Tokens>,
    /// The files of all, removed when this is dropped.
    files: Option<TempDir>,
}

impl Callers {
    /// Makes certificates, a key and a token for the cluster that `plan` describes, and adds them to it; without security nothing. Further
    /// tablet servers, `spare` of them, may join later. The operator is the administrator; mounttables have the rights for the instance of
    /// their table.
    ///
    /// # Errors
    /// When the program of the plan fails; with its output.
    pub fn prepare<S: NodeNetwork>(
        security: Security,
        plan: &mut Plan,
        spare: usize,
        network: &S,
        runtime: &Runtime,
    ) -> io::Result<Self> {
        if security == Security::Off {
            let (operator, observer, user) = (runtime.clone(), runtime.clone(), runtime.clone());
            return Ok(Self { operator, observer, user, token: None, security, tokens: None, files: None });
        }
        let files = tempfile::Builder::new().prefix("ebla-callers-").tempdir()?;
        let certificates = Certificates::init(&plan.program, files.path().join("certs"))?;
        let later = (plan.tablet_servers..plan.tablet_servers.saturating_add(spare)).map(Node::TabletServer);
        let nodes: Vec<_> = plan.nodes().into_iter().chain(later).map(|node| (node, network.host(node))).collect();
        certificates.issue(&nodes)?;
        certificates.cert(&["client", OPERATOR])?;
        certificates.cert(&["server", OBSERVER, "--role", "mounttable"])?;
        let tokens = Tokens::init(&plan.program, files.path().join("tokens"))?;
        let token = std::fs::read_to_string(tokens.issue(USER)?)?;
        let mounttables = (0..plan.mounttables).map(|number| format!("certificate:{}", Node::Mounttable(number)));
        let members: Vec<Member> =
            mounttables.map(|member| member.parse()).collect::<Result<_, _>>().map_err(failed)?;
        if !members.is_empty() {
            let policy = Policy::new(members.into_iter().map(|member| (Role::Admin, member))).map_err(failed)?;
            plan.policies.push((MOUNTTABLES.parse().map_err(failed)?, policy));
        }
        let options = [
            ("--token-keys", tokens.folder.join("token-keys.json").display().to_string()),
            ("--token-issuer", ISSUER.to_owned()),
            ("--token-audience", AUDIENCE.to_owned()),
            ("--administrators", format!("certificate:{OPERATOR}")),
        ];
        plan.server_options.extend(options.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]));
        plan.certificates = Some(certificates.folder.clone());
        Ok(Self {
            operator: certificates.runtime(Some(OPERATOR), runtime)?,
            observer: certificates.runtime(Some(OBSERVER), runtime)?,
            user: certificates.runtime(None, runtime)?,
            token: Some(BearerToken::new(&token).map_err(failed)?),
            security,
            tokens: Some(tokens),
            files: Some(files),
        })
    }

    /// Whether there are TLS and access control.
    #[must_use]
    pub const fn security(&self) -> Security {
        self.security
    }

    /// The file of the CA, for programs outside of the test; `None` without security.
    #[must_use]
    pub fn ca_file(&self) -> Option<PathBuf> {
        Some(self.files.as_ref()?.path().join("certs/ca.crt"))
    }

    /// A file with a token of this subject, for programs outside of the test; `None` without security.
    ///
    /// # Errors
    /// When the program of the plan fails; with its output.
    pub fn token_file(&self, subject: &str) -> io::Result<Option<PathBuf>> {
        self.tokens.as_ref().map(|tokens| tokens.issue(subject)).transpose()
    }

    /// A client of a user at an address.
    #[must_use]
    pub fn user_at(&self, address: &str) -> Client {
        Client::endpoint(address, self.user.clone()).with_token(self.token.clone())
    }

    /// Gives users this role for a table, and puts them alone into the lists of its `families`; returns when that holds at all addresses.
    /// Without security nothing.
    ///
    /// # Errors
    /// Those of the cluster; `TimedOut` when a server does not know the policy in half a minute.
    pub async fn grant(
        &self,
        addresses: &[String],
        table: &TableName,
        role: Role,
        families: &[&str],
    ) -> io::Result<()> {
        let Some(first) = addresses.first().filter(|_first| self.security == Security::On) else { return Ok(()) };
        let admin = Admin::connect(first, &self.operator);
        let member: Member = format!("subject:{USER}").parse().map_err(failed)?;
        for family in families {
            let both = [Role::FamilyReader, Role::FamilyWriter].map(|role| (role, member.clone()));
            set_list(&admin, table, family, Policy::new(both).map_err(failed)?).await?;
        }
        let policy = Policy::new([(role, member)]).map_err(failed)?;
        let resource = Resource::Table(table.clone());
        admin.set_policy(&resource, &policy, Bytes::new()).await.map_err(failed)?;
        for address in addresses {
            wait_permitted(&self.user_at(address).admin(), address, &resource, Permission::ReadRows, &self.user.clock)
                .await?;
        }
        Ok(())
    }

    /// Waits until a policy of the plan is effective at all addresses for the token of `subject`. Without security nothing.
    ///
    /// # Errors
    /// `TimedOut` when a server does not know the policy in half a minute; when no token can be made.
    pub async fn wait_permitted(
        &self,
        addresses: &[String],
        subject: &str,
        resource: &Resource,
        permission: Permission,
    ) -> io::Result<()> {
        let Some(file) = self.token_file(subject)? else { return Ok(()) };
        let token = BearerToken::new(&std::fs::read_to_string(file)?).map_err(failed)?;
        for address in addresses {
            let admin = Admin::connect(address, &self.user).with_token(Some(token.clone()));
            wait_permitted(&admin, address, resource, permission, &self.user.clock).await?;
        }
        Ok(())
    }

    /// Hides a family from users: only others are in its list. Without security nothing.
    ///
    /// # Errors
    /// Those of the cluster.
    pub async fn hide(&self, address: &str, table: &TableName, family: &str) -> io::Result<()> {
        if self.security == Security::Off {
            return Ok(());
        }
        let others: Member = "group:auditors".parse().map_err(failed)?;
        let list = Policy::new([(Role::FamilyReader, others)]).map_err(failed)?;
        set_list(&Admin::connect(address, &self.operator), table, family, list).await
    }
}

/// `runtime` with connections that use the certificate `name` in `folder`, or none, and trust the CA there.
fn runtime_as(folder: &Path, name: Option<&str>, runtime: &Runtime) -> io::Result<Runtime> {
    let own = name.map(|name| CertificateFiles {
        certificate: folder.join(format!("{name}.crt")),
        key: folder.join(format!("{name}.key")),
    });
    let tls = Tls::open(TlsFiles { ca: folder.join("ca.crt"), own }, runtime.clock.clone()).map_err(failed)?;
    tls.watch(&runtime.tasks);
    Ok(Runtime { net: runtime.net.clone().with_tls(tls), ..runtime.clone() })
}

/// Sets policies through a server.
pub(crate) async fn set_policies(address: &str, policies: &[(Resource, Policy)], operator: &Runtime) -> io::Result<()> {
    let admin = Admin::connect(address, operator);
    for (resource, policy) in policies {
        let set = admin.set_policy(resource, policy, Bytes::new()).await;
        set.map_err(|error| io::Error::other(format!("set the policy of {resource}: {error}")))?;
    }
    Ok(())
}

/// Waits until a mounttable may create its table at all addresses, if the plan has policies.
///
/// # Errors
/// `TimedOut` when a server does not know the policy in half a minute.
pub(crate) async fn wait_mounttable_permitted(
    plan: &Plan,
    addresses: &[String],
    mounttable: Node,
    runtime: &Runtime,
) -> io::Result<()> {
    let Some(folder) = plan.certificates.as_ref().filter(|_folder| !plan.policies.is_empty()) else { return Ok(()) };
    let runtime = runtime_as(folder, Some(&mounttable.to_string()), runtime)?;
    let resource = MOUNTTABLES.parse().map_err(failed)?;
    for address in addresses {
        let admin = Admin::connect(address, &runtime);
        wait_permitted(&admin, address, &resource, Permission::CreateTable, &runtime.clock).await?;
    }
    Ok(())
}

/// Waits until the server at `address` grants a permission to the caller of `admin`.
async fn wait_permitted(
    admin: &Admin,
    address: &str,
    resource: &Resource,
    permission: Permission,
    clock: &Clock,
) -> io::Result<()> {
    let started = clock.monotonic();
    while !admin.test_permissions(resource, &[permission]).await.is_ok_and(|found| !found.is_empty()) {
        if clock.monotonic() - started > EFFECTIVE_MAX {
            let late = format!("{address} does not know the policy of {resource} after {EFFECTIVE_MAX:?}");
            return Err(io::Error::new(io::ErrorKind::TimedOut, late));
        }
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}

async fn set_list(admin: &Admin, table: &TableName, family: &str, list: Policy) -> io::Result<()> {
    let resource: Resource = format!("{table}/columnFamilies/{family}").parse().map_err(failed)?;
    admin.set_policy(&resource, &list, Bytes::new()).await.map(drop).map_err(failed)
}

/// A key that signs tokens, made by `ebla token`.
#[derive(Debug)]
struct Tokens {
    program: PathBuf,
    folder: PathBuf,
}

impl Tokens {
    /// A new key in `folder`, which must not exist.
    fn init(program: &Path, folder: PathBuf) -> io::Result<Self> {
        let made = Self { program: program.to_path_buf(), folder };
        made.token(&["init"])?;
        Ok(made)
    }

    /// The file of a new token of this subject.
    fn issue(&self, subject: &str) -> io::Result<PathBuf> {
        let file = self.folder.join(format!("{subject}.token"));
        let out = file.display().to_string();
        let claims = ["--issuer", ISSUER, "--audience", AUDIENCE, "--for", TOKEN_LIFE];
        self.token(&[&["issue", subject, "--replace", "--out", &out], &claims[..]].concat())?;
        Ok(file)
    }

    fn token(&self, arguments: &[&str]) -> io::Result<()> {
        run(Command::new(&self.program).arg("token").args(arguments).arg("--dir").arg(&self.folder))
    }
}

fn run(command: &mut Command) -> io::Result<()> {
    let output = command.output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr))))
}

fn failed(error: impl Display) -> io::Error {
    io::Error::other(error.to_string())
}
