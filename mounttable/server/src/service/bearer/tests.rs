//! Tests with tokens signed by the keys in `testdata/tokens`, which protect nothing.

use ebla_model::time::Micros;
use jsonwebtoken::{EncodingKey, Header, encode};
use serde_json::{Value, json};

use super::*;

const ED: &[u8] = include_bytes!("../../../testdata/tokens/ed25519.der");
const P256: &[u8] = include_bytes!("../../../testdata/tokens/p256.der");
const RSA: &[u8] = include_bytes!("../../../testdata/tokens/rsa2048.der");
const ISSUER: &str = "https://login.example.org/realms/a";
/// In seconds of the tests' clock.
const NOW: i64 = 2_000_000_000;

fn keys() -> [(Algorithm, EncodingKey); 3] {
    [
        (Algorithm::EdDSA, EncodingKey::from_ed_der(ED)),
        (Algorithm::ES256, EncodingKey::from_ec_der(P256)),
        (Algorithm::RS256, EncodingKey::from_rsa_der(RSA)),
    ]
}

fn jwks(keys: &[(Algorithm, EncodingKey)]) -> String {
    let one = |(number, (algorithm, key)): (usize, &(Algorithm, EncodingKey))| {
        let mut jwk = Jwk::from_encoding_key(key, *algorithm).unwrap();
        jwk.common.key_id = Some(format!("key-{number}"));
        jwk
    };
    let keys = keys.iter().enumerate().map(one).collect();
    serde_json::to_string(&JwkSet { keys }).unwrap()
}

fn trust() -> TokenConfig {
    TokenConfig { keys: jwks(&keys()), issuers: vec![ISSUER.to_owned()], audience: "names".to_owned() }
}

fn clock() -> Clock {
    let clock = Clock::manual();
    clock.set_wall(Micros::new(NOW * 1_000_000));
    clock
}

fn bearer() -> TokenVerifier {
    TokenVerifier::new(&trust(), clock()).unwrap()
}

fn good() -> Value {
    json!({"iss": ISSUER, "aud": "names", "exp": NOW + 300, "sub": "alice"})
}

fn with(field: &str, value: Value) -> Value {
    let mut claims = good();
    claims.as_object_mut().unwrap().insert(field.to_owned(), value);
    claims
}

fn token(claims: &Value) -> String {
    let [(algorithm, key), ..] = keys();
    format!("Bearer {}", encode(&Header::new(algorithm), claims, &key).unwrap())
}

/// The names, or the error.
fn outcome(bearer: &TokenVerifier, claims: &Value) -> String {
    let names = bearer.names(&token(claims)).map(|names| names.iter().map(ToString::to_string).collect::<Vec<_>>());
    names.map_or_else(|error| format!("{}: {}", error.reason, error.message), |names| names.join(" "))
}

#[test]
fn a_token_signed_by_any_of_the_keys_names_its_subject() {
    for (number, (algorithm, key)) in keys().into_iter().enumerate() {
        for kid in [None, Some(format!("key-{number}"))] {
            let header = Header { kid, ..Header::new(algorithm) };
            let header = format!("bearer {}", encode(&header, &good(), &key).unwrap());
            let names = bearer().names(&header).unwrap();
            assert_eq!(names, ["login.example.org:u:alice".parse().unwrap()], "{algorithm:?}");
        }
    }
}

#[test]
fn names_come_from_the_subject_the_address_and_the_groups() {
    let mut claims = with("email", json!("alice@example.org"));
    claims["groups"] = json!(["ops", "a:b,c%", "...", "$", ""]);
    claims["aud"] = json!(["others", "names"]);
    let host = "login.example.org";
    let expected = format!(
        "{host}:u:alice {host}:u:alice@example.org {host}:g:ops {host}:g:a%3Ab%2Cc%25 {host}:g:%2E%2E%2E {host}:g:%24"
    );
    assert_eq!(outcome(&bearer(), &claims), expected);
    claims["email_verified"] = json!(false);
    claims["groups"] = json!([]);
    assert_eq!(outcome(&bearer(), &claims), format!("{host}:u:alice"));
    claims["sub"] = Value::Null;
    assert!(outcome(&bearer(), &claims).contains("neither"));
}

#[test]
fn unaccepted_tokens_are_refused_with_the_cause() {
    let bearer = bearer();
    let refusals = [
        (with("exp", json!(NOW - 61)), "expired"),
        (with("exp", json!(f64::MIN)), "expired"),
        (with("nbf", json!(NOW + 61)), "not valid yet"),
        (with("iss", json!("https://login.example.org/realms/b")), "issuer"),
        (with("aud", json!("mail")), "audience"),
        (with("aud", Value::Null), "not signed"),
        (with("sub", json!("")), "neither"),
    ];
    for (claims, why) in refusals {
        let refusal = outcome(&bearer, &claims);
        assert!(refusal.starts_with("NOT_AUTHENTICATED") && refusal.contains(why), "{claims}: {refusal}");
    }
    for claims in [with("exp", json!(NOW - 59)), with("nbf", json!(NOW + 59)), with("exp", json!(f64::MAX))] {
        assert_eq!(outcome(&bearer, &claims), "login.example.org:u:alice", "{claims}");
    }
}

#[test]
fn a_token_that_was_changed_or_signed_by_others_is_refused() {
    let bearer = bearer();
    let good = token(&good());
    let refused = |header: &str| bearer.names(header).unwrap_err().message;
    let (rest, signature) = good.rsplit_once('.').unwrap();
    let other = token(&with("sub", json!("root")));
    let (other, _signature) = other.rsplit_once('.').unwrap();
    assert!(refused(&format!("{other}.{signature}")).contains("not signed"));
    assert!(refused(rest).contains("not a signed JWT"));
    // A shared secret made of a public key, which everybody knows.
    let secret = EncodingKey::from_secret(jwks(&keys()).as_bytes());
    let forged = encode(&Header::new(Algorithm::HS256), &self::good(), &secret).unwrap();
    assert!(refused(&format!("Bearer {forged}")).contains("not signed"));
    assert!(refused("Bearer eyJhbGciOiJub25lIn0.e30.").contains("JWT"));
    assert!(refused("Basic YTpi").contains("Bearer"));
    assert!(refused("").contains("Bearer"));
    assert!(refused(&format!("Bearer {}", "x".repeat(9_000))).contains("8 KiB"));
}

#[test]
fn a_token_that_was_good_ends_all_the_same() {
    let clock = clock();
    let bearer = TokenVerifier::new(&trust(), clock.clone()).unwrap();
    let header = token(&good());
    bearer.names(&header).unwrap();
    clock.advance(Duration::from_secs(359));
    bearer.names(&header).unwrap();
    clock.advance(Duration::from_secs(2));
    assert!(bearer.names(&header).unwrap_err().message.contains("expired"));
}

#[test]
fn the_cache_is_bounded() {
    let bearer = bearer();
    for number in 0..VERIFIED_MAX + 10 {
        bearer.names(&token(&with("sub", json!(number.to_string())))).unwrap();
    }
    assert_eq!(bearer.verified.lock().len(), 10);
}

#[test]
fn a_verifier_without_usable_trust_is_an_error() {
    let refused = |trust: TokenConfig| TokenVerifier::new(&trust, clock()).unwrap_err().message;
    assert!(refused(TokenConfig { keys: "{}".to_owned(), ..trust() }).contains("no JWK Set"));
    let shared = json!({"keys": [{"kty": "oct", "k": "c2VjcmV0", "alg": "HS256"}]}).to_string();
    assert!(refused(TokenConfig { keys: shared, ..trust() }).contains("no public key"));
    assert!(refused(TokenConfig { issuers: Vec::new(), ..trust() }).contains("issuer"));
    assert!(refused(TokenConfig { audience: String::new(), ..trust() }).contains("audience"));
    let twins = vec![ISSUER.to_owned(), "https://login.example.org/realms/b".to_owned()];
    assert!(refused(TokenConfig { issuers: twins, ..trust() }).contains("the same"));
}
