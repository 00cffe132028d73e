//! Tests with tokens signed by the keys in `testdata/tokens`, which protect nothing.

use ebla_model::time::Micros;
use jsonwebtoken::{EncodingKey, Header, encode};
use proptest::prelude::{ProptestConfig, proptest};
use serde_json::{Value, json};

use super::*;
use crate::inputs::inputs;

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

fn issuer(url: &str, keys: String) -> Issuer {
    Issuer { url: url.to_owned(), keys }
}

fn trust() -> TokenConfig {
    TokenConfig { issuers: vec![issuer(ISSUER, jwks(&keys()))], audience: "names".to_owned() }
}

fn clock() -> Clock {
    let clock = Clock::manual();
    clock.set_wall(Micros::new(NOW * 1_000_000));
    clock
}

fn bearer() -> TokenVerifier {
    TokenVerifier::new(&trust(), clock()).unwrap()
}

impl TokenVerifier {
    fn names(&self, header: &str) -> Result<Vec<BlessingName>, Error> {
        self.verify(header).map(|verified| verified.names)
    }
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
            assert_eq!(names, ["login.example.org/realms/a:u:alice".parse().unwrap()], "{algorithm:?}");
        }
    }
}

#[test]
fn names_come_from_the_subject_the_verified_address_and_the_groups() {
    let mut claims = with("email", json!("alice@example.org"));
    claims["groups"] = json!(["ops", "a:b,c%", "...", "$", ""]);
    claims["aud"] = json!(["others", "names"]);
    claims["email_verified"] = json!(true);
    let host = "login.example.org/realms/a";
    let expected = format!(
        "{host}:u:alice {host}:e:alice@example.org {host}:g:ops {host}:g:a%3Ab%2Cc%25 {host}:g:%2E%2E%2E {host}:g:%24"
    );
    assert_eq!(outcome(&bearer(), &claims), expected);
    claims["groups"] = json!([]);
    // Anything but the value true: an address that the provider has not verified may be anybody's.
    for unverified in [json!(false), Value::Null, json!("true"), json!(1)] {
        claims["email_verified"] = unverified;
        assert_eq!(outcome(&bearer(), &claims), format!("{host}:u:alice"));
    }
    claims.as_object_mut().unwrap().remove("email_verified");
    assert_eq!(outcome(&bearer(), &claims), format!("{host}:u:alice"));
    claims["sub"] = Value::Null;
    assert!(outcome(&bearer(), &claims).contains("neither"));
    claims["email_verified"] = json!(true);
    assert_eq!(outcome(&bearer(), &claims), format!("{host}:e:alice@example.org"));
}

/// A subject that looks like an address does not have the rights of the address.
#[test]
fn a_subject_is_never_an_address() {
    let claims = with("sub", json!("bob@example.org"));
    assert_eq!(outcome(&bearer(), &claims), "login.example.org/realms/a:u:bob@example.org");
}

/// Two providers are trusted; each signs with keys of its own.
#[test]
fn a_key_speaks_for_its_own_issuer_only() {
    let [ed, p256, rsa] = keys();
    let other = "https://login.example.org/realms/b";
    let issuers = vec![issuer(ISSUER, jwks(&[ed])), issuer(other, jwks(&[p256, rsa]))];
    let bearer = TokenVerifier::new(&TokenConfig { issuers, ..trust() }, clock()).unwrap();
    let signed = |by: usize, issuer: &str| {
        let (algorithm, key) = &keys()[by];
        let header = format!("Bearer {}", encode(&Header::new(*algorithm), &with("iss", json!(issuer)), key).unwrap());
        let names = bearer.names(&header).map(|names| names[0].as_str().to_owned());
        names.map_err(|error| error.message)
    };
    assert_eq!(signed(0, ISSUER).unwrap(), "login.example.org/realms/a:u:alice");
    assert_eq!(signed(1, other).unwrap(), "login.example.org/realms/b:u:alice");
    for (by, claimed) in [(0, other), (1, ISSUER), (2, ISSUER)] {
        assert!(signed(by, claimed).unwrap_err().contains("another issuer's"), "key {by} for {claimed}");
    }
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
        assert_eq!(outcome(&bearer, &claims), "login.example.org/realms/a:u:alice", "{claims}");
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
    assert_eq!(bearer.trusted().verified.lock().len(), 10);
}

#[test]
fn a_verifier_without_usable_trust_is_an_error() {
    let refused = |trust: TokenConfig| TokenVerifier::new(&trust, clock()).unwrap_err().message;
    let keys = |keys: String| TokenConfig { issuers: vec![issuer(ISSUER, keys)], ..trust() };
    assert!(refused(keys("{}".to_owned())).contains("no JWK Set"));
    let shared = json!({"keys": [{"kty": "oct", "k": "c2VjcmV0", "alg": "HS256"}]}).to_string();
    assert!(refused(keys(shared)).contains("no public key"));
    assert!(refused(TokenConfig { issuers: Vec::new(), ..trust() }).contains("issuer"));
    assert!(refused(TokenConfig { audience: String::new(), ..trust() }).contains("audience"));
    let twins = [ISSUER, "http://login.example.org/realms/a/"].map(|url| issuer(url, jwks(&self::keys())));
    assert!(refused(TokenConfig { issuers: twins.into(), ..trust() }).contains("the same"));
}

#[test]
fn an_ed25519_key_of_another_length_is_ignored() {
    let [edwards, ..] = keys();
    let set: Value = serde_json::from_str(&jwks(&[edwards])).unwrap();
    for x in ["", "AA", &"A".repeat(42), &"A".repeat(44), &"A".repeat(400)] {
        let mut set = set.clone();
        set["keys"][0]["x"] = json!(x);
        let trust = TokenConfig { issuers: vec![issuer(ISSUER, set.to_string())], ..trust() };
        let refused = TokenVerifier::new(&trust, clock()).unwrap_err();
        assert!(refused.message.contains("no public key"), "{x}: {}", refused.message);
    }
}

/// A token that is not accepted is refused as such, whatever is wrong with it.
#[track_caller]
fn assert_accepted_or_refused(outcome: Result<Vec<BlessingName>, Error>, expected: &[BlessingName]) {
    match outcome {
        Ok(names) => assert_eq!(names, expected),
        Err(error) => assert_eq!(error.reason, Reason::NotAuthenticated, "{error}"),
    }
}

fn alice() -> Vec<BlessingName> {
    vec!["login.example.org/realms/a:u:alice".parse().unwrap()]
}

fn all_claims() -> Vec<u8> {
    let mut claims = with("email", json!("alice@example.org"));
    claims["groups"] = json!(["ops", "a:b,c%"]);
    claims["nbf"] = json!(NOW - 5);
    claims["email_verified"] = json!(true);
    serde_json::to_vec(&claims).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn a_changed_token_is_refused_or_names_the_same_caller(bytes in inputs(vec![token(&good()).into_bytes()])) {
        assert_accepted_or_refused(bearer().names(&String::from_utf8_lossy(&bytes)), &alice());
    }

    #[test]
    fn signed_claims_of_any_content_are_accepted_or_refused(bytes in inputs(vec![all_claims()])) {
        let Ok(claims) = serde_json::from_slice::<Value>(&bytes) else { return Ok(()) };
        match bearer().names(&token(&claims)) {
            Ok(names) => assert!(names.iter().all(|name| name.as_str().starts_with("login.example.org/realms/a:"))),
            Err(error) => assert_eq!(error.reason, Reason::NotAuthenticated, "{error}"),
        }
    }
}

#[test]
fn an_rsa_key_of_more_than_4096_bits_is_refused() {
    let keys = |bytes: usize| {
        let key = json!({"kty": "RSA", "n": URL_SAFE_NO_PAD.encode(vec![0xff; bytes]), "e": "AQAB"});
        TokenConfig { issuers: vec![issuer(ISSUER, json!({"keys": [key]}).to_string())], audience: "names".to_owned() }
    };
    assert!(TokenVerifier::new(&keys(512), clock()).is_ok());
    let refused = TokenVerifier::new(&keys(513), clock()).unwrap_err();
    assert!(refused.message.contains("more than 4096 bits"), "{refused}");
}
