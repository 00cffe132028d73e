//! Messages of other servers as arbitrary bytes: refused, or accepted and round-tripped, and never a panic.

use std::collections::BTreeMap;
use std::fs;

use bytes::Bytes;
use ebla_model::id::{GroupId, LogId, LogIndex, ReplicaId, ServerId, Term};
use ebla_model::metadata::Membership;
use ebla_proto::raft::{self, SnapshotChunk};
use ebla_storage::log::GroupReplica;
use openraft::entry::EntryPayload;
use proptest::collection::vec;
use proptest::prelude::{ProptestConfig, Strategy, any, prop_oneof, proptest};
use proptest::sample::{Index, select};
use prost::Message;

use super::message::{GroupOrigin, MessageHeader, RaftRequest, RaftResponse, Unreachable};
use super::wire::{self, Incoming, SnapshotAnnouncement};
use crate::inputs::inputs;
use crate::raft::state_machine::AppliedPosition;
use crate::raft::storage::adapter::snapshot_meta;
use crate::raft::storage::snapshot::{SnapshotReceiver, validate};
use crate::raft::types::{
    AppendRequest, AppendResponse, Command, RaftEntry, TransferRequest, VoteRequest, VoteResponse, committed_vote,
    raft_log_id, raft_membership, vote,
};

fn at(index: u64) -> LogId {
    LogId { term: Term::new(2), index: LogIndex::new(index) }
}

fn header() -> MessageHeader {
    let origin = GroupOrigin { parent: GroupId::new(3), divide_index: LogIndex::new(44) };
    MessageHeader { group: GroupId::new(9), to: ReplicaId::new(2), from: ReplicaId::new(1), origin }
}

fn members() -> Membership {
    Membership::initial(&[1, 2, 3].map(ServerId::new))
}

fn encoded(messages: &[impl Message]) -> Vec<Vec<u8>> {
    messages.iter().map(Message::encode_to_vec).collect()
}

fn frames() -> Vec<raft::Frame> {
    let payloads = [
        EntryPayload::Blank,
        EntryPayload::Normal(Command(Bytes::from_static(b"command"))),
        EntryPayload::Membership(raft_membership(&members()).unwrap()),
    ];
    let entries = (11..).zip(payloads).map(|(index, payload)| RaftEntry { log_id: raft_log_id(at(index)), payload });
    let append = AppendRequest {
        vote: committed_vote(Term::new(2), 1),
        prev_log_id: Some(raft_log_id(at(10))),
        entries: entries.collect(),
        leader_commit: Some(raft_log_id(at(10))),
    };
    let request = VoteRequest::new(vote(Term::new(3), 2), Some(raft_log_id(at(12))));
    let transfer = TransferRequest::new(committed_vote(Term::new(2), 1), 2, Some(raft_log_id(at(12))));
    vec![
        wire::append_frame(5, header(), append),
        wire::request_frame(header(), RaftRequest::Vote(request.clone())),
        wire::request_frame(header(), RaftRequest::PreVote(request)),
        wire::request_frame(header(), RaftRequest::Transfer(transfer)),
    ]
}

fn replies() -> Vec<raft::FrameReply> {
    let granted = VoteResponse::new(vote(Term::new(3), 2), Some(raft_log_id(at(12))), true);
    vec![
        wire::append_reply(1, Ok(AppendResponse::Success.into())),
        wire::append_reply(2, Ok(AppendResponse::PartialSuccess(Some(raft_log_id(at(11)))).into())),
        wire::append_reply(3, Ok(AppendResponse::HigherVote(committed_vote(Term::new(9), 3)).into())),
        wire::append_reply(4, Err(Unreachable("stopped".to_owned()))),
        wire::call_reply(Ok(RaftResponse::Vote(granted))),
        wire::call_reply(Ok(RaftResponse::Done)),
    ]
}

fn snapshot_headers() -> Vec<raft::SnapshotHeader> {
    let applied = AppliedPosition { last: Some(at(70)), membership: (Some(at(12)), members()) };
    vec![wire::snapshot_header(header(), &committed_vote(Term::new(2), 1), &applied, 5 << 20)]
}

fn encode_incoming(call: u64, header: MessageHeader, incoming: Incoming) -> raft::Frame {
    match incoming {
        Incoming::Append(request) => wire::append_frame(call, header, request),
        Incoming::Call(request) => raft::Frame { call, ..wire::request_frame(header, request) },
    }
}

#[test]
fn entries_with_gaps_and_positions_that_no_log_reaches_are_refused() {
    let valid = frames().remove(0);
    let Some(raft::frame::Kind::Append(append)) = valid.kind.clone() else { panic!("an append") };
    let refused = |change: &dyn Fn(&mut raft::AppendEntries)| {
        let mut changed = append.clone();
        change(&mut changed);
        let frame = raft::Frame { kind: Some(raft::frame::Kind::Append(changed)), ..valid.clone() };
        wire::decode_frame(frame).err().map(|fault| fault.to_string()).unwrap_or_default()
    };
    assert_eq!(refused(&|_| ()), "");
    assert!(refused(&|append| drop(append.entries.remove(1))).contains("does not follow"));
    assert!(refused(&|append| append.entries.swap(0, 1)).contains("does not follow"));
    assert!(refused(&|append| append.previous = None).contains("does not follow"));
    assert!(refused(&|append| append.entries[2].id.as_mut().unwrap().term = 3).contains("later term"));
    assert!(refused(&|append| append.previous.as_mut().unwrap().index = u64::MAX).contains("no log reaches"));
    assert!(refused(&|append| append.vote.as_mut().unwrap().term = u64::MAX).contains("no group reaches"));
    let nobody = raft::entry::Payload::Membership(Default::default());
    assert!(refused(&|append| append.entries[2].payload = Some(nobody.clone())).contains("without voters"));
}

#[test]
fn a_snapshot_without_voters_is_refused() {
    let mut header = snapshot_headers().remove(0);
    header.membership = Some(Default::default());
    let applied = wire::decode_snapshot_header(header).unwrap().applied;
    assert!(validate(&applied).unwrap_err().to_string().contains("no voters"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn a_frame_is_refused_or_round_trips(bytes in inputs(encoded(&frames()))) {
        let Ok(frame) = raft::Frame::decode(bytes.as_slice()) else { return Ok(()) };
        let call = frame.call;
        let Ok((header, incoming)) = wire::decode_frame(frame) else { return Ok(()) };
        let frame = encode_incoming(call, header, incoming);
        let (header, incoming) = wire::decode_frame(frame.clone()).unwrap();
        assert_eq!(encode_incoming(call, header, incoming), frame);
    }

    #[test]
    fn a_reply_is_refused_or_round_trips(bytes in inputs(encoded(&replies()))) {
        let Ok(reply) = raft::FrameReply::decode(bytes.as_slice()) else { return Ok(()) };
        if let Ok(receipt) = wire::decode_append_reply(reply.clone()) {
            let again = wire::decode_append_reply(wire::append_reply(1, Ok(receipt.clone()))).unwrap();
            assert_eq!(again, receipt);
        }
        if let Ok(vote) = wire::decode_snapshot_reply(reply.clone()) {
            assert_eq!(wire::decode_snapshot_reply(wire::snapshot_reply(Ok(vote))).unwrap(), vote);
        }
        if let Ok(response) = wire::decode_call_reply(reply) {
            let sent = wire::call_reply(Ok(response));
            assert_eq!(wire::call_reply(wire::decode_call_reply(sent.clone())), sent);
        }
    }

    #[test]
    fn a_snapshot_header_is_refused_or_round_trips(bytes in inputs(encoded(&snapshot_headers()))) {
        let Ok(message) = raft::SnapshotHeader::decode(bytes.as_slice()) else { return Ok(()) };
        let Ok(decoded) = wire::decode_snapshot_header(message) else { return Ok(()) };
        let SnapshotAnnouncement { header, vote, applied, size_bytes } = &decoded;
        let again = wire::decode_snapshot_header(wire::snapshot_header(*header, vote, applied, *size_bytes)).unwrap();
        assert_eq!(again, decoded);
        if validate(applied).is_ok() {
            drop(snapshot_meta(applied));
        }
    }
}

fn chunk(file: &str, offset: u64, data: &'static [u8]) -> SnapshotChunk {
    SnapshotChunk { file: file.to_owned(), offset, crc32c: crc32c::crc32c(data), data: Bytes::from_static(data) }
}

/// Two files, one of them in three chunks, and an empty one.
fn chunks() -> Vec<SnapshotChunk> {
    vec![
        chunk("a", 0, b"one"),
        chunk("a", 3, b"two"),
        chunk("a", 6, b"3"),
        chunk("b", 0, b""),
        chunk("c", 0, b"content"),
    ]
}

#[derive(Clone, Debug)]
enum PartChange {
    Remove(Index),
    Repeat(Index, Index),
    Swap(Index, Index),
    Name(Index, String),
    Offset(Index, u64),
    Damage(Index),
}

impl PartChange {
    fn apply(&self, mut chunks: Vec<SnapshotChunk>) -> Vec<SnapshotChunk> {
        if chunks.is_empty() {
            return chunks;
        }
        let count = chunks.len();
        let place = |at: &Index| at.index(count);
        match self {
            Self::Remove(at) => drop(chunks.remove(place(at))),
            Self::Repeat(from, to) => {
                let (from, to) = (chunks[place(from)].clone(), place(to));
                chunks.insert(to, from);
            }
            Self::Swap(one, other) => chunks.swap(place(one), place(other)),
            Self::Name(at, name) => {
                let at = place(at);
                chunks[at].file.clone_from(name);
            }
            Self::Offset(at, offset) => {
                let at = place(at);
                chunks[at].offset = *offset;
            }
            Self::Damage(at) => {
                let at = place(at);
                chunks[at].crc32c ^= 1;
            }
        }
        chunks
    }
}

fn part_change() -> impl Strategy<Value = PartChange> {
    let at = any::<Index>;
    let names = ["", ".", "..", "../a", "/a", "a/b", "a\\b", "a\0", "a", "d", "a very long name"];
    let name = select(names.to_vec()).prop_map(|name| if name.len() > 9 { name.repeat(20) } else { name.to_owned() });
    let offset = select(vec![0, 1, 3, 6, 1 << 40, u64::MAX / 2, u64::MAX]);
    prop_oneof![
        at().prop_map(PartChange::Remove),
        (at(), at()).prop_map(|(from, to)| PartChange::Repeat(from, to)),
        (at(), at()).prop_map(|(one, other)| PartChange::Swap(one, other)),
        (at(), name).prop_map(|(at, name)| PartChange::Name(at, name)),
        (at(), offset).prop_map(|(at, offset)| PartChange::Offset(at, offset)),
        at().prop_map(PartChange::Damage),
    ]
}

/// The files that these chunks make; `None` if a chunk must be refused.
fn expected(chunks: &[SnapshotChunk]) -> Option<BTreeMap<String, Vec<u8>>> {
    let mut files = BTreeMap::<String, Vec<u8>>::new();
    let mut open = None;
    for chunk in chunks {
        let is_plain = chunk.file.chars().all(|c| c.is_ascii_alphanumeric()) && (1..255).contains(&chunk.file.len());
        let is_new = open != Some(&chunk.file);
        if !is_plain || crc32c::crc32c(&chunk.data) != chunk.crc32c || is_new && files.contains_key(&chunk.file) {
            return None;
        }
        open = Some(&chunk.file);
        let content = files.entry(chunk.file.clone()).or_default();
        if chunk.offset != content.len() as u64 {
            return None;
        }
        content.extend_from_slice(&chunk.data);
    }
    Some(files)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn a_snapshot_is_received_exactly_or_refused_and_stays_in_its_folder(changes in vec(part_change(), 0..4)) {
        let outer = tempfile::tempdir().unwrap();
        let scratch = outer.path().join("scratch");
        let group = GroupReplica { group: GroupId::new(7), replica: ReplicaId::new(1) };
        let chunks = changes.iter().fold(chunks(), |chunks, change| change.apply(chunks));
        let receiver = SnapshotReceiver::create(&scratch, group).unwrap();
        let received = chunks.iter().try_fold(receiver, |receiver, chunk| receiver.write_chunk(chunk));
        let folder = received.and_then(SnapshotReceiver::finish).ok();
        let files = folder.as_ref().map(|folder| {
            let file = |file: fs::DirEntry| {
                (file.file_name().into_string().unwrap(), fs::read(file.path()).unwrap())
            };
            fs::read_dir(folder.path()).unwrap().map(|entry| file(entry.unwrap())).collect()
        });
        assert_eq!(files, expected(&chunks), "{chunks:?}");
        drop(folder);
        assert_eq!(fs::read_dir(&scratch).unwrap().count(), 0);
        assert_eq!(fs::read_dir(outer.path()).unwrap().count(), 1);
    }
}
