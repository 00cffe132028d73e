//! Admin calls: tables, families, splits, merges, groups, drains and the cluster status, at one address.
//!
//! Calls for tables and families use the public admin API, so they work with any server that has it; splits, merges, groups,
//! drains and status use `ebla.operate`. Any tablet server accepts both and forwards them to the active master. Calls are not retried:
//! the caller must see the error of creating a table twice.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use ebla_model::error::{Error, Reason};
use ebla_model::gc::GcRule;
use ebla_model::id::{GroupId, ServerId, TabletId};
use ebla_model::key::RowKey;
use ebla_model::locality::{GroupSizes, LocalityGroupChange};
use ebla_model::metadata::{GroupDescriptor, TabletDescriptor};
use ebla_model::quota::QuotaLimits;
use ebla_model::schema::{Protection, TableName};
use ebla_model::tablet_load::TabletLoad;
use ebla_proto::admin::drop_row_range_request::Target as DropTarget;
use ebla_proto::admin::longrunning::operation;
use ebla_proto::admin::modify_column_families_request::Modification;
use ebla_proto::admin::modify_column_families_request::modification::Mod;
use ebla_proto::operate::operate_client::OperateClient;
use ebla_proto::services::bigtable_table_admin_client::BigtableTableAdminClient;
use ebla_proto::status::{from_rpc_status, from_status};
use ebla_proto::{admin, convert, operate, record};
use ebla_runtime::Runtime;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use crate::channel::MESSAGE_BYTES_MAX;
use crate::token::BearerToken;
use crate::wire;

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

/// Whether a request is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExecutionMode {
    /// Only what it would do is determined.
    DryRun,
    /// It is carried out.
    Execute,
}

/// A change of the hold of the active cluster version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionHold {
    /// It is held.
    Hold,
    /// It is not held any more.
    Continue,
}

/// What a check of the cluster reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckDepth {
    /// Metadata only.
    Metadata,
    /// The content of all replicas too.
    Contents,
}

/// Whether a check of the cluster repairs what it finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckMode {
    /// It changes nothing.
    ReadOnly,
    /// It repairs what the master would repair by itself.
    Repair,
}

impl From<bool> for ExecutionMode {
    /// From the flag `--dry-run`.
    fn from(dry_run: bool) -> Self {
        if dry_run { Self::DryRun } else { Self::Execute }
    }
}

/// A group of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupStatus {
    /// Its replicas.
    pub group: GroupDescriptor,
    /// The server that leads it, if it responds.
    pub leader: Option<ServerId>,
    /// The number of its tablets.
    pub tablets: u64,
    /// Their size.
    pub size_bytes: u64,
}

/// The admin calls. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Admin {
    channel: Channel,
    timeout: Duration,
    token: Option<BearerToken>,
}

impl Admin {
    /// Admin calls at `address` (`host:port`). Connects at the first call.
    pub fn connect(address: &str, runtime: &Runtime) -> Self {
        Self { channel: runtime.net.channel(address), timeout: TIMEOUT, token: None }
    }

    /// The same calls with `timeout` for each of them, which is sent to the server.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The same calls by the caller whom `token` names.
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

    /// Splits a tablet: at the key `at`; without it, the tablet that holds `within`, near its middle. Returns the
    /// halves.
    ///
    /// # Errors
    /// `NotFoundTable`, `FailedPrecondition` when the tablet cannot be split there; otherwise as
    /// [`Self::create_table`].
    pub async fn split(
        &self,
        name: &TableName,
        at: Option<&RowKey>,
        within: &RowKey,
    ) -> Result<(TabletDescriptor, TabletDescriptor), Error> {
        let message = operate::SplitRequest {
            table: name.as_str().to_owned(),
            at: at.map(|key| key.bytes().clone()),
            within: within.bytes().clone(),
            tablet: 0,
        };
        self.request_split(message).await
    }

    /// Splits a tablet near its middle; it may belong to METADATA. Returns the halves.
    ///
    /// # Errors
    /// `NotFound`; `FailedPrecondition` when the tablet cannot be split, as the root tablet; otherwise as [`Self::create_table`].
    pub async fn split_tablet(&self, tablet: TabletId) -> Result<(TabletDescriptor, TabletDescriptor), Error> {
        self.request_split(operate::SplitRequest { tablet: tablet.get(), ..Default::default() }).await
    }

    async fn request_split(
        &self,
        message: operate::SplitRequest,
    ) -> Result<(TabletDescriptor, TabletDescriptor), Error> {
        let halves = unwrap_response(self.operate().split(self.request(message)).await)?;
        Ok((wire::descriptor(halves.left)?, wire::descriptor(halves.right)?))
    }

    /// Merges a tablet with the adjacent tablet `with`, or, without it, with the tablet after it. If they are in different
    /// groups, the smaller one is moved first. Returns the merged tablet, which keeps the id of the one with the higher rows, and the id of the tablet that is gone.
    ///
    /// # Errors
    /// `NotFound`; `FailedPrecondition` when the two cannot be merged; otherwise as [`Self::create_table`].
    pub async fn merge_tablets(
        &self,
        tablet: TabletId,
        with: Option<TabletId>,
    ) -> Result<(TabletDescriptor, TabletId), Error> {
        let message = operate::MergeRequest { tablet: tablet.get(), with: with.map_or(0, TabletId::get) };
        let reply = self.operate().merge(self.request(message)).await;
        let reply = reply.map_err(|status| from_status(&status).0)?.into_inner();
        Ok((wire::descriptor(reply.merged)?, TabletId::new(reply.removed)))
    }

    /// What [`Self::merge_tablets`] would do. Changes nothing.
    ///
    /// # Errors
    /// As [`Self::merge_tablets`] for what is known before it begins; `Unimplemented` when the master is of an earlier release.
    pub async fn preview_merge(
        &self,
        tablet: TabletId,
        with: Option<TabletId>,
    ) -> Result<operate::PreviewMergeReply, Error> {
        let message = operate::MergeRequest { tablet: tablet.get(), with: with.map_or(0, TabletId::get) };
        let reply = self.operate().preview_merge(self.request(message)).await;
        Ok(reply.map_err(|status| from_status(&status).0)?.into_inner())
    }

    /// What [`Self::move_tablet`] would do. Changes nothing.
    ///
    /// # Errors
    /// As [`Self::move_tablet`] for what is known before it begins; `Unimplemented` when the master is of an earlier release.
    pub async fn preview_move(&self, tablet: TabletId, group: GroupId) -> Result<operate::PreviewMoveReply, Error> {
        let message = operate::MoveTabletRequest { tablet: tablet.get(), group: group.get() };
        let reply = self.operate().preview_move(self.request(message)).await;
        Ok(reply.map_err(|status| from_status(&status).0)?.into_inner())
    }

    /// Moves a tablet to another existing group. Returns the tablet as it is there, and the group that it has left. It is not served
    /// while its cells are copied.
    ///
    /// # Errors
    /// `NotFound`; `FailedPrecondition` when the tablet cannot be moved there; `Deadline` when a move that has begun continues;
    /// otherwise as [`Self::create_table`].
    pub async fn move_tablet(&self, tablet: TabletId, group: GroupId) -> Result<(TabletDescriptor, GroupId), Error> {
        let message = operate::MoveTabletRequest { tablet: tablet.get(), group: group.get() };
        let reply = self.operate().move_tablet(self.request(message)).await;
        let reply = reply.map_err(|status| from_status(&status).0)?.into_inner();
        Ok((wire::descriptor(reply.tablet)?, GroupId::new(reply.source)))
    }

    /// The sizes in bytes and the loads of the tablets of a table, as their leaders report them; without those that have no leader that
    /// responds.
    ///
    /// # Errors
    /// `NotFoundTable`; `Unavailable` when no master is active.
    pub async fn tablet_loads(&self, table: &TableName) -> Result<BTreeMap<TabletId, (u64, TabletLoad)>, Error> {
        let message = operate::TabletLoadsRequest { table: table.to_string() };
        let reply = unwrap_response(self.operate().tablet_loads(self.request(message)).await)?;
        let load = |status: operate::TabletLoadStatus| {
            let load = status.load.as_ref().map(convert::tablet_load_from_proto).unwrap_or_default();
            (TabletId::new(status.tablet), (status.size_bytes, load))
        };
        Ok(reply.tablets.into_iter().map(load).collect())
    }

    /// The cluster status as the active master sees it.
    ///
    /// # Errors
    /// `Unavailable` when no master is active.
    pub async fn status(&self) -> Result<operate::StatusReply, Error> {
        unwrap_response(self.operate().status(self.request(operate::StatusRequest {})).await)
    }

    /// The groups that servers report, by id.
    ///
    /// # Errors
    /// `Unavailable` when no master is active.
    pub async fn groups(&self) -> Result<Vec<GroupStatus>, Error> {
        let reply = unwrap_response(self.operate().groups(self.request(operate::GroupsRequest {})).await)?;
        reply.groups.into_iter().map(group_status).collect()
    }

    /// Divides a group: about half of its bytes move to a new group on the same servers. Returns the group, the new group
    /// and the number of tablets that moved.
    ///
    /// # Errors
    /// `NotFound`, `FailedPrecondition` when the group cannot be divided; otherwise as [`Self::create_table`].
    pub async fn divide_group(&self, group: GroupId) -> Result<(GroupDescriptor, GroupDescriptor, u64), Error> {
        let message = operate::DivideGroupRequest { group: group.get() };
        let reply = self.operate().divide_group(self.request(message)).await;
        let reply = reply.map_err(|status| from_status(&status).0)?.into_inner();
        Ok((group_descriptor(reply.left)?, group_descriptor(reply.right)?, reply.tablets))
    }

    /// Recovers the lock service's files from what the tablet servers know. `addresses`: tablet servers that are asked in addition
    /// to the registered ones; `without`: tablet servers that are lost permanently.
    ///
    /// # Errors
    /// `FailedPrecondition` when the servers that answer may not know everything; otherwise as [`Self::create_table`].
    pub async fn recover(
        &self,
        mode: ExecutionMode,
        addresses: Vec<String>,
        without: &[ServerId],
    ) -> Result<operate::RecoverReply, Error> {
        let without = without.iter().map(|server| server.get()).collect();
        let message = operate::RecoverRequest { dry_run: mode == ExecutionMode::DryRun, addresses, without };
        unwrap_response(self.operate().recover(self.request(message)).await)
    }

    /// Recovers groups that have lost their majorities permanently, from the replicas on the server `from`. `tablet`: only its group.
    /// Writes that only the lost replicas had are lost.
    ///
    /// # Errors
    /// `FailedPrecondition` when a majority may exist, or another replica knows more; `Unavailable` when the server does not respond;
    /// otherwise as [`Self::create_table`].
    pub async fn recover_tablets(
        &self,
        mode: ExecutionMode,
        from: ServerId,
        tablet: Option<TabletId>,
    ) -> Result<operate::RecoverTabletsReply, Error> {
        let tablet = tablet.map_or(0, TabletId::get);
        let message =
            operate::RecoverTabletsRequest { dry_run: mode == ExecutionMode::DryRun, from: from.get(), tablet };
        let reply = self.operate().recover_tablets(self.request(message)).await;
        reply.map(Response::into_inner).map_err(|status| from_status(&status).0)
    }

    /// Drains a tablet server: its replicas move to other servers, and it gets no new ones. Returns at once; a repetition, or a dry run,
    /// shows what is left.
    ///
    /// # Errors
    /// `NotFound`; `FailedPrecondition` and `ResourceExhausted` when the other servers cannot have its replicas; otherwise as
    /// [`Self::create_table`].
    pub async fn drain_server(
        &self,
        mode: ExecutionMode,
        server: ServerId,
    ) -> Result<operate::DrainServerReply, Error> {
        let message = operate::DrainServerRequest { server: server.get(), dry_run: mode == ExecutionMode::DryRun };
        let reply = self.operate().drain_server(self.request(message)).await;
        reply.map(Response::into_inner).map_err(|status| from_status(&status).0)
    }

    /// Ends the drain of a tablet server. Whether it was drained.
    ///
    /// # Errors
    /// As [`Self::create_table`].
    pub async fn undrain_server(&self, mode: ExecutionMode, server: ServerId) -> Result<bool, Error> {
        let message = operate::UndrainServerRequest { server: server.get(), dry_run: mode == ExecutionMode::DryRun };
        let reply = self.operate().undrain_server(self.request(message)).await;
        reply.map(|reply| reply.into_inner().was_drained).map_err(|status| from_status(&status).0)
    }

    /// Makes the cluster forget a tablet server that has no replicas and does not run.
    ///
    /// # Errors
    /// `NotFound`; `FailedPrecondition` while it has replicas, is registered or responds; otherwise as [`Self::create_table`].
    pub async fn remove_server(&self, mode: ExecutionMode, server: ServerId) -> Result<(), Error> {
        let message = operate::RemoveServerRequest { server: server.get(), dry_run: mode == ExecutionMode::DryRun };
        let reply = self.operate().remove_server(self.request(message)).await;
        reply.map(drop).map_err(|status| from_status(&status).0)
    }

    /// The active cluster version, what each process supports, and what the next version waits for.
    ///
    /// # Errors
    /// `Unimplemented` while the active master runs a release before cluster versions; otherwise as [`Self::create_table`].
    pub async fn upgrade_status(&self) -> Result<operate::UpgradeStatusReply, Error> {
        unwrap_response(self.operate().upgrade_status(self.request(operate::UpgradeStatusRequest {})).await)
    }

    /// Holds the active cluster version, so that processes can return to the previous release, or ends that.
    ///
    /// # Errors
    /// As [`Self::upgrade_status`].
    pub async fn hold_upgrade(
        &self,
        mode: ExecutionMode,
        hold: VersionHold,
    ) -> Result<operate::HoldUpgradeReply, Error> {
        let dry_run = mode == ExecutionMode::DryRun;
        let message = operate::HoldUpgradeRequest { hold: hold == VersionHold::Hold, dry_run };
        unwrap_response(self.operate().hold_upgrade(self.request(message)).await)
    }

    /// Changes the locality groups of a table, in order, all or nothing, and returns all of them, by number. Without changes it only returns
    /// them. Cells of families that have moved, or whose options have changed, are moved in the background.
    ///
    /// # Errors
    /// `NotFoundTable`, `NotFoundFamily`; `InvalidArgument` for an unknown option or too many groups; `FailedPrecondition` for the
    /// removal of a group that has families; otherwise as [`Self::create_table`].
    pub async fn change_locality_groups(
        &self,
        table: &TableName,
        changes: &[LocalityGroupChange],
    ) -> Result<Vec<operate::LocalityGroup>, Error> {
        let changes = changes.iter().map(convert::locality_group_change_to_proto).collect();
        let message = operate::ChangeLocalityGroupsRequest { table: table.to_string(), changes, ..Default::default() };
        self.locality_groups(message).await
    }

    /// The locality groups of a table, by number, with these sizes.
    ///
    /// # Errors
    /// `NotFoundTable`; otherwise as [`Self::create_table`].
    pub async fn describe_locality_groups(
        &self,
        table: &TableName,
        sizes: GroupSizes,
    ) -> Result<Vec<operate::LocalityGroup>, Error> {
        let sizes = convert::group_sizes_to_proto(sizes).into();
        let message = operate::ChangeLocalityGroupsRequest { table: table.to_string(), sizes, ..Default::default() };
        self.locality_groups(message).await
    }

    /// What the families of a table cost, in all and in each tablet, with its quotas. Approximate, on one replica of each tablet.
    ///
    /// # Errors
    /// `NotFoundTable`; otherwise as [`Self::create_table`].
    pub async fn table_usage(&self, table: &TableName) -> Result<operate::TableUsageReply, Error> {
        let message = operate::TableUsageRequest { table: table.to_string() };
        let reply = self.operate().table_usage(self.request(message)).await;
        reply.map(Response::into_inner).map_err(|status| from_status(&status).0)
    }

    /// Sets the quota of a table, or of one of its families; without limits there is none. The master compares it every few seconds; while
    /// it is exceeded, writes that store cells are refused with `ResourceExhausted`.
    ///
    /// # Errors
    /// `NotFoundTable`, `NotFoundFamily`; otherwise as [`Self::create_table`].
    pub async fn set_quota(&self, table: &TableName, family: Option<&str>, limits: QuotaLimits) -> Result<(), Error> {
        let message = operate::SetQuotaRequest {
            table: table.to_string(),
            family: family.unwrap_or_default().to_owned(),
            limits: Some(convert::limits_to_proto(limits)),
        };
        let reply = self.operate().set_quota(self.request(message)).await;
        reply.map(drop).map_err(|status| from_status(&status).0)
    }

    /// Checks that the cluster's metadata and replicas are as they should be.
    ///
    /// # Errors
    /// `Unavailable` while METADATA cannot be read; otherwise as [`Self::create_table`].
    pub async fn check(&self, depth: CheckDepth, mode: CheckMode) -> Result<operate::CheckReply, Error> {
        let (quick, repair) = (depth == CheckDepth::Metadata, mode == CheckMode::Repair);
        let reply = self.operate().check(self.request(operate::CheckRequest { quick, repair })).await;
        reply.map(Response::into_inner).map_err(|status| from_status(&status).0)
    }

    async fn locality_groups(
        &self,
        message: operate::ChangeLocalityGroupsRequest,
    ) -> Result<Vec<operate::LocalityGroup>, Error> {
        let reply = self.operate().change_locality_groups(self.request(message)).await;
        reply.map(|reply| reply.into_inner().groups).map_err(|status| from_status(&status).0)
    }

    pub(crate) fn request<M>(&self, message: M) -> Request<M> {
        let mut request = Request::new(message);
        request.set_timeout(self.timeout);
        if let Some(token) = &self.token {
            request.metadata_mut().insert("authorization", token.header());
        }
        request
    }

    pub(crate) fn tables(&self) -> BigtableTableAdminClient<Channel> {
        BigtableTableAdminClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX)
    }

    fn operate(&self) -> OperateClient<Channel> {
        OperateClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX)
    }
}

fn group_descriptor(group: Option<record::GroupDescriptor>) -> Result<GroupDescriptor, Error> {
    let group = group.ok_or_else(|| Error::internal("the response has no group"))?;
    convert::group_from_proto(&group)
}

fn group_status(status: operate::GroupStatus) -> Result<GroupStatus, Error> {
    Ok(GroupStatus {
        group: group_descriptor(status.group)?,
        leader: Some(status.leader).filter(|leader| *leader != 0).map(ServerId::new),
        tablets: status.tablets,
        size_bytes: status.size_bytes,
    })
}

fn instance(project: &str, instance: &str) -> String {
    format!("projects/{project}/instances/{instance}")
}

/// Servers of other vendors return NOT_FOUND without a resource: here it is always the table.
fn unwrap_response<T>(response: Result<Response<T>, Status>) -> Result<T, Error> {
    response.map(Response::into_inner).map_err(|status| {
        let (error, _detail) = from_status(&status);
        match error.reason {
            Reason::NotFound => Error::new(Reason::NotFoundTable, error.message),
            _other => error,
        }
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
