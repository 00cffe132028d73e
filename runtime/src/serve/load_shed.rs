//! Which calls an overloaded server refuses, decided when their headers are read, so that a refusal costs as little as possible.

use std::fmt;
use std::sync::Arc;

use http::HeaderMap;

use super::ConnectionInfo;

type Refuse = dyn Fn(&ConnectionInfo, &str) -> Option<HeaderMap> + Send + Sync;

/// Which calls a server refuses at once. Clones share the decision.
#[derive(Clone, Default)]
pub struct LoadShed(Option<Arc<Refuse>>);

impl LoadShed {
    /// Refuses a call for which `refuse` returns the headers of a response, which has no body. `refuse` sees each call of the server, with its
    /// connection and the path of its URI (`/package.Service/Method`), and must not block.
    #[must_use]
    pub fn new(refuse: impl Fn(&ConnectionInfo, &str) -> Option<HeaderMap> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(refuse)))
    }

    /// The headers of the response to a call that is refused.
    #[must_use]
    pub fn refusal(&self, connection: &ConnectionInfo, path: &str) -> Option<HeaderMap> {
        self.0.as_ref().and_then(|refuse| refuse(connection, path))
    }
}

impl fmt::Debug for LoadShed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(if self.0.is_some() { "LoadShed" } else { "LoadShed(never)" })
    }
}
