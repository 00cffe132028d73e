//! Changes: login and logout, a drain, a cell. Only forms of this site are accepted, and each change has the viewer's identity.
//!
//! Without `--console-admin` there are only login and logout, which change nothing in the cluster.

use bytes::Bytes;
use ebla_client::admin::ExecutionMode;
use ebla_client::{Admin, BearerToken, encoding};
use ebla_model::error::{Error, Reason};
use ebla_model::id::ServerId;
use ebla_model::mutation::{Mutation, WriteTime};
use ebla_runtime::Runtime;
use ebla_runtime::http_port::{SiteBody, SiteRequest};
use http::{HeaderValue, Response, header};

use crate::context::{Actions, ConsoleConfig, Context, accepts_identity, table_name};
use crate::html::Path;
use crate::request::PageRequest;
use crate::site::see_other;
use crate::viewer::{is_same_origin, remove_cookie, set_cookie};

/// Stores the token of the form in a cookie, if the cluster accepts it.
///
/// # Errors
/// `Unauthenticated` for an invalid token; `PermissionDenied` for a form of another site; `Unavailable` when this process does not serve.
pub(crate) async fn login(
    config: &ConsoleConfig,
    runtime: &Runtime,
    request: &SiteRequest,
    form: &PageRequest,
) -> Result<Response<SiteBody>, Error> {
    check_origin(request)?;
    let given = form.get("token").unwrap_or_default().trim();
    let cookie = set_cookie(given, request.scheme);
    let cookie =
        cookie.ok_or_else(|| Error::new(Reason::Unauthenticated, "this is no token: `ebla token issue` makes one"))?;
    // As for pages: the call goes to the tablet server of this process.
    let token = BearerToken::new(given)?.allow_plaintext();
    let admin = Admin::connect(&config.api, runtime).with_token(Some(token));
    accepts_identity(&admin).await?;
    Ok(with_cookie(see_other(&Path::of(&[])), &cookie))
}

/// Carries out a change, and returns the page that shows it.
///
/// # Errors
/// `PermissionDenied` for a form of another site, and while pages only show; otherwise those of the change.
pub(crate) async fn act(
    context: &Context,
    request: &SiteRequest,
    form: &PageRequest,
) -> Result<Response<SiteBody>, Error> {
    check_origin(request)?;
    let path = form.path();
    if path == ["logout"] {
        return Ok(with_cookie(see_other(&Path::of(&[])), &remove_cookie()));
    }
    if context.config().actions == Actions::ReadOnly {
        let message = "this console only shows: start the process with --console-admin to change something here, or use the command";
        return Err(Error::new(Reason::PermissionDenied, message));
    }
    match path.as_slice() {
        ["servers", server, change @ ("drain" | "undrain")] => {
            let number = server.parse().map_err(|_| Error::invalid(format!("{server} is no number of a server")))?;
            let (admin, number) = (context.admin(), ServerId::new(number));
            if *change == "drain" {
                let _progress = admin.drain_server(ExecutionMode::Execute, number).await?;
            } else {
                let _was_drained = admin.undrain_server(ExecutionMode::Execute, number).await?;
            }
            Ok(see_other(&Path::of(&["servers", server])))
        }
        ["tables", table, "data"] => {
            let key = form.key("key")?.ok_or_else(|| Error::invalid("the key is missing"))?;
            context.data().table(&table_name(table)?).mutate_row(&key, &[cell(form)?]).await?;
            Ok(see_other(&Path::of(&path).with("prefix", form.get("key").unwrap_or_default())))
        }
        _ => Err(Error::new(Reason::NotFound, "there is no such change")),
    }
}

/// The cell of a form, with the server's time.
fn cell(form: &PageRequest) -> Result<Mutation, Error> {
    let column = form.get("column").unwrap_or_default();
    let (family, qualifier) = column.split_once(':').ok_or_else(|| Error::invalid("the column is FAMILY:QUALIFIER"))?;
    let bytes = |text: &str| encoding::unescape(text).map_err(Error::invalid);
    let given = form.get("value").unwrap_or_default();
    let value = match form.get("type") {
        Some("hex") => encoding::parse_hex(given).map_err(Error::invalid)?,
        Some("int64") => {
            let number: i64 = given.parse().map_err(|_| Error::invalid(format!("{given:?} is no 64-bit number")))?;
            Bytes::copy_from_slice(&number.to_be_bytes())
        }
        _ => bytes(given)?,
    };
    Ok(Mutation::SetCell {
        family: family.to_owned(),
        qualifier: bytes(qualifier)?,
        timestamp: WriteTime::Server,
        value,
    })
}

fn check_origin(request: &SiteRequest) -> Result<(), Error> {
    let message = "the form is of another site: open this console and repeat the change there";
    is_same_origin(&request.head.headers).then_some(()).ok_or_else(|| Error::new(Reason::PermissionDenied, message))
}

fn with_cookie(mut response: Response<SiteBody>, cookie: &str) -> Response<SiteBody> {
    if let Ok(mut value) = HeaderValue::from_str(cookie) {
        value.set_sensitive(true);
        response.headers_mut().insert(header::SET_COOKIE, value);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(query: &str) -> Result<Bytes, String> {
        let form = PageRequest::parse(&format!("/?{query}"), "").unwrap();
        match cell(&form).map_err(|error| error.message)? {
            Mutation::SetCell { family, qualifier, value, .. } => {
                assert_eq!((family.as_str(), &qualifier[..]), ("f", &b"q:\xff"[..]));
                Ok(value)
            }
            other => Err(format!("{other:?}")),
        }
    }

    #[test]
    fn the_value_of_a_cell_is_text_or_hexadecimal_or_a_number() {
        let column = "column=f:q:%5Cxff";
        assert_eq!(value(&format!("{column}&value=a+b")).unwrap(), "a b");
        assert_eq!(value(&format!("{column}&value=00ff&type=hex")).unwrap(), &b"\x00\xff"[..]);
        assert_eq!(value(&format!("{column}&value=-2&type=int64")).unwrap(), &(-2_i64).to_be_bytes()[..]);
        assert_eq!(value(column).unwrap(), "");
        assert!(value(&format!("{column}&value=0&type=hex")).is_err() && value("column=f").is_err());
        assert!(value(&format!("{column}&value=x&type=int64")).unwrap_err().contains("64-bit"));
    }
}
