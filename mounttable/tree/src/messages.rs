//! Values and errors as messages and statuses of `mounttable.v1`, for server and client.

use std::collections::{BTreeMap, HashMap};

use ebla_model::Micros;
use ebla_model::error::Reason as ModelReason;
use ebla_proto::mounttable as wire;
use ebla_proto::mounttable::dump_reply;
use ebla_proto::status::{from_status, tenant_reason, to_tenant_status};
use tonic::Status;

use crate::access::{AccessList, Permissions};
use crate::error::{Error, Reason};
use crate::identity::BlessingPattern;
use crate::store::{Cell, Family, Row, filters};

/// The header that carries a token, `Bearer TOKEN`.
pub const BEARER_HEADER: &str = "authorization";

/// The header that is believed in development: names, separated by commas. Without it a caller has no names.
pub const DEVELOPMENT_HEADER: &str = "mounttable-dev-identity";

/// The domain of reasons in error details.
pub const DOMAIN: &str = "mounttable";

/// The status of an error.
pub fn status(error: &Error) -> Status {
    to_tenant_status(DOMAIN, error.reason.name(), model_reason(error.reason), &error.message)
}

/// The error in a status. A status without one of our reasons comes from the connection, or from another kind of
/// server.
pub fn error(status: &Status) -> Error {
    if let Some(reason) = tenant_reason(status, DOMAIN).and_then(|name| Reason::from_name(&name)) {
        return Error::new(reason, status.message());
    }
    let (error, _) = from_status(status);
    let reason = match error.reason {
        ModelReason::Unimplemented => Reason::NotAMountTable,
        ModelReason::Cancelled => Reason::Cancelled,
        ModelReason::PermissionDenied => Reason::NoAccess,
        ModelReason::Unauthenticated => Reason::NotAuthenticated,
        ModelReason::InvalidArgument => Reason::BadRequest,
        ModelReason::DataDamaged => Reason::Damaged,
        _ => Reason::Unavailable,
    };
    Error::new(reason, error.message)
}

/// The storage's reason with the same gRPC code.
const fn model_reason(reason: Reason) -> ModelReason {
    match reason {
        Reason::NoSuchName | Reason::NoSuchNameRoot => ModelReason::NotFound,
        Reason::NoAccess | Reason::MatchesOmitted => ModelReason::PermissionDenied,
        Reason::NotAuthenticated => ModelReason::Unauthenticated,
        Reason::BadVersion | Reason::Contention => ModelReason::Conflict,
        Reason::BadAddress | Reason::BadName | Reason::BadPattern | Reason::BadPermissions | Reason::BadRequest => {
            ModelReason::InvalidArgument
        }
        Reason::NotEmpty
        | Reason::Root
        | Reason::FlagsConflict
        | Reason::ShadowedByMount
        | Reason::ReadOnly
        | Reason::NoMountTable
        | Reason::StorageRefused
        | Reason::DepthExceeded => ModelReason::FailedPrecondition,
        Reason::NodeQuota | Reason::ServerQuota => ModelReason::ResourceExhausted,
        Reason::NotAMountTable => ModelReason::Unimplemented,
        Reason::Damaged => ModelReason::DataDamaged,
        Reason::Cancelled => ModelReason::Cancelled,
        Reason::Unavailable => ModelReason::Unavailable,
    }
}

/// The error of one part of a reply.
pub fn failure(error: &Error) -> wire::Failure {
    wire::Failure { reason: error.reason.name().to_owned(), message: error.message.clone() }
}

/// The error in one part of a reply. An unknown reason becomes `UNAVAILABLE`.
pub fn error_in(failure: wire::Failure) -> Error {
    Error::new(Reason::from_name(&failure.reason).unwrap_or(Reason::Unavailable), failure.message)
}

/// A stored row as a message of a dump.
pub fn cells(row: Row) -> Vec<dump_reply::Cell> {
    let cell = |((family, column), cell): ((Family, String), Cell)| dump_reply::Cell {
        family: filters::name(family).to_owned(),
        column,
        timestamp_micros: cell.timestamp.get(),
        value: cell.value,
    };
    row.into_iter().map(cell).collect()
}

/// The row of a dump message.
///
/// # Errors
/// `BAD_REQUEST` for an unknown family.
pub fn row(cells: Vec<dump_reply::Cell>) -> Result<Row, Error> {
    let cell = |message: dump_reply::Cell| {
        let wrong = || Error::new(Reason::BadRequest, format!("unknown column family {:?}", message.family));
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
        let texts = |patterns: &mut dyn Iterator<Item = &BlessingPattern>| {
            patterns.map(|pattern| pattern.as_str().to_owned()).collect()
        };
        let message = wire::AccessList { r#in: texts(&mut list.allowed()), not_in: texts(&mut list.denied()) };
        (tag, message)
    };
    wire::Permissions { lists: lists.into_iter().map(list).collect::<HashMap<_, _>>() }
}

/// The permissions in a message.
///
/// # Errors
/// `BAD_PERMISSIONS`, as for their JSON.
pub fn permissions_from_wire(message: &wire::Permissions) -> Result<Permissions, Error> {
    let lists = message.lists.iter().map(|(tag, list)| {
        let [allowed, denied] = [&list.r#in, &list.not_in].map(|texts| texts.iter().map(String::as_str));
        (tag.clone(), AccessList::new(allowed, denied))
    });
    let permissions = Permissions::try_from(lists.collect::<BTreeMap<_, _>>())?;
    // The size limit applies to the stored form.
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

    #[test]
    fn permissions_survive_a_hop() {
        let text = r#"{"Admin":{"In":["root"],"NotIn":["mallory"]},"%%/%%/Read":{"In":["%%"]}}"#;
        let permissions = Permissions::from_json(text).unwrap();
        assert_eq!(permissions_from_wire(&permissions_to_wire(&permissions)).unwrap(), permissions);
        let unknown = wire::Permissions { lists: [("Fly".to_owned(), wire::AccessList::default())].into() };
        assert_eq!(permissions_from_wire(&unknown).unwrap_err().reason, Reason::BadPermissions);
    }
}
