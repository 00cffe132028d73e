//! App profiles: how the traffic of an application is to be treated.
//!
//! They are kept and shown. One cluster serves everything, so nothing follows from them yet.

use std::fmt;
use std::str::FromStr;

use crate::error::Error;
use crate::instance::{InstanceName, check_description, is_resource_id};

/// Longest name of an app profile within its instance, in bytes.
pub const APP_PROFILE_ID_BYTES_MAX: usize = 50;

/// An app profile's name, `projects/P/instances/I/appProfiles/A`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct AppProfileName {
    instance: InstanceName,
    id: String,
}

impl AppProfileName {
    /// The profile that every instance has.
    pub const DEFAULT: &'static str = "default";

    /// The name made of its parts.
    ///
    /// # Errors
    /// `InvalidArgument` when `id` has not 1 to 50 letters, digits and `-_.`, beginning with a letter, a digit or `_`.
    pub fn new(instance: InstanceName, id: &str) -> Result<Self, Error> {
        if is_resource_id(id) && id.len() <= APP_PROFILE_ID_BYTES_MAX {
            return Ok(Self { instance, id: id.to_owned() });
        }
        Err(Error::invalid(format!(
            "invalid app profile id {id:?}: at most {APP_PROFILE_ID_BYTES_MAX} of letters, digits and -_., beginning with a \
             letter, a digit or _"
        )))
    }

    /// The default profile of an instance.
    pub fn default_of(instance: InstanceName) -> Self {
        Self { instance, id: Self::DEFAULT.to_owned() }
    }

    /// The instance that it belongs to.
    pub const fn instance(&self) -> &InstanceName {
        &self.instance
    }

    /// Its name within its instance.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Whether every instance has it.
    pub fn is_default(&self) -> bool {
        self.id == Self::DEFAULT
    }
}

impl FromStr for AppProfileName {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        match name.split_once("/appProfiles/") {
            Some((instance, id)) => Self::new(instance.parse()?, id),
            None => Err(Error::invalid(format!(
                "invalid app profile name {name:?}: expected projects/P/instances/I/appProfiles/A"
            ))),
        }
    }
}

impl fmt::Display for AppProfileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/appProfiles/{}", self.instance, self.id)
    }
}

/// How the traffic of an application is to be treated. Kept and shown; there is one cluster, so requests are treated alike.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AppProfile {
    /// Its name.
    pub name: AppProfileName,
    /// What it is for.
    pub description: String,
    /// Where requests go.
    pub routing: Routing,
    /// Which requests go first.
    pub priority: Priority,
}

impl AppProfile {
    /// The profile of requests that name none: to the one cluster, with single-row transactions.
    pub fn default_of(instance: InstanceName, cluster: &str) -> Self {
        Self {
            name: AppProfileName::default_of(instance),
            description: String::new(),
            routing: Routing::Single { cluster: cluster.to_owned(), transactions: Transactions::Allowed },
            priority: Priority::High,
        }
    }

    /// Checks what holds for every profile.
    ///
    /// # Errors
    /// `InvalidArgument` when the description is too long, or a single cluster has no name.
    pub fn validate(&self) -> Result<(), Error> {
        if matches!(&self.routing, Routing::Single { cluster, .. } if cluster.is_empty()) {
            return Err(Error::invalid("single_cluster_routing needs a cluster_id"));
        }
        check_description(&self.description)
    }
}

/// Where requests of a profile go.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Routing {
    /// To any of these clusters, or to any at all when none is named.
    Any {
        /// Their names.
        clusters: Vec<String>,
        /// Whether the row decides which.
        affinity: Affinity,
    },
    /// To one.
    Single {
        /// Its name.
        cluster: String,
        /// Whether conditional writes and increments are allowed.
        transactions: Transactions,
    },
}

/// What decides between clusters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Affinity {
    /// Nothing.
    None,
    /// The row's key.
    Row,
}

/// Whether a profile allows `CheckAndMutateRow` and `ReadModifyWriteRow`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transactions {
    /// It does.
    Allowed,
    /// It does not.
    Refused,
}

/// Which requests go first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Priority {
    /// Last.
    Low,
    /// In between.
    Medium,
    /// First: what a profile has when nothing was said.
    High,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::instance::DESCRIPTION_BYTES_MAX;

    #[test]
    fn app_profiles_have_names_of_1_to_50() {
        let instance = || InstanceName::from_parts("p", "i").unwrap();
        for good in ["a", "_", "0-_.", &"a".repeat(APP_PROFILE_ID_BYTES_MAX)] {
            assert!(AppProfileName::new(instance(), good).is_ok(), "{good}");
        }
        for bad in ["", "-a", ".a", "a b", "a/b", &"a".repeat(APP_PROFILE_ID_BYTES_MAX + 1)] {
            assert!(AppProfileName::new(instance(), bad).is_err(), "{bad}");
        }
        let name = "projects/p/instances/i/appProfiles/_a-B.1";
        assert_eq!(name.parse::<AppProfileName>().unwrap().to_string(), name);
        assert!("projects/p/instances/-/appProfiles/a".parse::<AppProfileName>().is_err());
        assert!("projects/p/instances/i".parse::<AppProfileName>().is_err());
    }

    #[test]
    fn a_profile_goes_somewhere() {
        let instance = InstanceName::from_parts("p", "i").unwrap();
        let profile = AppProfile::default_of(instance, "ebla");
        assert_eq!(profile.validate(), Ok(()));
        assert!(profile.name.is_default());
        let nowhere = Routing::Single { cluster: String::new(), transactions: Transactions::Refused };
        assert!(AppProfile { routing: nowhere, ..profile.clone() }.validate().is_err());
        let described = |bytes| AppProfile { description: "x".repeat(bytes), ..profile.clone() }.validate();
        assert_eq!(described(DESCRIPTION_BYTES_MAX), Ok(()));
        assert!(described(DESCRIPTION_BYTES_MAX + 1).is_err());
    }
}
