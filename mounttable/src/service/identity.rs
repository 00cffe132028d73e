//! Who calls, from the headers of a request.
//!
//! There is no login yet. A server either knows nobody and refuses every call, or it was told by a switch for development
//! to believe a header. Whatever makes sure of callers later answers here, with their names.

use std::sync::Arc;

use tonic::metadata::MetadataMap;

use crate::error::{Error, Reason};
use crate::identity::{BlessingName, BlessingPattern, Caller};

/// The header that is believed in development: names, separated by commas. Without it a caller has no names.
pub const DEVELOPMENT_HEADER: &str = "mounttable-dev-identity";

/// How callers are recognised.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Identity {
    /// Not at all: every call is refused.
    Nobody,
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
    /// `NO_ACCESS` when the server knows nobody, `BAD_REQUEST` when the header holds no names.
    pub fn caller(&self, metadata: &MetadataMap) -> Result<Caller, Error> {
        match self.identity {
            Identity::Nobody => Err(Error::new(Reason::NoAccess, "this server has no way to recognise its callers")),
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
