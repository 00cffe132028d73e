//! Instances and their clusters: the parents of a table's name, and their stored descriptions.
//!
//! An instance is a name. An instance that was never created exists too, empty: clients of a development cluster start with
//! tables. Only the description of a created instance is stored.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use crate::error::Error;
use crate::plain_name::is_plain_name;
use crate::time::Micros;

/// Longest name of a project or an instance that a table may belong to, in bytes.
const PARENT_ID_BYTES_MAX: usize = 128;
/// Minimum and maximum length of the id of a created instance, in bytes. Cloud Bigtable's limits.
const INSTANCE_ID_BYTES: (usize, usize) = (6, 33);
/// Minimum and maximum length of the id of a created cluster, in bytes. Cloud Bigtable documents a maximum of 30; Google's
/// own tests use 35, because they append `-cluster` to an instance's id.
const CLUSTER_ID_BYTES: (usize, usize) = (6, 50);
/// Longest description of an instance or an app profile, in bytes. It is stored in a Chubby file.
pub const DESCRIPTION_BYTES_MAX: usize = 4_096;
/// Most labels of an instance. Cloud Bigtable's limit.
pub const LABELS_MAX: usize = 64;
/// Longest key or value of a label, in bytes. Cloud Bigtable's limit is "under 128".
pub const LABEL_BYTES_MAX: usize = 127;

/// Whether `name` is a valid project or instance. Any name but `-`, which means "all" in the API: development clusters
/// create projects and instances on first use, and clients send all kinds of names.
pub(crate) fn is_parent_id(name: &str) -> bool {
    !name.is_empty()
        && name != "-"
        && name.len() <= PARENT_ID_BYTES_MAX
        && !name.bytes().any(|byte| byte.is_ascii_control() || byte == b'/')
}

/// Whether `name` begins with a lower-case letter, continues with lower-case letters, digits and hyphens, does not end with
/// a hyphen, and has a length within the bounds.
fn is_lower_id(name: &str, (min, max): (usize, usize)) -> bool {
    let legal = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (min..=max).contains(&name.len())
        && name.bytes().all(legal)
        && name.bytes().next().is_some_and(|byte| byte.is_ascii_lowercase())
        && !name.ends_with('-')
}

/// Whether `name` is a valid last part of a table's or an app profile's name, apart from its length.
pub(crate) fn is_resource_id(name: &str) -> bool {
    is_plain_name(name, usize::MAX) && !name.starts_with(['-', '.'])
}

/// A project's name, `projects/P`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ProjectName(String);

impl ProjectName {
    /// The name without `projects/`.
    pub fn id(&self) -> &str {
        &self.0
    }
}

impl FromStr for ProjectName {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        match name.strip_prefix("projects/") {
            Some(project) if is_parent_id(project) => Ok(Self(project.to_owned())),
            _ => Err(Error::invalid(format!("invalid project name {name:?}: expected projects/P"))),
        }
    }
}

impl fmt::Display for ProjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "projects/{}", self.0)
    }
}

/// An instance's name, `projects/P/instances/I`. Order is order of the project, then of the instance.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct InstanceName {
    project: String,
    instance: String,
}

impl InstanceName {
    /// Builds the name from its two parts.
    ///
    /// # Errors
    /// `InvalidArgument` when a part is empty, too long, `-`, or holds a slash or a control character.
    pub fn from_parts(project: &str, instance: &str) -> Result<Self, Error> {
        if is_parent_id(project) && is_parent_id(instance) {
            return Ok(Self { project: project.to_owned(), instance: instance.to_owned() });
        }
        Err(Error::invalid(format!(
            "invalid instance name {:?}: expected projects/P/instances/I",
            format!("projects/{project}/instances/{instance}")
        )))
    }

    /// The project's name.
    pub fn project(&self) -> &str {
        &self.project
    }

    /// The instance's name within its project.
    pub fn instance(&self) -> &str {
        &self.instance
    }

    /// Validates the id of an instance that will be created. Instances with other ids can be used without being created.
    ///
    /// # Errors
    /// `InvalidArgument` when Cloud Bigtable does not allow it.
    pub fn check_new(&self) -> Result<(), Error> {
        let (min, max) = INSTANCE_ID_BYTES;
        if is_lower_id(&self.instance, INSTANCE_ID_BYTES) {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "invalid instance id {:?}: expected {min} to {max} lower-case letters, digits and hyphens, beginning with a letter and not \
             ending with a hyphen",
            self.instance
        )))
    }
}

impl FromStr for InstanceName {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        match name.split('/').collect::<Vec<_>>().as_slice() {
            ["projects", project, "instances", instance] => Self::from_parts(project, instance),
            _ => Err(Error::invalid(format!("invalid instance name {name:?}: expected projects/P/instances/I"))),
        }
    }
}

impl fmt::Display for InstanceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "projects/{}/instances/{}", self.project, self.instance)
    }
}

/// One instance, or all of a project (`projects/P/instances/-`): the parent of a list request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Instances {
    /// This one.
    One(InstanceName),
    /// All known instances of the project.
    All(ProjectName),
}

impl Instances {
    /// Whether the instance is among them.
    pub fn contain(&self, name: &InstanceName) -> bool {
        match self {
            Self::One(one) => one == name,
            Self::All(project) => project.id() == name.project(),
        }
    }
}

impl FromStr for Instances {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        match name.strip_suffix("/instances/-") {
            Some(project) => project.parse().map(Self::All),
            None => name.parse().map(Self::One),
        }
    }
}

/// The description of a created instance.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Instance {
    /// Its name.
    pub name: InstanceName,
    /// Its name for people.
    pub display_name: String,
    /// Labels of its users.
    pub labels: BTreeMap<String, String>,
    /// Production or development.
    pub kind: InstanceKind,
    /// The description of the one cluster that serves it.
    pub cluster: ClusterDescription,
    /// Time of creation.
    pub created: Micros,
}

impl Instance {
    /// Validates the instance like Cloud Bigtable's CreateInstance.
    ///
    /// # Errors
    /// `InvalidArgument`.
    pub fn validate(&self) -> Result<(), Error> {
        self.name.check_new()?;
        self.cluster.check_new()?;
        let sizes = self.labels.iter().flat_map(|(key, value)| [key.len(), value.len()]);
        if self.labels.len() > LABELS_MAX
            || self.labels.contains_key("")
            || sizes.into_iter().any(|size| size > LABEL_BYTES_MAX)
        {
            return Err(Error::invalid(format!(
                "an instance can have at most {LABELS_MAX} labels, with keys of 1 to {LABEL_BYTES_MAX} bytes and values of at most \
                {LABEL_BYTES_MAX}"
            )));
        }
        check_description(&self.display_name)
    }
}

/// Type of an instance. It has no effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InstanceKind {
    /// Production.
    Production,
    /// Development.
    Development,
}

/// The description of a cluster of an instance. It is only stored: the running tablet servers serve all instances.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClusterDescription {
    /// Its name within its instance.
    pub id: String,
    /// `projects/P/locations/Z`, or empty.
    pub location: String,
    /// Number of servers; 0 when unspecified.
    pub serve_nodes: u32,
    /// Storage medium.
    pub storage: StorageKind,
}

impl ClusterDescription {
    fn check_new(&self) -> Result<(), Error> {
        let (min, max) = CLUSTER_ID_BYTES;
        if !is_lower_id(&self.id, CLUSTER_ID_BYTES) {
            return Err(Error::invalid(format!(
                "invalid cluster id {:?}: expected {min} to {max} lower-case letters, digits and hyphens, beginning with a letter and not \
                 ending with a hyphen",
                self.id
            )));
        }
        check_description(&self.location)
    }
}

/// Storage medium of a cluster description. It has no effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StorageKind {
    /// Unspecified.
    Unspecified,
    /// SSD.
    Ssd,
    /// HDD.
    Hdd,
}

/// Validates the length of a description.
///
/// # Errors
/// `InvalidArgument`.
pub(crate) fn check_description(text: &str) -> Result<(), Error> {
    if text.len() <= DESCRIPTION_BYTES_MAX {
        return Ok(());
    }
    Err(Error::invalid(format!("description has {} bytes, the limit is {DESCRIPTION_BYTES_MAX}", text.len())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn created(instance: &str) -> Result<(), Error> {
        InstanceName::from_parts("p", instance)?.check_new()
    }

    #[test]
    fn names_round_trip() {
        for name in ["projects/p/instances/i", "projects/example.com:p/instances/Any_Name.1"] {
            assert_eq!(name.parse::<InstanceName>().unwrap().to_string(), name);
        }
        assert_eq!("projects/p".parse::<ProjectName>().unwrap().to_string(), "projects/p");
    }

    #[test]
    fn invalid_names_are_refused() {
        let long = "x".repeat(PARENT_ID_BYTES_MAX + 1);
        for (project, instance) in
            [("", "i"), ("p", ""), ("-", "i"), ("p", "-"), ("p", "a\n"), ("a/b", "i"), (&*long, "i")]
        {
            assert!(InstanceName::from_parts(project, instance).is_err(), "{project:?} {instance:?}");
        }
        assert!(InstanceName::from_parts(&"x".repeat(PARENT_ID_BYTES_MAX), "i").is_ok());
        for name in ["", "projects/p", "projects/p/instances/i/", "instances/i/projects/p"] {
            assert!(name.parse::<InstanceName>().is_err(), "{name}");
        }
        for name in ["projects/", "projects/-", "projects/a/b", "p"] {
            assert!(name.parse::<ProjectName>().is_err(), "{name}");
        }
    }

    #[test]
    fn a_list_is_of_one_instance_or_of_a_project() {
        let name = |instance| InstanceName::from_parts("p", instance).unwrap();
        let all: Instances = "projects/p/instances/-".parse().unwrap();
        assert!(all.contain(&name("a")) && all.contain(&name("b")));
        let one: Instances = "projects/p/instances/a".parse().unwrap();
        assert!(one.contain(&name("a")) && !one.contain(&name("b")));
        assert!("projects/-/instances/-".parse::<Instances>().is_err());
    }

    #[test]
    fn instances_are_created_with_names_of_6_to_33() {
        for good in ["abcdef", "a-1-b2", &"a".repeat(33)] {
            assert_eq!(created(good), Ok(()), "{good}");
        }
        for bad in ["abcde", &"a".repeat(34), "1bcdef", "abcde-", "-bcdef", "Abcdef", "abc_ef"] {
            assert!(created(bad).is_err(), "{bad}");
        }
    }

    fn instance() -> Instance {
        let cluster = ClusterDescription {
            id: "cluster".to_owned(),
            location: "projects/p/locations/z".to_owned(),
            serve_nodes: 1,
            storage: StorageKind::Ssd,
        };
        Instance {
            name: InstanceName::from_parts("p", "instance").unwrap(),
            display_name: "Instance".to_owned(),
            labels: BTreeMap::from([("k".to_owned(), "v".to_owned())]),
            kind: InstanceKind::Production,
            cluster,
            created: Micros::new(1),
        }
    }

    #[test]
    fn an_instance_is_checked_at_its_limits() {
        assert_eq!(instance().validate(), Ok(()));
        let labelled = |count: usize, bytes: usize| {
            let labels = (0..count).map(|n| (format!("k{n}"), "v".repeat(bytes))).collect();
            Instance { labels, ..instance() }.validate()
        };
        assert_eq!(labelled(LABELS_MAX, LABEL_BYTES_MAX), Ok(()));
        assert!(labelled(LABELS_MAX + 1, 1).is_err());
        assert!(labelled(1, LABEL_BYTES_MAX + 1).is_err());
        assert!(
            Instance { labels: BTreeMap::from([(String::new(), String::new())]), ..instance() }.validate().is_err()
        );

        let shown = |bytes: usize| Instance { display_name: "x".repeat(bytes), ..instance() }.validate();
        assert_eq!(shown(DESCRIPTION_BYTES_MAX), Ok(()));
        assert!(shown(DESCRIPTION_BYTES_MAX + 1).is_err());

        let cluster = |id: &str| {
            let cluster = ClusterDescription { id: id.to_owned(), ..instance().cluster };
            Instance { cluster, ..instance() }.validate()
        };
        assert_eq!((cluster("abcdef"), cluster(&"a".repeat(50))), (Ok(()), Ok(())));
        assert!(cluster("abcde").is_err() && cluster(&"a".repeat(51)).is_err() && cluster("Cluster").is_err());
    }
}
