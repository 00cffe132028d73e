//! Admin calls at one address: tables and families. The calls for operators are in `operate`.
//!
//! They use the public admin API, so they work with any server that has it. Any tablet server accepts admin calls and forwards them to the
//! active master. Calls are not retried: the caller must see the error of creating a table twice.

use std::collections::HashMap;
use std::time::Duration;

use ebla_model::error::{Error, Reason};
use ebla_model::gc::GcRule;
use ebla_model::key::RowKey;
use ebla_model::schema::{Protection, TableName};
use ebla_proto::admin::drop_row_range_request::Target as DropTarget;
use ebla_proto::admin::longrunning::operation;
use ebla_proto::admin::modify_column_families_request::Modification;
use ebla_proto::admin::modify_column_families_request::modification::Mod;
use ebla_proto::operate::operate_client::OperateClient;
use ebla_proto::services::bigtable_instance_admin_client::BigtableInstanceAdminClient;
use ebla_proto::services::bigtable_table_admin_client::BigtableTableAdminClient;
use ebla_proto::status::{from_rpc_status, from_status};
use ebla_proto::{admin, convert};
use ebla_runtime::{Net, Runtime};
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use crate::channel::MESSAGE_BYTES_MAX;
pub use crate::operate::{CheckDepth, CheckMode, ExecutionMode, GroupStatus, VersionHold};
use crate::token::{BearerToken, Credentials};

/// The default timeout of a call: one call may create a table with many tablets.
const TIMEOUT: Duration = Duration::from_secs(120);

/// A family of a table: its name and its garbage-collection rule (`None`: keep every version).
pub type NamedFamily = (String, Option<GcRule>);

/// A change of a table's families.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FamilyChange {
    /// A new family.
    Create(NamedFamily),
    /// A new rule for a family.
    Update(NamedFamily),
    /// Delete a family and its cells.
    Drop(String),
}

/// The admin calls. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Admin {
    channel: Channel,
    net: Net,
    timeout: Duration,
    token: Option<BearerToken>,
}

/// A channel whose calls carry the token of the caller.
type CallerChannel = InterceptedService<Channel, Credentials>;

impl Admin {
    /// Admin calls at `address` (`host:port`). Connects at the first call.
    pub fn connect(address: &str, runtime: &Runtime) -> Self {
        let (channel, net) = (runtime.net.channel(address), runtime.net.clone());
        Self { channel, net, timeout: TIMEOUT, token: None }
    }

    /// The same calls with `timeout` for each of them, which is sent to the server.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The same calls by the caller whom `token` names. Without TLS they fail with `FailedPrecondition`, unless the token permits it:
    /// [`BearerToken::allow_plaintext`].
    #[must_use]
    pub fn with_token(mut self, token: Option<BearerToken>) -> Self {
        self.token = token;
        self
    }

    /// Creates a table with these families, split at these keys (in any order). Returns when the table serves.
    ///
    /// # Errors
    /// `AlreadyExists`, `InvalidArgument`; `Unavailable` when nothing was done, `Deadline` when it may have been.
    pub async fn create_table(
        &self,
        name: &TableName,
        families: &[NamedFamily],
        splits: &[RowKey],
    ) -> Result<(), Error> {
        let families = families.iter().map(|(name, gc)| (name.clone(), family(gc.as_ref())));
        let split = |key: &RowKey| admin::create_table_request::Split { key: key.bytes().clone() };
        let message = admin::CreateTableRequest {
            parent: instance(name.project(), name.instance()),
            table_id: name.table().to_owned(),
            table: Some(admin::Table { column_families: families.collect(), ..Default::default() }),
            initial_splits: splits.iter().map(split).collect(),
        };
        unwrap_response(self.tables().create_table(self.request(message)).await).map(drop)
    }

    /// Sets the deletion protection of a table.
    ///
    /// # Errors
    /// `NotFoundTable`; otherwise as [`Self::create_table`].
    pub async fn set_protection(&self, name: &TableName, protection: Protection) -> Result<(), Error> {
        let deletion_protection = protection == Protection::On;
        let table = admin::Table { name: name.as_str().to_owned(), deletion_protection, ..Default::default() };
        let message = admin::UpdateTableRequest {
            table: Some(table),
            update_mask: Some(prost_types::FieldMask { paths: vec!["deletion_protection".to_owned()] }),
            ..Default::default()
        };
        match unwrap_response(self.tables().update_table(self.request(message)).await)?.result {
            Some(operation::Result::Error(status)) => Err(from_rpc_status(&status)),
            _ => Ok(()),
        }
    }

    /// Deletes a table and everything in it.
    ///
    /// # Errors
    /// `NotFoundTable`, `FailedPrecondition` when it is protected; otherwise as [`Self::create_table`].
    pub async fn delete_table(&self, name: &TableName) -> Result<(), Error> {
        let message = admin::DeleteTableRequest { name: name.as_str().to_owned() };
        unwrap_response(self.tables().delete_table(self.request(message)).await)
    }

    /// The tables of an instance, by name.
    ///
    /// # Errors
    /// As [`Self::create_table`].
    pub async fn list_tables(&self, project: &str, of_instance: &str) -> Result<Vec<TableName>, Error> {
        let mut names = Vec::new();
        let mut page_token = String::new();
        loop {
            let message =
                admin::ListTablesRequest { parent: instance(project, of_instance), page_token, ..Default::default() };
            let page = unwrap_response(self.tables().list_tables(self.request(message)).await)?;
            for table in page.tables {
                names.push(table.name.parse()?);
            }
            if page.next_page_token.is_empty() {
                names.sort();
                return Ok(names);
            }
            page_token = page.next_page_token;
        }
    }

    /// A table as the public API shows it.
    ///
    /// # Errors
    /// `NotFoundTable`; otherwise as [`Self::create_table`].
    pub async fn get_table(&self, name: &TableName) -> Result<admin::Table, Error> {
        let message = admin::GetTableRequest { name: name.as_str().to_owned(), ..Default::default() };
        unwrap_response(self.tables().get_table(self.request(message)).await)
    }

    /// A table's families, by name.
    ///
    /// # Errors
    /// As [`Self::get_table`].
    pub async fn families(&self, name: &TableName) -> Result<Vec<NamedFamily>, Error> {
        families(self.get_table(name).await?.column_families)
    }

    /// Changes families atomically; returns the new families.
    ///
    /// # Errors
    /// `NotFoundTable`, `NotFoundFamily`, `AlreadyExists`; otherwise as [`Self::create_table`].
    pub async fn modify_families(&self, name: &TableName, changes: &[FamilyChange]) -> Result<Vec<NamedFamily>, Error> {
        let message = admin::ModifyColumnFamiliesRequest {
            name: name.as_str().to_owned(),
            modifications: changes.iter().map(modification).collect(),
            ..Default::default()
        };
        families(unwrap_response(self.tables().modify_column_families(self.request(message)).await)?.column_families)
    }

    /// Deletes the rows whose keys begin with `prefix`; all rows when it is empty.
    ///
    /// # Errors
    /// `NotFoundTable`; otherwise as [`Self::create_table`].
    pub async fn drop_row_range(&self, name: &TableName, prefix: &RowKey) -> Result<(), Error> {
        let target = if prefix.is_empty() {
            DropTarget::DeleteAllDataFromTable(true)
        } else {
            DropTarget::RowKeyPrefix(prefix.bytes().clone())
        };
        let message = admin::DropRowRangeRequest { name: name.as_str().to_owned(), target: Some(target) };
        unwrap_response(self.tables().drop_row_range(self.request(message)).await)
    }

    pub(crate) fn request<M>(&self, message: M) -> Request<M> {
        let mut request = Request::new(message);
        request.set_timeout(self.timeout);
        request
    }

    pub(crate) fn tables(&self) -> BigtableTableAdminClient<CallerChannel> {
        BigtableTableAdminClient::new(self.caller()).max_decoding_message_size(MESSAGE_BYTES_MAX)
    }

    pub(crate) fn instances(&self) -> BigtableInstanceAdminClient<CallerChannel> {
        BigtableInstanceAdminClient::new(self.caller()).max_decoding_message_size(MESSAGE_BYTES_MAX)
    }

    pub(crate) fn operate(&self) -> OperateClient<CallerChannel> {
        OperateClient::new(self.caller()).max_decoding_message_size(MESSAGE_BYTES_MAX)
    }

    pub(crate) fn caller(&self) -> CallerChannel {
        InterceptedService::new(self.channel.clone(), Credentials::new(self.token.clone(), &self.net))
    }
}

fn instance(project: &str, instance: &str) -> String {
    format!("projects/{project}/instances/{instance}")
}

/// The message of a response, or the error in its status.
pub(crate) fn into_message<T>(response: Result<Response<T>, Status>) -> Result<T, Error> {
    response.map(Response::into_inner).map_err(|status| from_status(&status).0)
}

/// As [`into_message`], for a call that names a table: servers of other vendors return NOT_FOUND without a resource, and it is the table.
pub(crate) fn unwrap_response<T>(response: Result<Response<T>, Status>) -> Result<T, Error> {
    into_message(response).map_err(|error| match error.reason {
        Reason::NotFound => Error::new(Reason::NotFoundTable, error.message),
        _other => error,
    })
}

fn family(gc: Option<&GcRule>) -> admin::ColumnFamily {
    admin::ColumnFamily { gc_rule: gc.map(convert::admin::gc_rule_to_admin), ..Default::default() }
}

fn families(listed: HashMap<String, admin::ColumnFamily>) -> Result<Vec<NamedFamily>, Error> {
    let mut families = Vec::with_capacity(listed.len());
    for (name, family) in listed {
        let gc = family.gc_rule.as_ref().map(convert::admin::gc_rule_from_admin).transpose()?;
        families.push((name, gc.flatten()));
    }
    families.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(families)
}

fn modification(change: &FamilyChange) -> Modification {
    let (id, change) = match change {
        FamilyChange::Create((name, gc)) => (name, Mod::Create(family(gc.as_ref()))),
        FamilyChange::Update((name, gc)) => (name, Mod::Update(family(gc.as_ref()))),
        FamilyChange::Drop(name) => (name, Mod::Drop(true)),
    };
    Modification { id: id.clone(), r#mod: Some(change), ..Default::default() }
}
