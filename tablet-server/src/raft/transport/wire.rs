//! Encodes messages between servers as `ebla.raft`, and decodes them. An invalid message is refused with a reason; nothing here
//! panics because of a peer's message.

use std::time::Duration;

use ebla_model::id::{GroupId, LogId, LogIndex, ReplicaId, Term};
use ebla_proto::raft::append_reply::Result as AppendResult;
use ebla_proto::raft::{self, entry, frame, frame_reply};
use ebla_proto::{convert, record};
use ebla_runtime::trace::FollowerWork;
use openraft::entry::EntryPayload;

use super::message::{AppendReceipt, GroupOrigin, MessageHeader, RaftRequest, RaftResponse, Unreachable};
use crate::raft::error::Fault;
use crate::raft::state_machine::AppliedPosition;
use crate::raft::types::{
    AppendRequest, AppendResponse, Command, RaftEntry, RaftLogId, RaftVote, TransferRequest, VoteRequest, VoteResponse,
    committed_vote, log_id, membership, raft_log_id, raft_membership, vote, vote_term,
};

pub(super) fn append_frame(call: u64, header: MessageHeader, request: AppendRequest) -> raft::Frame {
    let append = raft::AppendEntries {
        vote: Some(encode_vote(&request.vote)),
        previous: request.prev_log_id.as_ref().map(encode_log_id),
        entries: request.entries.into_iter().map(encode_entry).collect(),
        committed: request.leader_commit.as_ref().map(encode_log_id),
    };
    frame(call, header, frame::Kind::Append(append))
}

/// Log entries in a frame.
pub(super) fn entry_count(frame: &raft::Frame) -> usize {
    match &frame.kind {
        Some(frame::Kind::Append(append)) => append.entries.len(),
        _ => 0,
    }
}

pub(super) fn request_frame(header: MessageHeader, request: RaftRequest) -> raft::Frame {
    let kind = match request {
        RaftRequest::Vote(request) => frame::Kind::Vote(vote_request(&request)),
        RaftRequest::PreVote(request) => frame::Kind::PreVote(vote_request(&request)),
        RaftRequest::Transfer(request) => frame::Kind::Transfer(raft::Transfer {
            vote: Some(encode_vote(request.from_leader())),
            to_replica: *request.to_node_id(),
            last: request.last_log_id().map(encode_log_id),
        }),
    };
    frame(0, header, kind)
}

fn frame(call: u64, header: MessageHeader, kind: frame::Kind) -> raft::Frame {
    let origin = raft::Origin { parent: header.origin.parent.get(), divide_index: header.origin.divide_index.get() };
    raft::Frame {
        call,
        group: header.group.get(),
        to_replica: header.to.get(),
        from_replica: header.from.get(),
        origin: Some(origin),
        kind: Some(kind),
    }
}

/// The request in a frame.
#[derive(Debug)]
pub(super) enum Incoming {
    Append(AppendRequest),
    Call(RaftRequest),
}

pub(super) fn decode_frame(frame: raft::Frame) -> Result<(MessageHeader, Incoming), Fault> {
    let origin = frame.origin.unwrap_or_default();
    let header = MessageHeader {
        group: GroupId::new(frame.group),
        to: ReplicaId::new(frame.to_replica),
        from: ReplicaId::new(frame.from_replica),
        origin: GroupOrigin { parent: GroupId::new(origin.parent), divide_index: LogIndex::new(origin.divide_index) },
    };
    let incoming = match frame.kind.ok_or_else(|| Fault::new("invalid raft frame: unknown kind"))? {
        frame::Kind::Append(append) => Incoming::Append(decode_append(append)?),
        frame::Kind::Vote(request) => Incoming::Call(RaftRequest::Vote(decode_vote_request(request)?)),
        frame::Kind::PreVote(request) => Incoming::Call(RaftRequest::PreVote(decode_vote_request(request)?)),
        frame::Kind::Transfer(transfer) => {
            let from = decode_vote(transfer.vote)?;
            let last = transfer.last.map(decode_raft_log_id).transpose()?;
            Incoming::Call(RaftRequest::Transfer(TransferRequest::new(from, transfer.to_replica, last)))
        }
    };
    Ok((header, incoming))
}

fn decode_append(append: raft::AppendEntries) -> Result<AppendRequest, Fault> {
    let request = AppendRequest {
        vote: decode_vote(append.vote)?,
        prev_log_id: append.previous.map(decode_raft_log_id).transpose()?,
        entries: append.entries.into_iter().map(decode_entry).collect::<Result<_, _>>()?,
        leader_commit: append.committed.map(decode_raft_log_id).transpose()?,
    };
    check_order(&request)?;
    Ok(request)
}

/// Refuses entries with gaps, and entries of a later term than the leader's: openraft does not check them.
fn check_order(request: &AppendRequest) -> Result<(), Fault> {
    let mut previous = request.prev_log_id.as_ref().map(log_id);
    for entry in &request.entries {
        let id = log_id(&entry.log_id);
        let follows = match previous {
            Some(before) => id.index == before.index.next() && id.term >= before.term,
            None => id.index == LogIndex::default(),
        };
        if !follows {
            return Err(Fault::new(format!("invalid append: entry {id} does not follow {previous:?}")));
        }
        previous = Some(id);
    }
    match previous {
        Some(last) if last.term > vote_term(&request.vote) => {
            Err(Fault::new(format!("invalid append: entry {last} is of a later term than the leader")))
        }
        _ => Ok(()),
    }
}

pub(super) fn append_reply(call: u64, outcome: Result<AppendReceipt, Unreachable>) -> raft::FrameReply {
    let kind = match outcome {
        Ok(AppendReceipt { response, work }) => {
            let (result, work) = (Some(append_result(response)), work.as_ref().map(encode_work));
            frame_reply::Kind::Append(raft::AppendReply { result, work })
        }
        Err(Unreachable(reason)) => frame_reply::Kind::Unreachable(reason),
    };
    raft::FrameReply { call, kind: Some(kind), ..Default::default() }
}

fn encode_work(work: &FollowerWork) -> raft::FollowerWork {
    let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    raft::FollowerWork {
        queue_micros: micros(work.queue),
        sync_micros: micros(work.sync),
        total_micros: micros(work.total),
    }
}

const fn decode_work(work: &raft::FollowerWork) -> FollowerWork {
    FollowerWork {
        queue: Duration::from_micros(work.queue_micros),
        sync: Duration::from_micros(work.sync_micros),
        total: Duration::from_micros(work.total_micros),
    }
}

fn append_result(response: AppendResponse) -> AppendResult {
    match response {
        AppendResponse::Success => AppendResult::Success(true),
        // Every log has a first entry, so "nothing matches" can be encoded as a conflict.
        AppendResponse::PartialSuccess(None) | AppendResponse::Conflict => AppendResult::Conflict(true),
        AppendResponse::PartialSuccess(Some(upto)) => AppendResult::Partial(encode_log_id(&upto)),
        AppendResponse::HigherVote(vote) => AppendResult::HigherVote(encode_vote(&vote)),
    }
}

pub(super) fn decode_append_reply(reply: raft::FrameReply) -> Result<AppendReceipt, Unreachable> {
    match reply.kind {
        Some(frame_reply::Kind::Append(raft::AppendReply { result, work })) => {
            let response = match result {
                Some(AppendResult::Success(_)) => AppendResponse::Success,
                Some(AppendResult::Partial(upto)) => {
                    AppendResponse::PartialSuccess(Some(decode_raft_log_id(upto).map_err(invalid)?))
                }
                Some(AppendResult::Conflict(_)) => AppendResponse::Conflict,
                Some(AppendResult::HigherVote(vote)) => {
                    AppendResponse::HigherVote(decode_vote(Some(vote)).map_err(invalid)?)
                }
                None => return Err(invalid("invalid append reply: unknown kind")),
            };
            Ok(AppendReceipt { response, work: work.as_ref().map(decode_work) })
        }
        Some(frame_reply::Kind::Unreachable(reason)) => Err(Unreachable(reason)),
        _ => Err(invalid("reply of the wrong kind")),
    }
}

pub(super) fn call_reply(outcome: Result<RaftResponse, Unreachable>) -> raft::FrameReply {
    let kind = match outcome {
        Ok(RaftResponse::Vote(response)) => frame_reply::Kind::Vote(raft::VoteReply {
            vote: Some(encode_vote(&response.vote)),
            granted: response.vote_granted,
            last: response.last_log_id.as_ref().map(encode_log_id),
        }),
        Ok(RaftResponse::Done) => frame_reply::Kind::Done(true),
        Err(Unreachable(reason)) => frame_reply::Kind::Unreachable(reason),
    };
    raft::FrameReply { kind: Some(kind), ..Default::default() }
}

pub(super) fn decode_call_reply(reply: raft::FrameReply) -> Result<RaftResponse, Unreachable> {
    match reply.kind {
        Some(frame_reply::Kind::Vote(reply)) => {
            let vote = decode_vote(reply.vote).map_err(invalid)?;
            let last = reply.last.map(decode_raft_log_id).transpose().map_err(invalid)?;
            Ok(RaftResponse::Vote(VoteResponse::new(vote, last, reply.granted)))
        }
        Some(frame_reply::Kind::Done(_)) => Ok(RaftResponse::Done),
        Some(frame_reply::Kind::Unreachable(reason)) => Err(Unreachable(reason)),
        _ => Err(invalid("reply of the wrong kind")),
    }
}

/// The reply to a snapshot: the vote that the receiver holds after the install.
pub(super) fn snapshot_reply(outcome: Result<RaftVote, Unreachable>) -> raft::FrameReply {
    call_reply(outcome.map(|vote| RaftResponse::Vote(VoteResponse::new(vote, None, true))))
}

pub(super) fn decode_snapshot_reply(reply: raft::FrameReply) -> Result<RaftVote, Unreachable> {
    match decode_call_reply(reply)? {
        RaftResponse::Vote(response) => Ok(response.vote),
        RaftResponse::Done => Err(invalid("reply of the wrong kind")),
    }
}

pub(super) fn snapshot_header(
    header: MessageHeader,
    vote: &RaftVote,
    applied: &AppliedPosition,
    size_bytes: u64,
) -> raft::SnapshotHeader {
    let (membership_log_id, members) = &applied.membership;
    raft::SnapshotHeader {
        group: header.group.get(),
        to_replica: header.to.get(),
        from_replica: header.from.get(),
        vote: Some(encode_vote(vote)),
        last: applied.last.map(convert::log_id_to_proto),
        membership_log_id: membership_log_id.map(convert::log_id_to_proto),
        membership: Some(convert::membership_to_proto(members)),
        id: String::new(),
        size_bytes,
    }
}

/// The header of a snapshot that arrives.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SnapshotAnnouncement {
    pub(super) header: MessageHeader,
    pub(super) vote: RaftVote,
    pub(super) applied: AppliedPosition,
    /// The size of all files; 0 when the sender does not say it.
    pub(super) size_bytes: u64,
}

pub(super) fn decode_snapshot_header(header: raft::SnapshotHeader) -> Result<SnapshotAnnouncement, Fault> {
    let to = MessageHeader {
        group: GroupId::new(header.group),
        to: ReplicaId::new(header.to_replica),
        from: ReplicaId::new(header.from_replica),
        origin: GroupOrigin::default(),
    };
    let members = header.membership.ok_or_else(|| Fault::new("invalid snapshot: the membership is missing"))?;
    let members = convert::membership_from_proto(&members);
    let applied = AppliedPosition {
        last: header.last.map(decode_log_id).transpose()?,
        membership: (header.membership_log_id.map(decode_log_id).transpose()?, members),
    };
    let vote = decode_vote(header.vote)?;
    Ok(SnapshotAnnouncement { header: to, vote, applied, size_bytes: header.size_bytes })
}

fn invalid(reason: impl ToString) -> Unreachable {
    Unreachable(reason.to_string())
}

fn decode_log_id(id: record::LogId) -> Result<LogId, Fault> {
    LogId::from_outside(id.term, id.index)
        .ok_or_else(|| Fault::new(format!("invalid log id {}.{}: no log reaches it", id.term, id.index)))
}

fn encode_log_id(id: &RaftLogId) -> record::LogId {
    convert::log_id_to_proto(log_id(id))
}

fn decode_raft_log_id(id: record::LogId) -> Result<RaftLogId, Fault> {
    decode_log_id(id).map(raft_log_id)
}

fn encode_vote(vote: &RaftVote) -> raft::BallotId {
    raft::BallotId { term: vote_term(vote).get(), replica: vote.leader_id.voted_for, committed: vote.committed }
}

fn decode_vote(ballot: Option<raft::BallotId>) -> Result<RaftVote, Fault> {
    let ballot = ballot.ok_or_else(|| Fault::new("invalid raft message: the vote is missing"))?;
    let term = Term::from_outside(ballot.term)
        .ok_or_else(|| Fault::new(format!("invalid vote: no group reaches term {}", ballot.term)))?;
    let decode = if ballot.committed { committed_vote } else { vote };
    Ok(decode(term, ballot.replica))
}

fn vote_request(request: &VoteRequest) -> raft::Vote {
    raft::Vote {
        vote: Some(encode_vote(&request.vote)),
        last: request.last_log_id.as_ref().map(encode_log_id),
        leadership_transfer: request.leadership_transfer,
    }
}

fn decode_vote_request(request: raft::Vote) -> Result<VoteRequest, Fault> {
    let last = request.last.map(decode_raft_log_id).transpose()?;
    let mut decoded = VoteRequest::new(decode_vote(request.vote)?, last);
    decoded.leadership_transfer = request.leadership_transfer;
    Ok(decoded)
}

fn encode_entry(entry: RaftEntry) -> raft::Entry {
    let payload = match entry.payload {
        EntryPayload::Blank => entry::Payload::Blank(true),
        EntryPayload::Normal(command) => entry::Payload::Command(command.0),
        EntryPayload::Membership(members) => {
            entry::Payload::Membership(convert::membership_to_proto(&membership(&members)))
        }
    };
    raft::Entry { id: Some(encode_log_id(&entry.log_id)), payload: Some(payload) }
}

fn decode_entry(entry: raft::Entry) -> Result<RaftEntry, Fault> {
    let id = entry.id.ok_or_else(|| Fault::new("invalid log entry: term and index are missing"))?;
    let payload = match entry.payload.ok_or_else(|| Fault::new("invalid log entry: unknown kind"))? {
        entry::Payload::Blank(_) => EntryPayload::Blank,
        entry::Payload::Command(command) => EntryPayload::Normal(Command(command)),
        entry::Payload::Membership(members) => {
            let members = convert::membership_from_proto(&members);
            if members.voters.is_empty() {
                return Err(Fault::new("invalid log entry: a membership without voters"));
            }
            EntryPayload::Membership(raft_membership(&members)?)
        }
    };
    Ok(RaftEntry { log_id: decode_raft_log_id(id)?, payload })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn header() -> MessageHeader {
        let origin = GroupOrigin { parent: GroupId::new(3), divide_index: LogIndex::new(44) };
        MessageHeader { group: GroupId::new(9), to: ReplicaId::new(2), from: ReplicaId::new(1), origin }
    }

    #[test]
    fn an_append_survives_a_round_trip() {
        let at = |index| raft_log_id(LogId { term: Term::new(2), index: LogIndex::new(index) });
        let request = AppendRequest {
            vote: committed_vote(Term::new(2), 1),
            prev_log_id: Some(at(10)),
            entries: vec![
                RaftEntry { log_id: at(11), payload: EntryPayload::Blank },
                RaftEntry { log_id: at(12), payload: EntryPayload::Normal(Command(Bytes::from_static(b"c"))) },
            ],
            leader_commit: None,
        };
        let (back, incoming) = decode_frame(append_frame(5, header(), request.clone())).unwrap();
        assert_eq!(back, header());
        let Incoming::Append(append) = incoming else { panic!("an append") };
        assert_eq!(format!("{append:?}"), format!("{request:?}"));
    }

    #[test]
    fn a_vote_request_keeps_its_leadership_transfer_flag() {
        let mut request = VoteRequest::new(vote(Term::new(3), 2), None);
        request.leadership_transfer = true;
        let (_, incoming) = decode_frame(request_frame(header(), RaftRequest::Vote(request.clone()))).unwrap();
        let Incoming::Call(RaftRequest::Vote(back)) = incoming else { panic!("a vote") };
        assert_eq!(back, request);
    }

    #[test]
    fn replies_survive_a_round_trip_and_an_invalid_one_is_no_success() {
        for response in [
            AppendResponse::Success,
            AppendResponse::Conflict,
            AppendResponse::HigherVote(committed_vote(Term::new(9), 3)),
        ] {
            let receipt = AppendReceipt::from(response);
            assert_eq!(decode_append_reply(append_reply(1, Ok(receipt.clone()))).unwrap(), receipt);
        }
        let micros = Duration::from_micros;
        let work = Some(FollowerWork { queue: micros(5), sync: micros(1_000), total: micros(1_007) });
        let measured = AppendReceipt { work, response: AppendResponse::Success };
        assert_eq!(decode_append_reply(append_reply(1, Ok(measured.clone()))).unwrap(), measured);
        assert!(decode_append_reply(append_reply(1, Err(Unreachable("stopped".to_owned())))).is_err());
        assert!(decode_append_reply(raft::FrameReply { call: 1, ..Default::default() }).is_err());
        assert!(decode_call_reply(call_reply(Err(Unreachable("vote hold-off".to_owned())))).is_err());
        assert!(decode_frame(raft::Frame::default()).is_err());
    }
}
