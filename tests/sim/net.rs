//! The simulated network, as `runtime::Net` takes it: turmoil's TCP between named hosts.

use std::io;

use ebla_runtime::{Connection, Listener, Network};
use futures::future::BoxFuture;
use turmoil::net::{TcpListener, TcpStream};

/// Listens and connects as whichever host is running.
#[derive(Debug)]
pub(crate) struct SimNet;

impl Network for SimNet {
    fn listen(&self, address: String) -> BoxFuture<'_, io::Result<Listener>> {
        Box::pin(async move {
            let listener = TcpListener::bind(address.as_str()).await?;
            let local = listener.local_addr()?;
            let incoming = futures::stream::unfold(listener, |listener| async move {
                let accepted = listener.accept().await;
                Some((accepted.map(|(stream, peer)| Connection::new(stream, Some(peer))), listener))
            });
            Ok(Listener::new(local, incoming))
        })
    }

    fn connect(&self, address: String) -> BoxFuture<'_, io::Result<Connection>> {
        Box::pin(async move {
            let stream = TcpStream::connect(address.as_str()).await?;
            let peer = stream.peer_addr().ok();
            Ok(Connection::new(stream, peer))
        })
    }
}
