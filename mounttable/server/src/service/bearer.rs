//! Bearer tokens: callers with a JWT (RFC 7519) signed by an identity provider, sent as RFC 6750 describes.
//!
//! The server has everything that it needs to verify a token from the start: the providers' public keys, as the JWK Set
//! (RFC 7517) that they publish. It fetches nothing, so callers do not depend on a provider that is down; new keys need
//! a new file, which the server reads while it runs (`key_files`).
//!
//! | claim | requirement | name |
//! |---|---|---|
//! | `iss` | a trusted issuer, one of whose keys has signed the token | without its scheme it is the first component of each name: `ISSUER` |
//! | `aud` | this table's audience, or a list that contains it | |
//! | `exp` | later than now; [`LEEWAY`] is allowed for clock differences | |
//! | `nbf` | not later than now, if present | |
//! | `sub` | not empty, unless there is a verified `email` | `ISSUER:u:SUB` |
//! | `email` | counts only if `email_verified` is the value `true` | `ISSUER:e:EMAIL` |
//! | `groups` | a list of strings | `ISSUER:g:GROUP` each |
//!
//! `https://login.example.org/realms/a` becomes `login.example.org/realms/a`. Subjects and addresses have prefixes of
//! their own, so a user who may choose a subject cannot choose the address of somebody else.
//!
//! Only public-key signatures are accepted: a server that can verify a token must not be able to create one.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::future::{Future, pending};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ebla_model::time::Micros;
use ebla_mounttable_tree::error::{Error, Reason};
use ebla_mounttable_tree::identity::{ALL_PRINCIPALS, BlessingName, NO_EXTENSION, SEPARATOR};
use ebla_runtime::Clock;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, JwkSet, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::Value;

/// Tolerance for clock differences at both ends of a token's lifetime.
pub const LEEWAY: Duration = Duration::from_secs(60);

/// The longest time that a stream goes on after its token has expired.
const EXPIRY_DELAY: Duration = Duration::from_millis(250);

/// The longest token.
const TOKEN_BYTES_MAX: usize = 8 * 1024;
/// The longest modulus of an RSA key, in bytes. Callers without a valid token cause verifications.
const RSA_BYTES_MAX: usize = 512;
/// The length of an Ed25519 public key.
const ED25519_BYTES: usize = 32;
/// The number of cached verified tokens. Callers send the same one for minutes.
const VERIFIED_MAX: usize = 1_024;

/// The configuration of trusted tokens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TokenConfig {
    /// The trusted issuers, which differ in more than the scheme.
    pub issuers: Vec<Issuer>,
    /// The expected audience (`aud`).
    pub audience: String,
}

/// A trusted issuer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Issuer {
    /// Its URL (`iss`).
    pub url: String,
    /// Its public keys, which verify no other issuer's tokens: a JWK Set as JSON. Keys that are not for signatures, or of
    /// an unsupported kind, are ignored.
    pub keys: String,
}

/// Verifies tokens.
pub struct TokenVerifier {
    clock: Clock,
    /// What is trusted now. Held to copy or to replace the reference.
    trusted: Mutex<Arc<Trusted>>,
}

/// The keys, and what they have verified: a token must not outlive its key.
struct Trusted {
    /// By `iss`.
    issuers: BTreeMap<String, TrustedIssuer>,
    audience: String,
    /// Verified tokens. Held for one operation.
    verified: Mutex<HashMap<String, VerifiedToken>>,
}

/// An issuer as it is used.
struct TrustedIssuer {
    /// The first component of names.
    name: String,
    keys: Vec<Key>,
}

/// One public key.
struct Key {
    id: Option<String>,
    algorithms: &'static [Algorithm],
    key: DecodingKey,
}

/// The contents of a verified token.
#[derive(Clone)]
struct VerifiedToken {
    names: Vec<BlessingName>,
    begin: Micros,
    end: Micros,
}

/// A caller's names, and the end of the token that proves them.
#[derive(Clone, Debug)]
pub struct TokenNames {
    /// The names, most important first.
    pub names: Vec<BlessingName>,
    /// The token's end with [`LEEWAY`].
    pub expiry: Expiry,
}

/// The time after which an identity is not proved any more.
#[derive(Clone, Debug)]
pub struct Expiry(Option<(Clock, Micros)>);

impl Expiry {
    /// Of an identity that does not expire.
    pub const NEVER: Self = Self(None);

    /// Called before work on behalf of the caller.
    ///
    /// # Errors
    /// `NOT_AUTHENTICATED` when the time has passed.
    pub fn check(&self) -> Result<(), Error> {
        match &self.0 {
            Some((clock, end)) if clock.wall() > *end => Err(refused("the token has expired; request a new one")),
            _ => Ok(()),
        }
    }

    /// Waits until the time has passed, at most a quarter of a second longer; returns the error of [`Self::check`].
    pub async fn passed(&self) -> Error {
        loop {
            match self.check() {
                Err(error) => return error,
                Ok(()) if self.0.is_none() => pending().await,
                Ok(()) => tokio::time::sleep(EXPIRY_DELAY).await,
            }
        }
    }

    /// Does `work` until the time has passed; then it is dropped.
    ///
    /// # Errors
    /// Those of `work`, and of [`Self::check`].
    pub async fn limit<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        tokio::select! {
            biased;
            error = self.passed() => Err(error),
            outcome = work => outcome,
        }
    }
}

#[derive(Deserialize)]
struct Claims {
    iss: String,
    aud: OneOrMany,
    exp: f64,
    nbf: Option<f64>,
    sub: Option<String>,
    email: Option<String>,
    email_verified: Option<Value>,
    #[serde(default)]
    groups: Vec<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl OneOrMany {
    fn has(&self, wanted: &str) -> bool {
        match self {
            Self::One(one) => one == wanted,
            Self::Many(many) => many.iter().any(|one| one == wanted),
        }
    }
}

impl fmt::Debug for TokenVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenVerifier").field("issuers", &self.trusted().issuers.keys()).finish_non_exhaustive()
    }
}

impl TokenVerifier {
    /// A verifier for the tokens that `trust` describes, with this clock's wall time.
    ///
    /// # Errors
    /// `BAD_REQUEST` when the keys of an issuer are not a JWK Set or none of them is usable, there is no issuer, or two
    /// differ in the scheme alone.
    pub fn new(trust: &TokenConfig, clock: Clock) -> Result<Self, Error> {
        Ok(Self { clock, trusted: Mutex::new(Arc::new(Trusted::new(trust)?)) })
    }

    /// Trusts these keys from now on instead of the former ones. Streams that a token has opened go on until it expires.
    ///
    /// # Errors
    /// As [`Self::new`]; then the former keys stay.
    pub fn replace(&self, trust: &TokenConfig) -> Result<(), Error> {
        let trusted = Arc::new(Trusted::new(trust)?);
        *self.trusted.lock() = trusted;
        Ok(())
    }

    fn trusted(&self) -> Arc<Trusted> {
        Arc::clone(&self.trusted.lock())
    }

    /// The names in the token of a header's value, `Bearer TOKEN`, and their expiry.
    ///
    /// # Errors
    /// `NOT_AUTHENTICATED`, with the cause and without any part of the token.
    pub fn verify(&self, header: &str) -> Result<TokenNames, Error> {
        let token = match header.split_once(' ') {
            Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => token.trim(),
            _ => return Err(refused("the authorization header is not \"Bearer TOKEN\"")),
        };
        if token.len() > TOKEN_BYTES_MAX {
            return Err(refused("the token is longer than 8 KiB"));
        }
        let (now, trusted) = (self.clock.wall(), self.trusted());
        let seen = trusted.verified.lock().get(token).cloned();
        let is_new = seen.is_none();
        let verified = match seen {
            Some(verified) => verified,
            None => trusted.check(token)?,
        };
        let expiry = Expiry(Some((self.clock.clone(), verified.end.plus(LEEWAY))));
        expiry.check()?;
        if now.plus(LEEWAY) < verified.begin {
            return Err(refused("the token is not valid yet; check the clocks"));
        }
        if is_new {
            trusted.cache_token(token, verified.clone());
        }
        Ok(TokenNames { names: verified.names, expiry })
    }
}

impl Trusted {
    fn new(trust: &TokenConfig) -> Result<Self, Error> {
        let bad = |message: String| Error::new(Reason::BadRequest, message);
        let mut issuers: BTreeMap<String, TrustedIssuer> = BTreeMap::new();
        for Issuer { url, keys } in &trust.issuers {
            let name = escaped(without_scheme(url));
            if name.is_empty() || issuers.values().any(|other| other.name == name) {
                return Err(bad(format!("issuer {url:?} has no host, or is the same as another issuer")));
            }
            let keys = usable_keys(keys).map_err(|error| bad(format!("the keys of {url:?}: {error}")))?;
            issuers.insert(url.clone(), TrustedIssuer { name, keys });
        }
        if issuers.is_empty() || trust.audience.is_empty() {
            return Err(bad("token authentication needs at least one issuer and an audience".to_owned()));
        }
        Ok(Self { issuers, audience: trust.audience.clone(), verified: Mutex::default() })
    }

    fn cache_token(&self, token: &str, checked: VerifiedToken) {
        let mut verified = self.verified.lock();
        if verified.len() >= VERIFIED_MAX {
            // Rare, and active tokens return at once.
            verified.clear();
        }
        verified.insert(token.to_owned(), checked);
    }

    /// Verifies a token's signature, issuer and audience.
    fn check(&self, token: &str) -> Result<VerifiedToken, Error> {
        let header = jsonwebtoken::decode_header(token).map_err(|_| refused("the bearer token is not a signed JWT"))?;
        let named = |key: &&Key| header.kid.is_none() || key.id.is_none() || key.id == header.kid;
        let mut refusal = "the token is not signed by a known key";
        for (url, issuer) in &self.issuers {
            let mut fitting = issuer.keys.iter().filter(|key| key.algorithms.contains(&header.alg)).filter(named);
            let Some(claims) = fitting.find_map(|key| claims(token, key, header.alg)) else { continue };
            if claims.iss == *url {
                return self.accept(&issuer.name, &claims);
            }
            // A key speaks for its own issuer only.
            refusal = "the token's issuer is not trusted, or the key is another issuer's";
        }
        Err(refused(refusal))
    }

    /// The contents of a token whose signature and issuer are verified.
    fn accept(&self, issuer: &str, claims: &Claims) -> Result<VerifiedToken, Error> {
        if !claims.aud.has(&self.audience) {
            return Err(refused("the token has another audience"));
        }
        let (begin, end) = (Micros::from_secs_f64(claims.nbf.unwrap_or_default()), Micros::from_secs_f64(claims.exp));
        Ok(VerifiedToken { names: names(issuer, claims)?, begin, end })
    }
}

fn refused(message: &str) -> Error {
    Error::new(Reason::NotAuthenticated, message)
}

/// The usable keys of a JWK Set; an error if there are none, or an RSA key is so large that each verification would take long.
fn usable_keys(set: &str) -> Result<Vec<Key>, String> {
    let set: JwkSet = serde_json::from_str(set).map_err(|error| format!("no JWK Set: {error}"))?;
    if set.keys.iter().any(is_too_large) {
        return Err(
            "a key of the JWK Set is an RSA key of more than 4096 bits: use one of 2048 to 4096 bits".to_owned()
        );
    }
    let keys: Vec<Key> = set.keys.iter().filter_map(usable).collect();
    if keys.is_empty() {
        return Err("the JWK Set has no public key (RSA, EC P-256 or P-384, Ed25519) for signatures".to_owned());
    }
    Ok(keys)
}

fn is_too_large(jwk: &Jwk) -> bool {
    let AlgorithmParameters::RSA(key) = &jwk.algorithm else { return false };
    let modulus = URL_SAFE_NO_PAD.decode(&key.n).unwrap_or_default();
    modulus.iter().skip_while(|byte| **byte == 0).count() > RSA_BYTES_MAX
}

/// The key in a usable form; `None` if it cannot verify signatures.
fn usable(jwk: &Jwk) -> Option<Key> {
    use Algorithm::{ES256, ES384, EdDSA, PS256, PS384, PS512, RS256, RS384, RS512};
    if jwk.common.public_key_use.as_ref().is_some_and(|used| *used != PublicKeyUse::Signature) {
        return None;
    }
    let algorithms: &'static [Algorithm] = match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => &[RS256, RS384, RS512, PS256, PS384, PS512],
        AlgorithmParameters::EllipticCurve(key) => match key.curve {
            EllipticCurve::P256 => &[ES256],
            EllipticCurve::P384 => &[ES384],
            _ => return None,
        },
        AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => &[EdDSA],
        // A server that can verify with a shared secret could also sign with it.
        _ => return None,
    };
    let key = DecodingKey::from_jwk(jwk).ok()?;
    let is_edwards = matches!(jwk.algorithm, AlgorithmParameters::OctetKeyPair(_));
    if is_edwards && !key.try_get_as_bytes().is_ok_and(|bytes| bytes.len() == ED25519_BYTES) {
        // The library takes the first bytes of a longer one, and panics on a shorter one with each token.
        return None;
    }
    Some(Key { id: jwk.common.key_id.clone(), algorithms, key })
}

/// The claims, if the key verifies the signature. The caller checks times, issuer and audience.
fn claims(token: &str, key: &Key, algorithm: Algorithm) -> Option<Claims> {
    let mut validation = Validation::new(algorithm);
    validation.required_spec_claims.clear();
    validation.validate_exp = false;
    validation.validate_aud = false;
    jsonwebtoken::decode(token, &key.key, &validation).ok().map(|token| token.claims)
}

fn names(issuer: &str, claims: &Claims) -> Result<Vec<BlessingName>, Error> {
    let email = claims.email.as_ref().filter(|_email| claims.email_verified == Some(Value::Bool(true)));
    let name = |class: char, text: &String| format!("{issuer}:{class}:{}", escaped(text));
    let present = |text: &&String| !text.is_empty();
    let subject = claims.sub.as_ref().filter(present).map(|subject| name('u', subject));
    let email = email.filter(present).map(|email| name('e', email));
    let users: Vec<String> = [subject, email].into_iter().flatten().collect();
    if users.is_empty() {
        return Err(refused("the token has neither \"sub\" nor a verified \"email\""));
    }
    let groups: Vec<String> = claims.groups.iter().filter(present).map(|group| name('g', group)).collect();
    users.iter().chain(&groups).map(|name| name.parse()).collect()
}

/// An issuer's URL without its scheme and a slash at the end, or the issuer itself if it is not a URL.
fn without_scheme(issuer: &str) -> &str {
    issuer.split_once("://").map_or(issuer, |(_scheme, rest)| rest).trim_end_matches('/')
}

/// Escapes text as one component of a name: invalid characters and the escape character become %XX of their UTF-8.
fn escaped(text: &str) -> String {
    let reserved = text.contains(ALL_PRINCIPALS) || text == NO_EXTENSION;
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        let plain = !matches!(character, SEPARATOR | ',' | '%') && !character.is_control();
        if plain && !(reserved && matches!(character, '.' | '$')) {
            out.push(character);
        } else {
            let mut bytes = [0; 4];
            for byte in character.encode_utf8(&mut bytes).bytes() {
                out.push_str(&format!("%{byte:02X}"));
            }
        }
    }
    out
}

#[cfg(test)]
mod tests;
