//! Calls on one HTTP/2 connection that cost their sender little, so that one processor can overload a cluster that has one too.
//!
//! A gRPC client of a library takes about 50 µs of processor for a call. Here a call is what it is on the wire (gRPC over HTTP/2): headers, a message
//! with its length before it, and a response of which only the size and the status are looked at.

use std::error::Error;

use bytes::{BufMut as _, Bytes, BytesMut};
use ebla_runtime::Runtime;
use ebla_runtime::net::Origin;
use ebla_runtime::peer::PREAMBLE;
use h2::client::SendRequest;
use http::{HeaderMap, HeaderValue, Request, Uri};
use tokio::io::AsyncWriteExt as _;

/// What the other side may send without waiting: of one response, and of all.
const WINDOW_BYTES: u32 = 1 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;

/// A connection, which is open until the program ends.
pub(crate) struct Connection {
    sender: SendRequest<Bytes>,
    authority: String,
    headers: HeaderMap,
}

impl Connection {
    pub(crate) async fn open(runtime: &Runtime, address: &str, origin: Origin) -> Result<Self, Box<dyn Error>> {
        let mut stream = runtime.net.connect(address).await?;
        if origin == Origin::Peer {
            stream.write_all(PREAMBLE).await?;
        }
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(WINDOW_BYTES).initial_connection_window_size(CONNECTION_WINDOW_BYTES);
        let (sender, connection) = builder.handshake(stream).await?;
        runtime.tasks.spawn("connection", async move {
            let _closed = connection.await;
        });
        let headers = [("content-type", "application/grpc"), ("te", "trailers"), ("user-agent", "overload")];
        let headers =
            headers.map(|(name, value)| (http::HeaderName::from_static(name), HeaderValue::from_static(value)));
        Ok(Self { sender, authority: address.to_owned(), headers: headers.into_iter().collect() })
    }

    /// The request of this method.
    pub(crate) fn uri(&self, method: &str) -> Result<Uri, http::Error> {
        Uri::builder().scheme("http").authority(self.authority.as_str()).path_and_query(method).build()
    }

    /// Sends a message, and waits for the end of the response. Returns whether the call succeeded. If the future is dropped, the call is cancelled.
    pub(crate) async fn call(&self, uri: Uri, message: &[u8]) -> Result<bool, Box<dyn Error + Send + Sync>> {
        let mut request = Request::post(uri).body(())?;
        request.headers_mut().clone_from(&self.headers);
        let mut sender = self.sender.clone().ready().await?;
        let (response, mut body) = sender.send_request(request, false)?;
        let mut framed = BytesMut::with_capacity(message.len() + 5);
        framed.put_u8(0);
        framed.put_u32(u32::try_from(message.len())?);
        framed.put_slice(message);
        body.send_data(framed.freeze(), true)?;
        let response = response.await?;
        if let Some(status) = response.headers().get("grpc-status") {
            return Ok(status == "0");
        }
        let mut body = response.into_body();
        while let Some(data) = body.data().await {
            let length = data?.len();
            body.flow_control().release_capacity(length)?;
        }
        let trailers = body.trailers().await?;
        Ok(trailers.and_then(|trailers| trailers.get("grpc-status").map(|status| status == "0")).unwrap_or(false))
    }
}
