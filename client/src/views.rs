//! Admin calls for authorized views.

use ebla_model::access::{AuthorizedView, ViewName};
use ebla_model::error::Error;
use ebla_model::schema::TableName;
use ebla_proto::admin;
use ebla_proto::admin::authorized_view::ResponseView;
use ebla_proto::admin::longrunning::{Operation, operation};
use ebla_proto::convert::view::{view_from_admin, view_to_admin};
use ebla_proto::status::from_rpc_status;
use tonic::{Response, Status};

use crate::admin::{Admin, into_message};

/// A view without its policy, and the etag of what was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredView {
    /// Its name.
    pub name: ViewName,
    /// What it includes; the policy is empty here: see [`Admin::policy`].
    pub view: AuthorizedView,
    /// Given with an update or a deletion, it makes that fail if the view has changed.
    pub etag: String,
}

impl Admin {
    /// Creates a view.
    ///
    /// # Errors
    /// `AlreadyExists`, `NotFoundTable`, `NotFoundFamily`, `InvalidArgument`, `ResourceExhausted`, `PermissionDenied`; `Unavailable` when
    /// nothing was done, `Deadline` when it may have been.
    pub async fn create_view(&self, name: &ViewName, view: &AuthorizedView) -> Result<(), Error> {
        let message = view_to_admin(name, view, String::new(), ResponseView::Full);
        let request = admin::CreateAuthorizedViewRequest {
            parent: name.table().to_string(),
            authorized_view_id: name.id().to_owned(),
            authorized_view: Some(message),
        };
        finished(self.tables().create_authorized_view(self.request(request)).await)
    }

    /// A view.
    ///
    /// # Errors
    /// `NotFound`, `NotFoundTable`, `PermissionDenied`; `Unavailable`.
    pub async fn view(&self, name: &ViewName) -> Result<StoredView, Error> {
        let request = admin::GetAuthorizedViewRequest { name: name.to_string(), view: ResponseView::Full.into() };
        let message = into_message(self.tables().get_authorized_view(self.request(request)).await)?;
        stored(message)
    }

    /// The names of all views of a table, ascending.
    ///
    /// # Errors
    /// `NotFoundTable`, `PermissionDenied`; `Unavailable`.
    pub async fn views(&self, table: &TableName) -> Result<Vec<ViewName>, Error> {
        let mut names = Vec::new();
        let mut page_token = String::new();
        loop {
            let request = admin::ListAuthorizedViewsRequest {
                parent: table.to_string(),
                page_token,
                view: ResponseView::NameOnly.into(),
                ..Default::default()
            };
            let page = into_message(self.tables().list_authorized_views(self.request(request)).await)?;
            for view in page.authorized_views {
                names.push(view.name.parse()?);
            }
            page_token = page.next_page_token;
            if page_token.is_empty() {
                return Ok(names);
            }
        }
    }

    /// Replaces what a view includes and its protection, unless it has changed since it was read.
    ///
    /// # Errors
    /// `Conflict` when it has changed; otherwise as [`Self::create_view`].
    pub async fn update_view(&self, next: &StoredView) -> Result<(), Error> {
        let message = view_to_admin(&next.name, &next.view, next.etag.clone(), ResponseView::Full);
        let request = admin::UpdateAuthorizedViewRequest {
            authorized_view: Some(message),
            update_mask: Some(prost_types::FieldMask { paths: vec!["*".to_owned()] }),
            ..Default::default()
        };
        finished(self.tables().update_authorized_view(self.request(request)).await)
    }

    /// Deletes a view with its policy.
    ///
    /// # Errors
    /// `NotFound`, `NotFoundTable`, `FailedPrecondition` when it is protected, `PermissionDenied`; `Unavailable` when nothing was done.
    pub async fn delete_view(&self, name: &ViewName) -> Result<(), Error> {
        let request = admin::DeleteAuthorizedViewRequest { name: name.to_string(), ..Default::default() };
        into_message(self.tables().delete_authorized_view(self.request(request)).await)
    }
}

fn stored(message: admin::AuthorizedView) -> Result<StoredView, Error> {
    Ok(StoredView { name: message.name.parse()?, view: view_from_admin(&message)?, etag: message.etag })
}

fn finished(response: Result<Response<Operation>, Status>) -> Result<(), Error> {
    match into_message(response)?.result {
        Some(operation::Result::Error(status)) => Err(from_rpc_status(&status)),
        _ => Ok(()),
    }
}
