//! Instances: what is known of them, and their beginning and end.
//!
//! Every project and instance exists, empty, so that a client may begin with a table. An instance is *known* when it was
//! created, or has a table or an app profile; only known ones are listed, and only known ones can be deleted.

use std::collections::BTreeMap;

use ebla_chubby::{Compare, Outcome, Revision, Write, paths};
use ebla_client::Deadline;
use ebla_model::error::{Error, Reason};
use ebla_model::instance::{ClusterDescription, Instance, InstanceName, Instances, ProjectName, StorageKind};
use ebla_model::schema::{TableSchema, TableState};
use ebla_proto::convert::instance::{CLUSTER_NAME, instance_to_bytes};
use tracing::info;

use crate::deletion;
use crate::office::Office;
use crate::records::{self, Stored};

/// Files that are deleted in one transaction, below what etcd allows.
const CHUNK: usize = 100;

/// The known instances of a project, by name, with what their creators said.
///
/// # Errors
/// What Chubby says.
pub(crate) async fn list(
    office: &Office,
    project: &ProjectName,
) -> Result<BTreeMap<InstanceName, Option<Instance>>, Error> {
    let chubby = office.chubby();
    let mut known = BTreeMap::new();
    let tables = records::list_tables(chubby).await?;
    let tables = tables.values().filter(|schema| schema.name.project() == project.id() && is_there(schema));
    for schema in tables {
        known.insert(InstanceName::from_parts(schema.name.project(), schema.name.instance())?, None);
    }
    for profile in records::list_profiles(chubby, &Instances::All(project.clone())).await? {
        known.insert(profile.value.name.instance().clone(), None);
    }
    for instance in records::list_instances(chubby, project).await? {
        known.insert(instance.name.clone(), Some(instance));
    }
    Ok(known)
}

/// The instances that are asked for, with what their creators said: one, known or not, or the known ones of a project.
///
/// # Errors
/// What Chubby says.
pub(crate) async fn among(
    office: &Office,
    asked: &Instances,
) -> Result<BTreeMap<InstanceName, Option<Instance>>, Error> {
    match asked {
        Instances::One(name) => Ok([(name.clone(), find(office, name).await?)].into()),
        Instances::All(project) => list(office, project).await,
    }
}

/// A table that is being deleted has lost its name.
fn is_there(schema: &TableSchema) -> bool {
    schema.state != TableState::Deleting
}

/// What the creator of an instance said of it, if it was created.
///
/// # Errors
/// What Chubby says.
pub(crate) async fn find(office: &Office, name: &InstanceName) -> Result<Option<Instance>, Error> {
    Ok(records::read_instance(office.chubby(), name).await?.map(|stored| stored.value))
}

/// The one cluster of an instance: as its creator described it, else as it is.
///
/// # Errors
/// What Chubby says.
pub(crate) async fn cluster(office: &Office, instance: Option<&Instance>) -> Result<ClusterDescription, Error> {
    if let Some(instance) = instance {
        return Ok(instance.cluster.clone());
    }
    let servers = records::list_servers(office.chubby()).await?.len();
    Ok(ClusterDescription {
        id: CLUSTER_NAME.to_owned(),
        location: String::new(),
        serve_nodes: u32::try_from(servers).unwrap_or(u32::MAX),
        storage: StorageKind::Unspecified,
    })
}

/// The name of the one cluster of an instance: what its creator said, if it was created.
pub(crate) fn cluster_name(created: Option<&Instance>) -> &str {
    created.map_or(CLUSTER_NAME, |instance| &instance.cluster.id)
}

/// Keeps an instance.
///
/// # Errors
/// `AlreadyExists` when it is known; `OutcomeUnknown` when nobody knows whether it is kept.
pub(crate) async fn create(office: &Office, instance: &Instance) -> Result<(), Error> {
    let exists = || {
        let message =
            format!("instance {} already exists: it was created, or has tables or app profiles", instance.name);
        Error::new(Reason::AlreadyExists, message)
    };
    if !Content::read(office, &instance.name).await?.is_nothing() {
        return Err(exists());
    }
    let path = paths::instance(&instance.name);
    let write = Write::put(path.clone(), instance_to_bytes(instance));
    match office.begin(vec![Compare::Absent(path)], vec![write]).await? {
        Outcome::Done(_) => {
            info!(name = %instance.name, "instance created");
            Ok(())
        }
        Outcome::Conflict => Err(exists()),
    }
}

/// Changes what is kept of an instance, and answers what it is then. `change` may be asked more than once.
///
/// # Errors
/// `FailedPrecondition` when nobody created it; what `change` refuses; `OutcomeUnknown` when nobody knows whether it was
/// changed.
pub(crate) async fn update(
    office: &Office,
    name: &InstanceName,
    change: impl Fn(&Instance) -> Result<Instance, Error>,
) -> Result<Instance, Error> {
    loop {
        let Some(present) = records::read_instance(office.chubby(), name).await? else {
            return Err(not_created(name));
        };
        let next = change(&present.value)?;
        let path = paths::instance(name);
        let write = Write::put(path.clone(), instance_to_bytes(&next));
        let compare = Compare::Modified(path, present.modified);
        if let Outcome::Done(_) = office.begin(vec![compare], vec![write]).await? {
            info!(%name, "instance updated");
            return Ok(next);
        }
    }
}

/// An instance that serves although nobody created it cannot be created any more once it has tables.
fn not_created(name: &InstanceName) -> Error {
    let message = format!(
        "instance {name} was not created with CreateInstance, so it has no settings to update: update an instance that \
         was created, or, to change the size of the cluster, start or stop tablet servers (ebla tablet-server)"
    );
    Error::new(Reason::FailedPrecondition, message)
}

/// Deletes an instance with its tables and app profiles. Safe to repeat: what is left makes it known.
///
/// # Errors
/// `NotFound` when it is not known; `FailedPrecondition` when one of its tables is protected, or being made: then nothing was
/// deleted; else as [`deletion::delete`], with some tables deleted.
pub(crate) async fn delete(office: &Office, name: &InstanceName, deadline: Deadline) -> Result<(), Error> {
    let content = Content::read(office, name).await?;
    if content.is_nothing() {
        let message = format!("instance {name} was not created and has neither tables nor app profiles");
        return Err(Error::new(Reason::NotFound, message));
    }
    content.tables.iter().try_for_each(deletion::refuse_guarded)?;
    for table in &content.tables {
        match deletion::delete(office, &table.name, deadline).await {
            Err(error) if error.reason != Reason::NotFoundTable => return Err(error),
            _gone => {}
        }
    }
    for profiles in content.profiles.chunks(CHUNK) {
        let writes = profiles.iter().map(|path| Write::delete(path.clone())).collect();
        office.begin(Vec::new(), writes).await?;
    }
    if let Some(created) = content.created {
        let path = paths::instance(name);
        let compare = Compare::Modified(path.clone(), created);
        if office.begin(vec![compare], vec![Write::delete(path)]).await? == Outcome::Conflict {
            return Err(Error::new(Reason::Conflict, format!("instance {name} was created anew meanwhile")));
        }
    }
    info!(%name, "instance deleted");
    Ok(())
}

/// What belongs to an instance.
struct Content {
    /// When it was kept, if it was created.
    created: Option<Revision>,
    tables: Vec<TableSchema>,
    /// Files of its app profiles.
    profiles: Vec<String>,
}

impl Content {
    async fn read(office: &Office, name: &InstanceName) -> Result<Self, Error> {
        let chubby = office.chubby();
        let created = records::read_instance(chubby, name).await?.map(|stored| stored.modified);
        let tables = records::list_tables(chubby).await?.into_values();
        let tables = tables.filter(|schema| schema.name.is_in(name) && is_there(schema)).collect();
        let profiles = records::list_profiles(chubby, &Instances::One(name.clone())).await?;
        let path = |stored: &Stored<ebla_model::AppProfile>| paths::profile(&stored.value.name);
        Ok(Self { created, tables, profiles: profiles.iter().map(path).collect() })
    }

    const fn is_nothing(&self) -> bool {
        self.created.is_none() && self.tables.is_empty() && self.profiles.is_empty()
    }
}
