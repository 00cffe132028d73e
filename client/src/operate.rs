//! Admin calls for operators: splits, merges, moves, groups, drains, recovery, locality groups, quotas and the cluster status.
//!
//! They use `ebla.operate`, which servers of other vendors do not have.

use std::collections::BTreeMap;

use ebla_model::error::Error;
use ebla_model::id::{GroupId, ServerId, TabletId};
use ebla_model::key::RowKey;
use ebla_model::locality::{GroupSizes, LocalityGroupChange};
use ebla_model::metadata::{GroupDescriptor, TabletDescriptor};
use ebla_model::quota::QuotaLimits;
use ebla_model::schema::TableName;
use ebla_model::tablet_load::TabletLoad;
use ebla_proto::{convert, operate, record};

use crate::admin::{Admin, into_message, unwrap_response};
use crate::wire;

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

impl Admin {
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
        let reply = into_message(self.operate().merge(self.request(message)).await)?;
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
        into_message(self.operate().preview_merge(self.request(message)).await)
    }

    /// What [`Self::move_tablet`] would do. Changes nothing.
    ///
    /// # Errors
    /// As [`Self::move_tablet`] for what is known before it begins; `Unimplemented` when the master is of an earlier release.
    pub async fn preview_move(&self, tablet: TabletId, group: GroupId) -> Result<operate::PreviewMoveReply, Error> {
        let message = operate::MoveTabletRequest { tablet: tablet.get(), group: group.get() };
        into_message(self.operate().preview_move(self.request(message)).await)
    }

    /// Moves a tablet to another existing group. Returns the tablet as it is there, and the group that it has left. It is not served
    /// while its cells are copied.
    ///
    /// # Errors
    /// `NotFound`; `FailedPrecondition` when the tablet cannot be moved there; `Deadline` when a move that has begun continues;
    /// otherwise as [`Self::create_table`].
    pub async fn move_tablet(&self, tablet: TabletId, group: GroupId) -> Result<(TabletDescriptor, GroupId), Error> {
        let message = operate::MoveTabletRequest { tablet: tablet.get(), group: group.get() };
        let reply = into_message(self.operate().move_tablet(self.request(message)).await)?;
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
        let reply = unwrap_response(self.operate().groups(self.request(operate::GroupsRequest::default())).await)?;
        reply.groups.into_iter().map(group_status).collect()
    }

    /// Divides a group: about half of its bytes move to a new group on the same servers. Returns the group, the new group
    /// and the number of tablets that moved.
    ///
    /// # Errors
    /// `NotFound`, `FailedPrecondition` when the group cannot be divided; otherwise as [`Self::create_table`].
    pub async fn divide_group(&self, group: GroupId) -> Result<(GroupDescriptor, GroupDescriptor, u64), Error> {
        let message = operate::DivideGroupRequest { group: group.get() };
        let reply = into_message(self.operate().divide_group(self.request(message)).await)?;
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
        into_message(self.operate().recover_tablets(self.request(message)).await)
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
        into_message(self.operate().drain_server(self.request(message)).await)
    }

    /// Ends the drain of a tablet server. Whether it was drained.
    ///
    /// # Errors
    /// As [`Self::create_table`].
    pub async fn undrain_server(&self, mode: ExecutionMode, server: ServerId) -> Result<bool, Error> {
        let message = operate::UndrainServerRequest { server: server.get(), dry_run: mode == ExecutionMode::DryRun };
        into_message(self.operate().undrain_server(self.request(message)).await).map(|reply| reply.was_drained)
    }

    /// Makes the cluster forget a tablet server that has no replicas and does not run.
    ///
    /// # Errors
    /// `NotFound`; `FailedPrecondition` while it has replicas, is registered or responds; otherwise as [`Self::create_table`].
    pub async fn remove_server(&self, mode: ExecutionMode, server: ServerId) -> Result<(), Error> {
        let message = operate::RemoveServerRequest { server: server.get(), dry_run: mode == ExecutionMode::DryRun };
        into_message(self.operate().remove_server(self.request(message)).await).map(drop)
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
        into_message(self.operate().table_usage(self.request(message)).await)
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
        into_message(self.operate().set_quota(self.request(message)).await).map(drop)
    }

    /// Checks that the cluster's metadata and replicas are as they should be.
    ///
    /// # Errors
    /// `Unavailable` while METADATA cannot be read; otherwise as [`Self::create_table`].
    pub async fn check(&self, depth: CheckDepth, mode: CheckMode) -> Result<operate::CheckReply, Error> {
        let (quick, repair) = (depth == CheckDepth::Metadata, mode == CheckMode::Repair);
        into_message(self.operate().check(self.request(operate::CheckRequest { quick, repair })).await)
    }

    async fn locality_groups(
        &self,
        message: operate::ChangeLocalityGroupsRequest,
    ) -> Result<Vec<operate::LocalityGroup>, Error> {
        into_message(self.operate().change_locality_groups(self.request(message)).await).map(|reply| reply.groups)
    }
}

fn group_descriptor(group: Option<record::GroupDescriptor>) -> Result<GroupDescriptor, Error> {
    let group = group.ok_or_else(|| Error::internal("the response has no group"))?;
    convert::group_from_proto(&group)
}

pub(crate) fn group_status(status: operate::GroupStatus) -> Result<GroupStatus, Error> {
    Ok(GroupStatus {
        group: group_descriptor(status.group)?,
        leader: Some(status.leader).filter(|leader| *leader != 0).map(ServerId::new),
        tablets: status.tablets,
        size_bytes: status.size_bytes,
    })
}
