//! The files with the public keys of issuers, which a running server reads again when they change.
//!
//! An identity provider that replaces its keys publishes the new ones before it signs with them. An operator, or a job, writes them to the file.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ebla_mounttable_tree::error::{Error, Reason};
use ebla_runtime::Runtime;
use tracing::{info, warn};

use crate::service::bearer::{Issuer, TokenConfig, TokenVerifier};

/// Between two looks at the files.
const KEY_FILES_PERIOD: Duration = Duration::from_secs(5);

/// The files of the issuers.
#[derive(Clone, Debug)]
pub struct KeyFiles {
    /// The URL of each issuer, and the file with its keys.
    pub issuers: Vec<(String, PathBuf)>,
    /// The expected audience.
    pub audience: String,
}

impl KeyFiles {
    /// A verifier with the keys in the files. Until `runtime` stops, the files are read again and again, and the verifier gets keys that
    /// changed. Files that cannot be used are reported once, and the former keys stay.
    ///
    /// # Errors
    /// `BAD_REQUEST` when a file cannot be read, and as [`TokenVerifier::new`].
    pub fn verifier(self, runtime: &Runtime) -> Result<Arc<TokenVerifier>, Error> {
        let first = self.read()?;
        let verifier = Arc::new(TokenVerifier::new(&first, runtime.clock.clone())?);
        let watched = Arc::clone(&verifier);
        runtime.tasks.spawn_until_stopped("key-files", async move { self.watch(first, &watched).await });
        Ok(verifier)
    }

    /// Reads the files. Blocking, for a few kilobytes each.
    fn read(&self) -> Result<TokenConfig, Error> {
        let issuer = |(url, path): &(String, PathBuf)| match std::fs::read_to_string(path) {
            Ok(keys) => Ok(Issuer { url: url.clone(), keys }),
            Err(error) => Err(Error::new(Reason::BadRequest, format!("read {}: {error}", path.display()))),
        };
        let issuers = self.issuers.iter().map(issuer).collect::<Result<_, _>>()?;
        Ok(TokenConfig { issuers, audience: self.audience.clone() })
    }

    async fn watch(&self, first: TokenConfig, verifier: &TokenVerifier) {
        let mut last = Ok(first);
        loop {
            tokio::time::sleep(KEY_FILES_PERIOD).await;
            let now = self.read();
            if now == last {
                continue;
            }
            match now.as_ref().map_err(Clone::clone).and_then(|trust| verifier.replace(trust)) {
                Ok(()) => info!("keys of token issuers replaced"),
                Err(error) => warn!(%error, "new keys of token issuers cannot be used; the former ones stay"),
            }
            last = now;
        }
    }
}

#[cfg(test)]
mod tests;
