//! Bearer tokens: JWTs (RFC 7519) that an identity provider has signed, verified without asking it.
//!
//! | claim | requirement |
//! |---|---|
//! | `iss` | the configured issuer |
//! | `aud` | the configured audience, or a list that contains it |
//! | `exp` | later than now; [`LEEWAY`] is allowed for clock differences |
//! | `nbf` | not later than now, if present; the same |
//! | `sub` | not empty: the member `subject:SUB` |
//! | `email` | `user:EMAIL`, only if `email_verified` is the value `true` |
//! | `groups` | `group:NAME` each |
//!
//! A verified token is remembered by its SHA-256 hash until it expires or the keys change. Errors say the cause and no part of the token.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ebla_model::access::{Identity, Member};
use ebla_model::{Error, Micros, Reason};
use ebla_runtime::{Clock, Runtime};
use jsonwebtoken::Validation;
use parking_lot::RwLock;
use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tracing::{info, warn};

use super::keys::{self, PublicKey};

/// Tolerance for clock differences at both ends of a token's life.
pub(super) const LEEWAY: Duration = Duration::from_secs(60);
/// The longest token, in bytes.
const TOKEN_BYTES_MAX: usize = 8 * 1024;
/// The most groups of a caller that count.
const GROUPS_MAX: usize = 256;
/// The number of remembered tokens.
const VERIFIED_MAX: usize = 4_096;
/// Between two looks at the file of the keys.
const KEYS_PERIOD: Duration = Duration::from_secs(1);

/// Which tokens are valid.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TokenOptions {
    /// The file with the issuer's public keys: a JWK Set, or PEM. It is read again when it changes.
    pub keys: PathBuf,
    /// The expected `iss`.
    pub issuer: String,
    /// The expected `aud`.
    pub audience: String,
}

/// What a valid token proves, and until when.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct VerifiedToken {
    pub(super) identity: Arc<Identity>,
    begin: Micros,
    /// Its end, without leeway.
    end: Micros,
}

impl VerifiedToken {
    /// The time from which on it is refused.
    pub(super) fn expiry(&self) -> Micros {
        self.end.plus(LEEWAY)
    }
}

/// Verifies tokens. Cheap to share behind an `Arc`.
pub(super) struct TokenVerifier {
    issuer: String,
    audience: String,
    clock: Clock,
    /// The keys, and what they have verified: a token must not outlive its key. Held for one operation.
    trusted: RwLock<Trusted>,
}

struct Trusted {
    keys: Arc<[PublicKey]>,
    verified: HashMap<[u8; 32], VerifiedToken>,
}

impl Trusted {
    fn new(keys: Vec<PublicKey>) -> Self {
        Self { keys: keys.into(), verified: HashMap::new() }
    }
}

#[derive(Deserialize)]
struct Claims {
    iss: String,
    aud: Audience,
    exp: f64,
    nbf: Option<f64>,
    sub: String,
    email: Option<String>,
    email_verified: Option<Value>,
    #[serde(default)]
    groups: Vec<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Audience {
    One(String),
    Many(Vec<String>),
}

impl Audience {
    fn contains(&self, wanted: &str) -> bool {
        match self {
            Self::One(one) => one == wanted,
            Self::Many(many) => many.iter().any(|one| one == wanted),
        }
    }
}

impl fmt::Debug for TokenVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenVerifier").field("issuer", &self.issuer).finish_non_exhaustive()
    }
}

impl TokenVerifier {
    /// A verifier with the keys of a file, which is read again until `runtime` stops. Keys that cannot be used are reported once, and the
    /// former ones stay. Blocking, for a few kilobytes.
    ///
    /// # Errors
    /// `InvalidArgument` when the file cannot be read or has no usable key, or the issuer or the audience is empty.
    pub(super) fn start(options: TokenOptions, runtime: &Runtime) -> Result<Arc<Self>, Error> {
        let TokenOptions { keys: path, issuer, audience } = options;
        if issuer.is_empty() || audience.is_empty() {
            return Err(Error::invalid(
                "tokens need an issuer and an audience: one that is empty would accept any token",
            ));
        }
        let file = read(&path)?;
        let verifier = Arc::new(Self::new(&file, issuer, audience, runtime.clock.clone())?);
        let watched = Arc::clone(&verifier);
        runtime.tasks.spawn_until_stopped("token-keys", async move { watched.watch(&path, file).await });
        Ok(verifier)
    }

    fn new(keys: &str, issuer: String, audience: String, clock: Clock) -> Result<Self, Error> {
        let trusted = RwLock::new(Trusted::new(keys::parse(keys)?));
        Ok(Self { issuer, audience, clock, trusted })
    }

    async fn watch(&self, path: &Path, first: String) {
        let mut last = Ok(first);
        loop {
            tokio::time::sleep(KEYS_PERIOD).await;
            let now = read(path);
            if now == last {
                continue;
            }
            match now.clone().and_then(|file| self.replace_keys(&file)) {
                Ok(()) => info!("keys of tokens replaced"),
                Err(error) => warn!(%error, "new keys of tokens cannot be used; the former ones stay"),
            }
            last = now;
        }
    }

    /// Trusts these keys instead of the former ones.
    fn replace_keys(&self, file: &str) -> Result<(), Error> {
        *self.trusted.write() = Trusted::new(keys::parse(file)?);
        Ok(())
    }

    /// What a token proves now.
    ///
    /// # Errors
    /// `Unauthenticated`.
    pub(super) fn verify(&self, token: &str) -> Result<VerifiedToken, Error> {
        if token.len() > TOKEN_BYTES_MAX {
            return Err(refused("the token is longer than 8 KiB"));
        }
        let hash: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        let (known, keys) = {
            let trusted = self.trusted.read();
            (trusted.verified.get(&hash).cloned(), Arc::clone(&trusted.keys))
        };
        let verified = match &known {
            Some(verified) => verified.clone(),
            None => self.check(token, &keys)?,
        };
        let now = self.clock.wall();
        if now >= verified.expiry() {
            return Err(refused("the token has expired: request a new one"));
        }
        if now.plus(LEEWAY) < verified.begin {
            return Err(refused("the token is not valid yet: check the clocks"));
        }
        if known.is_none() {
            self.remember(hash, &verified, &keys, now);
        }
        Ok(verified)
    }

    /// Remembers what these keys have verified, if they are still those that are trusted.
    fn remember(&self, hash: [u8; 32], verified: &VerifiedToken, keys: &Arc<[PublicKey]>, now: Micros) {
        let mut trusted = self.trusted.write();
        if !Arc::ptr_eq(&trusted.keys, keys) {
            return;
        }
        if trusted.verified.len() >= VERIFIED_MAX {
            trusted.verified.retain(|_hash, known| now < known.expiry());
        }
        if trusted.verified.len() >= VERIFIED_MAX {
            // Rare, and tokens in use return with the next call.
            trusted.verified.clear();
        }
        trusted.verified.insert(hash, verified.clone());
    }

    /// Verifies signature, issuer and audience.
    fn check(&self, token: &str, keys: &[PublicKey]) -> Result<VerifiedToken, Error> {
        let header = jsonwebtoken::decode_header(token).map_err(|_| refused("the token is not a signed JWT"))?;
        if header.crit.is_some() {
            return Err(refused("the token has critical header parameters, which this release does not know"));
        }
        let claims = {
            let named = |key: &&PublicKey| header.kid.is_none() || key.id.is_none() || key.id == header.kid;
            let mut fitting = keys.iter().filter(|key| key.algorithm == header.alg).filter(named);
            let claims = fitting.find_map(|key| signed_claims(token, key));
            claims.ok_or_else(|| {
                refused(
                    "the token is not signed by a known key with RS256, ES256 or EdDSA, or lacks iss, aud, exp or sub",
                )
            })?
        };
        if claims.iss != self.issuer {
            return Err(refused("the token has another issuer"));
        }
        if !claims.aud.contains(&self.audience) {
            return Err(refused("the token has another audience"));
        }
        let (begin, end) = (Micros::from_secs_f64(claims.nbf.unwrap_or_default()), Micros::from_secs_f64(claims.exp));
        Ok(VerifiedToken { identity: Arc::new(identity(claims)?), begin, end })
    }
}

fn read(path: &Path) -> Result<String, Error> {
    std::fs::read_to_string(path)
        .map_err(|error| Error::invalid(format!("read token keys {}: {error}", path.display())))
}

fn refused(message: &str) -> Error {
    Error::new(Reason::Unauthenticated, message)
}

/// The claims, if the key verifies the signature. The caller checks them.
fn signed_claims(token: &str, key: &PublicKey) -> Option<Claims> {
    let mut validation = Validation::new(key.algorithm);
    validation.required_spec_claims.clear();
    validation.validate_exp = false;
    validation.validate_aud = false;
    jsonwebtoken::decode(token, &key.key, &validation).ok().map(|token| token.claims)
}

fn identity(claims: Claims) -> Result<Identity, Error> {
    let member = |kind: &str, name: &str| {
        let member: Result<Member, Error> = format!("{kind}:{name}").parse();
        member.map_err(|_invalid| refused("a name in the token is empty, too long, or has a control character"))
    };
    let mut others = Vec::new();
    if let Some(email) = claims.email.filter(|_email| claims.email_verified == Some(Value::Bool(true))) {
        others.push(member("user", &email)?);
    }
    // More of them would make each decision slow. The caller loses rights by it, and gets none.
    for group in claims.groups.iter().take(GROUPS_MAX) {
        others.push(member("group", group)?);
    }
    Ok(Identity::new(member("subject", &claims.sub)?, others))
}

#[cfg(test)]
mod tests;
