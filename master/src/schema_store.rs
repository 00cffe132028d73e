//! The schema store: typed records in Chubby's files (schemas, group and table plans, operations, instances, app profiles, and
//! the cluster's identity). The master encodes and decodes them only here.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use ebla_chubby::{Chubby, Compare, File, Revision, paths, read_counters};
use ebla_model::admin::app_profile::{AppProfile, AppProfileName};
use ebla_model::admin::instance::{Instance, InstanceName, Instances, ProjectName};
use ebla_model::cluster_version::ClusterVersion;
use ebla_model::error::{Error, Reason};
use ebla_model::id::{ClusterId, GroupId, LogId, OperationId, ServerId, TableId};
use ebla_model::metadata::TabletDescriptor;
use ebla_model::schema::{TableName, TableSchema};
use ebla_model::time::Micros;
use ebla_proto::admin::longrunning::Operation as FinishedOperation;
use ebla_proto::control::apply_request::Kind;
use ebla_proto::convert::app_profile::app_profile_from_bytes;
use ebla_proto::convert::instance::instance_from_bytes;
use ebla_proto::convert::operation::finished_operation_from_bytes;
use ebla_proto::{control, convert, record};
use prost::Message;

use crate::cluster::{ClusterSnapshot, DeletedTable, GroupPlan, GroupProgress, Operation, OperationKind, TablePlan};
use crate::plan::upgrade::Hold;

/// A value and its revision, to compare when it is replaced.
#[derive(Clone, Debug)]
pub(crate) struct Stored<T> {
    pub(crate) value: T,
    pub(crate) modified: Revision,
}

/// The content of the file `cluster`.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) cluster: ClusterId,
    pub(crate) state: record::ClusterState,
    /// Added to the revisions of the master lock; a recovery raises it.
    pub(crate) epoch_base: u64,
    pub(crate) first_tablets: Vec<TabletDescriptor>,
    /// The active cluster version.
    pub(crate) active: ClusterVersion,
    /// Whether an operator holds it.
    pub(crate) hold: Hold,
}

pub(crate) async fn read_identity(chubby: &dyn Chubby) -> Result<Option<Stored<Identity>>, Error> {
    let Some(file) = chubby.read(paths::CLUSTER).await? else { return Ok(None) };
    let message: record::Cluster = convert::decode_record(file.value)?;
    let cluster = ClusterId::from_bytes(&message.cluster).ok_or_else(|| Error::damaged("the cluster id is damaged"))?;
    let first_tablets = message.first_tablets.iter().map(convert::descriptor_from_proto).collect::<Result<_, _>>()?;
    let value = Identity {
        cluster,
        state: message.state(),
        epoch_base: message.epoch_base,
        first_tablets,
        active: convert::active_version(&message),
        hold: if message.version_held { Hold::Held } else { Hold::Released },
    };
    Ok(Some(Stored { value, modified: file.modified }))
}

pub(crate) fn encode_identity(identity: &Identity) -> Bytes {
    convert::cluster_to_bytes(record::Cluster {
        cluster: Bytes::copy_from_slice(&identity.cluster.to_bytes()),
        state: identity.state.into(),
        epoch_base: identity.epoch_base,
        first_tablets: identity.first_tablets.iter().map(convert::descriptor_to_proto).collect(),
        active_version: identity.active.get(),
        version_held: identity.hold == Hold::Held,
        ..Default::default()
    })
}

/// The snapshot with the content of Chubby's files.
///
/// # Errors
/// When Chubby cannot be read, or a file is damaged.
pub(crate) async fn read_files(chubby: &dyn Chubby, observed: ClusterSnapshot) -> Result<ClusterSnapshot, Error> {
    Ok(ClusterSnapshot {
        tables: list_tables(chubby).await?,
        // After the tables: one that is deleted meanwhile is in both.
        deleted: list_deleted(chubby).await?,
        new_groups: list_groups(chubby).await?,
        plans: list_plans(chubby).await?,
        operations: list_operations(chubby).await?,
        root: read_root(chubby).await?.map(|root| root.value),
        drained: list_drained(chubby).await?,
        behind: read_behind(chubby).await?,
        counters: Some(read_counters(chubby).await?),
        ..observed
    })
}

/// What shows that Chubby lacks changes, if that was recorded.
pub(crate) async fn read_behind(chubby: &dyn Chubby) -> Result<Option<Vec<String>>, Error> {
    let Some(file) = chubby.read(paths::BEHIND).await? else { return Ok(None) };
    let behind: record::Behind = convert::decode_record(file.value)?;
    Ok(Some(behind.reasons))
}

pub(crate) fn encode_behind(reasons: &[String]) -> Bytes {
    convert::encode_record(record::Behind { reasons: reasons.to_vec(), ..Default::default() })
}

/// The masters that run and register, by incarnation.
pub(crate) async fn list_candidates(chubby: &dyn Chubby) -> Result<Vec<record::Master>, Error> {
    let (files, _revision) = chubby.list(paths::CANDIDATES).await?;
    decode_candidates(files)
}

/// The registered servers.
pub(crate) async fn list_servers(chubby: &dyn Chubby) -> Result<BTreeMap<ServerId, record::Server>, Error> {
    let (files, _revision) = chubby.list(paths::SERVERS).await?;
    decode_servers(files)
}

/// All registered processes.
pub(crate) struct Processes {
    pub(crate) masters: Vec<record::Master>,
    pub(crate) servers: BTreeMap<ServerId, record::Server>,
    /// Holds as long as none has registered since, also none that replaces a registration of the same server.
    pub(crate) unchanged: Vec<Compare>,
}

/// Lists the registered processes.
pub(crate) async fn list_processes(chubby: &dyn Chubby) -> Result<Processes, Error> {
    let (candidates, masters_at) = chubby.list(paths::CANDIDATES).await?;
    let (servers, servers_at) = chubby.list(paths::SERVERS).await?;
    let unchanged = [(paths::CANDIDATES, masters_at), (paths::SERVERS, servers_at)];
    Ok(Processes {
        masters: decode_candidates(candidates)?,
        servers: decode_servers(servers)?,
        unchanged: unchanged.map(|(prefix, at)| Compare::Unchanged(prefix.to_owned(), at)).to_vec(),
    })
}

fn decode_candidates(files: Vec<File>) -> Result<Vec<record::Master>, Error> {
    files.into_iter().map(|file| convert::decode_record(file.value)).collect()
}

fn decode_servers(files: Vec<File>) -> Result<BTreeMap<ServerId, record::Server>, Error> {
    let named = files.into_iter().filter_map(|file| Some((paths::parse_server(&file.path)?, file)));
    named.map(|(id, file)| Ok((id, convert::decode_record(file.value)?))).collect()
}

/// The servers that are drained.
pub(crate) async fn list_drained(chubby: &dyn Chubby) -> Result<BTreeSet<ServerId>, Error> {
    let (files, _revision) = chubby.list(paths::DRAINED).await?;
    Ok(files.iter().filter_map(|file| paths::parse_drained(&file.path)).collect())
}

pub(crate) fn encode_drained(time: Micros) -> Bytes {
    convert::encode_record(record::DrainedServer { time_micros: time.get(), ..Default::default() })
}

pub(crate) async fn read_root(chubby: &dyn Chubby) -> Result<Option<Stored<TabletDescriptor>>, Error> {
    let Some(file) = chubby.read(paths::ROOT).await? else { return Ok(None) };
    Ok(Some(Stored { value: convert::descriptor_from_bytes(file.value)?, modified: file.modified }))
}

/// Resolves a table name to an id.
///
/// # Errors
/// `NotFoundTable` when there is none.
pub(crate) async fn resolve(chubby: &dyn Chubby, name: &TableName) -> Result<TableId, Error> {
    let file = chubby.read(&paths::name(name)).await?;
    parse_table_id(&file.ok_or_else(|| not_found(name))?)
}

fn parse_table_id(file: &File) -> Result<TableId, Error> {
    let text = std::str::from_utf8(&file.value).ok();
    text.and_then(|text| text.parse().ok()).ok_or_else(|| Error::damaged(format!("{} is not a table id", file.path)))
}

/// The tables of all names, by the path of the name; damaged files are omitted.
pub(crate) async fn list_names(chubby: &dyn Chubby) -> Result<BTreeMap<String, TableId>, Error> {
    let (files, _revision) = chubby.list(paths::NAMES).await?;
    let named = files.into_iter().filter_map(|file| Some((parse_table_id(&file).ok()?, file.path)));
    Ok(named.map(|(table, path)| (path, table)).collect())
}

pub(crate) fn not_found(name: &TableName) -> Error {
    Error::new(Reason::NotFoundTable, format!("table {name} does not exist"))
}

pub(crate) async fn read_table(chubby: &dyn Chubby, id: TableId) -> Result<Option<Stored<TableSchema>>, Error> {
    let Some(file) = chubby.read(&paths::table(id)).await? else { return Ok(None) };
    Ok(Some(Stored { value: convert::schema_from_bytes(file.value)?, modified: file.modified }))
}

/// The table of a name, in any state.
pub(crate) async fn find_table(chubby: &dyn Chubby, name: &TableName) -> Result<Stored<TableSchema>, Error> {
    let id = resolve(chubby, name).await?;
    // Name and schema are written in one transaction; a table can be created between the two reads.
    read_table(chubby, id).await?.ok_or_else(|| not_found(name))
}

pub(crate) async fn list_tables(chubby: &dyn Chubby) -> Result<BTreeMap<TableId, TableSchema>, Error> {
    let (files, _revision) = chubby.list(paths::TABLES).await?;
    let named = files.into_iter().filter_map(|file| Some((paths::parse_table(&file.path)?, file)));
    named.map(|(id, file)| Ok((id, convert::schema_from_bytes(file.value)?))).collect()
}

pub(crate) fn encode_deleted(table: &DeletedTable) -> Bytes {
    let dropped = |(group, applied): (&GroupId, &LogId)| record::DroppedBy {
        group: group.get(),
        applied: Some(convert::log_id_to_proto(*applied)),
    };
    convert::encode_record(record::DeletedTable {
        name: table.name.to_string(),
        groups: table.groups.iter().map(dropped).collect(),
        ..Default::default()
    })
}

fn decode_deleted(file: &File) -> Result<DeletedTable, Error> {
    let table: record::DeletedTable = convert::decode_record(file.value.clone())?;
    let name = TableName::parse_stored(&table.name)
        .map_err(|_error| Error::damaged(format!("{} has no table name", file.path)))?;
    let dropped = |by: &record::DroppedBy| {
        (GroupId::new(by.group), by.applied.as_ref().map(convert::log_id_from_proto).unwrap_or_default())
    };
    Ok(DeletedTable { name, groups: table.groups.iter().map(dropped).collect() })
}

/// The records of deletions.
pub(crate) async fn list_deleted(chubby: &dyn Chubby) -> Result<BTreeMap<TableId, DeletedTable>, Error> {
    let (files, _revision) = chubby.list(paths::DELETED).await?;
    let named = files.iter().filter_map(|file| Some((paths::parse_deleted(&file.path)?, file)));
    named.map(|(id, file)| Ok((id, decode_deleted(file)?))).collect()
}

pub(crate) fn encode_group(plan: &GroupPlan) -> Bytes {
    convert::encode_record(record::GroupPlan {
        group: Some(convert::group_to_proto(&plan.group)),
        created: plan.progress == GroupProgress::HasMajority,
        ..Default::default()
    })
}

fn decode_group(file: &File) -> Result<GroupPlan, Error> {
    let plan: record::GroupPlan = convert::decode_record(file.value.clone())?;
    let group = plan.group.ok_or_else(|| Error::damaged(format!("{} names no group", file.path)))?;
    let progress = if plan.created { GroupProgress::HasMajority } else { GroupProgress::Creating };
    Ok(GroupPlan { group: convert::group_from_proto(&group)?, progress })
}

pub(crate) async fn read_group(chubby: &dyn Chubby, group: GroupId) -> Result<Option<Stored<GroupPlan>>, Error> {
    let Some(file) = chubby.read(&paths::group(group)).await? else { return Ok(None) };
    Ok(Some(Stored { value: decode_group(&file)?, modified: file.modified }))
}

/// The groups that are being created.
pub(crate) async fn list_groups(chubby: &dyn Chubby) -> Result<BTreeMap<GroupId, GroupPlan>, Error> {
    let (files, _revision) = chubby.list(paths::GROUPS).await?;
    let named = files.iter().filter_map(|file| Some((paths::parse_group(&file.path)?, file)));
    named.map(|(id, file)| Ok((id, decode_group(file)?))).collect()
}

pub(crate) fn encode_plan(plan: &TablePlan) -> Bytes {
    let first_tablets = plan.tablets.iter().map(convert::descriptor_to_proto).collect();
    convert::encode_record(record::TablePlan { first_tablets, operation: plan.operation.get(), ..Default::default() })
}

fn decode_plan(file: &File) -> Result<TablePlan, Error> {
    let plan: record::TablePlan = convert::decode_record(file.value.clone())?;
    let tablets = plan.first_tablets.iter().map(convert::descriptor_from_proto).collect::<Result<_, _>>()?;
    Ok(TablePlan { tablets, operation: OperationId::new(plan.operation) })
}

pub(crate) async fn read_plan(chubby: &dyn Chubby, table: TableId) -> Result<Option<TablePlan>, Error> {
    chubby.read(&paths::plan(table)).await?.as_ref().map(decode_plan).transpose()
}

pub(crate) async fn list_plans(chubby: &dyn Chubby) -> Result<BTreeMap<TableId, TablePlan>, Error> {
    let (files, _revision) = chubby.list(paths::PLANS).await?;
    let named = files.iter().filter_map(|file| Some((paths::parse_plan(&file.path)?, file)));
    named.map(|(id, file)| Ok((id, decode_plan(file)?))).collect()
}

/// The request that each tablet receives to apply the operation.
pub(crate) fn apply_kind(id: OperationId, kind: &OperationKind) -> Kind {
    match kind {
        OperationKind::DropTable => Kind::DropOperation(id.get()),
        OperationKind::DropRange(range) => {
            Kind::DropRange(control::DropRange { operation: id.get(), range: Some(convert::key_range_to_proto(range)) })
        }
    }
}

pub(crate) fn encode_operation(id: OperationId, operation: &Operation) -> Bytes {
    let kind = Some(apply_kind(id, &operation.kind));
    control::ApplyRequest { table: operation.table.get(), kind, ..Default::default() }.encode_to_vec().into()
}

fn decode_operation(file: &File) -> Result<Operation, Error> {
    let damaged = || Error::damaged(format!("{} is damaged", file.path));
    let message = control::ApplyRequest::decode(file.value.clone()).map_err(|_error| damaged())?;
    let kind = match message.kind.ok_or_else(damaged)? {
        Kind::DropOperation(_id) => OperationKind::DropTable,
        Kind::DropRange(drop) => {
            OperationKind::DropRange(convert::key_range_from_proto(&drop.range.ok_or_else(damaged)?)?)
        }
        Kind::SetSchema(_schema) => return Err(damaged()),
    };
    Ok(Operation { table: TableId::new(message.table), kind })
}

pub(crate) async fn read_operation(chubby: &dyn Chubby, id: OperationId) -> Result<Option<Operation>, Error> {
    chubby.read(&paths::operation(id)).await?.as_ref().map(decode_operation).transpose()
}

pub(crate) async fn list_operations(chubby: &dyn Chubby) -> Result<BTreeMap<OperationId, Operation>, Error> {
    let (files, _revision) = chubby.list(paths::OPERATIONS).await?;
    let named = files.iter().filter_map(|file| Some((paths::parse_operation(&file.path)?, file)));
    named.map(|(id, file)| Ok((id, decode_operation(file)?))).collect()
}

/// The record of an instance, if it was created.
pub(crate) async fn read_instance(chubby: &dyn Chubby, name: &InstanceName) -> Result<Option<Stored<Instance>>, Error> {
    let Some(file) = chubby.read(&paths::instance(name)).await? else { return Ok(None) };
    Ok(Some(Stored { value: instance_from_bytes(file.value)?, modified: file.modified }))
}

/// The records of all created instances of a project.
pub(crate) async fn list_instances(chubby: &dyn Chubby, project: &ProjectName) -> Result<Vec<Instance>, Error> {
    let (files, _revision) = chubby.list(&paths::instances(project)).await?;
    files.into_iter().map(|file| instance_from_bytes(file.value)).collect()
}

pub(crate) async fn read_profile(
    chubby: &dyn Chubby,
    name: &AppProfileName,
) -> Result<Option<Stored<AppProfile>>, Error> {
    let Some(file) = chubby.read(&paths::profile(name)).await? else { return Ok(None) };
    Ok(Some(Stored { value: app_profile_from_bytes(file.value)?, modified: file.modified }))
}

pub(crate) async fn list_profiles(chubby: &dyn Chubby, of: &Instances) -> Result<Vec<Stored<AppProfile>>, Error> {
    let (files, _revision) = chubby.list(&paths::profiles(of)).await?;
    let stored = |file: File| Ok(Stored { value: app_profile_from_bytes(file.value)?, modified: file.modified });
    files.into_iter().map(stored).collect()
}

pub(crate) async fn read_finished(chubby: &dyn Chubby, id: OperationId) -> Result<Option<FinishedOperation>, Error> {
    let file = chubby.read(&paths::finished(id)).await?;
    file.map(|file| finished_operation_from_bytes(file.value)).transpose()
}

pub(crate) async fn list_finished(chubby: &dyn Chubby) -> Result<BTreeMap<OperationId, FinishedOperation>, Error> {
    let (files, _revision) = chubby.list(paths::FINISHED).await?;
    let named = files.into_iter().filter_map(|file| Some((paths::parse_finished(&file.path)?, file)));
    named.map(|(id, file)| Ok((id, finished_operation_from_bytes(file.value)?))).collect()
}

#[cfg(test)]
mod tests {
    use ebla_model::key::{KeyRange, RowKey};
    use ebla_model::metadata::GroupDescriptor;

    use super::*;

    fn file(value: Bytes) -> File {
        let path = "operations/3".to_owned();
        File { path, value, created: Revision::ZERO, modified: Revision::ZERO, lease: None }
    }

    #[test]
    fn operations_survive_a_round_trip() {
        let range = KeyRange::new(RowKey::EMPTY, Some(RowKey::new("m"))).unwrap();
        for kind in [OperationKind::DropTable, OperationKind::DropRange(range)] {
            let operation = Operation { table: TableId::new(5), kind };
            let encoded = encode_operation(OperationId::new(3), &operation);
            assert_eq!(decode_operation(&file(encoded)).unwrap(), operation);
        }
        assert!(decode_operation(&file(Bytes::from_static(b"\xff"))).is_err());
    }

    #[test]
    fn records_of_deletions_survive_a_round_trip() {
        let name = TableName::from_parts("p", "i", "t").unwrap();
        let groups = BTreeMap::from([(GroupId::new(3), LogId::SEED), (GroupId::new(4), LogId::default())]);
        let deleted = DeletedTable { name, groups };
        assert_eq!(decode_deleted(&file(encode_deleted(&deleted))).unwrap(), deleted);
        assert!(decode_deleted(&file(convert::encode_record(record::DeletedTable::default()))).is_err(), "no name");
    }

    #[test]
    fn plans_survive_a_round_trip() {
        let servers = [ServerId::new(1), ServerId::new(2)];
        let tablets = ebla_model::metadata::first_tablets(&servers).to_vec();
        let plan = TablePlan { tablets, operation: OperationId::new(7) };
        assert_eq!(decode_plan(&file(encode_plan(&plan))).unwrap(), plan);
        for progress in [GroupProgress::Creating, GroupProgress::HasMajority] {
            let plan = GroupPlan { group: GroupDescriptor::initial(GroupId::new(3), &servers), progress };
            assert_eq!(decode_group(&file(encode_group(&plan))).unwrap(), plan);
        }
    }
}
