//! Instances: their records, creation and deletion.
//!
//! Every project and instance exists, empty, so that a client can start by creating a table. An instance is *known*
//! when it was created, or has a table or an app profile; only known instances are listed and can be deleted.

use std::collections::BTreeMap;

use ebla_chubby::{Compare, Revision, TransactionOutcome, Write, paths};
use ebla_client::Deadline;
use ebla_model::admin::instance::{ClusterDescription, Instance, InstanceName, Instances, ProjectName, StorageKind};
use ebla_model::error::{Error, Reason};
use ebla_model::schema::{TableSchema, TableState};
use ebla_proto::convert::instance::{CLUSTER_NAME, instance_to_bytes};
use tracing::info;

use crate::active::ActiveMaster;
use crate::schema_store::{self, Stored};
use crate::{jobs, views};

/// Files that are deleted in one transaction, below what etcd allows.
const CHUNK: usize = 100;

/// The known instances of a project, by name. Those that were created have a record.
///
/// # Errors
/// Errors of Chubby.
pub(crate) async fn list(
    master: &ActiveMaster,
    project: &ProjectName,
) -> Result<BTreeMap<InstanceName, Option<Instance>>, Error> {
    let chubby = master.chubby();
    let mut known = BTreeMap::new();
    let tables = schema_store::list_tables(chubby).await?;
    let tables = tables.values().filter(|schema| schema.name.project() == project.id() && has_name(schema));
    for schema in tables {
        known.insert(InstanceName::from_parts(schema.name.project(), schema.name.instance())?, None);
    }
    for profile in schema_store::list_profiles(chubby, &Instances::All(project.clone())).await? {
        known.insert(profile.value.name.instance().clone(), None);
    }
    for instance in schema_store::list_instances(chubby, project).await? {
        known.insert(instance.name.clone(), Some(instance));
    }
    Ok(known)
}

/// The selected instances, with the records of those that were created: one instance, known or not, or the known ones
/// of a project.
///
/// # Errors
/// Errors of Chubby.
pub(crate) async fn select(
    master: &ActiveMaster,
    asked: &Instances,
) -> Result<BTreeMap<InstanceName, Option<Instance>>, Error> {
    match asked {
        Instances::One(name) => Ok([(name.clone(), find(master, name).await?)].into()),
        Instances::All(project) => list(master, project).await,
    }
}

/// Whether a table still has its name: not while it is being deleted.
fn has_name(schema: &TableSchema) -> bool {
    schema.state != TableState::Deleting
}

/// The record of an instance, if it was created.
///
/// # Errors
/// Errors of Chubby.
pub(crate) async fn find(master: &ActiveMaster, name: &InstanceName) -> Result<Option<Instance>, Error> {
    Ok(schema_store::read_instance(master.chubby(), name).await?.map(|stored| stored.value))
}

/// The only cluster of an instance: as its record describes it, otherwise as it is.
///
/// # Errors
/// Errors of Chubby.
pub(crate) async fn cluster(master: &ActiveMaster, instance: Option<&Instance>) -> Result<ClusterDescription, Error> {
    if let Some(instance) = instance {
        return Ok(instance.cluster.clone());
    }
    let servers = schema_store::list_servers(master.chubby()).await?.len();
    Ok(ClusterDescription {
        id: CLUSTER_NAME.to_owned(),
        location: String::new(),
        serve_nodes: u32::try_from(servers).unwrap_or(u32::MAX),
        storage: StorageKind::Unspecified,
    })
}

/// The name of the only cluster of an instance: from its record, if it was created.
pub(crate) fn cluster_name(created: Option<&Instance>) -> &str {
    created.map_or(CLUSTER_NAME, |instance| &instance.cluster.id)
}

/// Creates an instance.
///
/// # Errors
/// `AlreadyExists` when it is known; `OutcomeUnknown` when it may or may not have been created.
pub(crate) async fn create(master: &ActiveMaster, instance: &Instance) -> Result<(), Error> {
    let exists = || {
        let message =
            format!("instance {} already exists: it was created, or has tables or app profiles", instance.name);
        Error::new(Reason::AlreadyExists, message)
    };
    if !Content::read(master, &instance.name).await?.is_empty() {
        return Err(exists());
    }
    let path = paths::instance(&instance.name);
    let write = Write::put(path.clone(), instance_to_bytes(instance));
    match master.commit_intent(vec![Compare::Absent(path)], vec![write]).await? {
        TransactionOutcome::Committed(_) => {
            info!(name = %instance.name, "instance created");
            Ok(())
        }
        TransactionOutcome::Conflict => Err(exists()),
    }
}

/// Updates the record of an instance, and returns the new one. `change` may be called more than once.
///
/// # Errors
/// `FailedPrecondition` when it was not created; those of `change`; `OutcomeUnknown` when it may or may not have been
/// updated.
pub(crate) async fn update(
    master: &ActiveMaster,
    name: &InstanceName,
    change: impl Fn(&Instance) -> Result<Instance, Error>,
) -> Result<Instance, Error> {
    loop {
        let Some(present) = schema_store::read_instance(master.chubby(), name).await? else {
            return Err(not_created(name));
        };
        let next = change(&present.value)?;
        let path = paths::instance(name);
        let write = Write::put(path.clone(), instance_to_bytes(&next));
        let compare = Compare::Modified(path, present.modified);
        if let TransactionOutcome::Committed(_) = master.commit_intent(vec![compare], vec![write]).await? {
            info!(%name, "instance updated");
            return Ok(next);
        }
    }
}

/// The error for an instance without a record. Once it has tables it cannot be created any more.
fn not_created(name: &InstanceName) -> Error {
    let message = format!(
        "instance {name} was not created with CreateInstance, so it has no settings to update: update an instance that \
         was created, or, to change the size of the cluster, start or stop tablet servers (ebla tablet-server)"
    );
    Error::new(Reason::FailedPrecondition, message)
}

/// Deletes an instance with its tables and app profiles. Safe to repeat: what remains makes it known.
///
/// # Errors
/// `NotFound` when it is not known; `FailedPrecondition` when one of its tables is protected or being created:
/// nothing was deleted then; otherwise as [`jobs::delete::delete_table`], with some tables deleted.
pub(crate) async fn delete(master: &ActiveMaster, name: &InstanceName, deadline: Deadline) -> Result<(), Error> {
    let content = Content::read(master, name).await?;
    if content.is_empty() {
        let message = format!("instance {name} was not created and has neither tables nor app profiles");
        return Err(Error::new(Reason::NotFound, message));
    }
    content.tables.iter().try_for_each(jobs::delete::check_deletable)?;
    for table in &content.tables {
        views::check_unprotected(master, table).await?;
    }
    for table in &content.tables {
        match jobs::delete::delete_table(master, &table.name, deadline).await {
            Err(error) if error.reason != Reason::NotFoundTable => return Err(error),
            _gone => {}
        }
    }
    for profiles in content.profiles.chunks(CHUNK) {
        let writes = profiles.iter().map(|path| Write::delete(path.clone())).collect();
        master.commit_intent(Vec::new(), writes).await?;
    }
    // The policy goes with the record: until then the caller may repeat the deletion, and no other caller gets access. An instance
    // that another call creates meanwhile keeps its policy.
    let path = paths::instance(name);
    let policy = Write::delete(paths::instance_access(name.project(), name.instance()));
    let (compare, writes) = match content.created {
        Some(created) => (Compare::Modified(path.clone(), created), vec![Write::delete(path), policy]),
        None => (Compare::Absent(path), vec![policy]),
    };
    if master.commit_intent(vec![compare], writes).await? == TransactionOutcome::Conflict {
        let message =
            format!("instance {name} was created again, or changed, during its deletion; its policy was kept");
        return Err(Error::new(Reason::Conflict, message));
    }
    info!(%name, "instance deleted");
    Ok(())
}

/// The contents of an instance.
struct Content {
    /// The revision of its record, if it was created.
    created: Option<Revision>,
    tables: Vec<TableSchema>,
    /// The paths of its app profiles.
    profiles: Vec<String>,
}

impl Content {
    async fn read(master: &ActiveMaster, name: &InstanceName) -> Result<Self, Error> {
        let chubby = master.chubby();
        let created = schema_store::read_instance(chubby, name).await?.map(|stored| stored.modified);
        let tables = schema_store::list_tables(chubby).await?.into_values();
        let tables = tables.filter(|schema| schema.name.is_in(name) && has_name(schema)).collect();
        let profiles = schema_store::list_profiles(chubby, &Instances::One(name.clone())).await?;
        let path = |stored: &Stored<ebla_model::AppProfile>| paths::profile(&stored.value.name);
        Ok(Self { created, tables, profiles: profiles.iter().map(path).collect() })
    }

    const fn is_empty(&self) -> bool {
        self.created.is_none() && self.tables.is_empty() && self.profiles.is_empty()
    }
}
