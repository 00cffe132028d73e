//! Who may call the services between the parts of a cluster. Every caller can connect to their ports, because the public API is there too.
//!
//! With TLS the caller's certificate decides ([`crate::tls::Role`]). Without TLS no caller can prove a role, and each passes: then the network must be trusted.
//! Pure; services use it in interceptors, which convert the error.

use ebla_model::error::{Error, Reason};
use tonic::Extensions;

use crate::serve::ConnectionInfo;
use crate::tls::Security;

/// Checks that the caller of a request with these extensions is a master or a tablet server.
///
/// # Errors
/// `PermissionDenied` with what the caller is.
pub fn members_only(extensions: &Extensions) -> Result<(), Error> {
    callers_only(
        extensions,
        Security::allows_cluster_services,
        "is for members of the cluster; users send their calls to the public API of a tablet server",
        "a tablet server or master",
    )
}

/// Checks the caller of a request with these extensions. `what`: the rest of a sentence about the service; `needed`: whose certificate it needs.
///
/// # Errors
/// `PermissionDenied` with what the caller is.
pub fn callers_only(
    extensions: &Extensions,
    may_call: impl Fn(&Security) -> bool,
    what: &str,
    needed: &str,
) -> Result<(), Error> {
    // Requests inside a process have no connection.
    let Some(info) = extensions.get::<ConnectionInfo>() else { return Ok(()) };
    if may_call(&info.security) {
        return Ok(());
    }
    let caller = info.security.identity();
    let caller = caller.map_or_else(|| "no role".to_owned(), |caller| format!("the role {}", caller.role()));
    let message = format!("this service {what}: it needs the certificate of {needed}, and the caller has {caller}");
    Err(Error::new(Reason::PermissionDenied, message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::{Identity, Role};

    fn called_by(security: Security) -> Result<(), Reason> {
        let mut extensions = Extensions::new();
        extensions.insert(ConnectionInfo { security, ..ConnectionInfo::default() });
        members_only(&extensions).map_err(|error| error.reason)
    }

    #[test]
    fn only_members_of_the_cluster_pass() {
        let of = |role| Security::Tls(Some(Identity::new(role, "a").unwrap()));
        assert_eq!(called_by(of(Role::Master)), Ok(()));
        assert_eq!(called_by(of(Role::TabletServer)), Ok(()));
        for other in [of(Role::Client), of(Role::Mounttable), Security::Tls(None)] {
            assert_eq!(called_by(other), Err(Reason::PermissionDenied));
        }
        assert_eq!(called_by(Security::Plain), Ok(()), "without TLS there is no proof to ask for");
        assert_eq!(members_only(&Extensions::new()), Ok(()), "inside a process");
    }
}
