//! The options of TLS, which every command has: a server serves with TLS, and a client connects with it, or neither does.

use std::convert::Infallible;
use std::path::PathBuf;

use ebla_runtime::tls::{CertificateFiles, TlsFiles};
use ebla_runtime::{Clock, Tls};

use crate::output::Failure;

/// The files of this process.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct TlsArguments {
    /// Certificates of the CAs to trust (PEM). With it every connection uses TLS. Changed files are read again while a server runs
    #[arg(long, global = true, env = "EBLA_TLS_CA", value_name = "FILE", value_parser = file)]
    pub tls_ca: Option<PathBuf>,
    /// Certificate of this process (PEM), as `ebla cert` makes it; a server must have one
    #[arg(long, global = true, env = "EBLA_TLS_CERT", value_name = "FILE", value_parser = file)]
    pub tls_cert: Option<PathBuf>,
    /// Private key of that certificate (PEM); others must not be able to read it
    #[arg(long, global = true, env = "EBLA_TLS_KEY", value_name = "FILE", value_parser = file)]
    pub tls_key: Option<PathBuf>,
}

/// Any text: an empty one means no file, for scripts that pass a variable on.
fn file(text: &str) -> Result<PathBuf, Infallible> {
    Ok(PathBuf::from(text))
}

/// The files for connections to etcd, if its certificates are issued by a CA of its own.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct EtcdTlsArguments {
    /// Certificates of the CAs of etcd (PEM), if etcd has a CA of its own. With it connections to etcd use these three files [default: those of
    /// --tls-ca, --tls-cert and --tls-key]
    #[arg(long, env = "EBLA_ETCD_TLS_CA", value_name = "FILE", value_parser = file)]
    pub etcd_tls_ca: Option<PathBuf>,
    /// Certificate of this process for etcd (PEM)
    #[arg(long, env = "EBLA_ETCD_TLS_CERT", value_name = "FILE", value_parser = file)]
    pub etcd_tls_cert: Option<PathBuf>,
    /// Private key of that certificate (PEM); others must not be able to read it
    #[arg(long, env = "EBLA_ETCD_TLS_KEY", value_name = "FILE", value_parser = file)]
    pub etcd_tls_key: Option<PathBuf>,
}

impl TlsArguments {
    /// The files, if there are any.
    ///
    /// # Errors
    /// Usage, when one is missing that belongs to the others.
    pub fn files(&self) -> Result<Option<TlsFiles>, Failure> {
        files("--tls", [&self.tls_ca, &self.tls_cert, &self.tls_key])
    }

    /// TLS with these files; `None` without any.
    ///
    /// # Errors
    /// Usage: as [`Self::files`], or what is wrong with a file.
    pub fn open(&self, clock: &Clock) -> Result<Option<Tls>, Failure> {
        open(self.files()?, clock)
    }
}

impl EtcdTlsArguments {
    /// TLS with these files; `None` without any: then the files of the process are used.
    ///
    /// # Errors
    /// Usage: when one is missing that belongs to the others, or what is wrong with a file.
    pub fn open(&self, clock: &Clock) -> Result<Option<Tls>, Failure> {
        open(files("--etcd-tls", [&self.etcd_tls_ca, &self.etcd_tls_cert, &self.etcd_tls_key])?, clock)
    }
}

fn files(options: &str, [ca, cert, key]: [&Option<PathBuf>; 3]) -> Result<Option<TlsFiles>, Failure> {
    let given = |file: &Option<PathBuf>| file.clone().filter(|file| !file.as_os_str().is_empty());
    let missing = |option: &str, given: &str| {
        Failure::usage(format!(
            "{options}-{given} needs {options}-{option} too: `ebla cert init` and `ebla cert server` make the files"
        ))
    };
    let own = match (given(cert), given(key)) {
        (Some(certificate), Some(key)) => Some(CertificateFiles { certificate, key }),
        (None, None) => None,
        (Some(_), None) => return Err(missing("key", "cert")),
        (None, Some(_)) => return Err(missing("cert", "key")),
    };
    match (given(ca), own) {
        (Some(ca), own) => Ok(Some(TlsFiles { ca, own })),
        (None, None) => Ok(None),
        (None, Some(_)) => Err(missing("ca", "cert")),
    }
}

fn open(files: Option<TlsFiles>, clock: &Clock) -> Result<Option<Tls>, Failure> {
    let open = |files| Tls::open(files, clock.clone()).map_err(|error| Failure::usage(error.to_string()));
    files.map(open).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_belong_together_are_given_together() {
        let files = |ca: &str, cert: &str, key: &str| {
            let given = |file: &str| Some(PathBuf::from(file));
            let arguments = TlsArguments { tls_ca: given(ca), tls_cert: given(cert), tls_key: given(key) };
            arguments.files().map_err(|refused| refused.message)
        };
        assert_eq!(files("", "", ""), Ok(None));
        assert!(files("ca", "", "").unwrap().unwrap().own.is_none());
        assert!(files("ca", "cert", "key").unwrap().unwrap().own.is_some());
        for (ca, cert, key, missing) in [
            ("", "cert", "key", "needs --tls-ca"),
            ("ca", "cert", "", "needs --tls-key"),
            ("ca", "", "key", "needs --tls-cert"),
        ] {
            let said = files(ca, cert, key).unwrap_err();
            assert!(said.contains(missing) && said.contains("ebla cert"), "{said}");
        }
    }
    #[test]
    fn the_files_for_etcd_are_named_by_their_own_options() {
        let given = EtcdTlsArguments { etcd_tls_cert: Some(PathBuf::from("cert")), ..EtcdTlsArguments::default() };
        let refused = given.open(&Clock::system()).unwrap_err().message;
        assert!(refused.contains("--etcd-tls-cert needs --etcd-tls-key"), "{refused}");
        assert!(EtcdTlsArguments::default().open(&Clock::system()).unwrap().is_none());
    }
}
