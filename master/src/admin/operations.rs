//! google.longrunning.Operations: of operations that are done.

use ebla_chubby::{Write, paths};
use ebla_model::error::Error;
use ebla_proto::admin::longrunning;
use ebla_proto::services::operations_server::Operations;
use tonic::{Request, Response, Status};

use super::desk::{Desk, answer};
use super::page::{Asked, page};
use crate::{finished, records};

/// How every operation's name begins.
const ALL: &str = "operations";

/// The service, for as long as the process lives: in office or not.
#[derive(Debug)]
pub(crate) struct Done {
    desk: Desk,
}

impl Done {
    pub(crate) const fn new(desk: Desk) -> Self {
        Self { desk }
    }

    async fn find(&self, name: &str) -> Result<longrunning::Operation, Error> {
        finished::find(&self.desk.office()?, name).await.map(|(_id, operation)| operation)
    }

    async fn list(
        &self,
        request: longrunning::ListOperationsRequest,
    ) -> Result<longrunning::ListOperationsResponse, Error> {
        let office = self.desk.office()?;
        let prefix = below(&request.name)?;
        if !request.filter.is_empty() {
            return Err(Error::unimplemented("operations cannot be filtered by this release: all of them are done"));
        }
        let all = records::list_finished(office.chubby()).await?.into_values();
        let named = all.filter(|operation| operation.name.starts_with(&prefix));
        let named = named.map(|operation| (operation.name.clone(), operation)).collect();
        let asked = Asked { prefix: &prefix, size: request.page_size, token: &request.page_token };
        let (operations, next_page_token) = page(named, asked)?;
        Ok(longrunning::ListOperationsResponse { operations, next_page_token, ..Default::default() })
    }
}

/// How the names of the operations below `name` begin.
fn below(name: &str) -> Result<String, Error> {
    let is_theirs = name == ALL || name.strip_prefix(ALL).is_some_and(|rest| rest.starts_with("/projects/"));
    if is_theirs && !name.ends_with('/') {
        return Ok(format!("{name}/"));
    }
    Err(Error::invalid(format!(
        "invalid name {name:?} of operations: expected operations, or operations/projects/P and what follows"
    )))
}

#[tonic::async_trait]
impl Operations for Done {
    async fn list_operations(
        &self,
        request: Request<longrunning::ListOperationsRequest>,
    ) -> Result<Response<longrunning::ListOperationsResponse>, Status> {
        answer(self.list(request.into_inner()).await)
    }

    async fn get_operation(
        &self,
        request: Request<longrunning::GetOperationRequest>,
    ) -> Result<Response<longrunning::Operation>, Status> {
        answer(self.find(&request.into_inner().name).await)
    }

    /// Nothing is to be waited for.
    async fn wait_operation(
        &self,
        request: Request<longrunning::WaitOperationRequest>,
    ) -> Result<Response<longrunning::Operation>, Status> {
        answer(self.find(&request.into_inner().name).await)
    }

    /// Without effect: it is done. The API leaves it to `GetOperation` to tell what became of it.
    async fn cancel_operation(
        &self,
        request: Request<longrunning::CancelOperationRequest>,
    ) -> Result<Response<()>, Status> {
        answer(self.find(&request.into_inner().name).await.map(drop))
    }

    /// Forgets it; what it did stays.
    async fn delete_operation(
        &self,
        request: Request<longrunning::DeleteOperationRequest>,
    ) -> Result<Response<()>, Status> {
        let outcome = async {
            let office = self.desk.office()?;
            let (id, _operation) = finished::find(&office, &request.into_inner().name).await?;
            office.begin(Vec::new(), vec![Write::delete(paths::finished(id))]).await.map(drop)
        };
        answer(outcome.await)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_listed_below_a_name() {
        assert_eq!(below("operations"), Ok("operations/".to_owned()));
        assert_eq!(below("operations/projects/p"), Ok("operations/projects/p/".to_owned()));
        for wrong in ["", "projects/p", "operations/", "operationsx", "operations/x", "operations/projects/p/"] {
            assert!(below(wrong).is_err(), "{wrong}");
        }
    }
}
