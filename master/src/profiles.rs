//! App profiles: files in Chubby, each change is one transaction. The etag is the revision of the last write.
//!
//! Every instance has a built-in profile `default`, which is not stored and never changes.

use ebla_chubby::{Compare, Revision, TransactionOutcome, Write, paths};
use ebla_model::admin::app_profile::{AppProfile, AppProfileName, Routing};
use ebla_model::admin::instance::{Instance, InstanceName, Instances};
use ebla_model::error::{Error, Reason};
use ebla_proto::admin;
use ebla_proto::convert::app_profile::{app_profile_to_admin, app_profile_to_bytes, update_app_profile};

use crate::active::ActiveMaster;
use crate::instances;
use crate::schema_store::{self, Stored};

/// The etag of the built-in profile.
const BUILT_IN: &str = "0";

/// Finds a profile.
///
/// # Errors
/// `NotFound`.
pub(crate) async fn find(master: &ActiveMaster, name: &AppProfileName) -> Result<admin::AppProfile, Error> {
    if name.is_default() {
        let created = instances::find(master, name.instance()).await?;
        return Ok(built_in(name.instance(), created.as_ref()));
    }
    stored(master, name).await.map(|stored| shown(&stored.value, stored.modified))
}

fn built_in(instance: &InstanceName, created: Option<&Instance>) -> admin::AppProfile {
    let profile = AppProfile::default_of(instance.clone(), instances::cluster_name(created));
    app_profile_to_admin(&profile, BUILT_IN.to_owned())
}

async fn stored(master: &ActiveMaster, name: &AppProfileName) -> Result<Stored<AppProfile>, Error> {
    let absent = || Error::new(Reason::NotFound, format!("app profile {name} does not exist"));
    schema_store::read_profile(master.chubby(), name).await?.ok_or_else(absent)
}

fn shown(profile: &AppProfile, modified: Revision) -> admin::AppProfile {
    app_profile_to_admin(profile, etag(modified))
}

fn etag(modified: Revision) -> String {
    modified.get().to_string()
}

/// The profiles of these instances, including the built-in ones.
///
/// # Errors
/// Errors of Chubby.
pub(crate) async fn list(master: &ActiveMaster, of: &Instances) -> Result<Vec<admin::AppProfile>, Error> {
    let kept = schema_store::list_profiles(master.chubby(), of).await?;
    let mut profiles: Vec<_> = kept.iter().map(|stored| shown(&stored.value, stored.modified)).collect();
    let known = instances::select(master, of).await?;
    profiles.extend(known.iter().map(|(name, created)| built_in(name, created.as_ref())));
    Ok(profiles)
}

/// Creates a profile.
///
/// # Errors
/// `AlreadyExists`; `NotFound` when it names a cluster that does not exist in its instance.
pub(crate) async fn create(master: &ActiveMaster, profile: &AppProfile) -> Result<admin::AppProfile, Error> {
    let exists = || Error::new(Reason::AlreadyExists, format!("app profile {} already exists", profile.name));
    if profile.name.is_default() {
        return Err(exists());
    }
    check_clusters(master, profile).await?;
    let path = paths::profile(&profile.name);
    let write = Write::put(path.clone(), app_profile_to_bytes(profile));
    match master.commit_intent(vec![Compare::Absent(path)], vec![write]).await? {
        TransactionOutcome::Committed(revision) => Ok(shown(profile, revision)),
        TransactionOutcome::Conflict => Err(exists()),
    }
}

/// Updates the fields that `mask` names, or all fields when it names none.
///
/// # Errors
/// `NotFound`; `Conflict` when the update carries an etag that is not current; `FailedPrecondition` for the built-in
/// profile; those of [`update_app_profile`].
pub(crate) async fn update(
    master: &ActiveMaster,
    name: &AppProfileName,
    update: &admin::AppProfile,
    mask: &[String],
) -> Result<admin::AppProfile, Error> {
    refuse_built_in(name)?;
    loop {
        let present = stored(master, name).await?;
        check_etag(name, &update.etag, present.modified)?;
        let next = update_app_profile(&present.value, update, mask)?;
        check_clusters(master, &next).await?;
        let path = paths::profile(name);
        let write = Write::put(path.clone(), app_profile_to_bytes(&next));
        if let TransactionOutcome::Committed(revision) =
            master.commit_intent(vec![Compare::Modified(path, present.modified)], vec![write]).await?
        {
            return Ok(shown(&next, revision));
        }
    }
}

/// Deletes a profile.
///
/// # Errors
/// `NotFound`; `FailedPrecondition` for the built-in profile.
pub(crate) async fn delete(master: &ActiveMaster, name: &AppProfileName) -> Result<(), Error> {
    refuse_built_in(name)?;
    let path = paths::profile(name);
    loop {
        let present = stored(master, name).await?;
        let compare = Compare::Modified(path.clone(), present.modified);
        if let TransactionOutcome::Committed(_) =
            master.commit_intent(vec![compare], vec![Write::delete(path.clone())]).await?
        {
            return Ok(());
        }
    }
}

fn refuse_built_in(name: &AppProfileName) -> Result<(), Error> {
    if name.is_default() {
        let message =
            format!("app profile {name} is built in and cannot be changed: create a profile with another name");
        return Err(Error::new(Reason::FailedPrecondition, message));
    }
    Ok(())
}

fn check_etag(name: &AppProfileName, given: &str, present: Revision) -> Result<(), Error> {
    if given.is_empty() || given == etag(present) {
        return Ok(());
    }
    Err(Error::new(
        Reason::Conflict,
        format!("app profile {name} has changed: etag {given:?} is not current; read it again"),
    ))
}

/// Checks the clusters that a profile names, if its instance was created. Other instances have no record of their
/// cluster.
async fn check_clusters(master: &ActiveMaster, profile: &AppProfile) -> Result<(), Error> {
    let Some(instance) = instances::find(master, profile.name.instance()).await? else { return Ok(()) };
    let named = match &profile.routing {
        Routing::Any { clusters, .. } => clusters.as_slice(),
        Routing::Single { cluster, .. } => std::slice::from_ref(cluster),
    };
    match named.iter().find(|cluster| **cluster != instance.cluster.id) {
        Some(cluster) => {
            let message = format!("cluster {cluster:?} does not exist in instance {}", instance.name);
            Err(Error::new(Reason::NotFound, message))
        }
        None => Ok(()),
    }
}
