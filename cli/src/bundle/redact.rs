//! What is removed before it is written: keys of rows, secrets of configurations. Pure.

use serde_json::Value;

use crate::config::{ConfigFile, Given};

/// Whether keys of rows are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    /// They are.
    Included,
    /// They are null.
    Removed,
}

impl From<bool> for Keys {
    /// From the flag `--with-keys`.
    fn from(with_keys: bool) -> Self {
        if with_keys { Self::Included } else { Self::Removed }
    }
}

/// Fields of our JSON documents that have keys of rows, or texts in which one may be.
const KEY_FIELDS: [&str; 4] = ["start", "end", "hot_row", "detail"];
/// Words in the name of an option whose value may be a secret; an option that names a file is none.
const SECRET_WORDS: [&str; 5] = ["token", "secret", "password", "key", "credential"];
/// The text instead of a secret.
const HIDDEN: &str = "(hidden)";

/// The document, in which every key of a row is null unless keys are included.
pub(super) fn without_keys(document: Value, keys: Keys) -> Value {
    if keys == Keys::Included {
        return document;
    }
    match document {
        Value::Array(elements) => {
            Value::Array(elements.into_iter().map(|element| without_keys(element, keys)).collect())
        }
        Value::Object(fields) => {
            let field = |(name, value): (String, Value)| {
                let is_key = KEY_FIELDS.contains(&name.as_str());
                let value = if is_key { Value::Null } else { without_keys(value, keys) };
                (name, value)
            };
            Value::Object(fields.into_iter().map(field).collect())
        }
        other => other,
    }
}

/// A configuration file without comments, in which secrets are replaced.
pub(super) fn configuration(file: &ConfigFile) -> String {
    let line = |key: &str, value: &Given| {
        let text = match value {
            _ if is_secret(key) => format!("{HIDDEN:?}"),
            Given::Truth(truth) => truth.to_string(),
            Given::Text(text) => format!("{:?}", without_credentials(text)),
            Given::List(list) => format!("{:?}", list.iter().map(|text| without_credentials(text)).collect::<Vec<_>>()),
        };
        format!("{key} = {text}\n")
    };
    file.settings.iter().map(|setting| line(&setting.key, &setting.value)).collect()
}

fn is_secret(key: &str) -> bool {
    let name = key.to_lowercase();
    SECRET_WORDS.iter().any(|word| name.contains(word))
}

/// A URL, or several with commas between them, without users and passwords.
fn without_credentials(text: &str) -> String {
    let one = |url: &str| match url.split_once("://") {
        Some((scheme, rest)) => {
            let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
            match authority.rsplit_once('@') {
                Some((_credentials, host)) => format!("{scheme}://{HIDDEN}@{host}{path}"),
                None => url.to_owned(),
            }
        }
        None => url.to_owned(),
    };
    text.split(',').map(one).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;

    #[test]
    fn keys_are_removed_at_every_depth() {
        let document = json!({
            "tablets": [{"tablet": 7, "start": "YQ==", "end": null, "hot_row": "a2V5"}],
            "events": [{"event": "split", "detail": "at key"}],
        });
        let expected = json!({
            "tablets": [{"tablet": 7, "start": null, "end": null, "hot_row": null}],
            "events": [{"event": "split", "detail": null}],
        });
        assert_eq!(without_keys(document.clone(), Keys::Removed), expected);
        assert_eq!(without_keys(document.clone(), Keys::Included), document);
    }

    #[test]
    fn secrets_of_a_configuration_are_hidden() {
        let text = "etcd = \"http://user:word@host:1/x,http://b:2\"\ntls-key = \"/etc/k.pem\"\nservers = 5\n\
                    insecure = true\npublish-to = [\"http://u:p@c:3\"]\nmy-Password = \"x\" # a comment\n";
        let file = ConfigFile::parse(Path::new("x.toml"), text).unwrap();
        let expected = "etcd = \"http://(hidden)@host:1/x,http://b:2\"\ninsecure = true\nmy-Password = \"(hidden)\"\n\
                        publish-to = [\"http://(hidden)@c:3\"]\nservers = \"5\"\ntls-key = \"(hidden)\"\n";
        assert_eq!(configuration(&file), expected);
    }
}
