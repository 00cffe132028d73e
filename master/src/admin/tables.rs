//! google.bigtable.admin.v2.BigtableTableAdmin: parses requests, runs changes, and converts results.

use std::collections::BTreeMap;

use ebla_model::admin::instance::InstanceName;
use ebla_model::error::Error;
use ebla_model::schema::{TableName, TableSchema, TableState};
use ebla_proto::admin::{self, longrunning};
use ebla_proto::convert::admin::{TableView, table_to_admin};
use ebla_proto::convert::instance::{CLUSTER_NAME, timestamp};
use ebla_proto::services::bigtable_table_admin_server::BigtableTableAdmin;
use tonic::{Request, Response, Status};

use super::handle::{MasterHandle, to_response};
use super::page::{PageRequest, page};
use super::{policies, request, update, views};
use crate::active::ActiveMaster;
use crate::{instances, jobs, operations, schema_store};

/// The service, on an active master or a standby.
#[derive(Debug)]
pub(crate) struct Tables {
    handle: MasterHandle,
}

impl Tables {
    pub(crate) const fn new(handle: MasterHandle) -> Self {
        Self { handle }
    }

    async fn get(&self, request: admin::GetTableRequest) -> Result<admin::Table, Error> {
        let view = TableView::from_number(request.view, TableView::Schema)?;
        let schema = self.active(&request.name).await?;
        let instance = InstanceName::from_parts(schema.name.project(), schema.name.instance())?;
        let cluster = cluster_in(&self.handle.active()?, view, &instance).await?;
        Ok(table_to_admin(&schema, view, &cluster))
    }

    async fn list(&self, request: admin::ListTablesRequest) -> Result<admin::ListTablesResponse, Error> {
        let master = self.handle.active()?;
        let parent: InstanceName = request.parent.parse()?;
        let view = TableView::from_number(request.view, TableView::Name)?;
        let all = schema_store::list_tables(master.chubby()).await?.into_values();
        let shown = all.filter(|schema| schema.state == TableState::Active && schema.name.is_in(&parent));
        let named: BTreeMap<_, _> = shown.map(|schema| (schema.name.to_string(), schema)).collect();
        let prefix = format!("{parent}/tables/");
        let page_request = PageRequest { prefix: &prefix, size: request.page_size, token: &request.page_token };
        let (schemas, next_page_token) = page(named, page_request)?;
        let cluster = cluster_in(&master, view, &parent).await?;
        let tables = schemas.iter().map(|schema| table_to_admin(schema, view, &cluster)).collect();
        Ok(admin::ListTablesResponse { tables, next_page_token })
    }

    async fn active(&self, name: &str) -> Result<TableSchema, Error> {
        let master = self.handle.active()?;
        let name: TableName = name.parse()?;
        Ok(jobs::update_schema::find_active(master.chubby(), &name).await?.value)
    }
}

/// The name of the instance's cluster, for the views that show it.
async fn cluster_in(master: &ActiveMaster, view: TableView, instance: &InstanceName) -> Result<String, Error> {
    match view {
        TableView::Replication | TableView::Encryption | TableView::Full => {
            Ok(instances::cluster_name(instances::find(master, instance).await?.as_ref()).to_owned())
        }
        TableView::Name | TableView::Schema | TableView::Stats => Ok(CLUSTER_NAME.to_owned()),
    }
}

/// A table as responses to changes show it.
fn schema_view(schema: &TableSchema) -> admin::Table {
    table_to_admin(schema, TableView::Schema, CLUSTER_NAME)
}

#[tonic::async_trait]
impl BigtableTableAdmin for Tables {
    async fn create_table(
        &self,
        request: Request<admin::CreateTableRequest>,
    ) -> Result<Response<admin::Table>, Status> {
        let outcome = async {
            let new = request::new_table(request.into_inner())?;
            let create = |master, deadline| async move { jobs::create::create_table(&master, new, deadline).await };
            Ok(schema_view(&self.handle.run_change(create).await?))
        };
        to_response(outcome.await)
    }

    async fn get_table(&self, request: Request<admin::GetTableRequest>) -> Result<Response<admin::Table>, Status> {
        to_response(self.get(request.into_inner()).await)
    }

    async fn list_tables(
        &self,
        request: Request<admin::ListTablesRequest>,
    ) -> Result<Response<admin::ListTablesResponse>, Status> {
        to_response(self.list(request.into_inner()).await)
    }

    async fn update_table(
        &self,
        request: Request<admin::UpdateTableRequest>,
    ) -> Result<Response<longrunning::Operation>, Status> {
        let outcome = async {
            let (name, update) = update::update(request.into_inner())?;
            let change = |master: ActiveMaster, deadline| async move {
                let start_time = Some(timestamp(master.runtime().clock.wall()));
                let updated = |schema: &TableSchema| Ok(schema.update(update));
                let schema = jobs::update_schema::change_schema(&master, &name, updated, deadline).await?;
                let end_time = Some(timestamp(master.runtime().clock.wall()));
                let metadata = admin::UpdateTableMetadata { name: name.to_string(), start_time, end_time };
                operations::store(&master, name.as_str(), &metadata, &schema_view(&schema)).await
            };
            self.handle.run_change(change).await
        };
        to_response(outcome.await)
    }

    async fn delete_table(&self, request: Request<admin::DeleteTableRequest>) -> Result<Response<()>, Status> {
        let outcome = async {
            let name: TableName = request.into_inner().name.parse()?;
            let delete = |master, deadline| async move { jobs::delete::delete_table(&master, &name, deadline).await };
            self.handle.run_change(delete).await
        };
        to_response(outcome.await)
    }

    async fn modify_column_families(
        &self,
        request: Request<admin::ModifyColumnFamiliesRequest>,
    ) -> Result<Response<admin::Table>, Status> {
        let outcome = async {
            let request = request.into_inner();
            let name: TableName = request.name.parse()?;
            let changes = request::changes(request.modifications)?;
            let change = |master, deadline| async move {
                jobs::update_schema::change_schema(&master, &name, |schema| schema.apply(&changes), deadline).await
            };
            Ok(schema_view(&self.handle.run_change(change).await?))
        };
        to_response(outcome.await)
    }

    async fn drop_row_range(&self, request: Request<admin::DropRowRangeRequest>) -> Result<Response<()>, Status> {
        let outcome = async {
            let request = request.into_inner();
            let name: TableName = request.name.parse()?;
            let Some(range) = request::drop_range(request.target)? else {
                return self.active(name.as_str()).await.map(drop);
            };
            let drop =
                |master, deadline| async move { jobs::drop_range::drop_range(&master, &name, range, deadline).await };
            self.handle.run_change(drop).await
        };
        to_response(outcome.await)
    }

    async fn create_authorized_view(
        &self,
        request: Request<admin::CreateAuthorizedViewRequest>,
    ) -> Result<Response<longrunning::Operation>, Status> {
        to_response(views::create(&self.handle, request.into_inner()).await)
    }

    async fn list_authorized_views(
        &self,
        request: Request<admin::ListAuthorizedViewsRequest>,
    ) -> Result<Response<admin::ListAuthorizedViewsResponse>, Status> {
        to_response(views::list(&self.handle, request.into_inner()).await)
    }

    async fn get_authorized_view(
        &self,
        request: Request<admin::GetAuthorizedViewRequest>,
    ) -> Result<Response<admin::AuthorizedView>, Status> {
        to_response(views::get(&self.handle, request.into_inner()).await)
    }

    async fn update_authorized_view(
        &self,
        request: Request<admin::UpdateAuthorizedViewRequest>,
    ) -> Result<Response<longrunning::Operation>, Status> {
        to_response(views::update(&self.handle, request.into_inner()).await)
    }

    async fn delete_authorized_view(
        &self,
        request: Request<admin::DeleteAuthorizedViewRequest>,
    ) -> Result<Response<()>, Status> {
        to_response(views::delete(&self.handle, request.into_inner()).await)
    }

    async fn generate_consistency_token(
        &self,
        request: Request<admin::GenerateConsistencyTokenRequest>,
    ) -> Result<Response<admin::GenerateConsistencyTokenResponse>, Status> {
        let table = self.active(&request.into_inner().name).await;
        to_response(table.map(|schema| admin::GenerateConsistencyTokenResponse {
            consistency_token: request::consistency_token(schema.table),
        }))
    }

    async fn check_consistency(
        &self,
        request: Request<admin::CheckConsistencyRequest>,
    ) -> Result<Response<admin::CheckConsistencyResponse>, Status> {
        let outcome = async {
            let request = request.into_inner();
            let schema = self.active(&request.name).await?;
            request::check_token(&request.consistency_token, schema.table)?;
            Ok(admin::CheckConsistencyResponse { consistent: true })
        };
        to_response(outcome.await)
    }

    async fn get_iam_policy(
        &self,
        request: Request<admin::iam::GetIamPolicyRequest>,
    ) -> Result<Response<admin::iam::Policy>, Status> {
        policies::answer_get(&self.handle, request).await
    }

    async fn set_iam_policy(
        &self,
        request: Request<admin::iam::SetIamPolicyRequest>,
    ) -> Result<Response<admin::iam::Policy>, Status> {
        policies::answer_set(&self.handle, request).await
    }

    async fn test_iam_permissions(
        &self,
        request: Request<admin::iam::TestIamPermissionsRequest>,
    ) -> Result<Response<admin::iam::TestIamPermissionsResponse>, Status> {
        policies::answer_test(request)
    }
}
