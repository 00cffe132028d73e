//! `ebla token`: a key that signs tokens, and tokens, for clusters without an identity provider.
//!
//! A folder has `token.key`, for the operator alone, and `token-keys.json`, a JWK Set (RFC 7517) with the public key, for
//! `ebla tablet-server --token-keys` and `ebla mounttable --jwt-keys`. Tokens are JWTs (RFC 7519) that are signed with Ed25519 (RFC 8037): the claims of
//! docs/operate/access.md, and `iat`. A token cannot be revoked, so it has an end.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ebla_model::access::Member;
use ebla_model::error::{Error, Reason};
use ebla_runtime::units::HumanDuration;
use ebla_runtime::{Clock, Runtime};
use rcgen::{KeyPair, PKCS_ED25519, SigningKey as _};
use serde_json::{Value, json};

use super::new_file::{self, Existing, precondition, unusable};
use crate::output::{self, Failure};

/// The files of a folder.
const KEY_FILE: &str = "token.key";
const PUBLIC_FILE: &str = "token-keys.json";
/// Characters of a public key that name it in tokens (`kid`): there are few keys.
const KEY_ID_CHARS: usize = 16;
/// The longest life of a token: it cannot be revoked.
const LIFE_MAX: Duration = Duration::from_secs(366 * 24 * 3_600);

/// Make a signing key for tokens, and tokens, for access control without an identity provider
///
/// Examples:
///   ebla token init
///   ebla token issue alice --issuer ebla.example.org --audience ebla --out alice.token
///
/// Give each tablet server token-keys.json (--token-keys), and keep token.key offline.
#[derive(Debug, clap::Subcommand)]
#[command(verbatim_doc_comment)]
pub enum Token {
    /// Make a key: token.key, which signs tokens, and token-keys.json, which verifies them
    ///
    /// Existing files are not replaced: that would make all tokens invalid.
    ///
    /// Example:
    ///   ebla token init --dir ./tokens
    #[command(verbatim_doc_comment)]
    Init(Init),
    /// Issue a token for a user or a program
    ///
    /// Examples:
    ///   ebla token issue alice --issuer ebla.example.org --audience ebla --out alice.token
    ///   ebla token issue job-7 --issuer ebla.example.org --audience ebla --for 1h --group jobs
    ///
    /// Policies and --administrators name the caller subject:NAME, and with --email and --group also user:EMAIL and group:NAME.
    #[command(verbatim_doc_comment)]
    Issue(Issue),
}

/// Options of `init`.
#[derive(Clone, Debug, clap::Args)]
pub struct Init {
    /// Folder of the key
    #[arg(long, value_name = "DIR", default_value = "./tokens")]
    pub dir: PathBuf,
}

/// Options of `issue`.
#[derive(Clone, Debug, clap::Args)]
pub struct Issue {
    /// Name of the user or program: the `sub` of the token
    pub subject: String,
    /// Issuer: the `iss` of the token, as servers expect it
    #[arg(long, value_name = "URL", env = "EBLA_TOKEN_ISSUER")]
    pub issuer: String,
    /// Audience: the `aud` of the token, as servers expect it
    #[arg(long, value_name = "NAME", env = "EBLA_TOKEN_AUDIENCE")]
    pub audience: String,
    /// How long the token is valid, such as 30m, 12h or 7d; at most 366d
    #[arg(long = "for", value_name = "DURATION", default_value = "12h", value_parser = parse_life)]
    pub life: HumanDuration,
    /// E-mail address of the caller, which you have verified
    #[arg(long, value_name = "EMAIL")]
    pub email: Option<String>,
    /// Groups of the caller, separated by commas
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    pub group: Vec<String>,
    /// Folder of the key
    #[arg(long, value_name = "DIR", default_value = "./tokens")]
    pub dir: PathBuf,
    /// File to write, which only its owner may read [default: print the token]
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Replace the file if it exists
    #[arg(long, requires = "out")]
    pub replace: bool,
}

fn parse_life(text: &str) -> Result<HumanDuration, String> {
    let life: HumanDuration = text.parse().map_err(|error| format!("{error}; examples: 30m, 12h, 7d"))?;
    match life.get() {
        life if life < Duration::from_secs(1) => Err("a token must be valid for a second or longer".to_owned()),
        life if life > LIFE_MAX => Err("a token cannot be revoked: at most 366d are allowed".to_owned()),
        _ => Ok(life),
    }
}

/// Carries out the command.
///
/// # Errors
/// Usage, for an invalid name; 4 when a file exists; 5 when the folder or its key cannot be used.
pub fn run(token: &Token, runtime: &Runtime) -> Result<(), Failure> {
    match token {
        Token::Init(init) => output::print(&make_key(&init.dir)?),
        Token::Issue(issue) => {
            let token = issued(issue, &read_key(&issue.dir)?, &runtime.clock)?;
            match &issue.out {
                None => output::print(&format!("{token}\n")),
                Some(file) => {
                    Existing::from(issue.replace).check(&[file])?;
                    new_file::write(file, &format!("{token}\n"), new_file::SECRET)?;
                    output::note(&format!("{}   token of {}", file.display(), issue.subject));
                }
            }
        }
    }
    Ok(())
}

fn make_key(folder: &Path) -> Result<String, Failure> {
    let (secret, public) = (folder.join(KEY_FILE), folder.join(PUBLIC_FILE));
    if let Some(file) = [&secret, &public].into_iter().find(|file| file.exists()) {
        let message = format!(
            "{} exists, and another key would make all its tokens invalid: choose another folder with --dir",
            file.display()
        );
        return Err(Error::new(Reason::AlreadyExists, message).into());
    }
    fs::create_dir_all(folder).map_err(|error| unusable(folder, &error))?;
    let key = KeyPair::generate_for(&PKCS_ED25519).map_err(internal)?;
    new_file::write(&secret, &key.serialize_pem(), new_file::SECRET)?;
    new_file::write(&public, &format!("{:#}\n", key_set(&key)), new_file::PUBLIC)?;
    Ok(format!(
        "{}   public key, for every tablet server (--token-keys) and mounttable (--jwt-keys)\n{}   signs tokens: keep it secret, no process needs it\n",
        public.display(),
        secret.display()
    ))
}

fn read_key(folder: &Path) -> Result<KeyPair, Failure> {
    let file = folder.join(KEY_FILE);
    let text = fs::read_to_string(&file).map_err(|error| {
        let advice = if error.kind() == ErrorKind::NotFound { ": `ebla token init` makes one" } else { "" };
        precondition(format!("cannot read the signing key {} ({error}){advice}", file.display()))
    })?;
    let not_ours = |fault: String| {
        precondition(format!("{} is not a key that `ebla token init` has made: {fault}", file.display()))
    };
    let key = KeyPair::from_pem(&text).map_err(|error| not_ours(error.to_string()))?;
    if key.is_compatible(&PKCS_ED25519) { Ok(key) } else { Err(not_ours("it is not an Ed25519 key".to_owned())) }
}

/// The public key as a JWK Set. Pure.
fn key_set(key: &KeyPair) -> Value {
    let x = URL_SAFE_NO_PAD.encode(key.public_key_raw());
    json!({"keys": [{"kty": "OKP", "crv": "Ed25519", "use": "sig", "alg": "EdDSA", "kid": key_id(key), "x": x}]})
}

fn key_id(key: &KeyPair) -> String {
    let x = URL_SAFE_NO_PAD.encode(key.public_key_raw());
    x.chars().take(KEY_ID_CHARS).collect()
}

/// A signed token.
fn issued(issue: &Issue, key: &KeyPair, clock: &Clock) -> Result<String, Failure> {
    let header = json!({"alg": "EdDSA", "typ": "JWT", "kid": key_id(key)});
    let claims = claims(issue, clock.wall().get() / 1_000_000)?;
    let encode = |part: &Value| URL_SAFE_NO_PAD.encode(part.to_string());
    let signed = format!("{}.{}", encode(&header), encode(&claims));
    let signature = key.sign(signed.as_bytes()).map_err(internal)?;
    Ok(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)))
}

/// The claims of a token that is issued at `now`, in seconds since 1970. Pure.
fn claims(issue: &Issue, now: i64) -> Result<Value, Failure> {
    let member = |kind: &str, name: &str| {
        let parsed = format!("{kind}:{name}").parse::<Member>().map(drop);
        parsed.map_err(|error| Failure::usage(format!("{name:?} cannot be the name of a {kind}: {}", error.message)))
    };
    member("subject", &issue.subject)?;
    issue.email.iter().try_for_each(|email| member("user", email))?;
    issue.group.iter().try_for_each(|group| member("group", group))?;
    if issue.issuer.is_empty() || issue.audience.is_empty() {
        return Err(Failure::usage("a token needs an issuer and an audience: --issuer URL --audience NAME"));
    }
    let life = i64::try_from(issue.life.get().as_secs()).unwrap_or(i64::MAX);
    let mut claims = json!({
        "iss": issue.issuer, "aud": issue.audience, "sub": issue.subject, "iat": now, "exp": now.saturating_add(life),
    });
    if let Some(claims) = claims.as_object_mut() {
        if let Some(email) = &issue.email {
            claims.insert("email".to_owned(), json!(email));
            claims.insert("email_verified".to_owned(), json!(true));
        }
        if !issue.group.is_empty() {
            claims.insert("groups".to_owned(), json!(issue.group));
        }
    }
    Ok(claims)
}

fn internal(error: impl std::fmt::Display) -> Failure {
    Failure::other(format!("cannot make the key or the token: {error}"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn init(folder: &Path) -> Result<(), Failure> {
        run(&Token::Init(Init { dir: folder.to_path_buf() }), &Runtime::system("test"))
    }

    fn of(folder: &Path) -> Issue {
        Issue {
            subject: "alice".to_owned(),
            issuer: "https://login.example.org".to_owned(),
            audience: "ebla".to_owned(),
            life: HumanDuration::new(Duration::from_secs(60)),
            email: None,
            group: Vec::new(),
            dir: folder.to_path_buf(),
            out: Some(folder.join("alice.token")),
            replace: false,
        }
    }

    fn issue(issue: &Issue) -> Result<(), Failure> {
        run(&Token::Issue(issue.clone()), &Runtime::system("test"))
    }

    fn decoded(part: &str) -> Value {
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).unwrap()).unwrap()
    }

    #[test]
    fn a_token_is_signed_by_the_key_of_the_folder_and_has_the_claims() {
        let folder = tempfile::tempdir().unwrap();
        init(folder.path()).unwrap();
        let given = Issue {
            email: Some("alice@example.org".to_owned()),
            group: vec!["staff".to_owned(), "operators".to_owned()],
            ..of(folder.path())
        };
        issue(&given).unwrap();
        let token = fs::read_to_string(folder.path().join("alice.token")).unwrap();
        let parts: Vec<_> = token.trim().split('.').collect();
        let [header, claims, signature] = parts.as_slice() else { panic!("{token}") };
        let keys: Value = serde_json::from_slice(&fs::read(folder.path().join(PUBLIC_FILE)).unwrap()).unwrap();
        assert_eq!((&decoded(header)["alg"], &decoded(header)["kid"]), (&json!("EdDSA"), &keys["keys"][0]["kid"]));
        let claims_of = decoded(claims);
        for (claim, wanted) in [
            ("iss", json!("https://login.example.org")),
            ("aud", json!("ebla")),
            ("sub", json!("alice")),
            ("email", json!("alice@example.org")),
            ("email_verified", json!(true)),
            ("groups", json!(["staff", "operators"])),
        ] {
            assert_eq!(claims_of[claim], wanted, "{claim}");
        }
        assert_eq!(claims_of["exp"].as_i64().unwrap() - claims_of["iat"].as_i64().unwrap(), 60);
        // An Ed25519 signature is a function of key and text.
        let key = read_key(folder.path()).unwrap();
        let again = key.sign(format!("{header}.{claims}").as_bytes()).unwrap();
        assert_eq!(URL_SAFE_NO_PAD.decode(signature).unwrap(), again);
        assert_eq!(keys["keys"][0]["x"], URL_SAFE_NO_PAD.encode(key.public_key_raw()));
    }

    #[test]
    fn secret_files_are_readable_by_their_owner_alone() {
        let folder = tempfile::tempdir().unwrap();
        init(folder.path()).unwrap();
        issue(&of(folder.path())).unwrap();
        for (file, wanted) in [(KEY_FILE, 0o600), ("alice.token", 0o600), (PUBLIC_FILE, 0o644)] {
            let mode = fs::metadata(folder.path().join(file)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, wanted, "{file}");
        }
    }

    #[test]
    fn existing_files_stay() {
        let folder = tempfile::tempdir().unwrap();
        init(folder.path()).unwrap();
        let before = fs::read(folder.path().join(KEY_FILE)).unwrap();
        let refused = init(folder.path()).unwrap_err();
        assert!(refused.code == 4 && refused.message.contains("--dir"), "{}", refused.message);
        assert_eq!(fs::read(folder.path().join(KEY_FILE)).unwrap(), before);
        issue(&of(folder.path())).unwrap();
        let refused = issue(&of(folder.path())).unwrap_err();
        assert!(refused.code == 4 && refused.message.contains("--replace"), "{}", refused.message);
        issue(&Issue { replace: true, ..of(folder.path()) }).unwrap();
    }

    #[test]
    fn what_cannot_be_issued_is_refused_with_the_next_step() {
        let folder = tempfile::tempdir().unwrap();
        let refused = issue(&of(folder.path())).unwrap_err();
        assert!(refused.code == 5 && refused.message.contains("`ebla token init`"), "{}", refused.message);
        init(folder.path()).unwrap();
        for wrong in [
            Issue { subject: String::new(), ..of(folder.path()) },
            Issue { subject: "a\nb".to_owned(), ..of(folder.path()) },
            Issue { group: vec![String::new()], ..of(folder.path()) },
            Issue { email: Some(String::new()), ..of(folder.path()) },
            Issue { issuer: String::new(), ..of(folder.path()) },
            Issue { audience: String::new(), ..of(folder.path()) },
        ] {
            assert_eq!(issue(&wrong).unwrap_err().code, 2, "{wrong:?}");
        }
        assert!(!folder.path().join("alice.token").exists());
        for life in ["0s", "999ms", "367d", "x"] {
            assert!(parse_life(life).is_err(), "{life}");
        }
        let other = KeyPair::generate().unwrap().serialize_pem();
        for text in ["", "no key", &other] {
            fs::write(folder.path().join(KEY_FILE), text).unwrap();
            let refused = issue(&of(folder.path())).unwrap_err();
            assert!(refused.code == 5 && refused.message.contains("is not a key"), "{}", refused.message);
        }
    }
}
