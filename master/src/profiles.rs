//! App profiles: files of Chubby's, each change one transaction. Their etag is the revision that wrote them.
//!
//! Every instance has a profile `default`, which is kept nowhere and never changes.

use ebla_chubby::{Compare, Outcome, Revision, Write, paths};
use ebla_model::app_profile::{AppProfile, AppProfileName, Routing};
use ebla_model::error::{Error, Reason};
use ebla_model::instance::{Instance, InstanceName, Instances};
use ebla_proto::admin;
use ebla_proto::convert::app_profile::{app_profile_to_admin, app_profile_to_bytes, update_app_profile};

use crate::instances;
use crate::office::Office;
use crate::records::{self, Stored};

/// The etag of the profile that every instance has.
const BUILT_IN: &str = "0";

/// A profile as it is shown.
///
/// # Errors
/// `NotFound`.
pub(crate) async fn find(office: &Office, name: &AppProfileName) -> Result<admin::AppProfile, Error> {
    if name.is_default() {
        let created = instances::find(office, name.instance()).await?;
        return Ok(built_in(name.instance(), created.as_ref()));
    }
    stored(office, name).await.map(|stored| shown(&stored.value, stored.modified))
}

fn built_in(instance: &InstanceName, created: Option<&Instance>) -> admin::AppProfile {
    let profile = AppProfile::default_of(instance.clone(), instances::cluster_name(created));
    app_profile_to_admin(&profile, BUILT_IN.to_owned())
}

async fn stored(office: &Office, name: &AppProfileName) -> Result<Stored<AppProfile>, Error> {
    let absent = || Error::new(Reason::NotFound, format!("app profile {name} does not exist"));
    records::read_profile(office.chubby(), name).await?.ok_or_else(absent)
}

fn shown(profile: &AppProfile, modified: Revision) -> admin::AppProfile {
    app_profile_to_admin(profile, etag(modified))
}

fn etag(modified: Revision) -> String {
    modified.get().to_string()
}

/// The profiles of these instances, the built-in ones among them.
///
/// # Errors
/// What Chubby says.
pub(crate) async fn list(office: &Office, of: &Instances) -> Result<Vec<admin::AppProfile>, Error> {
    let kept = records::list_profiles(office.chubby(), of).await?;
    let mut profiles: Vec<_> = kept.iter().map(|stored| shown(&stored.value, stored.modified)).collect();
    let known = instances::among(office, of).await?;
    profiles.extend(known.iter().map(|(name, created)| built_in(name, created.as_ref())));
    Ok(profiles)
}

/// Keeps a new profile.
///
/// # Errors
/// `AlreadyExists`; `NotFound` when it names a cluster that its instance was not created with.
pub(crate) async fn create(office: &Office, profile: &AppProfile) -> Result<admin::AppProfile, Error> {
    let exists = || Error::new(Reason::AlreadyExists, format!("app profile {} already exists", profile.name));
    if profile.name.is_default() {
        return Err(exists());
    }
    check_clusters(office, profile).await?;
    let path = paths::profile(&profile.name);
    let write = Write::put(path.clone(), app_profile_to_bytes(profile));
    match office.begin(vec![Compare::Absent(path)], vec![write]).await? {
        Outcome::Done(revision) => Ok(shown(profile, revision)),
        Outcome::Conflict => Err(exists()),
    }
}

/// Changes the fields that `mask` names, all of them when it names none.
///
/// # Errors
/// `NotFound`; `Conflict` when the update carries an etag and the profile has another by now; `FailedPrecondition` for the
/// built-in one; what [`update_app_profile`] refuses.
pub(crate) async fn update(
    office: &Office,
    name: &AppProfileName,
    update: &admin::AppProfile,
    mask: &[String],
) -> Result<admin::AppProfile, Error> {
    refuse_built_in(name)?;
    loop {
        let present = stored(office, name).await?;
        check_etag(name, &update.etag, present.modified)?;
        let next = update_app_profile(&present.value, update, mask)?;
        check_clusters(office, &next).await?;
        let path = paths::profile(name);
        let write = Write::put(path.clone(), app_profile_to_bytes(&next));
        if let Outcome::Done(revision) =
            office.begin(vec![Compare::Modified(path, present.modified)], vec![write]).await?
        {
            return Ok(shown(&next, revision));
        }
    }
}

/// Deletes a profile.
///
/// # Errors
/// `NotFound`; `FailedPrecondition` for the built-in one.
pub(crate) async fn delete(office: &Office, name: &AppProfileName) -> Result<(), Error> {
    refuse_built_in(name)?;
    let path = paths::profile(name);
    loop {
        let present = stored(office, name).await?;
        let compare = Compare::Modified(path.clone(), present.modified);
        if let Outcome::Done(_) = office.begin(vec![compare], vec![Write::delete(path.clone())]).await? {
            return Ok(());
        }
    }
}

fn refuse_built_in(name: &AppProfileName) -> Result<(), Error> {
    if name.is_default() {
        let message = format!("app profile {name} is built in: create one of another name and use that");
        return Err(Error::new(Reason::FailedPrecondition, message));
    }
    Ok(())
}

fn check_etag(name: &AppProfileName, given: &str, present: Revision) -> Result<(), Error> {
    if given.is_empty() || given == etag(present) {
        return Ok(());
    }
    Err(Error::new(Reason::Conflict, format!("app profile {name} has changed: etag {given:?} is not its present one")))
}

/// An instance that was created has the cluster that it was created with; of another one nobody said which it has.
async fn check_clusters(office: &Office, profile: &AppProfile) -> Result<(), Error> {
    let Some(instance) = instances::find(office, profile.name.instance()).await? else { return Ok(()) };
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
