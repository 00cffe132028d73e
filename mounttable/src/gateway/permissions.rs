//! `/v1/perms`: the permissions of a node, in the form they have in files, with their version as ETag.

use axum::extract::State;
use ebla_proto::mounttable as wire;
use ebla_proto::mounttable::mount_table_server::MountTable;
use http::header::{self, HeaderName};
use http::{HeaderMap, StatusCode};

use crate::access::Permissions;
use crate::error::{Error, Reason};
use crate::gateway::ask::{Asked, Nothing, Sent, answered};
use crate::gateway::json::{Json, Rights};
use crate::gateway::refusal::Refusal;
use crate::service::{Service, messages};
use crate::store::{Store, Surroundings};

/// Shows them.
pub(super) async fn get<S: Store + Surroundings + Clone + 'static>(
    State(service): State<Service<S>>,
    asked: Asked<Nothing>,
) -> Result<([(HeaderName, String); 1], Json<Permissions>), Refusal> {
    let call = asked.call(wire::GetPermissionsRequest { name: asked.name.clone() });
    let Rights { permissions, etag } = answered(service.get_permissions(call)).await?.try_into()?;
    Ok(([(header::ETAG, format!("\"{etag}\""))], Json(permissions)))
}

/// Replaces them, if those of now are the ones that `If-Match` names, or whatever they are.
pub(super) async fn put<S: Store + Surroundings + Clone + 'static>(
    State(service): State<Service<S>>,
    asked: Asked<Nothing>,
    sent: Sent,
) -> Result<StatusCode, Refusal> {
    let etag = seen(&asked.headers)?.unwrap_or_default();
    let permissions = Some(messages::permissions_to_wire(&Permissions::from_json(sent.text()?)?));
    let call = asked.call(wire::SetPermissionsRequest { name: asked.name.clone(), permissions, etag });
    answered(service.set_permissions(call)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The version that the caller has seen, if the change is to depend on it.
///
/// # Errors
/// `BAD_REQUEST` for any other condition: one that is not looked at would be taken for one that holds.
fn seen(headers: &HeaderMap) -> Result<Option<String>, Error> {
    let wrong = || {
        let wrong = "a condition is If-Match with one ETag in quotation marks, as the answer to GET has it";
        Error::new(Reason::BadRequest, wrong)
    };
    if headers.contains_key(header::IF_NONE_MATCH) || headers.get_all(header::IF_MATCH).iter().count() > 1 {
        return Err(wrong());
    }
    let Some(value) = headers.get(header::IF_MATCH) else { return Ok(None) };
    let quoted = value.to_str().ok().and_then(|text| text.trim().strip_prefix('"')?.strip_suffix('"'));
    // An empty version means any to the call.
    let etag = quoted.filter(|etag| !etag.is_empty() && !etag.contains('"'));
    etag.map(|etag| Some(etag.to_owned())).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn a_condition_is_one_version_or_refused() {
        let seen_with = |name: HeaderName, value: &'static str| {
            seen(&HeaderMap::from_iter([(name, HeaderValue::from_static(value))])).map_err(|error| error.reason)
        };
        assert_eq!(seen(&HeaderMap::new()), Ok(None));
        assert_eq!(seen_with(header::IF_MATCH, "\"a.1\""), Ok(Some("a.1".to_owned())));
        for strange in ["", "*", "a.1", "\"\"", "W/\"a.1\"", "\"a.1\", \"a.2\""] {
            assert_eq!(seen_with(header::IF_MATCH, strange), Err(Reason::BadRequest), "{strange}");
        }
        assert_eq!(seen_with(header::IF_NONE_MATCH, "*"), Err(Reason::BadRequest));
    }
}
