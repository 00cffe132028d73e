//! Files of all sorts: what is refused, and how changed ones are taken up. Handshakes: `serve/tests/tls.rs`.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    SanType,
};
use tempfile::TempDir;
use time::OffsetDateTime;

use super::*;
use crate::net::Net;

/// A CA of a test.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub(crate) pem: String,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    /// A certificate and its key. Those of servers name 127.0.0.1.
    pub(crate) fn sign(&self, identity: Option<&str>, validity: Validity) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        let uri = identity.map(|identity| identity.parse::<Identity>().unwrap().uri());
        params.subject_alt_names = uri.iter().map(|uri| SanType::URI(uri.as_str().try_into().unwrap())).collect();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        if !identity.is_some_and(|identity| identity.starts_with("client/")) {
            params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
            params.subject_alt_names.push(SanType::IpAddress([127, 0, 0, 1].into()));
        }
        let day = time::Duration::DAY;
        let now = OffsetDateTime::from_unix_timestamp(Clock::system().wall().get() / 1_000_000).unwrap();
        (params.not_before, params.not_after) = match validity {
            Validity::Now => (now - day, now + 100 * day),
            Validity::Past => (now - 2 * day, now - day),
            Validity::Future => (now + day, now + 2 * day),
            Validity::Short => (now - day, now + 3 * day),
        };
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }
}

/// When a certificate is valid.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Validity {
    Now,
    Past,
    Future,
    /// For a few days more.
    Short,
}

/// The files of a process in a folder of its own.
pub(crate) struct Folder {
    folder: TempDir,
    pub(crate) files: TlsFiles,
}

impl Folder {
    /// Trusts `ca`, with a certificate and a key if given.
    pub(crate) fn new(ca: &str, own: Option<(String, String)>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let files = TlsFiles {
            ca: at("ca.crt"),
            own: own.is_some().then(|| CertificateFiles { certificate: at("own.crt"), key: at("own.key") }),
        };
        let written = Self { folder, files };
        written.write("ca.crt", ca);
        if let Some((certificate, key)) = own {
            written.write("own.crt", &certificate);
            written.write("own.key", &key);
        }
        written
    }

    /// Replaces a file. A key is readable by its owner only.
    pub(crate) fn write(&self, name: &str, text: &str) {
        let file = self.folder.path().join(name);
        fs::write(&file, text).unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    }

    pub(crate) fn open(&self) -> Result<Tls, TlsError> {
        Tls::open(self.files.clone(), Clock::system())
    }
}

fn refused(folder: &Folder) -> String {
    folder.open().expect_err("the files are wrong").to_string()
}

#[test]
fn correct_files_give_the_identity_of_their_certificate() {
    let ca = Authority::new("ca");
    for identity in ["tablet-server/a", "client/me"] {
        let tls = Folder::new(&ca.pem, Some(ca.sign(Some(identity), Validity::Now))).open().unwrap();
        assert_eq!(tls.identity().unwrap().to_string(), identity);
        assert_eq!(tls.check_server().is_ok(), identity != "client/me", "{identity}");
    }
    let anonymous = Folder::new(&ca.pem, None).open().unwrap();
    assert_eq!(anonymous.identity(), None);
    assert!(anonymous.check_server().is_err());
    let no_role = Folder::new(&ca.pem, Some(ca.sign(None, Validity::Now))).open().unwrap();
    assert_eq!((no_role.identity(), no_role.check_server()), (None, Ok(())));
}

#[test]
fn wrong_files_are_refused_with_the_file_and_the_cause() {
    let (ca, other) = (Authority::new("ca"), Authority::new("other"));
    let sign = |validity| Some(ca.sign(Some("master/a"), validity));
    let cases = [
        (Folder::new(&ca.pem, sign(Validity::Past)), "own.crt: the certificate has expired"),
        (Folder::new(&ca.pem, sign(Validity::Future)), "own.crt: the certificate is not valid yet"),
        (Folder::new(&other.pem, sign(Validity::Now)), "own.crt: the certificate is not signed by a CA"),
        (Folder::new("no pem", sign(Validity::Now)), "ca.crt: it contains no certificate"),
    ];
    for (folder, wanted) in &cases {
        let said = refused(folder);
        assert!(said.contains(wanted), "{said}");
    }
    let folder = Folder::new(&ca.pem, sign(Validity::Now));
    folder.write("own.key", &ca.sign(None, Validity::Now).1);
    assert!(refused(&folder).contains("own.key: it does not belong to the certificate"), "{}", refused(&folder));
    folder.write("own.key", "-----BEGIN PRIVATE KEY-----\n");
    assert!(refused(&folder).contains("own.key: it contains no private key"), "{}", refused(&folder));
    fs::remove_file(folder.folder.path().join("own.crt")).unwrap();
    assert!(refused(&folder).contains("own.crt: No such file"), "{}", refused(&folder));
}

#[test]
fn a_key_that_everybody_can_read_is_refused_with_the_next_step() {
    let ca = Authority::new("ca");
    let folder = Folder::new(&ca.pem, Some(ca.sign(Some("master/a"), Validity::Now)));
    let key = folder.folder.path().join("own.key");
    for (mode, is_allowed) in [(0o600, true), (0o640, true), (0o644, false), (0o666, false)] {
        fs::set_permissions(&key, Permissions::from_mode(mode)).unwrap();
        match folder.open() {
            Ok(_tls) => assert!(is_allowed, "{mode:o}"),
            Err(error) => assert!(!is_allowed && error.to_string().contains("chmod 600 "), "{mode:o}: {error}"),
        }
    }
}

#[test]
fn a_wrong_new_file_keeps_the_old_ones() {
    let ca = Authority::new("ca");
    let folder = Folder::new(&ca.pem, Some(ca.sign(Some("master/old"), Validity::Now)));
    let tls = folder.open().unwrap();
    let name = || tls.identity().unwrap().name().to_owned();
    assert_eq!(tls.reload(), Ok(Reload::Unchanged));
    let (certificate, key) = ca.sign(Some("master/new"), Validity::Now);
    for (file, text) in [("own.crt", "damaged"), ("own.crt", &certificate)] {
        folder.write(file, text);
        assert!(tls.reload().is_err(), "{file}");
        assert_eq!(name(), "old");
    }
    folder.write("own.key", &key);
    assert_eq!(tls.reload(), Ok(Reload::Changed));
    assert_eq!(name(), "new");
    folder.write("own.crt", &ca.sign(Some("master/late"), Validity::Past).0);
    assert!(tls.reload().is_err());
    assert_eq!(name(), "new");
}

#[tokio::test(start_paused = true)]
async fn changed_files_are_taken_up_without_a_call() {
    let ca = Authority::new("ca");
    let folder = Folder::new(&ca.pem, Some(ca.sign(Some("master/old"), Validity::Now)));
    let (tls, tasks) = (folder.open().unwrap(), Tasks::new("test"));
    tls.watch(&tasks);
    let (certificate, key) = ca.sign(Some("master/new"), Validity::Now);
    folder.write("own.crt", &certificate);
    folder.write("own.key", &key);
    tokio::time::sleep(2 * RELOAD_INTERVAL).await;
    assert_eq!(tls.identity().unwrap().name(), "new");
    tasks.stop(Duration::ZERO).await;
}

#[test]
fn a_certificate_that_expires_soon_is_noticed() {
    let ca = Authority::new("ca");
    let expires = |validity| {
        let tls = Folder::new(&ca.pem, Some(ca.sign(Some("master/a"), validity))).open().unwrap();
        tls.current().configs.expires_within(EXPIRY_WARNING, &Clock::system())
    };
    assert!(expires(Validity::Short) && !expires(Validity::Now));
}

#[tokio::test]
async fn a_server_without_a_certificate_does_not_listen() {
    let ca = Authority::new("ca");
    let net = Net::tcp().with_tls(Folder::new(&ca.pem, None).open().unwrap());
    let refused = net.listen("127.0.0.1:0").await.unwrap_err();
    assert!(refused.to_string().contains("needs a certificate"), "{refused}");
}
