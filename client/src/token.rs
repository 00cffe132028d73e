//! The token of a caller, sent with each call of the public API.

use std::fmt;

use ebla_model::error::Error;
use tonic::metadata::{Ascii, MetadataValue};

/// A bearer token. Its text is never shown.
#[derive(Clone)]
pub struct BearerToken(MetadataValue<Ascii>);

impl BearerToken {
    /// The token of this text, such as the content of a file; white space around it does not count.
    ///
    /// # Errors
    /// `InvalidArgument` when it is empty or cannot be part of a header.
    pub fn new(text: &str) -> Result<Self, Error> {
        let text = text.trim();
        if text.is_empty() {
            return Err(Error::invalid("the token is empty"));
        }
        let header = format!("Bearer {text}").parse::<MetadataValue<Ascii>>();
        let mut header = header.map_err(|_| Error::invalid("the token has characters that no token has"))?;
        header.set_sensitive(true);
        Ok(Self(header))
    }

    /// The value of the header `authorization`.
    pub(crate) fn header(&self) -> MetadataValue<Ascii> {
        self.0.clone()
    }
}

impl fmt::Debug for BearerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BearerToken(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_not_shown() {
        let token = BearerToken::new(" abc.def\n").unwrap();
        assert_eq!(token.header().to_str().unwrap(), "Bearer abc.def");
        assert!(!format!("{token:?} {:?}", token.header()).contains("abc"));
        for wrong in ["", " \n", "a\nb"] {
            assert!(BearerToken::new(wrong).is_err(), "{wrong:?}");
        }
    }
}
