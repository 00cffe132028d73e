//! A client that dials by name, like code generated from a `.proto` file.

use ebla_mounttable_namespace::{NamedChannel, Namespace};
use ebla_mounttable_tree::Error;
use ebla_mounttable_tree::messages;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

/// Calls one of the servers of the name.
pub(crate) async fn greet(names: &Namespace, name: &str, who: &str) -> Result<String, Error> {
    let channel = names.channel(name).await?;
    greet_over(channel, who).await.map_err(|status| messages::error(&status))
}

/// One call; a client with many calls keeps the channel.
pub(crate) async fn greet_over(channel: NamedChannel, who: &str) -> Result<String, Status> {
    let mut client = Grpc::new(channel);
    client.ready().await.map_err(Status::from_error)?;
    let path = PathAndQuery::from_static("/demo.Greeter/Greet");
    let codec: ProstCodec<String, String> = ProstCodec::default();
    client.unary(Request::new(who.to_owned()), path, codec).await.map(Response::into_inner)
}
