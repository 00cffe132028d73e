//! google.bigtable.admin.v2.BigtableTableAdmin: a shell that parses, hands over and answers.
//!
//! A change goes on when its caller has gone: the work is a task of the term, and the call only waits for it.

use std::future::Future;
use std::time::Duration;

use ebla_client::Deadline;
use ebla_model::error::{Error, Reason};
use ebla_model::schema::{TableName, TableSchema, TableState};
use ebla_proto::admin::{self, table::View};
use ebla_proto::convert::admin::table_to_admin;
use ebla_proto::services::bigtable_table_admin_server::BigtableTableAdmin;
use ebla_proto::status::to_status;
use tokio::sync::{oneshot, watch};
use tonic::{Request, Response, Status};

use super::request;
use crate::office::Office;
use crate::{creation, deletion, drop_range, election, records, schema};

/// How long a change is worked on before its caller is told that the rest will be done later.
const CHANGE_LIMIT: Duration = Duration::from_secs(60);

/// The service, for as long as the process lives: in office or not.
#[derive(Debug)]
pub(crate) struct Tables {
    office: watch::Receiver<Option<Office>>,
}

impl Tables {
    pub(crate) fn new(office: watch::Receiver<Option<Office>>) -> Self {
        Self { office }
    }

    fn office(&self) -> Result<Office, Error> {
        in_office(&self.office)
    }

    /// Runs a change as a task of the term and waits for it.
    async fn change<T, F>(&self, change: impl FnOnce(Office, Deadline) -> F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let office = self.office()?;
        let deadline = office.deadline(CHANGE_LIMIT);
        let tasks = office.runtime().tasks.clone();
        let (sender, done) = oneshot::channel();
        let work = change(office, deadline);
        tasks.spawn_until_stopped("admin change", async move {
            // Whoever asked may have gone.
            _ = sender.send(work.await);
        });
        done.await.unwrap_or_else(|_ended| Err(Error::new(Reason::OutcomeUnknown, "the master left office")))
    }

    async fn list(&self, request: admin::ListTablesRequest) -> Result<admin::ListTablesResponse, Error> {
        let office = self.office()?;
        let parent = request::instance(&request.parent)?;
        let view = request::view(request.view, View::NameOnly)?;
        let all = records::list_tables(office.chubby()).await?;
        let shown = |schema: &&TableSchema| {
            let TableSchema { name, state, .. } = schema;
            *state == TableState::Active && name.project() == parent.project && name.instance() == parent.instance
        };
        let mut tables: Vec<_> = all.values().filter(shown).collect();
        tables.sort_by(|a, b| a.name.cmp(&b.name));
        let (page, next_page_token) = request::page(&tables, request.page_size, &request.page_token)?;
        let tables = page.into_iter().map(|schema| table_to_admin(schema, view)).collect();
        Ok(admin::ListTablesResponse { tables, next_page_token })
    }

    async fn active(&self, name: &str) -> Result<TableSchema, Error> {
        let office = self.office()?;
        let name: TableName = name.parse()?;
        Ok(schema::find_active(office.chubby(), &name).await?.value)
    }
}

/// The office, while this master holds it.
pub(crate) fn in_office(office: &watch::Receiver<Option<Office>>) -> Result<Office, Error> {
    office.borrow().clone().ok_or_else(election::deposed)
}

/// An outcome as gRPC tells it.
pub(crate) fn answer<T>(outcome: Result<T, Error>) -> Result<Response<T>, Status> {
    outcome.map(Response::new).map_err(|error| to_status(&error))
}

#[tonic::async_trait]
impl BigtableTableAdmin for Tables {
    async fn create_table(
        &self,
        request: Request<admin::CreateTableRequest>,
    ) -> Result<Response<admin::Table>, Status> {
        let outcome = async {
            let new = request::new_table(request.into_inner())?;
            let create = |office, deadline| async move { creation::create(&office, new, deadline).await };
            let made = self.change(create).await?;
            Ok(table_to_admin(&made, View::SchemaView))
        };
        answer(outcome.await)
    }

    async fn get_table(&self, request: Request<admin::GetTableRequest>) -> Result<Response<admin::Table>, Status> {
        let outcome = async {
            let request = request.into_inner();
            let view = request::view(request.view, View::SchemaView)?;
            Ok(table_to_admin(&self.active(&request.name).await?, view))
        };
        answer(outcome.await)
    }

    async fn list_tables(
        &self,
        request: Request<admin::ListTablesRequest>,
    ) -> Result<Response<admin::ListTablesResponse>, Status> {
        answer(self.list(request.into_inner()).await)
    }

    async fn delete_table(&self, request: Request<admin::DeleteTableRequest>) -> Result<Response<()>, Status> {
        let outcome = async {
            let name: TableName = request.into_inner().name.parse()?;
            self.change(|office, deadline| async move { deletion::delete(&office, &name, deadline).await }).await
        };
        answer(outcome.await)
    }

    async fn modify_column_families(
        &self,
        request: Request<admin::ModifyColumnFamiliesRequest>,
    ) -> Result<Response<admin::Table>, Status> {
        let outcome = async {
            let request = request.into_inner();
            let name: TableName = request.name.parse()?;
            let changes = request::changes(request.modifications)?;
            let change = |office, deadline| async move { schema::change(&office, &name, &changes, deadline).await };
            Ok(table_to_admin(&self.change(change).await?, View::SchemaView))
        };
        answer(outcome.await)
    }

    async fn drop_row_range(&self, request: Request<admin::DropRowRangeRequest>) -> Result<Response<()>, Status> {
        let outcome = async {
            let request = request.into_inner();
            let name: TableName = request.name.parse()?;
            let range = request::drop_range(request.target)?;
            let drop = |office, deadline| async move { drop_range::drop_range(&office, &name, range, deadline).await };
            self.change(drop).await
        };
        answer(outcome.await)
    }

    async fn generate_consistency_token(
        &self,
        request: Request<admin::GenerateConsistencyTokenRequest>,
    ) -> Result<Response<admin::GenerateConsistencyTokenResponse>, Status> {
        let table = self.active(&request.into_inner().name).await;
        answer(table.map(|schema| admin::GenerateConsistencyTokenResponse {
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
        answer(outcome.await)
    }
}
