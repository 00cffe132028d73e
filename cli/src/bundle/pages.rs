//! Pages of the HTTP port of a process.

use std::future::poll_fn;
use std::pin::Pin;
use std::time::Duration;

use ebla_runtime::Net;
use http::{Request, header};
use hyper::body::Body as _;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tonic::body::Body;

use super::PART_BYTES_MAX;
use crate::output::printable;

/// Timeout of one page.
const PAGE_TIMEOUT: Duration = Duration::from_secs(10);

/// The pages of a process, and the names of their parts.
pub(super) const PAGES: [(&str, &str); 3] =
    [("/metrics", "metrics.txt"), ("/readyz", "readyz.txt"), ("/debug/", "debug.txt")];

/// The longest text of another process in a message, in characters.
const EXCERPT_CHARS_MAX: usize = 200;

/// The first characters of a text, without control characters.
pub(super) fn excerpt(text: &str) -> String {
    let text = text.trim();
    let mut first: String = text.chars().take(EXCERPT_CHARS_MAX).collect();
    if first.len() < text.len() {
        first.push('…');
    }
    printable(&first).into_owned()
}

/// Whether a process of Ebla has its HTTP port at this address. Another program may have it.
pub async fn is_of_ebla(net: &Net, address: &str) -> bool {
    let metrics = get(net, address, "/metrics").await.unwrap_or_default();
    String::from_utf8_lossy(&metrics).lines().any(|line| line.starts_with("ebla_build"))
}

/// Reads a page. A page that says that the process is not ready counts too.
///
/// # Errors
/// Why it cannot be read.
pub(super) async fn get(net: &Net, address: &str, path: &str) -> Result<Vec<u8>, String> {
    let fetched = tokio::time::timeout(PAGE_TIMEOUT, fetch(net, address, path)).await;
    fetched.unwrap_or_else(|_elapsed| Err(format!("no answer within {} s", PAGE_TIMEOUT.as_secs())))
}

async fn fetch(net: &Net, address: &str, path: &str) -> Result<Vec<u8>, String> {
    let request = Request::get(path).header(header::HOST, address).header(header::CONNECTION, "close");
    let request = request.body(Body::empty()).map_err(|error| error.to_string())?;
    let stream = net.connect_http(address).await.map_err(|error| error.to_string())?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
    let answer = async move {
        let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
        let status = response.status();
        let mut body = response.into_body();
        let mut content = Vec::new();
        while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
            let frame = frame.map_err(|error| error.to_string())?;
            content.extend_from_slice(frame.data_ref().map(AsRef::as_ref).unwrap_or_default());
            // One byte more than a part may have says that the page was longer.
            if content.len() > PART_BYTES_MAX {
                break;
            }
        }
        if status.is_success() || status == http::StatusCode::SERVICE_UNAVAILABLE {
            Ok(content)
        } else {
            Err(format!("{status}: {}", excerpt(&String::from_utf8_lossy(&content))))
        }
    };
    // The connection makes progress only while it is polled; it ends with the answer.
    let (answer, _closed) = futures::join!(answer, connection);
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_of_another_process_is_short_and_printable() {
        assert_eq!(excerpt(" no such page\n"), "no such page");
        assert_eq!(excerpt("<html>\n\x1b[2J"), "<html>\u{fffd}\u{fffd}[2J");
        let long = excerpt(&"ä".repeat(EXCERPT_CHARS_MAX + 1));
        assert_eq!((long.chars().count(), long.chars().last()), (EXCERPT_CHARS_MAX + 1, Some('…')));
    }
}
