//! Who calls, from the headers of a request.
//!
//! A server knows its callers by tokens that somebody it trusts has signed; or it was told by a switch for development to
//! believe a header; or it knows nobody and refuses every call. Whatever else makes sure of callers answers here, with
//! their names.

use std::sync::Arc;

use tonic::metadata::MetadataMap;

use crate::error::{Error, Reason};
use crate::identity::{BlessingName, BlessingPattern, Caller};
use crate::service::bearer::{BEARER_HEADER, Bearer};

/// The header that is believed in development: names, separated by commas. Without it a caller has no names.
pub const DEVELOPMENT_HEADER: &str = "mounttable-dev-identity";

/// How callers are recognised.
#[derive(Clone, Debug)]
pub enum Identity {
    /// Not at all: every call is refused.
    Nobody,
    /// By a signed token in the header [`BEARER_HEADER`]. Who sends none has no names.
    Bearer(Arc<Bearer>),
    /// By what they say of themselves, in [`DEVELOPMENT_HEADER`]: no protection at all.
    Development,
}

/// Who is let in, and who is a superuser. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Door {
    identity: Identity,
    superusers: Arc<[BlessingPattern]>,
}

impl Door {
    /// Recognises callers so; those whom a pattern matches are superusers.
    pub fn new(identity: Identity, superusers: Vec<BlessingPattern>) -> Self {
        Self { identity, superusers: superusers.into() }
    }

    /// Who sent a request with these headers.
    ///
    /// # Errors
    /// `NO_ACCESS` when the server knows nobody, `NOT_AUTHENTICATED` when a token does not count, `BAD_REQUEST` when the
    /// header for development holds no names.
    pub fn caller(&self, metadata: &MetadataMap) -> Result<Caller, Error> {
        match &self.identity {
            Identity::Nobody => Err(Error::new(Reason::NoAccess, "this server has no way to recognise its callers")),
            Identity::Bearer(bearer) => {
                let names = match metadata.get(BEARER_HEADER) {
                    None => Vec::new(),
                    // A header of other bytes is no token, and is refused as such.
                    Some(header) => bearer.names(header.to_str().unwrap_or_default())?,
                };
                Ok(Caller::new(names, &self.superusers))
            }
            Identity::Development => {
                let bad = |_| Error::new(Reason::BadRequest, format!("{DEVELOPMENT_HEADER} is no list of names"));
                let header = metadata.get(DEVELOPMENT_HEADER).map(|value| value.to_str()).transpose().map_err(bad)?;
                self.named(header.into_iter().flat_map(|names| names.split(',')))
            }
        }
    }

    /// The caller known by these names.
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
    use crate::identity::Standing;

    fn headers(names: &'static str) -> MetadataMap {
        let mut metadata = MetadataMap::new();
        metadata.insert(DEVELOPMENT_HEADER, names.parse().unwrap());
        metadata
    }

    #[test]
    fn a_header_is_believed_only_in_development() {
        let superusers = || vec![BlessingPattern::new("root")];
        let door = Door::new(Identity::Development, superusers());
        let caller = door.caller(&headers("idp:u:alice, root:admin")).unwrap();
        assert_eq!((caller.names.len(), caller.standing), (2, Standing::Superuser));
        assert_eq!(door.caller(&MetadataMap::new()).unwrap().names, []);
        assert_eq!(door.caller(&headers("...")).unwrap_err().reason, Reason::BadName);
        let closed = Door::new(Identity::Nobody, superusers());
        assert_eq!(closed.caller(&headers("root")).unwrap_err().reason, Reason::NoAccess);
    }
}
