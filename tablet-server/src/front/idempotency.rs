//! Idempotency tokens of requests: from the message if the API has a field for one, else from the headers.
//!
//! | header | content |
//! |---|---|
//! | `ebla-idempotency-token` | the token, 8 to 1024 bytes of visible ASCII |
//! | `ebla-idempotency-start-time` | optional: when the write was first sent, microseconds since the Unix epoch |
//!
//! The headers are an extension, for CheckAndMutateRow, ReadModifyWriteRow and MutateRow: the messages of the first two have
//! no field for tokens.

use bytes::Bytes;
use ebla_model::{Error, idempotency::IdempotencyToken};
use ebla_proto::{
    convert::{idempotency_from_proto, idempotency_token},
    data,
};
use tonic::metadata::MetadataMap;

/// The header with a call's token.
const TOKEN_HEADER: &str = "ebla-idempotency-token";
/// The header with the time at which a call with a token was first sent.
const START_TIME_HEADER: &str = "ebla-idempotency-start-time";

/// The token of a message.
pub(super) fn of_message(idempotency: Option<data::Idempotency>) -> Result<Option<IdempotencyToken>, Error> {
    idempotency.map(idempotency_from_proto).transpose()
}

/// The token in a call's headers.
pub(super) fn of_headers(metadata: &MetadataMap) -> Result<Option<IdempotencyToken>, Error> {
    let (token, started) = (metadata.get(TOKEN_HEADER), metadata.get(START_TIME_HEADER));
    let Some(token) = token else {
        let alone = || Error::invalid(format!("{START_TIME_HEADER} without {TOKEN_HEADER}"));
        return if started.is_some() { Err(alone()) } else { Ok(None) };
    };
    let micros = started.map_or(Some(0), |started| started.to_str().ok()?.parse().ok());
    let wrong = || Error::invalid(format!("{START_TIME_HEADER} must be microseconds since the Unix epoch"));
    idempotency_token(Bytes::copy_from_slice(token.as_bytes()), micros.ok_or_else(wrong)?).map(Some)
}

#[cfg(test)]
mod tests {
    use ebla_model::Micros;

    use super::*;

    fn headers(lines: &[(&'static str, &str)]) -> Result<Option<IdempotencyToken>, Error> {
        let mut metadata = MetadataMap::new();
        for (name, value) in lines {
            metadata.insert(*name, value.parse().unwrap());
        }
        of_headers(&metadata)
    }

    fn token(started: Option<i64>) -> Result<Option<IdempotencyToken>, Error> {
        Ok(Some(IdempotencyToken { token: "12345678".into(), started: started.map(Micros::new) }))
    }

    #[test]
    fn headers_say_token_and_time() {
        assert_eq!(headers(&[]), Ok(None));
        assert_eq!(headers(&[(TOKEN_HEADER, "12345678")]), token(None));
        assert_eq!(headers(&[(TOKEN_HEADER, "12345678"), (START_TIME_HEADER, "2000003")]), token(Some(2_000_003)));
        assert!(headers(&[(TOKEN_HEADER, "1234567")]).is_err(), "7 bytes");
        assert!(headers(&[(TOKEN_HEADER, "12345678"), (START_TIME_HEADER, "soon")]).is_err());
        assert!(headers(&[(START_TIME_HEADER, "2000003")]).is_err(), "a time without a token");
        assert!(headers(&[(TOKEN_HEADER, &"x".repeat(1024))]).is_ok());
        assert!(headers(&[(TOKEN_HEADER, &"x".repeat(1025))]).is_err());
    }
}
