//! Files that change while a verifier uses them, with the keys of `testdata/tokens`.

use std::fs;
use std::path::Path;

use ebla_model::time::Micros;
use ebla_runtime::Clock;
use jsonwebtoken::jwk::{Jwk, JwkSet};
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::json;

use super::*;

const ISSUER: &str = "https://login.example.org";
/// In seconds of the tests' clock.
const NOW: i64 = 2_000_000_000;

fn old_key() -> (Algorithm, EncodingKey) {
    (Algorithm::EdDSA, EncodingKey::from_ed_der(include_bytes!("../../../testdata/tokens/ed25519.der")))
}

fn new_key() -> (Algorithm, EncodingKey) {
    (Algorithm::ES256, EncodingKey::from_ec_der(include_bytes!("../../../testdata/tokens/p256.der")))
}

fn write(path: &Path, keys: &[(Algorithm, EncodingKey)]) {
    let keys = keys.iter().map(|(algorithm, key)| Jwk::from_encoding_key(key, *algorithm).unwrap()).collect();
    fs::write(path, serde_json::to_string(&JwkSet { keys }).unwrap()).unwrap();
}

fn header((algorithm, key): (Algorithm, EncodingKey)) -> String {
    let claims = json!({"iss": ISSUER, "aud": "names", "exp": NOW + 300, "sub": "alice"});
    format!("Bearer {}", encode(&Header::new(algorithm), &claims, &key).unwrap())
}

#[tokio::test(start_paused = true)]
async fn keys_are_replaced_when_their_file_changes_and_stay_when_the_new_ones_cannot_be_used() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), Clock::manual());
    clock.set_wall(Micros::new(NOW * 1_000_000));
    let runtime = Runtime { clock, ..Runtime::system("test") };
    let path = folder.path().join("keys.json");
    let files = KeyFiles { issuers: vec![(ISSUER.to_owned(), path.clone())], audience: "names".to_owned() };
    write(&path, &[old_key()]);
    let verifier = files.verifier(&runtime).unwrap();
    let accepted = || [old_key(), new_key()].map(|key| verifier.verify(&header(key)).is_ok());
    let later = async || tokio::time::sleep(KEY_FILES_PERIOD * 2).await;
    later().await;
    assert_eq!(accepted(), [true, false]);
    write(&path, &[old_key(), new_key()]);
    later().await;
    assert_eq!(accepted(), [true, true]);
    for useless in ["", "{\"keys\": []}", "{"] {
        fs::write(&path, useless).unwrap();
        later().await;
        assert_eq!(accepted(), [true, true], "{useless:?}");
    }
    fs::remove_file(&path).unwrap();
    later().await;
    assert_eq!(accepted(), [true, true], "the file is missing");
    write(&path, &[new_key()]);
    later().await;
    assert_eq!(accepted(), [false, true], "a token that was verified before does not outlive its key");
    runtime.tasks.stop(Duration::ZERO).await;
}
