//! Tokens signed by the keys of the mounttable's tests, which protect nothing.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use jsonwebtoken::jwk::{Jwk, JwkSet};
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::json;

use super::*;

const ED: &[u8] = include_bytes!("../../../../../mounttable/server/testdata/tokens/ed25519.der");
const P256: &[u8] = include_bytes!("../../../../../mounttable/server/testdata/tokens/p256.der");
const RSA: &[u8] = include_bytes!("../../../../../mounttable/server/testdata/tokens/rsa2048.der");
const ISSUER: &str = "https://login.example.org";
/// In seconds.
const NOW: i64 = 2_000_000_000;

fn key_pairs() -> [(Algorithm, EncodingKey); 3] {
    [
        (Algorithm::EdDSA, EncodingKey::from_ed_der(ED)),
        (Algorithm::ES256, EncodingKey::from_ec_der(P256)),
        (Algorithm::RS256, EncodingKey::from_rsa_der(RSA)),
    ]
}

fn jwk_set() -> JwkSet {
    let jwk = |(number, (algorithm, key)): (usize, (Algorithm, EncodingKey))| {
        let mut jwk = Jwk::from_encoding_key(&key, algorithm).unwrap();
        jwk.common.key_id = Some(format!("key-{number}"));
        jwk
    };
    JwkSet { keys: key_pairs().into_iter().enumerate().map(jwk).collect() }
}

fn clock() -> Clock {
    let clock = Clock::manual();
    clock.set_wall(Micros::new(NOW * 1_000_000));
    clock
}

fn verifier_with(keys: &str) -> Result<TokenVerifier, Error> {
    TokenVerifier::new(keys, ISSUER.to_owned(), "ebla".to_owned(), clock())
}

fn verifier() -> TokenVerifier {
    verifier_with(&serde_json::to_string(&jwk_set()).unwrap()).unwrap()
}

fn claims() -> Value {
    json!({"iss": ISSUER, "aud": "ebla", "exp": NOW + 600, "sub": "alice"})
}

fn with(name: &str, value: Value) -> Value {
    let mut claims = claims();
    claims[name] = value;
    claims
}

fn signed(claims: &Value, (algorithm, key): &(Algorithm, EncodingKey)) -> String {
    encode(&Header::new(*algorithm), claims, key).unwrap()
}

fn token(claims: &Value) -> String {
    signed(claims, &key_pairs()[0])
}

fn refusal(verifier: &TokenVerifier, token: &str) -> String {
    let error = verifier.verify(token).unwrap_err();
    assert_eq!(error.reason, Reason::Unauthenticated);
    error.message
}

#[test]
fn each_algorithm_is_accepted() {
    let verifier = verifier();
    for pair in &key_pairs() {
        let verified = verifier.verify(&signed(&claims(), pair)).unwrap();
        assert_eq!(verified.identity.name(), &Member::TokenSubject("alice".to_owned()));
    }
}

#[test]
fn pem_keys_are_accepted() {
    // The public keys of the same pairs, as SubjectPublicKeyInfo. Lengths have three bytes, whatever they are.
    let element = |tag: u8, bytes: &[u8]| {
        let length = u16::try_from(bytes.len()).unwrap().to_be_bytes();
        [&[tag, 0x82][..], &length, bytes].concat()
    };
    let info = |algorithm: &[u8], key: &[u8]| {
        let bits = element(0x03, &[&[0][..], key].concat());
        element(0x30, &[element(0x30, algorithm), bits].concat())
    };
    let set = serde_json::to_value(jwk_set()).unwrap();
    let part = |key: usize, name: &str| URL_SAFE_NO_PAD.decode(set["keys"][key][name].as_str().unwrap()).unwrap();
    let ed = info(&[0x06, 0x03, 0x2b, 0x65, 0x70], &part(0, "x"));
    let ec_algorithm =
        [0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 7];
    let ec = info(&ec_algorithm, &[vec![4], part(1, "x"), part(1, "y")].concat());
    let modulus = element(0x02, &[vec![0], part(2, "n")].concat());
    let rsa_key = element(0x30, &[modulus, element(0x02, &part(2, "e"))].concat());
    let rsa_algorithm = [0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01, 0x05, 0x00];
    let rsa = info(&rsa_algorithm, &rsa_key);
    let pem = |der: &[u8]| format!("-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n", STANDARD.encode(der));
    let verifier = verifier_with(&[pem(&ed), pem(&ec), pem(&rsa)].concat()).unwrap();
    for pair in &key_pairs() {
        assert!(verifier.verify(&signed(&claims(), pair)).is_ok(), "{:?}", pair.0);
    }
    for wrong in ["", "{}", "-----BEGIN PUBLIC KEY-----", &pem(&ed[..20]), &pem(&[0x30, 0x82, 0xff, 0xff])] {
        assert!(verifier_with(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn names_come_from_the_claims() {
    let verified = |claims: Value| verifier().verify(&token(&claims)).unwrap().identity;
    let mut full = with("email", json!("a@example.org"));
    full["groups"] = json!(["staff"]);
    assert!(!verified(full.clone()).is(&Member::User("a@example.org".to_owned())), "not verified");
    full["email_verified"] = json!("true");
    assert!(!verified(full.clone()).is(&Member::User("a@example.org".to_owned())), "a text");
    full["email_verified"] = json!(true);
    let identity = verified(full);
    assert!(identity.is(&Member::User("a@example.org".to_owned())) && identity.is(&Member::Group("staff".to_owned())));
}

#[test]
fn attacks_with_claims_are_refused() {
    for (claims, expected) in [
        (with("exp", json!(NOW - 61)), "expired"),
        (with("exp", json!(NOW - 60)), "expired"),
        (with("exp", Value::Null), "not signed by a known key"),
        (with("nbf", json!(NOW + 61)), "not valid yet"),
        (with("aud", json!("another")), "another audience"),
        (with("aud", json!(["another"])), "another audience"),
        (with("iss", json!("https://evil.example.org")), "another issuer"),
        (with("sub", json!("")), "a name in the token"),
    ] {
        let message = refusal(&verifier(), &token(&claims));
        assert!(message.contains(expected), "{claims}: {message}");
    }
    for claims in [with("exp", json!(NOW - 59)), with("nbf", json!(NOW + 60)), with("aud", json!(["x", "ebla"]))] {
        assert!(verifier().verify(&token(&claims)).is_ok(), "{claims}");
    }
}

#[test]
fn an_altered_token_is_refused() {
    let verifier = verifier();
    let good = token(&claims());
    assert!(verifier.verify(&good).is_ok());
    let parts: Vec<_> = good.split('.').collect();
    let other = URL_SAFE_NO_PAD.encode(with("sub", json!("root")).to_string());
    let forged = format!("{}.{other}.{}", parts[0], parts[2]);
    assert!(refusal(&verifier, &forged).contains("not signed by a known key"));
    for at in 0..good.len() {
        let mut altered = good.clone().into_bytes();
        altered[at] = if altered[at] == b'A' { b'B' } else { b'A' };
        let altered = String::from_utf8(altered).unwrap();
        // The last character of a signature has bits that mean nothing; the library refuses other forms of them.
        assert!(verifier.verify(&altered).is_err(), "byte {at}");
    }
    for wrong in ["", ".", "..", "a.b.c", &"x".repeat(9_000), parts[0]] {
        refusal(&verifier, wrong);
    }
}

#[test]
fn confused_algorithms_are_refused() {
    let verifier = verifier();
    let unsigned = |header: Value| {
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        format!("{}.{}.", part(&header), part(&claims()))
    };
    for algorithm in ["none", "None", "NONE", "HS256", "RS256", "EdDSA"] {
        refusal(&verifier, &unsigned(json!({"alg": algorithm, "typ": "JWT"})));
    }
    // The public key as the secret of a shared-secret algorithm, in each form that a server might use.
    let set = serde_json::to_value(jwk_set()).unwrap();
    let modulus = set["keys"][2]["n"].as_str().unwrap();
    let (raw, text) = (URL_SAFE_NO_PAD.decode(modulus).unwrap(), serde_json::to_vec(&jwk_set()).unwrap());
    for secret in [raw.as_slice(), modulus.as_bytes(), &text] {
        let pair = (Algorithm::HS256, EncodingKey::from_secret(secret));
        refusal(&verifier, &signed(&claims(), &pair));
    }
    // Another algorithm of the same kind of key.
    refusal(&verifier, &signed(&claims(), &(Algorithm::PS256, EncodingKey::from_rsa_der(RSA))));
    refusal(&verifier, &signed(&claims(), &(Algorithm::RS512, EncodingKey::from_rsa_der(RSA))));
    // A secret in the set is no key.
    let secret = json!({"keys": [{"kty": "oct", "k": "c2VjcmV0", "alg": "HS256"}]}).to_string();
    assert!(verifier_with(&secret).is_err());
}

#[test]
fn an_unknown_key_is_refused_and_a_removed_one_too() {
    let one = |index: usize| serde_json::to_string(&JwkSet { keys: vec![jwk_set().keys[index].clone()] }).unwrap();
    let verifier = verifier_with(&one(1)).unwrap();
    assert!(refusal(&verifier, &token(&claims())).contains("not signed by a known key"));
    let mut header = Header::new(Algorithm::ES256);
    header.kid = Some("another".to_owned());
    let other_id = encode(&header, &claims(), &key_pairs()[1].1).unwrap();
    refusal(&verifier, &other_id);
    let good = signed(&claims(), &key_pairs()[1]);
    assert!(verifier.verify(&good).is_ok());
    verifier.replace_keys(&one(0)).unwrap();
    refusal(&verifier, &good);
    assert!(verifier.replace_keys("nothing").is_err());
    assert!(verifier.verify(&token(&claims())).is_ok(), "the former keys stay");
}

#[test]
fn a_remembered_token_expires_and_their_number_is_bounded() {
    let verifier = verifier();
    let good = token(&claims());
    assert!(verifier.verify(&good).is_ok() && verifier.verify(&good).is_ok());
    verifier.clock.set_wall(Micros::new((NOW + 660) * 1_000_000));
    assert!(refusal(&verifier, &good).contains("expired"));
    verifier.clock.set_wall(Micros::new(NOW * 1_000_000));
    let verified = verifier.verify(&good).unwrap();
    let keys = Arc::clone(&verifier.trusted.read().keys);
    for number in 0..2 * VERIFIED_MAX {
        let mut hash = [0; 32];
        hash[..8].copy_from_slice(&number.to_be_bytes());
        verifier.remember(hash, &verified, &keys, verifier.clock.wall());
    }
    assert!(verifier.trusted.read().verified.len() <= VERIFIED_MAX);
}

#[test]
fn a_token_that_was_verified_with_former_keys_is_not_remembered() {
    let verifier = verifier();
    let verified = verifier.verify(&token(&claims())).unwrap();
    let former: Arc<[PublicKey]> = Arc::from(Vec::new());
    let before = verifier.trusted.read().verified.len();
    verifier.remember([7; 32], &verified, &former, verifier.clock.wall());
    assert_eq!(verifier.trusted.read().verified.len(), before);
}

#[test]
fn an_rsa_key_of_more_than_4096_bits_is_refused() {
    let jwk = |bytes: usize, zeros: usize| {
        let modulus = [vec![0; zeros], vec![0xff; bytes]].concat();
        let key = json!({"kty": "RSA", "n": URL_SAFE_NO_PAD.encode(modulus), "e": "AQAB"});
        json!({"keys": [key]}).to_string()
    };
    for (bytes, zeros) in [(256, 0), (512, 0), (512, 1)] {
        assert!(verifier_with(&jwk(bytes, zeros)).is_ok(), "{bytes} bytes");
    }
    // DER: the lengths of an integer of 513 bytes, which begins with a zero as its first bit is set, and of what contains it.
    let integer = |bytes: &[u8]| element(0x02, bytes);
    let modulus = [vec![0], vec![0xff; 513]].concat();
    let numbers = element(0x30, &[integer(&modulus), integer(&[1, 0, 1])].concat());
    let rsa = [0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01, 0x05, 0x00];
    let bits = element(0x03, &[&[0], &numbers[..]].concat());
    let info = element(0x30, &[element(0x30, &rsa), bits].concat());
    let pem = format!("-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n", STANDARD.encode(info));
    for file in [jwk(513, 0), jwk(1_024, 2), pem] {
        let refused = verifier_with(&file).unwrap_err();
        assert!(
            refused.reason == Reason::InvalidArgument && refused.message.contains("more than 4096 bits"),
            "{refused}"
        );
    }
    assert!(verifier_with(&jwk(255, 0)).unwrap_err().message.contains("usable"), "a smaller one is ignored");
}

/// A DER element.
fn element(tag: u8, content: &[u8]) -> Vec<u8> {
    let [.., high, low] = content.len().to_be_bytes();
    let length = if content.len() < 0x80 { vec![low] } else { vec![0x82, high, low] };
    [&[tag], &length[..], content].concat()
}
