//! App profiles: routing settings for the traffic of an application.
//!
//! They are stored and returned. One cluster serves everything, so they have no effect yet.

use std::fmt;
use std::str::FromStr;

use crate::admin::instance::{InstanceName, check_description, is_resource_id};
use crate::error::Error;

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

    /// Builds the name from its parts.
    ///
    /// # Errors
    /// `InvalidArgument` when `id` has not 1 to 50 letters, digits and `-_.`, beginning with a letter, a digit or `_`.
    pub fn new(instance: InstanceName, id: &str) -> Result<Self, Error> {
        if is_resource_id(id) && id.len() <= APP_PROFILE_ID_BYTES_MAX {
            return Ok(Self { instance, id: id.to_owned() });
        }
        Err(Error::invalid(format!(
            "invalid app profile id {id:?}: expected at most {APP_PROFILE_ID_BYTES_MAX} letters, digits and -_., beginning with a \
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

/// Routing settings for the traffic of an application. Stored and returned, without effect.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AppProfile {
    /// Its name.
    pub name: AppProfileName,
    /// What it is for.
    pub description: String,
    /// Where requests go.
    pub routing: Routing,
    /// Priority of its requests.
    pub priority: Priority,
}

impl AppProfile {
    /// The profile of requests without one: routing to the single cluster, with single-row transactions.
    pub fn default_of(instance: InstanceName, cluster: &str) -> Self {
        Self {
            name: AppProfileName::default_of(instance),
            description: String::new(),
            routing: Routing::Single { cluster: cluster.to_owned(), transactions: Transactions::Allowed },
            priority: Priority::High,
        }
    }

    /// Validates the profile.
    ///
    /// # Errors
    /// `InvalidArgument` when the description is too long, or a single cluster has no name.
    pub fn validate(&self) -> Result<(), Error> {
        if matches!(&self.routing, Routing::Single { cluster, .. } if cluster.is_empty()) {
            return Err(Error::invalid("single_cluster_routing requires a cluster_id"));
        }
        check_description(&self.description)
    }
}

/// Routing of the requests of a profile.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Routing {
    /// To any of these clusters, or to any cluster when the list is empty.
    Any {
        /// Their names.
        clusters: Vec<String>,
        /// Whether the row key selects the cluster.
        affinity: Affinity,
    },
    /// To one cluster.
    Single {
        /// Its name.
        cluster: String,
        /// Whether conditional writes and increments are allowed.
        transactions: Transactions,
    },
}

/// How a cluster is selected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Affinity {
    /// Any cluster.
    None,
    /// By row key.
    Row,
}

/// Whether a profile allows `CheckAndMutateRow` and `ReadModifyWriteRow`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transactions {
    /// Allowed.
    Allowed,
    /// Refused.
    Refused,
}

/// Priority of the requests of a profile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Priority {
    /// Low.
    Low,
    /// Medium.
    Medium,
    /// High, the default.
    High,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::instance::DESCRIPTION_BYTES_MAX;

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
    fn single_cluster_routing_requires_a_cluster() {
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
