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

use crate::service::bearer::TokenVerifier;

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

    /// The caller of a request with these headers.
    ///
    /// # Errors
    /// `NO_ACCESS` when there is no authentication method, `NOT_AUTHENTICATED` when the token is not accepted,
    /// `BAD_REQUEST` when the header for development has no valid names.
    pub fn caller(&self, metadata: &MetadataMap) -> Result<Caller, Error> {
        match &self.identity {
            AuthMethod::RefuseAll => Err(Error::new(
                Reason::NoAccess,
                "this server has no authentication method configured, so it refuses all calls",
            )),
            AuthMethod::Bearer(bearer) => {
                let names = match metadata.get(BEARER_HEADER) {
                    None => Vec::new(),
                    // A header with other bytes is not a token, and is refused as such.
                    Some(header) => bearer.names(header.to_str().unwrap_or_default())?,
                };
                Ok(Caller::new(names, &self.superusers))
            }
            AuthMethod::Development => {
                let bad = |_| Error::new(Reason::BadRequest, format!("{DEVELOPMENT_HEADER} is not a list of names"));
                let header = metadata.get(DEVELOPMENT_HEADER).map(|value| value.to_str()).transpose().map_err(bad)?;
                self.named(header.into_iter().flat_map(|names| names.split(',')))
            }
        }
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
