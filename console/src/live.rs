//! The live parts of a page as one event stream (Server-Sent Events).
//!
//! Once a second the page is rendered as for a request, with the same identity and the same checks, and parts that have changed are sent:
//!
//! ```text
//!   event: parts          data: {"servers":"<table>…"}
//!   event: failed         data: "the reason"
//!   :                     nothing has changed
//! ```
//!
//! A stream ends when its viewer goes away, when the viewer's token or right is refused, and after [`STREAM_MAX`]. The browser then opens it
//! again, and gets the refusal as the response.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ebla_model::error::{Error, Reason};
use futures::StreamExt as _;
use futures::stream::{BoxStream, unfold};
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::Context;
use crate::pages::Page;
use crate::request::PageRequest;
use crate::site::rendered;

/// Between two renderings.
const PERIOD: Duration = Duration::from_secs(1);
/// The longest life of a stream, in renderings.
const STREAM_MAX: u32 = 600;

/// A page that is followed.
struct Followed {
    context: Context,
    request: PageRequest,
    /// The first rendering, until it is sent.
    first: Option<Result<Page, Error>>,
    /// A turn of it is held for each rendering, as for a page that is loaded.
    pages: Arc<Semaphore>,
    has_ended: bool,
    /// The parts as they were sent last.
    sent: BTreeMap<&'static str, String>,
    renderings: u32,
    /// Held while the stream lives: their number is bounded.
    _permit: OwnedSemaphorePermit,
}

/// Whether a viewer with this error gets no further event.
pub(crate) const fn ends(reason: Reason) -> bool {
    matches!(reason, Reason::Unauthenticated | Reason::PermissionDenied)
}

/// The events of a page. `first`: its first rendering. `pages`: the turns of renderings.
pub(crate) fn stream(
    context: Context,
    request: PageRequest,
    first: Result<Page, Error>,
    pages: Arc<Semaphore>,
    permit: OwnedSemaphorePermit,
) -> BoxStream<'static, Bytes> {
    let (sent, renderings, has_ended) = (BTreeMap::new(), 0, false);
    let followed =
        Followed { context, request, first: Some(first), pages, has_ended, sent, renderings, _permit: permit };
    unfold(followed, |mut followed| async move {
        if followed.has_ended || followed.renderings >= STREAM_MAX {
            return None;
        }
        let page = match followed.first.take() {
            Some(first) => first,
            None => {
                tokio::time::sleep(PERIOD).await;
                let _turn = followed.pages.acquire().await.ok()?;
                rendered(&followed.context, &followed.request).await
            }
        };
        followed.renderings = followed.renderings.saturating_add(1);
        followed.has_ended = page.as_ref().err().is_some_and(|error| ends(error.reason));
        let event = event(page, &mut followed.sent);
        Some((Bytes::from(event), followed))
    })
    .boxed()
}

/// The event for a rendering. Pure. `sent`: the parts of earlier events, by name.
fn event(page: Result<Page, Error>, sent: &mut BTreeMap<&'static str, String>) -> String {
    let page = match page {
        Ok(page) => page,
        Err(error) => {
            // The next rendering is sent as a whole, and ends the display of the failure.
            sent.clear();
            return format!("event: failed\ndata: {}\n\n", json!(error.message));
        }
    };
    let mut changed = serde_json::Map::new();
    for part in page.parts {
        let Some(name) = part.live else { continue };
        let html = part.html.as_str();
        if sent.get(name).is_none_or(|before| before != html) {
            changed.insert(name.to_owned(), html.into());
            sent.insert(name, html.to_owned());
        }
    }
    if changed.is_empty() {
        return ":\n\n".to_owned();
    }
    format!("event: parts\ndata: {}\n\n", serde_json::Value::Object(changed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::html::text;

    #[test]
    fn only_changed_parts_are_sent() {
        let page =
            |list: &str| Ok(Page::new("t", "").live("list", text(list)).fixed(text("form")).live("sum", text(7)));
        let mut sent = BTreeMap::new();
        assert_eq!(event(page("a\n<"), &mut sent), "event: parts\ndata: {\"list\":\"a\\n&lt;\",\"sum\":\"7\"}\n\n");
        assert_eq!(event(page("a\n<"), &mut sent), ":\n\n");
        assert_eq!(event(page("b"), &mut sent), "event: parts\ndata: {\"list\":\"b\"}\n\n");
        let failed = event(Err(Error::invalid("no \"x\"\n")), &mut sent);
        assert_eq!(failed, "event: failed\ndata: \"no \\\"x\\\"\\n\"\n\n");
        assert_eq!(event(page("b"), &mut sent), "event: parts\ndata: {\"list\":\"b\",\"sum\":\"7\"}\n\n");
    }
}
