//! `/v1/perms`: the permissions of a node, in the format of files, with their version as ETag.

use axum::extract::State;
use ebla_mounttable_tree::access::Permissions;
use ebla_mounttable_tree::error::{Error, Reason};
use ebla_mounttable_tree::store::{Environment, Store};
use ebla_proto::mounttable as wire;
use ebla_proto::mounttable::mount_table_server::MountTable;
use http::header::{self, HeaderName};
use http::{HeaderMap, StatusCode};

use crate::gateway::http_error::HttpError;
use crate::gateway::json::{Json, PermissionsBody};
use crate::gateway::request::{NoQuery, ParsedRequest, RequestBody, await_reply};
use crate::service::{Service, messages};

/// Returns them.
pub(super) async fn get<S: Store + Environment + Clone + 'static>(
    State(service): State<Service<S>>,
    request: ParsedRequest<NoQuery>,
) -> Result<([(HeaderName, String); 1], Json<Permissions>), HttpError> {
    let call = request.call(wire::GetPermissionsRequest { name: request.name.clone() });
    let PermissionsBody { permissions, etag } = await_reply(service.get_permissions(call)).await?.try_into()?;
    Ok(([(header::ETAG, format!("\"{etag}\""))], Json(permissions)))
}

/// Replaces them: only the version in `If-Match`, or any.
pub(super) async fn put<S: Store + Environment + Clone + 'static>(
    State(service): State<Service<S>>,
    request: ParsedRequest<NoQuery>,
    body: RequestBody,
) -> Result<StatusCode, HttpError> {
    let etag = seen(&request.headers)?.unwrap_or_default();
    let permissions = Some(messages::permissions_to_wire(&Permissions::from_json(body.text()?)?));
    let call = request.call(wire::SetPermissionsRequest { name: request.name.clone(), permissions, etag });
    await_reply(service.set_permissions(call)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The version that the change depends on, if any.
///
/// # Errors
/// `BAD_REQUEST` for any other condition: ignoring one would make the change unconditional.
fn seen(headers: &HeaderMap) -> Result<Option<String>, Error> {
    let wrong = || {
        let wrong = "a condition must be If-Match with one quoted ETag, as in the response to GET";
        Error::new(Reason::BadRequest, wrong)
    };
    if headers.contains_key(header::IF_NONE_MATCH) || headers.get_all(header::IF_MATCH).iter().count() > 1 {
        return Err(wrong());
    }
    let Some(value) = headers.get(header::IF_MATCH) else { return Ok(None) };
    let quoted = value.to_str().ok().and_then(|text| text.trim().strip_prefix('"')?.strip_suffix('"'));
    // In the gRPC call an empty version means any.
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
