//! Public keys that verify tokens: a JWK Set (RFC 7517), or public keys as PEM. Pure.
//!
//! | key | algorithm |
//! |---|---|
//! | RSA, 2048 to 4096 bits | RS256 |
//! | EC P-256 | ES256 |
//! | Ed25519 | EdDSA |
//!
//! The algorithm follows from the key, never from the token. Shared secrets are ignored: a server that can verify a token must not be able
//! to create one. A larger RSA key is refused, with the whole file: each verification costs the square of its length, and callers without a valid token
//! cause verifications.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ebla_model::Error;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, JwkSet, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};

/// The largest number of keys of a file.
const KEYS_MAX: usize = 64;
/// The shortest modulus of an RSA key, in bytes.
const RSA_BYTES_MIN: usize = 256;
/// The longest modulus of an RSA key, in bytes.
const RSA_BYTES_MAX: usize = 512;
/// The length of an Ed25519 public key, and of a coordinate of P-256.
const WORD_BYTES: usize = 32;

const PEM_BEGIN: &str = "-----BEGIN PUBLIC KEY-----";
const PEM_END: &str = "-----END PUBLIC KEY-----";
/// The DER encodings of the algorithm identifiers of public keys (RFC 3279, 5480, 8410), without the outer SEQUENCE.
const RSA_ALGORITHM: &[u8] = &[0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01, 0x05, 0x00];
const P256_ALGORITHM: &[u8] =
    &[0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07];
const ED25519_ALGORITHM: &[u8] = &[0x06, 0x03, 0x2b, 0x65, 0x70];
const SEQUENCE: u8 = 0x30;
const BIT_STRING: u8 = 0x03;
const INTEGER: u8 = 0x02;

/// One public key.
pub(super) struct PublicKey {
    /// Its `kid`, if it has one.
    pub(super) id: Option<String>,
    /// The only algorithm that it is used with.
    pub(super) algorithm: Algorithm,
    pub(super) key: DecodingKey,
}

/// The usable keys of a file.
///
/// # Errors
/// `InvalidArgument` when it is neither a JWK Set nor PEM, has no usable key, or has an RSA key of more than 4096 bits.
pub(super) fn parse(file: &str) -> Result<Vec<PublicKey>, Error> {
    let keys = if file.contains(PEM_BEGIN) { of_pem(file)? } else { of_jwk_set(file)? };
    if keys.is_empty() || keys.len() > KEYS_MAX {
        return Err(Error::invalid(format!(
            "{} usable public keys for signatures: expected 1 to {KEYS_MAX} of RSA (2048 to 4096 bits), EC P-256, or Ed25519",
            keys.len()
        )));
    }
    Ok(keys)
}

fn of_jwk_set(file: &str) -> Result<Vec<PublicKey>, Error> {
    let set: JwkSet = serde_json::from_str(file)
        .map_err(|error| Error::invalid(format!("token keys are neither a JWK Set nor PEM public keys: {error}")))?;
    set.keys.iter().filter_map(|jwk| of_jwk(jwk).transpose()).collect()
}

/// A key of a JWK Set; `None` if it is not for one of our algorithms.
fn of_jwk(jwk: &Jwk) -> Result<Option<PublicKey>, Error> {
    if jwk.common.public_key_use.as_ref().is_some_and(|purpose| *purpose != PublicKeyUse::Signature) {
        return Ok(None);
    }
    if let AlgorithmParameters::RSA(key) = &jwk.algorithm {
        check_length(&URL_SAFE_NO_PAD.decode(&key.n).unwrap_or_default())?;
    }
    Ok(usable(jwk))
}

fn usable(jwk: &Jwk) -> Option<PublicKey> {
    let (algorithm, key) = match &jwk.algorithm {
        AlgorithmParameters::RSA(key) => {
            let modulus = URL_SAFE_NO_PAD.decode(&key.n).ok()?;
            (modulus.len() >= RSA_BYTES_MIN).then_some(())?;
            (Algorithm::RS256, DecodingKey::from_rsa_components(&key.n, &key.e).ok()?)
        }
        AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P256 => {
            (Algorithm::ES256, DecodingKey::from_ec_components(&key.x, &key.y).ok()?)
        }
        AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => {
            // The library panics when it uses a shorter one.
            (URL_SAFE_NO_PAD.decode(&key.x).ok()?.len() == WORD_BYTES).then_some(())?;
            (Algorithm::EdDSA, DecodingKey::from_ed_components(&key.x).ok()?)
        }
        _ => return None,
    };
    if jwk.common.key_algorithm.is_some_and(|named| named.to_string() != format!("{algorithm:?}")) {
        return None;
    }
    Some(PublicKey { id: jwk.common.key_id.clone(), algorithm, key })
}

/// Refuses the modulus of a larger RSA key than is verified quickly.
fn check_length(modulus: &[u8]) -> Result<(), Error> {
    let significant = modulus.iter().skip_while(|byte| **byte == 0).count();
    if significant > RSA_BYTES_MAX {
        return Err(Error::invalid(format!(
            "a token key is an RSA key of more than 4096 bits ({significant} bytes): use one of 2048 to 4096 bits"
        )));
    }
    Ok(())
}

fn of_pem(file: &str) -> Result<Vec<PublicKey>, Error> {
    let mut keys = Vec::new();
    for block in file.split(PEM_BEGIN).skip(1) {
        let (text, _after) = block.split_once(PEM_END).ok_or_else(|| Error::invalid("a PEM public key has no end"))?;
        let text: String = text.split_whitespace().collect();
        let der = STANDARD.decode(text).map_err(|_| Error::invalid("a PEM public key is not base64"))?;
        keys.extend(of_der(&der)?);
    }
    Ok(keys)
}

/// A key of a SubjectPublicKeyInfo; `None` if it is not for one of our algorithms.
fn of_der(der: &[u8]) -> Result<Option<PublicKey>, Error> {
    let Some((algorithm, bits)) = public_key_info(der) else { return Ok(None) };
    if algorithm == RSA_ALGORITHM
        && let Some((modulus, _exponent)) = rsa_numbers(bits)
    {
        check_length(modulus)?;
    }
    Ok(key_of(algorithm, bits))
}

/// The algorithm of a SubjectPublicKeyInfo, and the bits of its key.
fn public_key_info(der: &[u8]) -> Option<(&[u8], &[u8])> {
    let (info, _after) = element(SEQUENCE, der)?;
    let (algorithm, rest) = element(SEQUENCE, info)?;
    // The first byte of a bit string is the number of unused bits.
    Some((algorithm, element(BIT_STRING, rest)?.0.strip_prefix(&[0])?))
}

/// Modulus and exponent of an RSA key.
fn rsa_numbers(bits: &[u8]) -> Option<(&[u8], &[u8])> {
    let (modulus, rest) = element(INTEGER, element(SEQUENCE, bits)?.0)?;
    Some((modulus.strip_prefix(&[0]).unwrap_or(modulus), element(INTEGER, rest)?.0))
}

fn key_of(algorithm: &[u8], bits: &[u8]) -> Option<PublicKey> {
    let (algorithm, key) = match algorithm {
        RSA_ALGORITHM => {
            let (modulus, exponent) = rsa_numbers(bits)?;
            (modulus.len() >= RSA_BYTES_MIN).then_some(())?;
            (Algorithm::RS256, DecodingKey::from_rsa_raw_components(modulus, exponent))
        }
        P256_ALGORITHM => {
            let (x, y) = bits.strip_prefix(&[4]).filter(|point| point.len() == 2 * WORD_BYTES)?.split_at(WORD_BYTES);
            let text = |word| URL_SAFE_NO_PAD.encode(word);
            (Algorithm::ES256, DecodingKey::from_ec_components(&text(x), &text(y)).ok()?)
        }
        ED25519_ALGORITHM if bits.len() == WORD_BYTES => {
            (Algorithm::EdDSA, DecodingKey::from_ed_components(&URL_SAFE_NO_PAD.encode(bits)).ok()?)
        }
        _ => return None,
    };
    Some(PublicKey { id: None, algorithm, key })
}

/// The content of a DER element with this tag, and what follows it.
fn element(tag: u8, bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (first, rest) = bytes.strip_prefix(&[tag])?.split_first()?;
    let (length, rest) = match *first {
        short @ 0..=0x7f => (usize::from(short), rest),
        // The number of bytes of a longer length: keys have at most two.
        bytes @ (0x81 | 0x82) => {
            let (length, rest) = rest.split_at_checked(usize::from(bytes & 3))?;
            (length.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    rest.split_at_checked(length)
}
