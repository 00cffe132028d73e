//! The pages of the web console as a test reads them: requests over HTTP, and the texts of marked elements.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test may fail, and then says where")]

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

/// Timeout of a response.
pub(crate) const RESPONSE_MAX: Duration = Duration::from_secs(30);

/// A response of the console.
pub(crate) struct Response {
    /// Its status code.
    pub(crate) status: u16,
    /// Its status line and headers, in lower case.
    pub(crate) head: String,
    /// The page.
    pub(crate) body: String,
}

impl Response {
    /// The texts of the elements with this test id, without their tags.
    pub(crate) fn values(&self, id: &str) -> Vec<String> {
        let marked = format!("data-testid=\"{id}\"");
        let after = self.body.split(&marked).skip(1).map(|rest| rest.split_once('>').map_or("", |(_tag, rest)| rest));
        // An element that is marked has no other element of its own kind inside.
        let text = |rest: &str| {
            let end = ["</span>", "</dd>", "</td>", "</code>", "</a>", "</p>", "</h1>", "</pre>"];
            let end = end.iter().filter_map(|end| rest.find(end)).min().unwrap_or(rest.len());
            let inner = rest.get(..end).unwrap_or_default();
            let parts = inner.split('<').enumerate().map(|(at, part)| match at {
                0 => part,
                _ => part.split_once('>').map_or("", |(_tag, text)| text),
            });
            parts.collect::<String>()
        };
        after.map(text).collect()
    }

    /// Where the links with this test id lead, in the order of [`Self::values`].
    pub(crate) fn links(&self, id: &str) -> Vec<String> {
        let marked = format!("data-testid=\"{id}\"");
        let before = self.body.match_indices(&marked).map(|(at, _marked)| self.body.get(..at).unwrap_or_default());
        let tag = |before: &str| before.rsplit_once("<a ").map_or(String::new(), |(_before, tag)| tag.to_owned());
        let target = |tag: String| tag.split('"').nth(1).unwrap_or_default().to_owned();
        before.map(tag).map(target).collect()
    }

    /// The text of the first of them; there must be one.
    pub(crate) fn value(&self, id: &str) -> String {
        self.values(id).first().cloned().unwrap_or_else(|| panic!("no {id} in {}", self.body))
    }
}

/// Sends a request and returns its response. `headers`: lines that end in CRLF.
pub(crate) fn send(address: &str, method: &str, target: &str, headers: &str, body: &str) -> Response {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(RESPONSE_MAX)).unwrap();
    let host = if headers.contains("Host:") { String::new() } else { format!("Host: {address}\r\n") };
    let length = body.len();
    let request = format!(
        "{method} {target} HTTP/1.1\r\n{host}Connection: close\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    let (head, body) = response.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no response: {response:?}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Response { status, head: head.to_ascii_lowercase(), body: body.to_owned() }
}

/// The page at this path, which must be found.
pub(crate) fn get(address: &str, target: &str) -> Response {
    let response = send(address, "GET", target, "", "");
    assert_eq!(response.status, 200, "{target}: {}", response.body);
    response
}
