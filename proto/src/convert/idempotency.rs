//! Idempotency tokens of public requests.

use ebla_model::{Error, Micros, idempotency::IdempotencyToken};

use crate::data;

/// The token of a request or an entry. A start time of zero means none.
///
/// # Errors
/// `InvalidArgument` when the token is too short or too long, or its time is before the epoch or out of range.
pub fn idempotency_from_proto(idempotency: data::Idempotency) -> Result<IdempotencyToken, Error> {
    let data::Idempotency { token, start_time } = idempotency;
    let micros = start_time
        .map_or(Some(0), |time| time.seconds.checked_mul(1_000_000)?.checked_add(i64::from(time.nanos) / 1000));
    idempotency_token(token, micros.ok_or_else(|| Error::invalid("start_time is out of range"))?)
}

/// A token with its start time, microseconds since the epoch; zero is none.
///
/// # Errors
/// As [`idempotency_from_proto`].
pub fn idempotency_token(token: bytes::Bytes, started_micros: i64) -> Result<IdempotencyToken, Error> {
    if started_micros < 0 {
        return Err(Error::invalid("the start time of an idempotency token must not be negative"));
    }
    let started = (started_micros > 0).then(|| Micros::new(started_micros));
    let token = IdempotencyToken { token, started };
    token.validate()?;
    Ok(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(token: &'static str, seconds: i64, nanos: i32) -> Result<IdempotencyToken, Error> {
        let start_time = Some(prost_types::Timestamp { seconds, nanos });
        idempotency_from_proto(data::Idempotency { token: token.into(), start_time })
    }

    fn token(started: Option<i64>) -> Result<IdempotencyToken, Error> {
        Ok(IdempotencyToken { token: "12345678".into(), started: started.map(Micros::new) })
    }

    #[test]
    fn messages_say_token_and_time() {
        assert_eq!(message("12345678", 2, 3_000), token(Some(2_000_003)));
        assert_eq!(message("12345678", 0, 0), token(None));
        assert_eq!(
            idempotency_from_proto(data::Idempotency { token: "12345678".into(), start_time: None }),
            token(None)
        );
        assert!(message("1234567", 2, 0).is_err(), "7 bytes");
        assert!(message("", 0, 0).is_err(), "a token that is there is one");
        assert!(message("12345678", -1, 0).is_err());
        assert!(message("12345678", i64::MAX, 0).is_err());
    }
}
