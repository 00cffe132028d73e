//! The tablets of this server as the callers of the service of tablets may use them.
//!
//! Members of the cluster may do everything. While access control is on, a mounttable needs rights for the table of the tablet that it calls, by
//! the name in its certificate (`front::access::tablets`): of the tablet, because the header of a call may name another table. A tablet
//! belongs to one table for all its life. The gRPC service has this type alone, so a call without the check does not compile.

use std::sync::Arc;
use std::time::Duration;

use ebla_client::{CallError, ReadStream};
use ebla_model::error::Error;
use ebla_proto::tablet as wire;
use futures::StreamExt as _;
use tonic::Extensions;

use crate::front::{AccessControl, TabletCall, TabletCaller};
use crate::members_only::writable_tables;
use crate::tablet::handler::TabletHandler;

/// The tablets of this server, behind the checks of their callers. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct GuardedTablets {
    handler: TabletHandler,
    access: AccessControl,
}

/// The tablets of this server, for one caller. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct CallerTablets {
    handler: TabletHandler,
    /// Whose rights are checked; `None`: a caller who may do everything.
    caller: Option<TabletCaller>,
}

impl GuardedTablets {
    /// These tablets, for callers with these rights.
    pub(crate) const fn new(handler: TabletHandler, access: AccessControl) -> Self {
        Self { handler, access }
    }

    /// The tablets for the caller of a request with these extensions.
    ///
    /// # Errors
    /// `Unauthenticated` when the caller must have an identity and has none.
    pub(crate) fn for_caller(&self, extensions: &Extensions) -> Result<CallerTablets, Error> {
        let handler = self.handler.clone().with_writable(writable_tables(extensions));
        Ok(CallerTablets { handler, caller: self.access.tablet_caller(extensions)? })
    }
}

impl CallerTablets {
    /// As [`TabletHandler::serve_read`]. Rights are checked again before each message: a scan must not outlive a right of its caller.
    ///
    /// # Errors
    /// As [`TabletHandler::serve_read`]; `PermissionDenied`, also later in the stream.
    pub(crate) async fn read(&self, request: wire::ReadRequest, timeout: Duration) -> Result<ReadStream, CallError> {
        let Some(caller) = self.caller.clone() else { return self.handler.serve_read(request, timeout).await };
        let table = self.handler.schema_of(request.header.as_ref())?;
        let filter = self.handler.filter(request.filter.as_ref())?.map(Arc::new);
        caller.check(&table, TabletCall::Read(filter.as_deref())).await?;
        let stream = self.handler.serve_read(request, timeout).await?;
        let checked = stream.then(move |part| {
            let (caller, table, filter) = (caller.clone(), Arc::clone(&table), filter.clone());
            async move {
                caller.check_again(&table, filter.as_deref()).await?;
                part
            }
        });
        Ok(checked.boxed())
    }

    /// As [`TabletHandler::serve_read_once`].
    ///
    /// # Errors
    /// As [`TabletHandler::serve_read_once`]; `PermissionDenied`.
    pub(crate) async fn read_once(
        &self,
        request: wire::ReadRequest,
        timeout: Duration,
    ) -> Result<Option<wire::ReadReply>, CallError> {
        if let Some(caller) = &self.caller {
            let table = self.handler.schema_of(request.header.as_ref())?;
            let filter = self.handler.filter(request.filter.as_ref())?;
            caller.check(&table, TabletCall::Read(filter.as_ref())).await?;
        }
        self.handler.serve_read_once(request, timeout).await
    }

    /// As [`TabletHandler::serve_write`].
    ///
    /// # Errors
    /// As [`TabletHandler::serve_write`]; `PermissionDenied`: no row is written.
    pub(crate) async fn write(
        &self,
        mut request: wire::WriteRequest,
        timeout: Duration,
    ) -> Result<wire::WriteReply, CallError> {
        if let Some(caller) = &self.caller {
            let table = self.handler.schema_of(request.header.as_ref())?;
            caller.check(&table, TabletCall::Write(&mut request.rows)).await?;
        }
        self.handler.serve_write(request, timeout).await
    }

    /// As [`TabletHandler::serve_check`].
    ///
    /// # Errors
    /// As [`TabletHandler::serve_check`]; `PermissionDenied`.
    pub(crate) async fn check(
        &self,
        mut request: wire::CheckRequest,
        timeout: Duration,
    ) -> Result<wire::CheckReply, CallError> {
        if let Some(caller) = &self.caller {
            let table = self.handler.schema_of(request.header.as_ref())?;
            let predicate = self.handler.filter(request.predicate.as_ref())?;
            caller.check(&table, TabletCall::Check(&mut request, predicate.as_ref())).await?;
        }
        self.handler.serve_check(request, timeout).await
    }

    /// As [`TabletHandler::serve_modify`].
    ///
    /// # Errors
    /// As [`TabletHandler::serve_modify`]; `PermissionDenied`.
    pub(crate) async fn modify(
        &self,
        mut request: wire::ModifyRequest,
        timeout: Duration,
    ) -> Result<wire::ModifyReply, CallError> {
        if let Some(caller) = &self.caller {
            let table = self.handler.schema_of(request.header.as_ref())?;
            caller.check(&table, TabletCall::Modify(&mut request)).await?;
        }
        self.handler.serve_modify(request, timeout).await
    }

    /// As [`TabletHandler::sample`].
    ///
    /// # Errors
    /// As [`TabletHandler::sample`]; `PermissionDenied`.
    pub(crate) async fn sample(&self, request: wire::SampleRequest) -> Result<wire::SampleReply, CallError> {
        if let Some(caller) = &self.caller {
            let table = self.handler.schema_of(request.header.as_ref())?;
            caller.check(&table, TabletCall::Sample).await?;
        }
        self.handler.sample(request).await
    }
}
