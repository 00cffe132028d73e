//! Messages between servers as `ebla.raft` writes them, and back. A message that says nothing sensible is refused with a
//! reason; nothing here panics on what a peer sent.

use ebla_model::id::{LogId, ReplicaId, TabletId};
use ebla_proto::raft::append_reply::Result as AppendResult;
use ebla_proto::raft::{self, entry, frame, frame_reply};
use ebla_proto::{convert, record};
use openraft::entry::EntryPayload;

use super::fault::Fault;
use super::link::{Answer, Ask, Header, Origin, Unreachable};
use super::state_machine::Applied;
use super::types::{
    AppendRequest, AppendResponse, Command, RaftEntry, RaftLogId, RaftVote, TransferRequest, VoteRequest, VoteResponse,
    log_id, membership, raft_log_id, raft_membership, vote,
};

pub(super) fn append_frame(call: u64, header: Header, request: AppendRequest) -> raft::Frame {
    let append = raft::AppendEntries {
        vote: Some(ballot(&request.vote)),
        previous: request.prev_log_id.as_ref().map(position),
        entries: request.entries.into_iter().map(entry).collect(),
        committed: request.leader_commit.as_ref().map(position),
    };
    frame(call, header, frame::Kind::Append(append))
}

pub(super) fn ask_frame(header: Header, ask: Ask) -> raft::Frame {
    let kind = match ask {
        Ask::Vote(request) => frame::Kind::Vote(vote_request(&request)),
        Ask::PreVote(request) => frame::Kind::PreVote(vote_request(&request)),
        Ask::Transfer(request) => frame::Kind::Transfer(raft::Transfer {
            vote: Some(ballot(request.from_leader())),
            to_replica: *request.to_node_id(),
            last: request.last_log_id().map(position),
        }),
    };
    frame(0, header, kind)
}

fn frame(call: u64, header: Header, kind: frame::Kind) -> raft::Frame {
    let origin = raft::Origin { parent: header.origin.parent.get(), split_index: header.origin.split_index };
    raft::Frame {
        call,
        tablet: header.tablet.get(),
        to_replica: header.to.get(),
        from_replica: header.from.get(),
        origin: Some(origin),
        kind: Some(kind),
    }
}

/// What a frame asks.
pub(super) enum Incoming {
    Append(AppendRequest),
    Ask(Ask),
}

pub(super) fn incoming(frame: raft::Frame) -> Result<(Header, Incoming), Fault> {
    let origin = frame.origin.unwrap_or_default();
    let header = Header {
        tablet: TabletId::new(frame.tablet),
        to: ReplicaId::new(frame.to_replica),
        from: ReplicaId::new(frame.from_replica),
        origin: Origin { parent: TabletId::new(origin.parent), split_index: origin.split_index },
    };
    let incoming = match frame.kind.ok_or_else(|| Fault::new("a frame of an unknown kind"))? {
        frame::Kind::Append(append) => Incoming::Append(append_request(append)?),
        frame::Kind::Vote(request) => Incoming::Ask(Ask::Vote(vote_request_of(request)?)),
        frame::Kind::PreVote(request) => Incoming::Ask(Ask::PreVote(vote_request_of(request)?)),
        frame::Kind::Transfer(transfer) => {
            let from = vote_of(transfer.vote)?;
            let last = transfer.last.map(position_of);
            Incoming::Ask(Ask::Transfer(TransferRequest::new(from, transfer.to_replica, last)))
        }
    };
    Ok((header, incoming))
}

fn append_request(append: raft::AppendEntries) -> Result<AppendRequest, Fault> {
    Ok(AppendRequest {
        vote: vote_of(append.vote)?,
        prev_log_id: append.previous.map(position_of),
        entries: append.entries.into_iter().map(entry_of).collect::<Result<_, _>>()?,
        leader_commit: append.committed.map(position_of),
    })
}

pub(super) fn append_reply(call: u64, outcome: Result<AppendResponse, Unreachable>) -> raft::FrameReply {
    let kind = match outcome {
        Ok(response) => frame_reply::Kind::Append(raft::AppendReply { result: Some(append_result(response)) }),
        Err(Unreachable(reason)) => frame_reply::Kind::Unreachable(reason),
    };
    raft::FrameReply { call, kind: Some(kind) }
}

fn append_result(response: AppendResponse) -> AppendResult {
    match response {
        AppendResponse::Success => AppendResult::Success(true),
        // "Nothing" is a position that no log has, so it can be told as a conflict.
        AppendResponse::PartialSuccess(None) | AppendResponse::Conflict => AppendResult::Conflict(true),
        AppendResponse::PartialSuccess(Some(upto)) => AppendResult::Partial(position(&upto)),
        AppendResponse::HigherVote(vote) => AppendResult::HigherVote(ballot(&vote)),
    }
}

pub(super) fn append_reply_of(reply: raft::FrameReply) -> Result<AppendResponse, Unreachable> {
    match reply.kind {
        Some(frame_reply::Kind::Append(reply)) => match reply.result {
            Some(AppendResult::Success(_)) => Ok(AppendResponse::Success),
            Some(AppendResult::Partial(upto)) => Ok(AppendResponse::PartialSuccess(Some(position_of(upto)))),
            Some(AppendResult::Conflict(_)) => Ok(AppendResponse::Conflict),
            Some(AppendResult::HigherVote(vote)) => Ok(AppendResponse::HigherVote(vote_of(Some(vote)).map_err(odd)?)),
            None => Err(odd("an append reply of an unknown kind")),
        },
        Some(frame_reply::Kind::Unreachable(reason)) => Err(Unreachable(reason)),
        _ => Err(odd("the reply does not fit the request")),
    }
}

pub(super) fn answer(outcome: Result<Answer, Unreachable>) -> raft::FrameReply {
    let kind = match outcome {
        Ok(Answer::Vote(response)) => frame_reply::Kind::Vote(raft::VoteReply {
            vote: Some(ballot(&response.vote)),
            granted: response.vote_granted,
            last: response.last_log_id.as_ref().map(position),
        }),
        Ok(Answer::Done) => frame_reply::Kind::Done(true),
        Err(Unreachable(reason)) => frame_reply::Kind::Unreachable(reason),
    };
    raft::FrameReply { call: 0, kind: Some(kind) }
}

pub(super) fn answer_of(reply: raft::FrameReply) -> Result<Answer, Unreachable> {
    match reply.kind {
        Some(frame_reply::Kind::Vote(reply)) => {
            let vote = vote_of(reply.vote).map_err(odd)?;
            Ok(Answer::Vote(VoteResponse::new(vote, reply.last.map(position_of), reply.granted)))
        }
        Some(frame_reply::Kind::Done(_)) => Ok(Answer::Done),
        Some(frame_reply::Kind::Unreachable(reason)) => Err(Unreachable(reason)),
        _ => Err(odd("the reply does not fit the request")),
    }
}

/// The vote that the receiver of a snapshot holds after it.
pub(super) fn snapshot_reply(outcome: Result<RaftVote, Unreachable>) -> raft::FrameReply {
    answer(outcome.map(|vote| Answer::Vote(VoteResponse::new(vote, None, true))))
}

pub(super) fn snapshot_reply_of(reply: raft::FrameReply) -> Result<RaftVote, Unreachable> {
    match answer_of(reply)? {
        Answer::Vote(response) => Ok(response.vote),
        Answer::Done => Err(odd("the reply does not fit the request")),
    }
}

pub(super) fn snapshot_header(header: Header, vote: &RaftVote, applied: &Applied) -> raft::SnapshotHeader {
    let (membership_log_id, members) = &applied.membership;
    raft::SnapshotHeader {
        tablet: header.tablet.get(),
        to_replica: header.to.get(),
        from_replica: header.from.get(),
        vote: Some(ballot(vote)),
        last: applied.last.map(convert::log_id_to_proto),
        membership_log_id: membership_log_id.map(convert::log_id_to_proto),
        membership: Some(convert::membership_to_proto(members)),
        id: String::new(),
    }
}

pub(super) fn snapshot_header_of(header: raft::SnapshotHeader) -> Result<(Header, RaftVote, Applied), Fault> {
    let to = Header {
        tablet: TabletId::new(header.tablet),
        to: ReplicaId::new(header.to_replica),
        from: ReplicaId::new(header.from_replica),
        origin: Origin::default(),
    };
    let members = header.membership.ok_or_else(|| Fault::new("a snapshot without membership"))?;
    let members = convert::membership_from_proto(&members);
    let applied = Applied {
        last: header.last.map(plain_position),
        membership: (header.membership_log_id.map(plain_position), members),
    };
    Ok((to, vote_of(header.vote)?, applied))
}

fn odd(what: impl ToString) -> Unreachable {
    Unreachable(what.to_string())
}

fn plain_position(id: record::LogId) -> LogId {
    LogId { term: id.term, index: id.index }
}

fn position(id: &RaftLogId) -> record::LogId {
    let LogId { term, index } = log_id(id);
    record::LogId { term, index }
}

fn position_of(id: record::LogId) -> RaftLogId {
    raft_log_id(plain_position(id))
}

fn ballot(vote: &RaftVote) -> raft::BallotId {
    raft::BallotId { term: vote.leader_id.term, replica: vote.leader_id.voted_for, committed: vote.committed }
}

fn vote_of(ballot: Option<raft::BallotId>) -> Result<RaftVote, Fault> {
    let ballot = ballot.ok_or_else(|| Fault::new("a message without a vote"))?;
    Ok(vote(ballot.term, ballot.replica, ballot.committed))
}

fn vote_request(request: &VoteRequest) -> raft::Vote {
    raft::Vote {
        vote: Some(ballot(&request.vote)),
        last: request.last_log_id.as_ref().map(position),
        leadership_transfer: request.leadership_transfer,
    }
}

fn vote_request_of(request: raft::Vote) -> Result<VoteRequest, Fault> {
    let mut asked = VoteRequest::new(vote_of(request.vote)?, request.last.map(position_of));
    asked.leadership_transfer = request.leadership_transfer;
    Ok(asked)
}

fn entry(entry: RaftEntry) -> raft::Entry {
    let payload = match entry.payload {
        EntryPayload::Blank => entry::Payload::Blank(true),
        EntryPayload::Normal(command) => entry::Payload::Command(command.0),
        EntryPayload::Membership(members) => {
            entry::Payload::Membership(convert::membership_to_proto(&membership(&members)))
        }
    };
    raft::Entry { id: Some(position(&entry.log_id)), payload: Some(payload) }
}

fn entry_of(entry: raft::Entry) -> Result<RaftEntry, Fault> {
    let id = entry.id.ok_or_else(|| Fault::new("an entry without a position"))?;
    let payload = match entry.payload.ok_or_else(|| Fault::new("an entry of an unknown kind"))? {
        entry::Payload::Blank(_) => EntryPayload::Blank,
        entry::Payload::Command(command) => EntryPayload::Normal(Command(command)),
        entry::Payload::Membership(members) => {
            EntryPayload::Membership(raft_membership(&convert::membership_from_proto(&members))?)
        }
    };
    Ok(RaftEntry { log_id: position_of(id), payload })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn header() -> Header {
        let origin = Origin { parent: TabletId::new(3), split_index: 44 };
        Header { tablet: TabletId::new(9), to: ReplicaId::new(2), from: ReplicaId::new(1), origin }
    }

    #[test]
    fn an_append_comes_back() {
        let at = |index| raft_log_id(LogId { term: 2, index });
        let request = AppendRequest {
            vote: vote(2, 1, true),
            prev_log_id: Some(at(10)),
            entries: vec![
                RaftEntry { log_id: at(11), payload: EntryPayload::Blank },
                RaftEntry { log_id: at(12), payload: EntryPayload::Normal(Command(Bytes::from_static(b"c"))) },
            ],
            leader_commit: None,
        };
        let (back, incoming) = incoming(append_frame(5, header(), request.clone())).unwrap();
        assert_eq!(back, header());
        let Incoming::Append(append) = incoming else { panic!("an append") };
        assert_eq!(format!("{append:?}"), format!("{request:?}"));
    }

    #[test]
    fn a_vote_request_keeps_its_right_to_disturb() {
        let mut request = VoteRequest::new(vote(3, 2, false), None);
        request.leadership_transfer = true;
        let (_, incoming) = incoming(ask_frame(header(), Ask::Vote(request.clone()))).unwrap();
        let Incoming::Ask(Ask::Vote(back)) = incoming else { panic!("a vote") };
        assert_eq!(back, request);
    }

    #[test]
    fn replies_come_back_and_nonsense_is_no_success() {
        for response in
            [AppendResponse::Success, AppendResponse::Conflict, AppendResponse::HigherVote(vote(9, 3, true))]
        {
            assert_eq!(append_reply_of(append_reply(1, Ok(response.clone()))).unwrap(), response);
        }
        assert!(append_reply_of(append_reply(1, Err(Unreachable("gone".to_owned())))).is_err());
        assert!(append_reply_of(raft::FrameReply { call: 1, kind: None }).is_err());
        assert!(answer_of(answer(Err(Unreachable("waits".to_owned())))).is_err());
        assert!(incoming(raft::Frame::default()).is_err());
    }
}
