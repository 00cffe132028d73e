//! Authentication of callers from the headers of a request.
//!
//! A server authenticates callers by signed tokens; or believes a header, with a switch for development; or has no
//! method and refuses every call.

use std::sync::Arc;

use ebla_mounttable_tree::Permissions;
use ebla_mounttable_tree::error::{Error, Reason};
use ebla_mounttable_tree::identity::{BlessingName, BlessingPattern, Caller};
use ebla_mounttable_tree::messages::{BEARER_HEADER, DEVELOPMENT_HEADER};
use tonic::metadata::MetadataMap;

use crate::service::bearer::{Expiry, TokenNames, TokenVerifier};

/// How callers are authenticated.
#[derive(Clone, Debug)]
pub enum AuthMethod {
    /// There is no method: every call is refused.
    RefuseAll,
    /// By a signed token in the header [`BEARER_HEADER`]. Callers without a token have no names.
    Bearer(Arc<TokenVerifier>),
    /// By the unverified names in [`DEVELOPMENT_HEADER`]: no protection at all.
    Development,
}

impl AuthMethod {
    /// The permissions of a new table's root when no file gives it any: open only for development. A caller without names
    /// has no rights that were not given to everybody explicitly.
    pub fn default_root(&self) -> Permissions {
        match self {
            Self::Development => Permissions::open(),
            Self::RefuseAll | Self::Bearer(_) => Permissions::default(),
        }
    }
}

/// A caller, and the time until which their identity is proved: a stream ends then.
#[derive(Clone, Debug)]
pub struct Session {
    /// The caller.
    pub caller: Caller,
    /// The end of their token.
    pub expiry: Expiry,
}

impl Session {
    /// A session without an end.
    const fn lasting(caller: Caller) -> Self {
        Self { caller, expiry: Expiry::NEVER }
    }
}

/// Authenticates callers, and recognises superusers. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Authenticator {
    identity: AuthMethod,
    superusers: Arc<[BlessingPattern]>,
}

impl Authenticator {
    /// An authenticator; callers that match one of `superusers` are superusers.
    pub fn new(identity: AuthMethod, superusers: Vec<BlessingPattern>) -> Self {
        Self { identity, superusers: superusers.into() }
    }

    /// The permissions of a new table's root when no file gives it any.
    pub fn default_root(&self) -> Permissions {
        self.identity.default_root()
    }

    /// The caller of a request with these headers, and the time until which that is proved.
    ///
    /// # Errors
    /// `NO_ACCESS` when there is no authentication method, `NOT_AUTHENTICATED` when the token is not accepted,
    /// `BAD_REQUEST` when the header for development has no valid names.
    pub fn session(&self, metadata: &MetadataMap) -> Result<Session, Error> {
        match &self.identity {
            AuthMethod::RefuseAll => Err(Error::new(
                Reason::NoAccess,
                "this server has no authentication method configured, so it refuses all calls",
            )),
            AuthMethod::Bearer(bearer) => {
                let Some(header) = metadata.get(BEARER_HEADER) else {
                    return Ok(Session::lasting(Caller::new(Vec::new(), &self.superusers)));
                };
                // A header with other bytes is not a token, and is refused as such.
                let TokenNames { names, expiry } = bearer.verify(header.to_str().unwrap_or_default())?;
                Ok(Session { caller: Caller::new(names, &self.superusers), expiry })
            }
            AuthMethod::Development => {
                let bad = |_| Error::new(Reason::BadRequest, format!("{DEVELOPMENT_HEADER} is not a list of names"));
                let header = metadata.get(DEVELOPMENT_HEADER).map(|value| value.to_str()).transpose().map_err(bad)?;
                self.named(header.into_iter().flat_map(|names| names.split(','))).map(Session::lasting)
            }
        }
    }

    /// The caller of [`Self::session`].
    ///
    /// # Errors
    /// As [`Self::session`].
    pub fn caller(&self, metadata: &MetadataMap) -> Result<Caller, Error> {
        self.session(metadata).map(|session| session.caller)
    }

    /// The caller with these names.
    ///
    /// # Errors
    /// `BAD_NAME`.
    pub fn named<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> Result<Caller, Error> {
        let names = names.into_iter().map(str::trim).filter(|name| !name.is_empty());
        let names = names.map(str::parse).collect::<Result<Vec<BlessingName>, _>>()?;
        Ok(Caller::new(names, &self.superusers))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebla_mounttable_tree::identity::Privilege;

    fn headers(names: &'static str) -> MetadataMap {
        let mut metadata = MetadataMap::new();
        metadata.insert(DEVELOPMENT_HEADER, names.parse().unwrap());
        metadata
    }

    #[test]
    fn a_header_is_believed_only_in_development() {
        let superusers = || vec![BlessingPattern::new("root")];
        let authenticator = Authenticator::new(AuthMethod::Development, superusers());
        let caller = authenticator.caller(&headers("idp:u:alice, root:admin")).unwrap();
        assert_eq!((caller.names.len(), caller.privilege), (2, Privilege::Superuser));
        assert_eq!(authenticator.caller(&MetadataMap::new()).unwrap().names, []);
        assert_eq!(authenticator.caller(&headers("...")).unwrap_err().reason, Reason::BadName);
        let closed = Authenticator::new(AuthMethod::RefuseAll, superusers());
        assert_eq!(closed.caller(&headers("root")).unwrap_err().reason, Reason::NoAccess);
    }
}
