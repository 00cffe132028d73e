//! `ebla cert`: a CA of a cluster, and certificates of its servers and clients.
//!
//! All in one folder: `ca.crt` for every process and client, `ca.key` for the operator alone, and `NAME.crt` with `NAME.key` for each process. Keys are
//! readable by their owner alone. A certificate states a role and a name (`ebla_runtime::tls::Identity`); any other CA may issue
//! such certificates as well.

use std::fs;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use ebla_runtime::tls::{CertificateFiles, Identity, Role, TlsFiles};
use ebla_runtime::{Clock, Runtime, Tls};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use time::{Duration, OffsetDateTime};

use super::new_file::{self, Existing, precondition, unusable};
use crate::output::{self, Failure};

/// The subject of a CA. Certificates name their issuer by it, and by the key's identifier.
const CA_SUBJECT: &str = "Ebla cluster CA";
/// Certificates are valid from a little earlier, because clocks differ.
const CLOCK_TOLERANCE: Duration = Duration::hours(1);

/// Make a CA and certificates for TLS
///
/// Examples:
///   ebla cert init
///   ebla cert server server-1 --host 10.0.0.1,server-1.example.org
///   ebla cert server master-1 --role master --host 10.0.0.9
///   ebla cert client alice
///
/// Give each process its own certificate and key, and ca.crt: --tls-cert, --tls-key, --tls-ca. Keep ca.key offline.
#[derive(Debug, clap::Subcommand)]
#[command(verbatim_doc_comment)]
pub enum Cert {
    /// Make a CA: ca.crt and ca.key
    ///
    /// Example:
    ///   ebla cert init --dir ./certs
    #[command(verbatim_doc_comment)]
    Init(Init),
    /// Make the certificate of a server
    ///
    /// Clients verify that the certificate names the address by which they connect: give every address and DNS name.
    ///
    /// Examples:
    ///   ebla cert server server-1 --host 10.0.0.1,server-1.example.org
    ///   ebla cert server names-1 --role mounttable --host 10.0.0.7
    #[command(verbatim_doc_comment)]
    Server(ServerCertificate),
    /// Make the certificate of a user or a program
    ///
    /// Example:
    ///   ebla cert client alice
    #[command(verbatim_doc_comment)]
    Client(ClientCertificate),
}

/// Where certificates are, and for how long a new one is valid.
#[derive(Clone, Debug, clap::Args)]
pub struct Place {
    /// Folder of the CA and of the new files
    #[arg(long, value_name = "DIR", default_value = "./certs")]
    pub dir: PathBuf,
    /// Replace the files if they exist. A running process takes up new ones by itself
    #[arg(long)]
    pub replace: bool,
}

/// Options of `init`.
#[derive(Clone, Debug, clap::Args)]
pub struct Init {
    /// Where
    #[command(flatten)]
    pub place: Place,
    /// Days for which the CA is valid
    #[arg(long, value_name = "N", default_value_t = 3_650, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    pub days: u32,
}

/// Options of `server`.
#[derive(Clone, Debug, clap::Args)]
pub struct ServerCertificate {
    /// Name of the server, for its certificate and its files
    pub name: String,
    /// What the server is
    #[arg(long, value_enum, default_value = "tablet-server")]
    pub role: ServerRole,
    /// Addresses and DNS names of the server, separated by commas
    #[arg(long, value_name = "HOST,…", value_delimiter = ',', default_value = "localhost,127.0.0.1,::1")]
    pub host: Vec<String>,
    /// Where
    #[command(flatten)]
    pub place: Place,
    /// Days for which the certificate is valid
    #[arg(long, value_name = "N", default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    pub days: u32,
}

/// Options of `client`.
#[derive(Clone, Debug, clap::Args)]
pub struct ClientCertificate {
    /// Name of the user or program, for its certificate and its files
    pub name: String,
    /// Where
    #[command(flatten)]
    pub place: Place,
    /// Days for which the certificate is valid
    #[arg(long, value_name = "N", default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    pub days: u32,
}

/// The role of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ServerRole {
    /// A master
    Master,
    /// A tablet server, or a cluster in one process
    TabletServer,
    /// A server of a mounttable
    Mounttable,
    /// A server of another program, such as etcd: it has no role in the cluster
    Other,
}

impl ServerRole {
    const fn role(self) -> Option<Role> {
        match self {
            Self::Master => Some(Role::Master),
            Self::TabletServer => Some(Role::TabletServer),
            Self::Mounttable => Some(Role::Mounttable),
            Self::Other => None,
        }
    }
}

/// Makes the files and says what they are for.
///
/// # Errors
/// Usage, for an invalid name or host; 4 when a file exists; 5 when the folder or its CA cannot be used.
pub fn run(cert: &Cert, runtime: &Runtime) -> Result<(), Failure> {
    let made = match cert {
        Cert::Init(init) => make_ca(init, &runtime.clock)?,
        Cert::Server(server) => {
            let hosts = server.host.iter().map(|host| subject_name(host)).collect::<Result<Vec<_>, _>>()?;
            // The name is checked in any case: it is also that of the files.
            let identity = Identity::new(server.role.role().unwrap_or(Role::TabletServer), &server.name)
                .map_err(|error| Failure::usage(error.to_string()))?;
            let request = Request {
                name: &server.name,
                identity: server.role.role().map(|_role| identity),
                hosts,
                usages: vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth],
                days: server.days,
            };
            issue(&request, &server.place, &runtime.clock)?
        }
        Cert::Client(client) => {
            let identity =
                Identity::new(Role::Client, &client.name).map_err(|error| Failure::usage(error.to_string()))?;
            let request = Request {
                name: &client.name,
                identity: Some(identity),
                hosts: Vec::new(),
                usages: vec![ExtendedKeyUsagePurpose::ClientAuth],
                days: client.days,
            };
            issue(&request, &client.place, &runtime.clock)?
        }
    };
    output::print(&made);
    Ok(())
}

fn make_ca(init: &Init, clock: &Clock) -> Result<String, Failure> {
    let key = KeyPair::generate().map_err(internal)?;
    let mut params = ca_params();
    (params.not_before, params.not_after) = validity(init.days, clock)?;
    let certificate = params.self_signed(&key).map_err(internal)?;
    fs::create_dir_all(&init.place.dir).map_err(|error| unusable(&init.place.dir, &error))?;
    let pair = Pair::at(&init.place.dir, "ca");
    pair.write(&certificate.pem(), &key.serialize_pem(), init.place.replace.into())?;
    Ok(format!(
        "{}   certificate of the CA, for every server and client (--tls-ca)\n{}   its key: keep it secret, no process needs it\n",
        pair.certificate.display(),
        pair.key.display()
    ))
}

/// What the parameters of a CA and of its issuer have in common.
fn ca_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, CA_SUBJECT);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

/// A certificate to make.
struct Request<'a> {
    name: &'a str,
    identity: Option<Identity>,
    hosts: Vec<SanType>,
    usages: Vec<ExtendedKeyUsagePurpose>,
    days: u32,
}

fn issue(request: &Request<'_>, place: &Place, clock: &Clock) -> Result<String, Failure> {
    if request.name == "ca" {
        return Err(Failure::usage("ca is the name of the CA's own files: choose another name"));
    }
    let ca = Pair::at(&place.dir, "ca");
    let ca_key = fs::read_to_string(&ca.key).map_err(|error| no_ca(&ca.key, &error))?;
    let ca_key = KeyPair::from_pem(&ca_key).map_err(|error| {
        precondition(format!("{} is not the key of a CA that `ebla cert init` made: {error}", ca.key.display()))
    })?;
    let ca_params = ca_params();
    let issuer = Issuer::from_params(&ca_params, ca_key);

    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, request.name);
    if let Some(identity) = &request.identity {
        let uri = identity.uri().as_str().try_into().map_err(internal)?;
        params.subject_alt_names.push(SanType::URI(uri));
    }
    params.subject_alt_names.extend(request.hosts.iter().cloned());
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages.clone_from(&request.usages);
    params.use_authority_key_identifier_extension = true;
    (params.not_before, params.not_after) = validity(request.days, clock)?;
    let key = KeyPair::generate().map_err(internal)?;
    let certificate = params.signed_by(&key, &issuer).map_err(internal)?;

    let pair = Pair::at(&place.dir, request.name);
    let checked = Pair::at(&place.dir, &format!(".new-{}", request.name));
    checked.write(&certificate.pem(), &key.serialize_pem(), Existing::Replaced)?;
    // As a server will: the CA's certificate and key may be of different CAs, or the CA may have expired.
    let own = CertificateFiles { certificate: checked.certificate.clone(), key: checked.key.clone() };
    let usable = Tls::open(TlsFiles { ca: ca.certificate.clone(), own: Some(own) }, clock.clone());
    let published = match usable {
        Ok(_tls) => checked.rename_to(&pair, place.replace.into()),
        Err(error) => {
            Err(precondition(format!("the new certificate does not fit to {}: {error}", ca.certificate.display())))
        }
    };
    checked.remove();
    published?;
    let whose = request.identity.as_ref().map_or_else(|| "a server without a role".to_owned(), ToString::to_string);
    Ok(format!(
        "{}   certificate of {whose}, valid for {} days (--tls-cert)\n{}   its key (--tls-key)\n{}   the CA, as before (--tls-ca)\n",
        pair.certificate.display(),
        request.days,
        pair.key.display(),
        ca.certificate.display()
    ))
}

/// An address or a DNS name of a server.
fn subject_name(host: &str) -> Result<SanType, Failure> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(SanType::IpAddress(address));
    }
    let is_name = |part: &str| {
        !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
    };
    // The first part of a wildcard certificate.
    let rest = host.strip_prefix("*.").unwrap_or(host);
    match host.try_into() {
        Ok(name) if rest.split('.').all(is_name) => Ok(SanType::DnsName(name)),
        _ => Err(Failure::usage(format!(
            "{host:?} is no address and no DNS name: give --host without a port, for example --host 10.0.0.1,server-1.example.org"
        ))),
    }
}

fn validity(days: u32, clock: &Clock) -> Result<(OffsetDateTime, OffsetDateTime), Failure> {
    let now = OffsetDateTime::from_unix_timestamp(clock.wall().get() / 1_000_000).map_err(internal)?;
    Ok((now - CLOCK_TOLERANCE, now + Duration::days(days.into())))
}

/// The files of a certificate and its key.
struct Pair {
    certificate: PathBuf,
    key: PathBuf,
}

impl Pair {
    fn at(folder: &Path, name: &str) -> Self {
        Self { certificate: folder.join(format!("{name}.crt")), key: folder.join(format!("{name}.key")) }
    }

    fn files(&self) -> [&Path; 2] {
        [&self.key, &self.certificate]
    }

    fn write(&self, certificate: &str, key: &str, existing: Existing) -> Result<(), Failure> {
        existing.check(&self.files())?;
        new_file::write(&self.key, key, new_file::SECRET)?;
        new_file::write(&self.certificate, certificate, new_file::PUBLIC)
    }

    /// Renames the files; each is there as a whole or not at all.
    fn rename_to(&self, target: &Self, existing: Existing) -> Result<(), Failure> {
        existing.check(&target.files())?;
        for (from, to) in self.files().into_iter().zip(target.files()) {
            fs::rename(from, to).map_err(|error| unusable(to, &error))?;
        }
        Ok(())
    }

    fn remove(&self) {
        // What was renamed is not there any more.
        self.files().into_iter().for_each(|file| drop(fs::remove_file(file)));
    }
}

fn no_ca(key: &Path, error: &std::io::Error) -> Failure {
    let advice = if error.kind() == ErrorKind::NotFound { ": `ebla cert init` makes a CA" } else { "" };
    precondition(format!("cannot read the key of the CA, {} ({error}){advice}", key.display()))
}

fn internal(error: impl std::fmt::Display) -> Failure {
    Failure::other(format!("cannot make the certificate: {error}"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn place(folder: &Path) -> Place {
        Place { dir: folder.to_path_buf(), replace: false }
    }

    fn init(folder: &Path) -> Result<(), Failure> {
        run(&Cert::Init(Init { place: place(folder), days: 3 }), &Runtime::system("test"))
    }

    fn server(folder: &Path, name: &str, host: &str, role: ServerRole) -> Result<(), Failure> {
        let host = host.split(',').map(str::to_owned).collect();
        let server = ServerCertificate { name: name.to_owned(), role, host, place: place(folder), days: 2 };
        run(&Cert::Server(server), &Runtime::system("test"))
    }

    fn client(folder: &Path, name: &str) -> Result<(), Failure> {
        let client = ClientCertificate { name: name.to_owned(), place: place(folder), days: 2 };
        run(&Cert::Client(client), &Runtime::system("test"))
    }

    fn open(folder: &Path, name: &str) -> Tls {
        let Pair { certificate, key } = Pair::at(folder, name);
        let own = Some(CertificateFiles { certificate, key });
        Tls::open(TlsFiles { ca: folder.join("ca.crt"), own }, Clock::system()).unwrap()
    }

    #[test]
    fn the_files_are_usable_and_keys_are_secret() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        init(at).unwrap();
        server(at, "server-1", "127.0.0.1,::1,server-1.example.org,*.example.org", ServerRole::TabletServer).unwrap();
        server(at, "etcd", "localhost", ServerRole::Other).unwrap();
        client(at, "alice").unwrap();
        assert_eq!(open(at, "server-1").identity().unwrap().to_string(), "tablet-server/server-1");
        assert_eq!((open(at, "etcd").identity(), open(at, "etcd").check_server()), (None, Ok(())));
        assert_eq!(open(at, "alice").identity().unwrap().to_string(), "client/alice");
        assert!(open(at, "alice").check_server().is_err(), "a client's certificate cannot be that of a server");
        for file in ["ca.key", "server-1.key", "alice.key"] {
            let mode = fs::metadata(at.join(file)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{file}");
        }
        let mut left: Vec<_> = fs::read_dir(at).unwrap().map(|file| file.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left.len(), 8, "{left:?}");
    }

    #[test]
    fn existing_files_stay_unless_they_shall_be_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        init(at).unwrap();
        client(at, "alice").unwrap();
        let before = fs::read(at.join("alice.crt")).unwrap();
        for again in [init(at), client(at, "alice")] {
            let refused = again.unwrap_err();
            assert!(refused.code == 4 && refused.message.contains("--replace"), "{}", refused.message);
        }
        assert_eq!(fs::read(at.join("alice.crt")).unwrap(), before);
        let replaced = Place { replace: true, ..place(at) };
        let client = ClientCertificate { name: "alice".to_owned(), place: replaced, days: 2 };
        run(&Cert::Client(client), &Runtime::system("test")).unwrap();
        assert_ne!(fs::read(at.join("alice.crt")).unwrap(), before);
    }

    #[test]
    fn what_cannot_be_made_is_refused_with_the_next_step() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        let refused = client(at, "alice").unwrap_err();
        assert!(refused.code == 5 && refused.message.contains("`ebla cert init`"), "{}", refused.message);
        init(at).unwrap();
        for name in ["", "ca", "a/b", "../a"] {
            assert_eq!(client(at, name).unwrap_err().code, 2, "{name}");
        }
        for host in ["", "server:80", "a b", "a..b", "http://a"] {
            let refused = server(at, "s", host, ServerRole::Master).unwrap_err();
            assert!(refused.code == 2 && refused.message.contains("--host"), "{host}: {}", refused.message);
        }
        let other = tempfile::tempdir().unwrap();
        init(other.path()).unwrap();
        fs::copy(other.path().join("ca.key"), at.join("ca.key")).unwrap();
        let refused = client(at, "bob").unwrap_err();
        assert!(refused.code == 5 && refused.message.contains("does not fit"), "{}", refused.message);
        assert!(!at.join("bob.key").exists() && !at.join(".new-bob.key").exists());
    }
}
