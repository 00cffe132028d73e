//! A client that dials by name, as generated code would have it with a `.proto` file.

use ebla_mounttable::Error;
use ebla_mounttable::service::messages;
use ebla_mounttable_namespace::{NamedChannel, Namespace};
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

/// Asks whichever server the name leads to.
pub(crate) async fn greet(names: &Namespace, name: &str, who: &str) -> Result<String, Error> {
    let channel = names.channel(name).await?;
    greet_over(channel, who).await.map_err(|status| messages::error(&status))
}

/// One call; a client that makes many keeps the channel.
pub(crate) async fn greet_over(channel: NamedChannel, who: &str) -> Result<String, Status> {
    let mut client = Grpc::new(channel);
    client.ready().await.map_err(Status::from_error)?;
    let path = PathAndQuery::from_static("/demo.Greeter/Greet");
    let codec: ProstCodec<String, String> = ProstCodec::default();
    client.unary(Request::new(who.to_owned()), path, codec).await.map(Response::into_inner)
}
