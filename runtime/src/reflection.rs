//! gRPC server reflection: a client asks a port for its services and the types of their messages, and needs no `.proto` file.
//!
//! Both versions of the protocol are served, because many clients know only `v1alpha`. It needs no identity: what it returns is the same
//! for every process of a release, and says nothing about a cluster or its data.
//!
//! A client may keep its stream open for as long as it likes. Streams end when the server stops, so that they do not delay it.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use ebla_model::error::Error;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::NamedService;
use tonic::service::Routes;
use tonic_reflection::pb::{v1, v1alpha};
use tonic_reflection::server::Builder;

/// The largest accepted request. It has a name.
const REQUEST_BYTES_MAX: usize = 64 << 10;
/// The services of the protocol, which are listed like others.
const REFLECTION: [&str; 2] =
    [v1::server_reflection_server::SERVICE_NAME, v1alpha::server_reflection_server::SERVICE_NAME];

/// Adds the services of the protocol to `routes`.
///
/// `descriptors`: an encoded `google.protobuf.FileDescriptorSet`, which may have more than this port serves; `services`: the full names of the
/// services of the port that callers may use; `closing`: cancelled when the server stops.
///
/// # Errors
/// `Internal` when the descriptors cannot be decoded.
pub fn add_reflection(
    routes: Routes,
    descriptors: &'static [u8],
    services: &[&str],
    closing: &CancellationToken,
) -> Result<Routes, Error> {
    let builder = || {
        let sets = [descriptors, v1::FILE_DESCRIPTOR_SET, v1alpha::FILE_DESCRIPTOR_SET];
        let builder = Builder::configure().include_reflection_service(false);
        let builder = sets.into_iter().fold(builder, Builder::register_encoded_file_descriptor_set);
        services.iter().chain(&REFLECTION).fold(builder, |builder, name| builder.with_service_name(*name))
    };
    let failed = |error| Error::internal(format!("describe the services of the port: {error}"));
    let current = builder().build_v1().map_err(failed)?.max_decoding_message_size(REQUEST_BYTES_MAX);
    let earlier = builder().build_v1alpha().map_err(failed)?.max_decoding_message_size(REQUEST_BYTES_MAX);
    let routes = routes.add_service(UntilStopped { service: current, closing: closing.clone() });
    Ok(routes.add_service(UntilStopped { service: earlier, closing: closing.clone() }))
}

/// A service whose streams of requests end when the server stops. It responds to them as to a client that has no more requests.
#[derive(Clone, Debug)]
struct UntilStopped<S> {
    service: S,
    closing: CancellationToken,
}

impl<S: NamedService> NamedService for UntilStopped<S> {
    const NAME: &'static str = S::NAME;
}

impl<S: Service<http::Request<Body>>> Service<http::Request<Body>> for UntilStopped<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> S::Future {
        let closed = Box::pin(self.closing.clone().cancelled_owned());
        self.service.call(request.map(|body| Body::new(RequestBody { body, closed })))
    }
}

/// A body of requests that ends when the server stops.
struct RequestBody {
    body: Body,
    closed: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.closed.as_mut().poll(context).is_ready() {
            return Poll::Ready(None);
        }
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::{StreamExt, stream};
    use v1::server_reflection_client::ServerReflectionClient;
    use v1::server_reflection_request::MessageRequest;
    use v1::server_reflection_response::MessageResponse;

    use super::*;
    use crate::{Runtime, ServeOptions, serve};

    /// How long a test waits for an event.
    const TIMEOUT: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn services_are_listed_and_an_open_stream_ends_with_the_server() {
        let runtime = Runtime::system("test");
        let listener = runtime.net.listen("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().to_string();
        let routes = add_reflection(Routes::default(), &[], &["a.Service"], &runtime.tasks.token()).unwrap();
        serve(&runtime.tasks, listener, routes, ServeOptions::default());

        let message_request = Some(MessageRequest::ListServices(String::new()));
        let request = v1::ServerReflectionRequest { host: String::new(), message_request };
        // The client does not end its stream.
        let requests = stream::iter([request]).chain(stream::pending());
        let mut client = ServerReflectionClient::new(runtime.net.channel(&address));
        let mut responses = client.server_reflection_info(requests).await.unwrap().into_inner();
        let first = responses.message().await.unwrap().unwrap();
        let Some(MessageResponse::ListServicesResponse(listed)) = first.message_response else { panic!("{first:?}") };
        let names: Vec<_> = listed.service.iter().map(|service| service.name.as_str()).collect();
        assert_eq!(names, ["a.Service", REFLECTION[0], REFLECTION[1]]);

        // The grace is longer than the test may take.
        let stopped = async { tokio::join!(responses.message(), runtime.tasks.stop(TIMEOUT * 10)) };
        let (end, ()) = tokio::time::timeout(TIMEOUT, stopped).await.unwrap();
        assert!(end.unwrap().is_none(), "the stream ends without an error");
    }

    #[test]
    fn descriptors_that_cannot_be_decoded_are_refused() {
        let refused = add_reflection(Routes::default(), &[0xff], &[], &CancellationToken::new());
        assert!(refused.is_err());
    }
}
