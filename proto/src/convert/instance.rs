//! Instances and clusters: messages of the public admin API, and stored records.

use std::collections::BTreeMap;

use bytes::{Buf, Bytes};
use ebla_model::{
    Error, Instance, InstanceName, Micros,
    admin::instance::{ClusterDescription, InstanceKind, StorageKind},
};

use super::{
    record::{decode_record, encode_record},
    required,
};
use crate::{admin, record};

/// The default name of a cluster.
pub const CLUSTER_NAME: &str = "ebla";

/// The validated instance of a create request.
///
/// # Errors
/// `InvalidArgument` when a name or a label is invalid, or there is no cluster; `Unimplemented` for more than one cluster,
/// customer-managed keys, and autoscaling.
pub fn instance_from_admin(
    request: &admin::CreateInstanceRequest,
    name: InstanceName,
    created: Micros,
) -> Result<Instance, Error> {
    let described = request.instance.clone().unwrap_or_default();
    if !described.tags.is_empty() {
        return Err(Error::unimplemented("instances with tags are not served by this release; use labels"));
    }
    let mut clusters = request.clusters.iter();
    let cluster = match (clusters.next(), clusters.next()) {
        (Some((id, cluster)), None) => cluster_from_admin(id, cluster)?,
        (None, _) => return Err(Error::invalid("an instance requires a cluster")),
        (Some(_), Some(_)) => {
            return Err(Error::unimplemented(
                "instances with several clusters are not served by this release: use one cluster, which stores several \
                replicas of each tablet",
            ));
        }
    };
    let kind = kind_from_admin(&described)?.unwrap_or(InstanceKind::Production);
    let display_name =
        if described.display_name.is_empty() { name.instance().to_owned() } else { described.display_name };
    let labels = described.labels.into_iter().collect();
    let instance = Instance { name, display_name, labels, kind, cluster, created };
    instance.validate()?;
    Ok(instance)
}

fn cluster_from_admin(id: &str, cluster: &admin::Cluster) -> Result<ClusterDescription, Error> {
    // cbt always sends an encryption_config; one without a key is the default.
    let encryption = cluster.encryption_config.as_ref();
    if encryption.is_some_and(|encryption| !encryption.kms_key_name.is_empty()) {
        return Err(Error::unimplemented(
            "clusters with a kms_key_name are not served by this release: nothing is encrypted at rest; leave \
             encryption_config out, and encrypt the disks of the tablet servers",
        ));
    }
    if cluster.config.is_some() {
        return Err(Error::unimplemented(
            "clusters with cluster_config are not served by this release: set serve_nodes, and start or stop tablet servers",
        ));
    }
    let serve_nodes = serve_nodes(cluster)?;
    let storage = match cluster.default_storage_type() {
        admin::StorageType::Unspecified => StorageKind::Unspecified,
        admin::StorageType::Ssd => StorageKind::Ssd,
        admin::StorageType::Hdd => StorageKind::Hdd,
    };
    Ok(ClusterDescription { id: id.to_owned(), location: cluster.location.clone(), serve_nodes, storage })
}

fn serve_nodes(cluster: &admin::Cluster) -> Result<u32, Error> {
    u32::try_from(cluster.serve_nodes).map_err(|_negative| Error::invalid("serve_nodes must not be negative"))
}

/// The type of an instance, if specified.
fn kind_from_admin(instance: &admin::Instance) -> Result<Option<InstanceKind>, Error> {
    match admin::instance::Type::try_from(instance.r#type) {
        Ok(admin::instance::Type::Unspecified) => Ok(None),
        Ok(admin::instance::Type::Production) => Ok(Some(InstanceKind::Production)),
        Ok(admin::instance::Type::Development) => Ok(Some(InstanceKind::Development)),
        Err(_unknown) => Err(Error::invalid(format!("unknown instance type {}", instance.r#type))),
    }
}

/// The instance after an update: the fields in `mask` come from `update`.
///
/// # Errors
/// `InvalidArgument` for an empty mask, an unknown or read-only field, and a change from production to development;
/// `Unimplemented` for fields that this release does not support.
pub fn update_instance(present: &Instance, update: &admin::Instance, mask: &[String]) -> Result<Instance, Error> {
    named(mask, "display_name")?;
    let mut next = present.clone();
    for path in mask {
        match path.as_str() {
            "display_name" => next.display_name.clone_from(&update.display_name),
            "labels" => next.labels = update.labels.clone().into_iter().collect(),
            "type" => next.kind = kind_from_admin(update)?.unwrap_or(present.kind),
            "tags" => {
                return Err(Error::unimplemented("instances with tags are not served by this release; use labels"));
            }
            path => return Err(Error::invalid(format!("field {path:?} of an instance cannot be updated"))),
        }
    }
    if (present.kind, next.kind) == (InstanceKind::Production, InstanceKind::Development) {
        return Err(Error::invalid(
            "a production instance cannot be changed to a development one: create another instance",
        ));
    }
    next.validate()?;
    Ok(next)
}

/// The instance after an update of its cluster, as [`update_instance`].
///
/// # Errors
/// As there; `InvalidArgument` also for `serve_nodes` of 0.
pub fn update_cluster(present: &Instance, update: &admin::Cluster, mask: &[String]) -> Result<Instance, Error> {
    named(mask, "serve_nodes")?;
    let mut next = present.clone();
    for path in mask {
        match path.split('.').next() {
            Some("serve_nodes") if path == "serve_nodes" => next.cluster.serve_nodes = serve_nodes(update)?,
            Some("cluster_config" | "node_scaling_factor" | "encryption_config") => {
                return Err(Error::unimplemented(format!(
                    "{path} of a cluster is not served by this release: set serve_nodes, and start or stop tablet servers"
                )));
            }
            _ => return Err(Error::invalid(format!("field {path:?} of a cluster cannot be updated"))),
        }
    }
    if next.cluster.serve_nodes == 0 {
        return Err(Error::invalid("serve_nodes must not be 0"));
    }
    Ok(next)
}

fn named(mask: &[String], example: &str) -> Result<(), Error> {
    if mask.is_empty() {
        return Err(Error::invalid(format!("update_mask is missing: name the fields to update, such as {example}")));
    }
    Ok(())
}

/// A created instance as a message.
pub fn instance_to_admin(instance: &Instance) -> admin::Instance {
    let kind = match instance.kind {
        InstanceKind::Production => admin::instance::Type::Production,
        InstanceKind::Development => admin::instance::Type::Development,
    };
    admin::Instance {
        display_name: instance.display_name.clone(),
        r#type: kind.into(),
        labels: instance.labels.clone().into_iter().collect(),
        create_time: Some(timestamp(instance.created)),
        ..unsaid_instance_to_admin(&instance.name)
    }
}

/// An instance that was never created, as a message: it exists and serves.
pub fn unsaid_instance_to_admin(name: &InstanceName) -> admin::Instance {
    admin::Instance {
        name: name.to_string(),
        display_name: name.instance().to_owned(),
        state: admin::instance::State::Ready.into(),
        r#type: admin::instance::Type::Production.into(),
        ..Default::default()
    }
}

/// A cluster of this instance as a message.
pub fn cluster_to_admin(instance: &InstanceName, cluster: &ClusterDescription) -> admin::Cluster {
    let storage = match cluster.storage {
        StorageKind::Unspecified => admin::StorageType::Unspecified,
        StorageKind::Ssd => admin::StorageType::Ssd,
        StorageKind::Hdd => admin::StorageType::Hdd,
    };
    admin::Cluster {
        name: format!("{instance}/clusters/{}", cluster.id),
        location: cluster.location.clone(),
        state: admin::cluster::State::Ready.into(),
        serve_nodes: i32::try_from(cluster.serve_nodes).unwrap_or(i32::MAX),
        default_storage_type: storage.into(),
        ..Default::default()
    }
}

/// A point in time.
pub fn timestamp(time: Micros) -> prost_types::Timestamp {
    let nanos = i32::try_from(time.get().rem_euclid(1_000_000) * 1_000).unwrap_or_default();
    prost_types::Timestamp { seconds: time.get().div_euclid(1_000_000), nanos }
}

/// An instance as stored in Chubby.
pub fn instance_to_bytes(instance: &Instance) -> Bytes {
    let label = |(key, value): (&String, &String)| record::Label { key: key.clone(), value: value.clone() };
    let kind = match instance.kind {
        InstanceKind::Production => record::InstanceKind::Production,
        InstanceKind::Development => record::InstanceKind::Development,
    };
    let storage = match instance.cluster.storage {
        StorageKind::Unspecified => record::StorageKind::Unspecified,
        StorageKind::Ssd => record::StorageKind::Ssd,
        StorageKind::Hdd => record::StorageKind::Hdd,
    };
    encode_record(record::Instance {
        name: instance.name.to_string(),
        display_name: instance.display_name.clone(),
        labels: instance.labels.iter().map(label).collect(),
        kind: kind.into(),
        cluster: Some(record::ClusterDescription {
            id: instance.cluster.id.clone(),
            location: instance.cluster.location.clone(),
            serve_nodes: instance.cluster.serve_nodes,
            storage: storage.into(),
        }),
        created_micros: instance.created.get(),
        ..Default::default()
    })
}

/// An instance as stored in Chubby.
///
/// # Errors
/// `DataDamaged` when a part is missing or invalid, or the version is unknown.
pub fn instance_from_bytes(bytes: impl Buf) -> Result<Instance, Error> {
    let message: record::Instance = decode_record(bytes)?;
    let kind = match message.kind() {
        record::InstanceKind::Production => InstanceKind::Production,
        record::InstanceKind::Development => InstanceKind::Development,
        record::InstanceKind::Unspecified => return Err(Error::damaged("instance record: unknown kind")),
    };
    let cluster = required(message.cluster.as_ref(), "instance record: cluster")?;
    let storage = match cluster.storage() {
        record::StorageKind::Unspecified => StorageKind::Unspecified,
        record::StorageKind::Ssd => StorageKind::Ssd,
        record::StorageKind::Hdd => StorageKind::Hdd,
    };
    let name =
        message.name.parse().map_err(|error: Error| Error::damaged(format!("instance record: name: {error}")))?;
    Ok(Instance {
        name,
        display_name: message.display_name.clone(),
        labels: message.labels.iter().map(|label| (label.key.clone(), label.value.clone())).collect::<BTreeMap<_, _>>(),
        kind,
        cluster: ClusterDescription {
            id: cluster.id.clone(),
            location: cluster.location.clone(),
            serve_nodes: cluster.serve_nodes,
            storage,
        },
        created: Micros::new(message.created_micros),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use ebla_model::Reason;

    use super::*;

    fn request(clusters: &[&str]) -> admin::CreateInstanceRequest {
        let location = "projects/p/locations/z".to_owned();
        let cluster = admin::Cluster { location, serve_nodes: 3, default_storage_type: 1, ..Default::default() };
        let instance = admin::Instance {
            display_name: "An instance".to_owned(),
            r#type: admin::instance::Type::Development.into(),
            labels: HashMap::from([("b".to_owned(), "2".to_owned()), ("a".to_owned(), "1".to_owned())]),
            ..Default::default()
        };
        admin::CreateInstanceRequest {
            parent: "projects/p".to_owned(),
            instance_id: "instance".to_owned(),
            instance: Some(instance),
            clusters: clusters.iter().map(|id| ((*id).to_owned(), cluster.clone())).collect(),
        }
    }

    fn created(request: &admin::CreateInstanceRequest) -> Result<Instance, Error> {
        let name = InstanceName::from_parts("p", &request.instance_id).unwrap();
        instance_from_admin(request, name, Micros::new(1_500_001))
    }

    #[test]
    fn instances_come_back_and_are_shown_as_they_were_described() {
        let sent = created(&request(&["cluster"])).unwrap();
        assert_eq!(instance_from_bytes(instance_to_bytes(&sent)), Ok(sent.clone()));
        let shown = instance_to_admin(&sent);
        assert_eq!(
            (shown.name.as_str(), shown.display_name.as_str()),
            ("projects/p/instances/instance", "An instance")
        );
        assert_eq!((shown.state, shown.r#type, shown.labels.len()), (1, 2, 2));
        assert_eq!(shown.create_time, Some(prost_types::Timestamp { seconds: 1, nanos: 500_001_000 }));
        let cluster = cluster_to_admin(&sent.name, &sent.cluster);
        assert_eq!(cluster.name, "projects/p/instances/instance/clusters/cluster");
        assert_eq!((cluster.serve_nodes, cluster.default_storage_type, cluster.state), (3, 1, 1));
        assert_eq!(cluster.location, "projects/p/locations/z");
    }

    #[test]
    fn what_would_be_left_out_is_refused() {
        let reason = |request: &admin::CreateInstanceRequest| created(request).unwrap_err().reason;
        assert_eq!(reason(&request(&[])), Reason::InvalidArgument);
        assert_eq!(reason(&request(&["cluster-a", "cluster-b"])), Reason::Unimplemented);
        assert_eq!(reason(&request(&["short"])), Reason::InvalidArgument);
        assert_eq!(
            reason(&admin::CreateInstanceRequest { instance_id: "short".into(), ..request(&["cluster"]) }),
            Reason::InvalidArgument
        );
        let changed = |change: fn(&mut admin::Cluster)| {
            let mut request = request(&["cluster"]);
            request.clusters.values_mut().for_each(change);
            reason(&request)
        };
        assert_eq!(changed(|cluster| cluster.serve_nodes = -1), Reason::InvalidArgument);
        let key = |name: &str| {
            let mut request = request(&["cluster"]);
            let config = admin::cluster::EncryptionConfig { kms_key_name: name.to_owned() };
            request.clusters.values_mut().for_each(|cluster| cluster.encryption_config = Some(config.clone()));
            created(&request).map_err(|error| error.reason)
        };
        assert_eq!(key("projects/p/locations/l/keyRings/r/cryptoKeys/k"), Err(Reason::Unimplemented));
        assert_eq!(key(""), Ok(created(&request(&["cluster"])).unwrap()), "what cbt sends is the default");
        let scaled = admin::cluster::Config::ClusterConfig(Default::default());
        let mut request = request(&["cluster"]);
        request.clusters.values_mut().for_each(|cluster| cluster.config = Some(scaled));
        assert_eq!(reason(&request), Reason::Unimplemented);
    }

    fn mask(paths: &[&str]) -> Vec<String> {
        paths.iter().map(|path| (*path).to_owned()).collect()
    }

    #[test]
    fn an_update_changes_what_its_mask_names() {
        let present = created(&request(&["cluster"])).unwrap();
        let update = admin::Instance {
            display_name: "Another".to_owned(),
            r#type: admin::instance::Type::Production.into(),
            labels: HashMap::from([("c".to_owned(), "3".to_owned())]),
            ..Default::default()
        };
        let updated = |paths: &[&str]| update_instance(&present, &update, &mask(paths));
        let renamed = updated(&["display_name"]).unwrap();
        assert_eq!(renamed, Instance { display_name: "Another".to_owned(), ..present.clone() });
        let all = updated(&["display_name", "labels", "type"]).unwrap();
        let labels = BTreeMap::from([("c".to_owned(), "3".to_owned())]);
        assert_eq!(all, Instance { labels, kind: InstanceKind::Production, ..renamed });
        for (paths, reason) in [
            (&[][..], Reason::InvalidArgument),
            (&["name"], Reason::InvalidArgument),
            (&["*"], Reason::InvalidArgument),
            (&["display_name", "tags"], Reason::Unimplemented),
        ] {
            assert_eq!(updated(paths).unwrap_err().reason, reason, "{paths:?}");
        }
        let back = admin::Instance { r#type: admin::instance::Type::Development.into(), ..Default::default() };
        assert_eq!(update_instance(&all, &back, &mask(&["type"])).unwrap_err().reason, Reason::InvalidArgument);
        let unsaid = admin::Instance::default();
        assert_eq!(update_instance(&all, &unsaid, &mask(&["type"])), Ok(all));
    }

    #[test]
    fn of_a_cluster_its_size_can_be_updated() {
        let present = created(&request(&["cluster"])).unwrap();
        let updated = |serve_nodes, paths: &[&str]| {
            let update = admin::Cluster { serve_nodes, ..Default::default() };
            update_cluster(&present, &update, &mask(paths))
        };
        let cluster = ClusterDescription { serve_nodes: 7, ..present.cluster.clone() };
        assert_eq!(updated(7, &["serve_nodes"]), Ok(Instance { cluster, ..present.clone() }));
        for (nodes, paths, reason) in [
            (7, &[][..], Reason::InvalidArgument),
            (0, &["serve_nodes"], Reason::InvalidArgument),
            (-1, &["serve_nodes"], Reason::InvalidArgument),
            (7, &["serve_nodes.x"], Reason::InvalidArgument),
            (7, &["location"], Reason::InvalidArgument),
            (7, &["cluster_config.cluster_autoscaling_config"], Reason::Unimplemented),
        ] {
            assert_eq!(updated(nodes, paths).unwrap_err().reason, reason, "{nodes} {paths:?}");
        }
    }

    #[test]
    fn damaged_instances_are_not_believed() {
        let whole = record::Instance {
            name: "projects/p/instances/i".to_owned(),
            kind: record::InstanceKind::Production.into(),
            cluster: Some(record::ClusterDescription::default()),
            ..Default::default()
        };
        assert!(instance_from_bytes(encode_record(whole.clone())).is_ok());
        let parts = [
            record::Instance { name: "i".to_owned(), ..whole.clone() },
            record::Instance { kind: 0, ..whole.clone() },
            record::Instance { cluster: None, ..whole },
        ];
        for part in parts {
            assert_eq!(instance_from_bytes(encode_record(part)).unwrap_err().reason, Reason::DataDamaged);
        }
    }

    #[test]
    fn times_before_the_epoch_have_positive_nanos() {
        assert_eq!(timestamp(Micros::new(-1)), prost_types::Timestamp { seconds: -1, nanos: 999_999_000 });
    }
}
