//! Messages to values and back, errors to statuses and back.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use ebla_model::Micros;
use ebla_model::error::Reason as Like;
use ebla_proto::mounttable as wire;
use ebla_proto::mounttable::dump_reply;
use ebla_proto::status::{from_status, tenant_reason, to_tenant_status};
use tonic::Status;

use crate::access::{AccessList, Permissions};
use crate::error::{Error, Reason};
use crate::identity::Caller;
use crate::mount::{Deadline, MountMode, MountedServer, Target};
use crate::store::{Cell, Family, Freshness, Row, filters};
use crate::table::{Found, Mount, Resolved};

/// The domain of the reasons in errors' details.
pub const DOMAIN: &str = "mounttable";

/// The status of an error.
pub fn status(error: &Error) -> Status {
    to_tenant_status(DOMAIN, error.reason.name(), like(error.reason), &error.message)
}

/// The error that a status tells. One without a reason of ours comes from the connection, or from something else that
/// answered.
pub fn error(status: &Status) -> Error {
    if let Some(reason) = tenant_reason(status, DOMAIN).and_then(|name| Reason::from_name(&name)) {
        return Error::new(reason, status.message());
    }
    let (error, _) = from_status(status);
    let reason = match error.reason {
        Like::Unimplemented => Reason::NotAMountTable,
        Like::Cancelled => Reason::Cancelled,
        Like::PermissionDenied => Reason::NoAccess,
        Like::Unauthenticated => Reason::NotAuthenticated,
        Like::InvalidArgument => Reason::BadRequest,
        _ => Reason::Unavailable,
    };
    Error::new(reason, error.message)
}

/// Which of the storage's reasons says the same to a caller who knows codes only.
const fn like(reason: Reason) -> Like {
    match reason {
        Reason::NoSuchName | Reason::NoSuchNameRoot => Like::NotFound,
        Reason::NoAccess | Reason::MatchesOmitted => Like::PermissionDenied,
        Reason::NotAuthenticated => Like::Unauthenticated,
        Reason::BadVersion | Reason::Contention => Like::Conflict,
        Reason::BadAddress | Reason::BadName | Reason::BadPattern | Reason::BadPermissions | Reason::BadRequest => {
            Like::InvalidArgument
        }
        Reason::NotEmpty
        | Reason::Root
        | Reason::FlagsConflict
        | Reason::ShadowedByMount
        | Reason::ReadOnly
        | Reason::NoMountTable
        | Reason::DepthExceeded => Like::FailedPrecondition,
        Reason::NodeQuota | Reason::ServerQuota => Like::ResourceExhausted,
        Reason::NotAMountTable => Like::Unimplemented,
        Reason::Damaged => Like::DataDamaged,
        Reason::Cancelled => Like::Cancelled,
        Reason::Unavailable => Like::Unavailable,
    }
}

pub(super) fn failure(error: &Error) -> wire::Failure {
    wire::Failure { reason: error.reason.name().to_owned(), message: error.message.clone() }
}

/// The error that a part of an answer tells, while the rest of it stands. A reason that is not known here is `UNAVAILABLE`.
pub fn error_in(failure: wire::Failure) -> Error {
    Error::new(Reason::from_name(&failure.reason).unwrap_or(Reason::Unavailable), failure.message)
}

/// Microseconds since the Unix epoch; nothing when there is no deadline.
pub(super) fn deadline(deadline: Deadline) -> Option<i64> {
    (deadline != Deadline::FOREVER).then(|| deadline.as_micros().get())
}

pub(super) fn server(server: &MountedServer, address: String) -> wire::Server {
    wire::Server {
        address,
        deadline_micros: deadline(server.deadline),
        serves_mount_table: server.target == Target::MountTable,
        is_leaf: server.target == Target::Leaf,
    }
}

fn entry(name: String, servers: Vec<wire::Server>, has_children: bool) -> wire::Entry {
    let serves_mount_table = servers.iter().any(|server| server.serves_mount_table);
    let is_leaf = servers.iter().any(|server| server.is_leaf);
    wire::Entry { name, servers, serves_mount_table, is_leaf, has_children, stale: false }
}

/// The answer to a caller: `max` servers, 0 for all, in an order that is always the same for him and another one for
/// others, so that callers spread over the servers and each stays with his.
pub(super) fn resolved(found: &Resolved, caller: &Caller, max: u32) -> wire::Entry {
    let mut his = DefaultHasher::new();
    his.write(caller.names.first().map_or("", |name| name.as_str()).as_bytes());
    let rank = |one: &MountedServer| {
        let mut hasher = his.clone();
        one.address.as_str().hash(&mut hasher);
        hasher.finish()
    };
    let mut ranked: Vec<_> = found.servers.iter().map(|one| (rank(one), one)).collect();
    if let Ok(max @ 1..) = usize::try_from(max)
        && max < ranked.len()
    {
        ranked.select_nth_unstable_by_key(max, |(rank, _)| *rank);
        ranked.truncate(max);
    }
    ranked.sort_unstable_by_key(|(rank, one)| (*rank, one.address.as_str()));
    let servers = ranked.into_iter().map(|(_, one)| server(one, one.address.to_string())).collect();
    let stale = found.freshness == Freshness::Stale;
    wire::Entry { stale, ..entry(found.suffix.clone(), servers, false) }
}

/// An entry of a listing. A server that hides the receiver is told with what is left of its name.
pub(super) fn found(found: &Found) -> wire::Entry {
    let servers = found.servers.iter().map(|one| server(one, one.address.with_suffix(&found.suffix))).collect();
    entry(found.name.clone(), servers, found.has_children)
}

/// What is to be mounted.
///
/// # Errors
/// `BAD_ADDRESS`; `BAD_REQUEST` when the server is to be a mount table and a leaf.
pub(super) fn mount(message: &wire::MountRequest) -> Result<Mount, Error> {
    if message.serves_mount_table && message.is_leaf {
        return Err(Error::new(Reason::BadRequest, "a mount table is no leaf"));
    }
    Ok(Mount {
        address: message.server.parse()?,
        target: Target::of(message.serves_mount_table, message.is_leaf),
        ttl: Duration::from_millis(message.ttl_millis),
        mode: if message.replace { MountMode::Replace } else { MountMode::Add },
    })
}

/// A stored row as a dump tells it.
pub fn cells(row: Row) -> Vec<dump_reply::Cell> {
    let cell = |((family, column), cell): ((Family, String), Cell)| dump_reply::Cell {
        family: filters::name(family).to_owned(),
        column,
        timestamp_micros: cell.timestamp.get(),
        value: cell.value,
    };
    row.into_iter().map(cell).collect()
}

/// The stored row that a dump tells of.
///
/// # Errors
/// `BAD_REQUEST` when no table has such a cell.
pub fn row(cells: Vec<dump_reply::Cell>) -> Result<Row, Error> {
    let cell = |message: dump_reply::Cell| {
        let wrong = || Error::new(Reason::BadRequest, format!("no table has a family {:?}", message.family));
        let family = filters::family(&message.family).ok_or_else(wrong)?;
        let timestamp = Micros::new(message.timestamp_micros);
        Ok(((family, message.column), Cell { timestamp, value: message.value }))
    };
    cells.into_iter().map(cell).collect()
}

/// Permissions as a message.
pub fn permissions_to_wire(permissions: &Permissions) -> wire::Permissions {
    let lists: BTreeMap<String, AccessList> = permissions.clone().into();
    let list = |(tag, list): (String, AccessList)| {
        let texts = |patterns: &mut dyn Iterator<Item = &crate::identity::BlessingPattern>| {
            patterns.map(|pattern| pattern.as_str().to_owned()).collect()
        };
        let message = wire::AccessList { r#in: texts(&mut list.let_in()), not_in: texts(&mut list.kept_out()) };
        (tag, message)
    };
    wire::Permissions { lists: lists.into_iter().map(list).collect::<HashMap<_, _>>() }
}

/// The permissions of a message.
///
/// # Errors
/// `BAD_PERMISSIONS`, as for their JSON.
pub fn permissions_from_wire(message: &wire::Permissions) -> Result<Permissions, Error> {
    let lists = message.lists.iter().map(|(tag, list)| {
        let [let_in, kept_out] = [&list.r#in, &list.not_in].map(|texts| texts.iter().map(String::as_str));
        (tag.clone(), AccessList::new(let_in, kept_out))
    });
    let permissions = Permissions::try_from(lists.collect::<BTreeMap<_, _>>())?;
    // The bound is one of what is stored.
    Permissions::from_json(&permissions.to_json())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_survives_a_hop() {
        for reason in Reason::ALL {
            let sent = Error::new(*reason, "said so");
            assert_eq!(error(&status(&sent)), sent);
        }
        assert_eq!(error(&Status::unimplemented("what?")).reason, Reason::NotAMountTable);
    }

    /// T116
    #[test]
    fn an_answer_says_that_it_is_old() {
        let caller = Caller::new(Vec::new(), &[]);
        for (freshness, stale) in [(Freshness::Recent, false), (Freshness::Stale, true)] {
            let found = Resolved { servers: Vec::new(), suffix: "x".to_owned(), freshness };
            assert_eq!(resolved(&found, &caller, 0).stale, stale);
        }
    }

    #[test]
    fn permissions_survive_a_hop() {
        let text = r#"{"Admin":{"In":["root"],"NotIn":["mallory"]},"%%/%%/Read":{"In":["%%"]}}"#;
        let permissions = Permissions::from_json(text).unwrap();
        assert_eq!(permissions_from_wire(&permissions_to_wire(&permissions)).unwrap(), permissions);
        let unknown = wire::Permissions { lists: [("Fly".to_owned(), wire::AccessList::default())].into() };
        assert_eq!(permissions_from_wire(&unknown).unwrap_err().reason, Reason::BadPermissions);
    }
}
