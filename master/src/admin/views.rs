//! Requests about authorized views: parsed, carried out by [`crate::views`], and answered.
//!
//! Creation and update are long-running operations in the API; here they have finished when their call returns. The metadata of an operation
//! names the request without its view, because the last hundred operations are stored.

use ebla_model::access::ViewName;
use ebla_model::error::Error;
use ebla_model::schema::TableName;
use ebla_proto::admin::authorized_view::ResponseView;
use ebla_proto::admin::{self, longrunning};
use ebla_proto::convert::instance::timestamp;
use ebla_proto::convert::view::{response_view, view_from_admin};

use super::handle::MasterHandle;
use super::page::{PageRequest, page};
use crate::active::ActiveMaster;
use crate::{operations, views};

pub(super) async fn create(
    handle: &MasterHandle,
    request: admin::CreateAuthorizedViewRequest,
) -> Result<longrunning::Operation, Error> {
    let name = ViewName::new(request.parent.parse()?, &request.authorized_view_id)?;
    let given = request.authorized_view.ok_or_else(|| Error::invalid("authorized_view is missing"))?;
    if !given.name.is_empty() && given.name != name.to_string() {
        return Err(Error::invalid(format!("authorized_view.name is not that of the authorized view, {name}")));
    }
    let view = view_from_admin(&given)?;
    let original = admin::CreateAuthorizedViewRequest { authorized_view: None, ..request };
    let change = |master: ActiveMaster, _deadline| async move {
        let request_time = Some(timestamp(master.runtime().clock.wall()));
        let created = views::create(&master, &name, &view).await?;
        let finish_time = Some(timestamp(master.runtime().clock.wall()));
        let metadata =
            admin::CreateAuthorizedViewMetadata { original_request: Some(original), request_time, finish_time };
        operations::store(&master, &name.to_string(), &metadata, &created).await
    };
    handle.run_change(change).await
}

pub(super) async fn list(
    handle: &MasterHandle,
    request: admin::ListAuthorizedViewsRequest,
) -> Result<admin::ListAuthorizedViewsResponse, Error> {
    let master = handle.active()?;
    let table: TableName = request.parent.parse()?;
    let shown = response_view(request.view, ResponseView::NameOnly)?;
    let views = views::list(&master, &table, shown).await?;
    let prefix = format!("{table}/authorizedViews/");
    let page_request = PageRequest { prefix: &prefix, size: request.page_size, token: &request.page_token };
    let (authorized_views, next_page_token) = page(views, page_request)?;
    Ok(admin::ListAuthorizedViewsResponse { authorized_views, next_page_token })
}

pub(super) async fn get(
    handle: &MasterHandle,
    request: admin::GetAuthorizedViewRequest,
) -> Result<admin::AuthorizedView, Error> {
    let shown = response_view(request.view, ResponseView::Basic)?;
    views::get(&handle.active()?, &request.name.parse()?, shown).await
}

pub(super) async fn update(
    handle: &MasterHandle,
    request: admin::UpdateAuthorizedViewRequest,
) -> Result<longrunning::Operation, Error> {
    let missing = || Error::invalid("authorized_view is missing: name the one to update");
    let update = request.authorized_view.ok_or_else(missing)?;
    let name: ViewName = update.name.parse()?;
    let mask = request.update_mask.clone().map(|mask| mask.paths).unwrap_or_default();
    let original = admin::UpdateAuthorizedViewRequest { authorized_view: None, ..request };
    let change = |master: ActiveMaster, _deadline| async move {
        let request_time = Some(timestamp(master.runtime().clock.wall()));
        let updated = views::update(&master, &name, &update, &mask).await?;
        let finish_time = Some(timestamp(master.runtime().clock.wall()));
        let metadata =
            admin::UpdateAuthorizedViewMetadata { original_request: Some(original), request_time, finish_time };
        operations::store(&master, &name.to_string(), &metadata, &updated).await
    };
    handle.run_change(change).await
}

pub(super) async fn delete(handle: &MasterHandle, request: admin::DeleteAuthorizedViewRequest) -> Result<(), Error> {
    let name: ViewName = request.name.parse()?;
    let change = |master: ActiveMaster, _deadline| async move { views::delete(&master, &name, &request.etag).await };
    handle.run_change(change).await
}
