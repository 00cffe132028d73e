//! google.longrunning.Operations, for operations that have finished.

use ebla_chubby::{Write, paths};
use ebla_model::error::Error;
use ebla_proto::admin::longrunning;
use ebla_proto::services::operations_server::Operations;
use tonic::{Request, Response, Status};

use super::handle::{MasterHandle, to_response};
use super::page::{PageRequest, page};
use crate::{operations, schema_store};

/// The prefix of every operation's name.
const ALL: &str = "operations";

/// The service, on an active master or a standby.
#[derive(Debug)]
pub(crate) struct OperationsService {
    handle: MasterHandle,
}

impl OperationsService {
    pub(crate) const fn new(handle: MasterHandle) -> Self {
        Self { handle }
    }

    async fn find(&self, name: &str) -> Result<longrunning::Operation, Error> {
        operations::find(&self.handle.active()?, name).await.map(|(_id, operation)| operation)
    }

    async fn list(
        &self,
        request: longrunning::ListOperationsRequest,
    ) -> Result<longrunning::ListOperationsResponse, Error> {
        let master = self.handle.active()?;
        let prefix = below(&request.name)?;
        if !request.filter.is_empty() {
            return Err(Error::unimplemented(
                "operations cannot be filtered by this release: all of them have finished",
            ));
        }
        let all = schema_store::list_finished(master.chubby()).await?.into_values();
        let named = all.filter(|operation| operation.name.starts_with(&prefix));
        let named = named.map(|operation| (operation.name.clone(), operation)).collect();
        let page_request = PageRequest { prefix: &prefix, size: request.page_size, token: &request.page_token };
        let (operations, next_page_token) = page(named, page_request)?;
        Ok(longrunning::ListOperationsResponse { operations, next_page_token, ..Default::default() })
    }
}

/// The prefix of the names of all operations below `name`.
fn below(name: &str) -> Result<String, Error> {
    let is_valid = name == ALL || name.strip_prefix(ALL).is_some_and(|rest| rest.starts_with("/projects/"));
    if is_valid && !name.ends_with('/') {
        return Ok(format!("{name}/"));
    }
    Err(Error::invalid(format!(
        "invalid name {name:?} of operations: expected operations, or operations/projects/P and what follows"
    )))
}

#[tonic::async_trait]
impl Operations for OperationsService {
    async fn list_operations(
        &self,
        request: Request<longrunning::ListOperationsRequest>,
    ) -> Result<Response<longrunning::ListOperationsResponse>, Status> {
        to_response(self.list(request.into_inner()).await)
    }

    async fn get_operation(
        &self,
        request: Request<longrunning::GetOperationRequest>,
    ) -> Result<Response<longrunning::Operation>, Status> {
        to_response(self.find(&request.into_inner().name).await)
    }

    /// All operations have finished: there is nothing to wait for.
    async fn wait_operation(
        &self,
        request: Request<longrunning::WaitOperationRequest>,
    ) -> Result<Response<longrunning::Operation>, Status> {
        to_response(self.find(&request.into_inner().name).await)
    }

    /// No effect: the operation has finished. By the API, `GetOperation` returns its result.
    async fn cancel_operation(
        &self,
        request: Request<longrunning::CancelOperationRequest>,
    ) -> Result<Response<()>, Status> {
        to_response(self.find(&request.into_inner().name).await.map(drop))
    }

    /// Deletes the record of the operation; its effects stay.
    async fn delete_operation(
        &self,
        request: Request<longrunning::DeleteOperationRequest>,
    ) -> Result<Response<()>, Status> {
        let outcome = async {
            let master = self.handle.active()?;
            let (id, _operation) = operations::find(&master, &request.into_inner().name).await?;
            master.commit_intent(Vec::new(), vec![Write::delete(paths::finished(id))]).await.map(drop)
        };
        to_response(outcome.await)
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
