//! TLS of the tests' network: with `EBLA_SECURITY=on` every server and every client of these tests uses it, with one CA and one certificate of a
//! mounttable at 127.0.0.1.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::OnceLock;

use ebla_runtime::tls::{CertificateFiles, TlsFiles};
use ebla_runtime::{Clock, Runtime, Tls};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, SanType, date_time_ymd,
};

/// TLS, and the certificate of its CA (PEM).
#[derive(Clone)]
pub(crate) struct Secured {
    pub(crate) tls: Tls,
    pub(crate) ca: String,
}

/// The machine's runtime, on a network with TLS if it is on.
pub(crate) fn runtime() -> Runtime {
    let runtime = Runtime::system("test");
    match secured() {
        Some(secured) => Runtime { net: runtime.net.clone().with_tls(secured.tls), ..runtime },
        None => runtime,
    }
}

/// The same for all tests of this process; `None` unless TLS is on.
pub(crate) fn secured() -> Option<Secured> {
    static SECURED: OnceLock<Option<Secured>> = OnceLock::new();
    let make = || match std::env::var("EBLA_SECURITY").as_deref() {
        Ok("on") => Some(make()),
        Ok("off") | Err(_) => None,
        Ok(other) => panic!("EBLA_SECURITY={other}: give on or off"),
    };
    SECURED.get_or_init(make).clone()
}

fn make() -> Secured {
    let ca_key = KeyPair::generate().unwrap();
    let mut ca = CertificateParams::default();
    ca.distinguished_name.push(DnType::CommonName, "CA of the tests");
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca_pem = ca.self_signed(&ca_key).unwrap().pem();
    let issuer = Issuer::new(ca, ca_key);

    let key = KeyPair::generate().unwrap();
    let mut own = CertificateParams::default();
    own.subject_alt_names =
        vec![SanType::URI("ebla:mounttable/test".try_into().unwrap()), SanType::IpAddress([127, 0, 0, 1].into())];
    own.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
    own.not_after = date_time_ymd(2200, 1, 1);
    let own_pem = own.signed_by(&key, &issuer).unwrap().pem();

    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for (name, text) in [("ca.crt", &ca_pem), ("own.crt", &own_pem), ("own.key", &key.serialize_pem())] {
        fs::write(at(name), text).unwrap();
        fs::set_permissions(at(name), fs::Permissions::from_mode(0o600)).unwrap();
    }
    let own = CertificateFiles { certificate: at("own.crt"), key: at("own.key") };
    // The clock of a test may be manual, and then shows no date. The files are read once.
    let tls = Tls::open(TlsFiles { ca: at("ca.crt"), own: Some(own) }, Clock::system()).unwrap();
    Secured { tls, ca: ca_pem }
}
