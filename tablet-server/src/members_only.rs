//! Who may call the services that are not public. Anybody can connect to the port, because the public API is there too.
//!
//! - Raft and the orders of the master: masters and tablet servers.
//! - Tablets: anybody, as clients of this project call them directly; but with access control only masters, tablet servers and mounttables,
//!   because the rights of callers are checked on the public API. The rights of a mounttable are checked here too
//!   ([`crate::guarded_tablets`]), and it cannot write METADATA.
//!
//! The decision is [`ebla_runtime::members_only`].

use ebla_proto::status::to_status;
use ebla_runtime::tls::Role;
use ebla_runtime::{ConnectionInfo, Security, callers_only};
use tonic::{Extensions, Request, Status};

use crate::tablet::handler::WritableTables;

/// Who may call the service of tablets, and learn where tablets are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TabletCallers {
    /// Everybody.
    All,
    /// Members of the cluster, and mounttables, whose rights are checked.
    Trusted,
}

impl TabletCallers {
    /// Whether they include the caller of a request with these extensions.
    pub(crate) fn include(self, extensions: &Extensions) -> bool {
        self == Self::All || extensions.get::<ConnectionInfo>().is_none_or(|info| is_trusted(&info.security))
    }
}

/// An interceptor that passes the requests of members of the cluster on.
///
/// # Errors
/// `PermissionDenied` for others.
pub(crate) fn members_only(request: Request<()>) -> Result<Request<()>, Status> {
    match ebla_runtime::members_only(request.extensions()) {
        Ok(()) => Ok(request),
        Err(error) => Err(to_status(&error)),
    }
}

/// An interceptor that passes the requests of these callers on.
///
/// # Errors
/// `PermissionDenied` for others.
pub(crate) fn tablet_callers(
    callers: TabletCallers,
) -> impl Fn(Request<()>) -> Result<Request<()>, Status> + Clone + Send + Sync {
    move |request| match callers {
        TabletCallers::All => Ok(request),
        TabletCallers::Trusted => {
            let what = "is not for users while access control is on; use the public API";
            let checked = callers_only(request.extensions(), is_trusted, what, "a tablet server, master or mounttable");
            checked.map(|()| request).map_err(|error| to_status(&error))
        }
    }
}

/// The tables that the caller of a request with these extensions may write by the service of tablets.
pub(crate) fn writable_tables(extensions: &Extensions) -> WritableTables {
    let identity = extensions.get::<ConnectionInfo>().and_then(|info| info.security.identity());
    match identity.map(|identity| identity.role()) {
        Some(Role::Mounttable) => WritableTables::OfUsers,
        _ => WritableTables::All,
    }
}

/// Whether the caller of a request with these extensions is a member of the cluster: a master, a tablet server, or this process. Without TLS no
/// caller can prove it, and each counts as one.
pub(crate) fn is_member(extensions: &Extensions) -> bool {
    extensions.get::<ConnectionInfo>().is_none_or(|info| info.security.allows_cluster_services())
}

fn is_trusted(security: &Security) -> bool {
    security.allows_cluster_services()
        || security.identity().is_some_and(|identity| identity.role() == Role::Mounttable)
}

#[cfg(test)]
mod tests {
    use ebla_model::error::Reason;
    use ebla_proto::status::from_status;
    use ebla_runtime::tls::Identity;

    use super::*;

    fn request(security: Security) -> Request<()> {
        let mut request = Request::new(());
        request.extensions_mut().insert(ConnectionInfo { security, ..ConnectionInfo::default() });
        request
    }

    fn outcome(checked: Result<Request<()>, Status>) -> Result<(), Reason> {
        checked.map(drop).map_err(|status| from_status(&status).0.reason)
    }

    fn of(role: Role) -> Security {
        Security::Tls(Some(Identity::new(role, "a").unwrap()))
    }

    #[test]
    fn only_members_of_the_cluster_pass() {
        let called_by = |security| outcome(members_only(request(security)));
        assert_eq!(called_by(of(Role::TabletServer)), Ok(()));
        assert_eq!(called_by(of(Role::Client)), Err(Reason::PermissionDenied));
    }

    #[test]
    fn access_control_closes_the_service_of_tablets_to_users() {
        let called_by = |callers, security| outcome(tablet_callers(callers)(request(security)));
        for security in [of(Role::Client), Security::Tls(None), Security::Plain] {
            assert_eq!(called_by(TabletCallers::All, security), Ok(()));
        }
        for role in [Role::Master, Role::TabletServer, Role::Mounttable] {
            assert_eq!(called_by(TabletCallers::Trusted, of(role)), Ok(()));
        }
        for security in [of(Role::Client), Security::Tls(None)] {
            let request = request(security.clone());
            assert!(
                !TabletCallers::Trusted.include(request.extensions())
                    && TabletCallers::All.include(request.extensions())
            );
            assert_eq!(called_by(TabletCallers::Trusted, security), Err(Reason::PermissionDenied));
        }
    }

    #[test]
    fn mounttables_do_not_write_metadata() {
        assert_eq!(writable_tables(request(of(Role::Mounttable)).extensions()), WritableTables::OfUsers);
        for other in [of(Role::TabletServer), of(Role::Master), Security::Plain] {
            assert_eq!(writable_tables(request(other).extensions()), WritableTables::All);
        }
        assert_eq!(writable_tables(&Extensions::new()), WritableTables::All, "inside a process");
    }
}
