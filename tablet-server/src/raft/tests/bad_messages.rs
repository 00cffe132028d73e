//! Messages over the network that no correct server of the cluster sends: each is refused with its reason, and the group
//! continues.

use bytes::Bytes;
use ebla_model::cluster_version::{ClusterVersion, SupportedVersions};
use ebla_model::id::{ClusterId, LogId, LogIndex, ServerId, Term};
use ebla_model::metadata::Membership;
use ebla_proto::cluster_guard::{with_cluster_id, with_newest_version};
use ebla_proto::convert::{log_id_to_proto, membership_to_proto};
use ebla_proto::raft::raft_client::RaftClient;
use ebla_proto::raft::{self, Frame, SnapshotPart, frame, frame_reply, snapshot_part};
use ebla_runtime::Runtime;
use tonic::metadata::MetadataMap;
use tonic::transport::Channel;
use tonic::{Request, Status};

use super::cluster::{Cluster, QUICK, TABLET, Transport};
use super::{VERY_SLOW, replica};
use crate::raft::transport::election_guard::with_election_max;
use crate::raft::transport::receiver_guard::with_receiver;

/// The index of no entry in these tests.
const FAR: LogIndex = LogIndex::new(1_000);

pub(super) fn client(cluster: &Cluster, server: ServerId, runtime: &Runtime) -> RaftClient<Channel> {
    RaftClient::new(runtime.net.channel(&cluster.address(server)))
}

/// The messages of one replica to another.
#[derive(Clone, Copy)]
pub(super) struct Sender {
    pub(super) from: ServerId,
    pub(super) to: ServerId,
    pub(super) term: Term,
    pub(super) last: LogId,
}

impl Sender {
    fn frame(self, kind: frame::Kind) -> Frame {
        Frame {
            group: TABLET.get(),
            to_replica: replica(self.to).get(),
            from_replica: replica(self.from).get(),
            kind: Some(kind),
            ..Frame::default()
        }
    }

    fn ballot(self) -> raft::BallotId {
        raft::BallotId { term: self.term.get(), replica: replica(self.from).get(), committed: true }
    }

    fn append(self, indexes: &[LogIndex]) -> Frame {
        let entry = |index: &LogIndex| raft::Entry {
            id: Some(log_id_to_proto(LogId { term: self.term, index: *index })),
            payload: Some(raft::entry::Payload::Command(Bytes::from_static(b"never"))),
        };
        self.frame(frame::Kind::Append(raft::AppendEntries {
            vote: Some(self.ballot()),
            previous: Some(log_id_to_proto(self.last)),
            entries: indexes.iter().map(entry).collect(),
            committed: None,
        }))
    }

    fn bad_frames(self) -> Vec<(Frame, &'static str)> {
        let ballot = |term| Some(raft::BallotId { term, ..self.ballot() });
        let vote = raft::Vote { vote: ballot(u64::MAX), ..raft::Vote::default() };
        let next = self.last.index.next();
        vec![
            (Frame { kind: None, ..self.append(&[]) }, "unknown kind"),
            (self.frame(frame::Kind::Append(raft::AppendEntries::default())), "vote is missing"),
            (self.append(&[FAR]), "does not follow"),
            (self.append(&[next, next]), "does not follow"),
            (self.append(&[LogIndex::new(u64::MAX)]), "no log reaches"),
            (self.frame(frame::Kind::Vote(vote)), "no group reaches"),
            (self.frame(frame::Kind::PreVote(vote)), "no group reaches"),
        ]
    }

    pub(super) fn snapshot_header(self, members: &Membership) -> snapshot_part::Part {
        let last = LogId { term: self.term, index: FAR };
        snapshot_part::Part::Header(raft::SnapshotHeader {
            group: TABLET.get(),
            to_replica: replica(self.to).get(),
            from_replica: replica(self.from).get(),
            vote: Some(self.ballot()),
            last: Some(log_id_to_proto(last)),
            membership_log_id: Some(log_id_to_proto(self.last)),
            membership: Some(membership_to_proto(members)),
            id: String::new(),
            size_bytes: 0,
        })
    }

    fn bad_snapshots(self, members: &Membership) -> Vec<(Vec<snapshot_part::Part>, &'static str)> {
        use snapshot_part::Part::{Chunk, End};
        let header = self.snapshot_header(members);
        let chunk = |file: &str, offset: u64| {
            let data = Bytes::from_static(b"never");
            Chunk(raft::SnapshotChunk { file: file.to_owned(), offset, crc32c: crc32c::crc32c(&data), data })
        };
        vec![
            (vec![], "is missing"),
            (vec![End(true)], "not the header"),
            (vec![chunk("commands", 0), End(true)], "not the header"),
            (vec![self.snapshot_header(&Membership::default()), End(true)], "no voters"),
            (vec![header.clone()], "end part is missing"),
            (vec![header.clone(), chunk("commands", 0)], "end part is missing"),
            (vec![header.clone(), header.clone()], "second header"),
            (vec![header.clone(), chunk("../commands", 0), End(true)], "file name"),
            (vec![header, chunk("commands", 1 << 40), End(true)], "expected at 0"),
        ]
    }
}

/// The reason with which a message was refused.
pub(super) fn reason(reply: raft::FrameReply) -> String {
    match reply.kind {
        Some(frame_reply::Kind::Unreachable(reason)) => reason,
        other => panic!("accepted: {other:?}"),
    }
}

/// A cluster with one command, and its leader as the sender of messages to a follower: as if it had this many further entries.
pub(super) async fn with_a_sender_ahead_by(entries: u64) -> (Cluster, Sender) {
    let cluster = Cluster::start(3, Transport::Grpc, VERY_SLOW).await;
    cluster.write("first").await;
    cluster.settled().await;
    let from = cluster.leader().await;
    let to = cluster.servers.iter().copied().find(|server| *server != from).unwrap();
    let term = cluster.node(from).group.leadership().unwrap().term;
    let index = LogIndex::new(cluster.node(to).machine.last().get() + entries);
    (cluster, Sender { from, to, term, last: LogId { term, index } })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn bad_messages_are_refused_and_the_group_continues() {
    let (cluster, sender) = with_a_sender_ahead_by(0).await;
    let (to, runtime) = (sender.to, Runtime::system("peer"));
    let mut client = client(&cluster, to, &runtime);
    for (frame, why) in sender.bad_frames() {
        let refused = reason(client.call(frame).await.unwrap().into_inner());
        assert!(refused.contains(why), "{why}: {refused}");
    }
    for (parts, why) in sender.bad_snapshots(&Membership::initial(&cluster.servers)) {
        let parts: Vec<_> = parts.into_iter().map(|part| SnapshotPart { part: Some(part) }).collect();
        let refused = reason(client.install_snapshot(tokio_stream::iter(parts)).await.unwrap().into_inner());
        assert!(refused.contains(why), "{why}: {refused}");
    }
    cluster.write("second").await;
    cluster.settled().await;
    assert_eq!(cluster.node(to).machine.commands(), ["first", "second"]);
}

fn refusal<T>(answer: Result<T, Status>) -> String {
    answer.map(|_accepted| String::new()).unwrap_or_else(|status| status.message().to_owned())
}

/// What a server answers to a message of each kind.
async fn refusals_of_all_kinds(
    cluster: &Cluster,
    to: ServerId,
    with_metadata: impl Fn(&mut MetadataMap),
) -> [String; 3] {
    let runtime = Runtime::system("peer");
    let term = Term::new(1 << 40);
    let sender = Sender { from: ServerId::new(2), to, term, last: LogId { term, index: FAR } };
    let mut client = client(cluster, to, &runtime);
    let frame = sender.append(&[FAR.next()]);
    let part = SnapshotPart { part: Some(sender.snapshot_header(&Membership::initial(&cluster.servers))) };
    let vote = raft::Vote { vote: Some(sender.ballot()), ..raft::Vote::default() };
    let mut stream = Request::new(tokio_stream::iter([frame]));
    let mut vote = Request::new(sender.frame(frame::Kind::Vote(vote)));
    let mut parts = Request::new(tokio_stream::iter([part]));
    for metadata in [stream.metadata_mut(), vote.metadata_mut(), parts.metadata_mut()] {
        with_metadata(metadata);
    }
    [
        refusal(client.exchange(stream).await),
        refusal(client.call(vote).await),
        refusal(client.install_snapshot(parts).await),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_message_of_another_cluster_is_refused_with_the_reason() {
    let cluster = Cluster::start(1, Transport::Grpc, QUICK).await;
    let (ours, theirs) = (ClusterId::new(5), Some(ClusterId::new(6)));
    cluster.set_cluster(ours);
    let to = cluster.leader().await;
    let of_theirs = with_cluster_id(Request::new(()), theirs).metadata().clone();
    for refusal in refusals_of_all_kinds(&cluster, to, |metadata| *metadata = of_theirs.clone()).await {
        assert!(refusal.contains(&format!("belongs to cluster {ours}")), "{refusal:?}");
    }
    cluster.write("still here").await;
    assert_eq!(cluster.leader_now(), Some(to), "the vote of a later term was not even looked at");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_message_for_another_server_is_refused_with_the_reason() {
    let cluster = Cluster::start(1, Transport::Grpc, QUICK).await;
    let to = cluster.leader().await;
    let for_another = with_receiver(Request::new(()), ServerId::new(9)).metadata().clone();
    for refusal in refusals_of_all_kinds(&cluster, to, |metadata| *metadata = for_another.clone()).await {
        assert!(refusal.contains(&format!("this is server {to}, and the message is for server 9")), "{refusal:?}");
    }
    cluster.write("still here").await;
    assert_eq!(cluster.leader_now(), Some(to), "the vote of a later term was not even looked at");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_server_of_an_earlier_release_takes_no_part_once_a_later_version_is_active() {
    let cluster = Cluster::start(1, Transport::Grpc, QUICK).await;
    let runtime = Runtime::system("peer");
    let ours = ClusterId::new(5);
    cluster.set_cluster(ours);
    let to = cluster.leader().await;
    let mut client = client(&cluster, to, &runtime);
    let term = Term::new(1 << 40);
    let sender = Sender { from: ServerId::new(2), to, term, last: LogId { term, index: FAR } };
    let request = || {
        let vote = raft::Vote { vote: Some(sender.ballot()), ..raft::Vote::default() };
        with_cluster_id(Request::new(sender.frame(frame::Kind::Vote(vote))), Some(ours))
    };
    cluster.set_version(ClusterVersion::RECORDED);
    let refused = refusal(client.call(request()).await);
    assert!(refused.contains("the sender supports cluster versions up to 1, and version 2 is active"), "{refused:?}");
    cluster.write("still here").await;
    assert_eq!(cluster.leader_now(), Some(to), "the vote of a later term was not even looked at");
    assert_eq!(
        refusal(client.call(with_newest_version(request(), SupportedVersions::OWN)).await),
        "",
        "one of this release is admitted"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_server_with_other_election_timeouts_takes_no_part() {
    let cluster = Cluster::start(1, Transport::Grpc, QUICK).await;
    let runtime = Runtime::system("peer");
    let to = cluster.leader().await;
    let mut client = client(&cluster, to, &runtime);
    let term = Term::new(1 << 40);
    let sender = Sender { from: ServerId::new(2), to, term, last: LogId { term, index: FAR } };
    let request = |election_max| {
        let vote = raft::Vote { vote: Some(sender.ballot()), ..raft::Vote::default() };
        with_election_max(Request::new(sender.frame(frame::Kind::Vote(vote))), election_max)
    };
    let refused = refusal(client.call(request(QUICK.election_max * 2)).await);
    assert!(refused.contains("all servers must run releases with equal ones"), "{refused:?}");
    cluster.write("still here").await;
    assert_eq!(cluster.leader_now(), Some(to), "the vote of a later term was not even looked at");
    assert_eq!(refusal(client.call(request(QUICK.election_max)).await), "", "one with the same is admitted");
}
