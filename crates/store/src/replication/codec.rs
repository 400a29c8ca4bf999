//! Conversion between openraft's types and the messages of `chancery.raft.v1`.

use chancery_model::{Outcome, Revision, Summary};
use chancery_raft_proto::v1 as pb;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, TransferLeaderRequest, VoteRequest, VoteResponse,
};

use super::{acknowledged::Required, protocol};
use crate::format::{
    codec::{refusal_from_proto, refusal_to_proto},
    identity::Identity,
    raft::{Entry, LogId, Response, Types, Vote},
    raft_codec::{
        entry_from_record, entry_to_record, log_id_from_proto, log_id_to_proto, vote_from_proto,
        vote_to_proto,
    },
    record::RecordError,
};

fn missing(what: &str) -> RecordError {
    RecordError::Content(format!("{what} is missing"))
}

fn optional(id: Option<&LogId>) -> Option<pb::LogId> {
    id.map(log_id_to_proto)
}

fn vote(message: Option<pb::Vote>) -> Result<Vote, RecordError> {
    message.as_ref().map(vote_from_proto).ok_or_else(|| missing("the vote"))
}

/// Returns the Hello request of a replica.
pub(crate) fn hello(identity: Identity) -> pb::HelloRequest {
    let Identity { replica_id, instance, .. } = identity;
    pb::HelloRequest { from: replica_id, from_instance: Some(instance) }
}

/// Returns the header of a call of `identity` to a replica of which only the ID is known.
pub(crate) fn header(identity: Identity, to: u64) -> pb::Header {
    pb::Header {
        cluster_id: identity.cluster_id.to_vec().into(),
        incarnation: identity.incarnation.0,
        from: identity.replica_id,
        to,
        protocol: Some(protocol::own()),
        from_instance: Some(identity.instance),
        to_instance: 0,
        membership_id: None,
    }
}

/// Encodes an append request. `required` are the entries that the callee must have.
pub(crate) fn append_to_proto(
    header: pb::Header,
    request: &AppendEntriesRequest<Types>,
    required: Required,
) -> pb::AppendRequest {
    let entry = |entry: &Entry| pb::EntryRecord {
        index: entry.log_id.index,
        record: entry_to_record(entry).into(),
    };
    pb::AppendRequest {
        header: Some(header),
        vote: Some(vote_to_proto(&request.vote)),
        previous: optional(request.prev_log_id.as_ref()),
        entries: request.entries.iter().map(entry).collect(),
        leader_commit: optional(request.leader_commit.as_ref()),
        acknowledged: required.last,
        acknowledged_committed: required.committed,
    }
}

/// Decodes an append request. Verifies the checksums of its entries, and that their indexes are consecutive.
pub(crate) fn append_from_proto(
    message: pb::AppendRequest,
) -> Result<AppendEntriesRequest<Types>, RecordError> {
    let prev_log_id = message.previous.as_ref().map(log_id_from_proto);
    let mut next = prev_log_id.map_or(0, |id| id.index.saturating_add(1));
    let mut entries = Vec::with_capacity(message.entries.len());
    for pb::EntryRecord { index, record } in message.entries {
        if index != next {
            return Err(RecordError::Content(format!("entry {index} follows entry {}", next - 1)));
        }
        entries.push(entry_from_record(index, record)?);
        next = next.saturating_add(1);
    }
    Ok(AppendEntriesRequest {
        vote: vote(message.vote)?,
        prev_log_id,
        entries,
        leader_commit: message.leader_commit.as_ref().map(log_id_from_proto),
    })
}

/// Encodes the answer to an append request.
pub(crate) fn appended_to_proto(response: &AppendEntriesResponse<Types>) -> pb::AppendResponse {
    use pb::append_response::Result;
    let result = match response {
        AppendEntriesResponse::Success => Result::Appended(pb::Appended {}),
        AppendEntriesResponse::PartialSuccess(last) => {
            Result::Partly(pb::PartlyAppended { last: optional(last.as_ref()) })
        }
        AppendEntriesResponse::Conflict => Result::Conflict(pb::Conflict {}),
        AppendEntriesResponse::HigherVote(vote) => Result::HigherVote(vote_to_proto(vote)),
    };
    pb::AppendResponse { result: Some(result) }
}

/// Decodes the answer to an append request.
pub(crate) fn appended_from_proto(
    message: pb::AppendResponse,
) -> Result<AppendEntriesResponse<Types>, RecordError> {
    use pb::append_response::Result;
    Ok(match message.result.ok_or_else(|| missing("the result"))? {
        Result::Appended(_) => AppendEntriesResponse::Success,
        Result::Partly(partly) => {
            AppendEntriesResponse::PartialSuccess(partly.last.as_ref().map(log_id_from_proto))
        }
        Result::Conflict(_) => AppendEntriesResponse::Conflict,
        Result::HigherVote(vote) => AppendEntriesResponse::HigherVote(vote_from_proto(&vote)),
    })
}

/// Encodes a vote request.
pub(crate) fn vote_request_to_proto(
    header: pb::Header,
    request: &VoteRequest<Types>,
) -> pb::VoteRequest {
    pb::VoteRequest {
        header: Some(header),
        vote: Some(vote_to_proto(&request.vote)),
        last_log_id: optional(request.last_log_id.as_ref()),
        leadership_transfer: request.leadership_transfer,
    }
}

/// Decodes a vote request.
pub(crate) fn vote_request_from_proto(
    message: pb::VoteRequest,
) -> Result<VoteRequest<Types>, RecordError> {
    let last = message.last_log_id.as_ref().map(log_id_from_proto);
    let mut request = VoteRequest::new(vote(message.vote)?, last);
    request.leadership_transfer = message.leadership_transfer;
    Ok(request)
}

/// Encodes the answer to a vote request.
pub(crate) fn voted_to_proto(response: &VoteResponse<Types>) -> pb::VoteResponse {
    pb::VoteResponse {
        vote: Some(vote_to_proto(&response.vote)),
        granted: response.vote_granted,
        last_log_id: optional(response.last_log_id.as_ref()),
    }
}

/// Decodes the answer to a vote request.
pub(crate) fn voted_from_proto(
    message: pb::VoteResponse,
) -> Result<VoteResponse<Types>, RecordError> {
    let last = message.last_log_id.as_ref().map(log_id_from_proto);
    Ok(VoteResponse::new(vote(message.vote)?, last, message.granted))
}

/// Encodes a leadership transfer.
pub(crate) fn transfer_to_proto(
    header: pb::Header,
    request: &TransferLeaderRequest<Types>,
) -> pb::TransferLeaderRequest {
    pb::TransferLeaderRequest {
        header: Some(header),
        from_leader: Some(vote_to_proto(request.from_leader())),
        last_log_id: optional(request.last_log_id()),
        successor: *request.to_node_id(),
    }
}

/// Decodes a leadership transfer.
pub(crate) fn transfer_from_proto(
    message: pb::TransferLeaderRequest,
) -> Result<TransferLeaderRequest<Types>, RecordError> {
    let last = message.last_log_id.as_ref().map(log_id_from_proto);
    Ok(TransferLeaderRequest::new(vote(message.from_leader)?, message.successor, last))
}

/// Encodes the outcome of a write.
pub(crate) fn outcome_to_proto(response: &Response) -> pb::Outcome {
    use pb::outcome::Outcome as Message;
    let outcome = match response {
        Response::Done => None,
        Response::Forgotten => Some(Message::Forgotten(pb::ForgottenRequest {})),
        Response::Reused(revision) => {
            Some(Message::Reused(pb::ReusedRequest { revision: revision.0 }))
        }
        Response::Outcome(Outcome::Committed(summary)) => {
            Some(Message::Committed(summary_to_proto(summary)))
        }
        Response::Outcome(Outcome::Refused(refusal)) => {
            Some(Message::Refused(refusal_to_proto(refusal)))
        }
    };
    pb::Outcome { outcome }
}

/// Decodes the outcome of a write.
pub(crate) fn outcome_from_proto(message: pb::Outcome) -> Result<Response, RecordError> {
    use pb::outcome::Outcome as Message;
    Ok(match message.outcome {
        None => Response::Done,
        Some(Message::Forgotten(_)) => Response::Forgotten,
        Some(Message::Reused(other)) => Response::Reused(Revision(other.revision)),
        Some(Message::Committed(summary)) => {
            Response::Outcome(Outcome::Committed(summary_from_proto(&summary)))
        }
        Some(Message::Refused(refusal)) => {
            Response::Outcome(Outcome::Refused(refusal_from_proto(refusal)?))
        }
    })
}

fn summary_to_proto(summary: &Summary) -> pb::Summary {
    let Summary { revision, changed, removed, unchanged, assignments, access } = *summary;
    pb::Summary { revision: revision.0, changed, removed, unchanged, assignments, access }
}

fn summary_from_proto(message: &pb::Summary) -> Summary {
    let pb::Summary { revision, changed, removed, unchanged, assignments, access } = *message;
    Summary { revision: Revision(revision), changed, removed, unchanged, assignments, access }
}
