//! `ebla.raft.Raft`, the door for the other servers' messages.
//!
//! Frames of one stream are handed to their groups in the order they came; replies go back as they are ready. A group
//! that is slow holds up only its own: no frame waits for another's reply.

use std::pin::Pin;
use std::sync::Arc;

use ebla_proto::belonging::admit;
use ebla_proto::raft::raft_server::Raft;
use ebla_proto::raft::{Frame, FrameReply, SnapshotPart, snapshot_part};
use ebla_proto::status::to_status;
use ebla_storage::log::GroupId;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, Stream, StreamExt, stream};
use tonic::{Request, Response, Status, Streaming};

use super::link::{Header, SentSnapshot, Unreachable, started};
use super::network::Network;
use super::snapshot::{Arrival, Folder, sane};
use super::state_machine::{Applied, on};
use super::succession::Voices;
use super::types::RaftVote;
use super::wire::{self, Incoming};

/// Frames of one stream that wait for their groups; more are not read from the socket until some are answered.
const IN_FLIGHT: usize = 4096;

type ReplyStream = Pin<Box<dyn Stream<Item = Result<FrameReply, Status>> + Send>>;

/// The service of one server.
pub struct Service {
    network: Arc<Network>,
}

impl Service {
    pub(super) fn new(network: Arc<Network>) -> Self {
        Self { network }
    }

    /// What a request holds, unless a server of another cluster sent it.
    fn admit<T>(&self, request: Request<T>) -> Result<T, Status> {
        let own = self.network.options().addresses.cluster();
        admit(request.metadata(), own).map_err(|error| to_status(&error))?;
        Ok(request.into_inner())
    }
}

/// Hands a frame to its group at once; the future is the reply. `voices`: of the stream that it came by.
fn dispatch(network: &Arc<Network>, frame: Frame, voices: Option<&mut Voices>) -> BoxFuture<'static, FrameReply> {
    let call = frame.call;
    match wire::incoming(frame) {
        Ok((header, Incoming::Append(request))) => {
            if let Some(voices) = voices {
                voices.heard(header);
            }
            let answer = network.receive_append(header, request);
            started(async move { wire::append_reply(call, answer.await) }.boxed())
        }
        Ok((header, Incoming::Ask(ask))) => {
            let network = Arc::clone(network);
            async move { FrameReply { call, ..wire::answer(network.receive_ask(header, ask).await) } }.boxed()
        }
        Err(fault) => futures::future::ready(wire::append_reply(call, Err(Unreachable(fault.to_string())))).boxed(),
    }
}

/// One stream of frames and what of it is being worked on.
struct Exchange {
    network: Arc<Network>,
    frames: Streaming<Frame>,
    open: bool,
    in_flight: FuturesUnordered<BoxFuture<'static, FrameReply>>,
    voices: Voices,
}

impl Exchange {
    /// The next reply; reads frames meanwhile. `None` when the sender has ended and all is answered.
    async fn next(&mut self) -> Option<Result<FrameReply, Status>> {
        loop {
            let read = self.open && self.in_flight.len() < IN_FLIGHT;
            tokio::select! {
                biased;
                Some(reply) = self.in_flight.next() => return Some(Ok(reply)),
                frame = self.frames.next(), if read => match frame {
                    Some(Ok(frame)) => self.in_flight.push(dispatch(&self.network, frame, Some(&mut self.voices))),
                    Some(Err(status)) => return Some(Err(status)),
                    None => self.open = false,
                },
                else => return None,
            }
        }
    }
}

#[tonic::async_trait]
impl Raft for Service {
    type ExchangeStream = ReplyStream;

    async fn exchange(&self, request: Request<Streaming<Frame>>) -> Result<Response<ReplyStream>, Status> {
        let exchange = Exchange {
            network: Arc::clone(&self.network),
            frames: self.admit(request)?,
            open: true,
            in_flight: FuturesUnordered::new(),
            voices: Voices::new(Arc::clone(&self.network)),
        };
        let replies = stream::unfold(exchange, |mut exchange| async move {
            let reply = exchange.next().await?;
            Some((reply, exchange))
        });
        // A server that was killed must fall silent, even where the connection is not cut.
        Ok(Response::new(replies.take_until(self.network.shut()).boxed()))
    }

    async fn call(&self, request: Request<Frame>) -> Result<Response<FrameReply>, Status> {
        Ok(Response::new(dispatch(&self.network, self.admit(request)?, None).await))
    }

    async fn install_snapshot(
        &self,
        request: Request<Streaming<SnapshotPart>>,
    ) -> Result<Response<FrameReply>, Status> {
        let outcome = self.receive(self.admit(request)?).await;
        Ok(Response::new(wire::snapshot_reply(outcome)))
    }
}

impl Service {
    async fn receive(&self, mut parts: Streaming<SnapshotPart>) -> Result<RaftVote, Unreachable> {
        let (header, vote, applied) = match next_part(&mut parts).await? {
            snapshot_part::Part::Header(header) => {
                wire::snapshot_header_of(header).map_err(|fault| Unreachable(fault.to_string()))?
            }
            _ => return Err(Unreachable("a snapshot begins with its header".to_owned())),
        };
        self.network.expects(&header)?;
        sane(&applied).map_err(|fault| Unreachable(fault.to_string()))?;
        let folder = self.receive_files(&header, parts).await?;
        self.install(header, SentSnapshot { vote, applied, folder }).await
    }

    async fn install(&self, header: Header, snapshot: SentSnapshot) -> Result<RaftVote, Unreachable> {
        let Applied { last, .. } = snapshot.applied;
        tracing::info!(tablet = %header.tablet, replica = %header.to, ?last, "a snapshot has arrived");
        self.network.receive_snapshot(header, snapshot).await
    }

    async fn receive_files(&self, header: &Header, mut parts: Streaming<SnapshotPart>) -> Result<Folder, Unreachable> {
        let options = self.network.options();
        let (scratch, pool) = (options.scratch.clone(), options.maintenance.clone());
        let group = GroupId { tablet: header.tablet, replica: header.to };
        let mut arrival = self.blocking(move || Arrival::begin(&scratch, group)).await?;
        loop {
            match next_part(&mut parts).await? {
                snapshot_part::Part::Chunk(chunk) => {
                    arrival = pool
                        .run(move || arrival.write(&chunk))
                        .await
                        .map_err(|error| Unreachable(error.to_string()))?
                        .map_err(|error| Unreachable(error.to_string()))?;
                }
                snapshot_part::Part::End(_) => {
                    let finished = pool.run(move || arrival.finish()).await;
                    return finished
                        .map_err(|error| Unreachable(error.to_string()))?
                        .map_err(|error| Unreachable(error.to_string()));
                }
                snapshot_part::Part::Header(_) => return Err(Unreachable("two headers in a snapshot".to_owned())),
            }
        }
    }

    async fn blocking<T: Send + 'static>(
        &self,
        call: impl Fn() -> std::io::Result<T> + Send + Sync + 'static,
    ) -> Result<T, Unreachable> {
        let outcome = on(&self.network.options().maintenance, call).await;
        outcome.and_then(|inner| inner).map_err(|error| Unreachable(error.to_string()))
    }
}

async fn next_part(parts: &mut Streaming<SnapshotPart>) -> Result<snapshot_part::Part, Unreachable> {
    match parts.message().await {
        Ok(Some(SnapshotPart { part: Some(part) })) => Ok(part),
        Ok(_) => Err(Unreachable("a snapshot without its end".to_owned())),
        Err(status) => Err(Unreachable(status.to_string())),
    }
}
