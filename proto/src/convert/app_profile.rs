//! App profiles: messages of the public admin API, updates, and stored records.

use bytes::{Buf, Bytes};
use ebla_model::{
    AppProfile, AppProfileName, Error,
    admin::app_profile::{Affinity, Priority, Routing, Transactions},
};

use super::{
    record::{decode_record, encode_record},
    required,
};
use crate::{
    admin::{self, app_profile as wire},
    record,
};

/// The profile of a request, with this name.
///
/// # Errors
/// `InvalidArgument` when it names no routing, or breaks a rule of [`AppProfile::validate`]; `Unimplemented` for Data Boost.
pub fn app_profile_from_admin(name: AppProfileName, profile: &admin::AppProfile) -> Result<AppProfile, Error> {
    let profile = AppProfile {
        name,
        description: profile.description.clone(),
        routing: routing(profile)?,
        priority: priority(profile)?,
    };
    profile.validate()?;
    Ok(profile)
}

fn routing(profile: &admin::AppProfile) -> Result<Routing, Error> {
    match &profile.routing_policy {
        Some(wire::RoutingPolicy::MultiClusterRoutingUseAny(any)) => {
            let affinity = if any.affinity.is_some() { Affinity::Row } else { Affinity::None };
            Ok(Routing::Any { clusters: any.cluster_ids.clone(), affinity })
        }
        Some(wire::RoutingPolicy::SingleClusterRouting(single)) => {
            let allowed = single.allow_transactional_writes;
            let transactions = if allowed { Transactions::Allowed } else { Transactions::Refused };
            Ok(Routing::Single { cluster: single.cluster_id.clone(), transactions })
        }
        None => Err(Error::invalid(
            "an app profile requires a routing policy: single_cluster_routing or multi_cluster_routing_use_any",
        )),
    }
}

/// The default priority is high, as in Google's service.
#[expect(deprecated, reason = "older clients set the field, and the API defines it")]
fn priority(profile: &admin::AppProfile) -> Result<Priority, Error> {
    let number = match profile.isolation {
        None => return Ok(Priority::High),
        Some(wire::Isolation::Priority(number)) => number,
        Some(wire::Isolation::StandardIsolation(standard)) => standard.priority,
        Some(wire::Isolation::DataBoostIsolationReadOnly(_)) => {
            return Err(Error::unimplemented("data_boost_isolation_read_only is not served by this release"));
        }
    };
    match wire::Priority::try_from(number) {
        Ok(wire::Priority::Low) => Ok(Priority::Low),
        Ok(wire::Priority::Medium) => Ok(Priority::Medium),
        Ok(wire::Priority::High | wire::Priority::Unspecified) => Ok(Priority::High),
        Err(_unknown) => Err(Error::invalid(format!("unknown priority {number}"))),
    }
}

/// A profile as a message. `etag` identifies its version.
pub fn app_profile_to_admin(profile: &AppProfile, etag: String) -> admin::AppProfile {
    let routing = match &profile.routing {
        Routing::Any { clusters, affinity } => {
            let row = wire::multi_cluster_routing_use_any::Affinity::RowAffinity(Default::default());
            let affinity = (*affinity == Affinity::Row).then_some(row);
            wire::RoutingPolicy::MultiClusterRoutingUseAny(wire::MultiClusterRoutingUseAny {
                cluster_ids: clusters.clone(),
                affinity,
            })
        }
        Routing::Single { cluster, transactions } => {
            wire::RoutingPolicy::SingleClusterRouting(wire::SingleClusterRouting {
                cluster_id: cluster.clone(),
                allow_transactional_writes: *transactions == Transactions::Allowed,
            })
        }
    };
    let priority = match profile.priority {
        Priority::Low => wire::Priority::Low,
        Priority::Medium => wire::Priority::Medium,
        Priority::High => wire::Priority::High,
    };
    let standard = wire::StandardIsolation { priority: priority.into() };
    admin::AppProfile {
        name: profile.name.to_string(),
        etag,
        description: profile.description.clone(),
        routing_policy: Some(routing),
        isolation: Some(wire::Isolation::StandardIsolation(standard)),
    }
}

/// The profile after an update: the fields in `mask` come from `update`; all of them when the mask is empty.
///
/// # Errors
/// `InvalidArgument` for a field that does not exist or cannot be updated; else as [`app_profile_from_admin`].
pub fn update_app_profile(
    present: &AppProfile,
    update: &admin::AppProfile,
    mask: &[String],
) -> Result<AppProfile, Error> {
    if mask.is_empty() || mask.iter().any(|path| path == "*") {
        return app_profile_from_admin(present.name.clone(), update);
    }
    let mut next = present.clone();
    for path in mask {
        match path.as_str() {
            "description" => next.description.clone_from(&update.description),
            "standard_isolation" | "standard_isolation.priority" | "priority" | "data_boost_isolation_read_only" => {
                next.priority = priority(update)?;
            }
            // Compared if present, never set.
            "etag" => {}
            path => next.routing = merged(path, routing(update)?, next.routing)?,
        }
    }
    next.validate()?;
    Ok(next)
}

/// The routing with the field `path` from `update`.
fn merged(path: &str, update: Routing, present: Routing) -> Result<Routing, Error> {
    match (path, update, present) {
        ("single_cluster_routing", update @ Routing::Single { .. }, _)
        | ("multi_cluster_routing_use_any", update @ Routing::Any { .. }, _) => Ok(update),
        (
            "single_cluster_routing.cluster_id",
            Routing::Single { cluster, .. },
            Routing::Single { transactions, .. },
        )
        | (
            "single_cluster_routing.allow_transactional_writes",
            Routing::Single { transactions, .. },
            Routing::Single { cluster, .. },
        ) => Ok(Routing::Single { cluster, transactions }),
        ("multi_cluster_routing_use_any.cluster_ids", Routing::Any { clusters, .. }, Routing::Any { affinity, .. })
        | (
            "multi_cluster_routing_use_any.row_affinity",
            Routing::Any { affinity, .. },
            Routing::Any { clusters, .. },
        ) => Ok(Routing::Any { clusters, affinity }),
        _ => Err(Error::invalid(format!(
            "update_mask names {path:?}: it cannot be updated, or the update or the app profile does not have it"
        ))),
    }
}

/// A profile as stored in Chubby.
pub fn app_profile_to_bytes(profile: &AppProfile) -> Bytes {
    use record::app_profile::Routing as Kept;
    let routing = match &profile.routing {
        Routing::Any { clusters, affinity } => {
            Kept::Any(record::AnyCluster { clusters: clusters.clone(), row_affinity: *affinity == Affinity::Row })
        }
        Routing::Single { cluster, transactions } => Kept::Single(record::SingleCluster {
            cluster: cluster.clone(),
            transactions: *transactions == Transactions::Allowed,
        }),
    };
    let priority = match profile.priority {
        Priority::Low => record::Priority::Low,
        Priority::Medium => record::Priority::Medium,
        Priority::High => record::Priority::High,
    };
    encode_record(record::AppProfile {
        name: profile.name.to_string(),
        description: profile.description.clone(),
        routing: Some(routing),
        priority: priority.into(),
        ..Default::default()
    })
}

/// A profile as stored in Chubby.
///
/// # Errors
/// `DataDamaged` when a part is missing or invalid, or the version is unknown.
pub fn app_profile_from_bytes(bytes: impl Buf) -> Result<AppProfile, Error> {
    use record::app_profile::Routing as Kept;
    let message: record::AppProfile = decode_record(bytes)?;
    let routing = match required(message.routing.as_ref(), "app profile record: routing")? {
        Kept::Any(any) => {
            let affinity = if any.row_affinity { Affinity::Row } else { Affinity::None };
            Routing::Any { clusters: any.clusters.clone(), affinity }
        }
        Kept::Single(single) => {
            let transactions = if single.transactions { Transactions::Allowed } else { Transactions::Refused };
            Routing::Single { cluster: single.cluster.clone(), transactions }
        }
    };
    let priority = match message.priority() {
        record::Priority::Low => Priority::Low,
        record::Priority::Medium => Priority::Medium,
        record::Priority::High => Priority::High,
        record::Priority::Unspecified => return Err(Error::damaged("app profile record: unknown priority")),
    };
    let name = message.name.parse();
    let name = name.map_err(|error: Error| Error::damaged(format!("app profile record: name: {error}")))?;
    Ok(AppProfile { name, description: message.description.clone(), routing, priority })
}

#[cfg(test)]
mod tests {
    use ebla_model::Reason;

    use super::*;

    fn name() -> AppProfileName {
        "projects/p/instances/i/appProfiles/a".parse().unwrap()
    }

    fn single(cluster: &str, transactions: bool) -> wire::RoutingPolicy {
        wire::RoutingPolicy::SingleClusterRouting(wire::SingleClusterRouting {
            cluster_id: cluster.to_owned(),
            allow_transactional_writes: transactions,
        })
    }

    fn any(clusters: &[&str]) -> wire::RoutingPolicy {
        wire::RoutingPolicy::MultiClusterRoutingUseAny(wire::MultiClusterRoutingUseAny {
            cluster_ids: clusters.iter().map(|id| (*id).to_owned()).collect(),
            affinity: Some(wire::multi_cluster_routing_use_any::Affinity::RowAffinity(Default::default())),
        })
    }

    fn described(description: &str, routing: wire::RoutingPolicy) -> admin::AppProfile {
        let description = description.to_owned();
        admin::AppProfile { description, routing_policy: Some(routing), ..Default::default() }
    }

    fn profile(description: &str, routing: wire::RoutingPolicy) -> AppProfile {
        app_profile_from_admin(name(), &described(description, routing)).unwrap()
    }

    fn updated(present: &AppProfile, update: &admin::AppProfile, mask: &[&str]) -> Result<AppProfile, Error> {
        let mask: Vec<_> = mask.iter().map(|path| (*path).to_owned()).collect();
        update_app_profile(present, update, &mask)
    }

    #[test]
    fn profiles_come_back() {
        for routing in [single("c", true), single("c", false), any(&[]), any(&["c", "d"])] {
            let sent = profile("why", routing.clone());
            assert_eq!(app_profile_from_bytes(app_profile_to_bytes(&sent)), Ok(sent.clone()));
            let shown = app_profile_to_admin(&sent, "7".to_owned());
            assert_eq!((shown.name, shown.etag, shown.description), (name().to_string(), "7".into(), "why".into()));
            assert_eq!(shown.routing_policy, Some(routing));
            let standard = wire::StandardIsolation { priority: wire::Priority::High.into() };
            assert_eq!(shown.isolation, Some(wire::Isolation::StandardIsolation(standard)));
        }
    }

    #[test]
    #[expect(deprecated, reason = "older clients set the field")]
    fn priorities_have_two_places() {
        let asked = |isolation| {
            let asked = admin::AppProfile { isolation: Some(isolation), ..described("", single("c", true)) };
            app_profile_from_admin(name(), &asked).map(|profile| profile.priority)
        };
        let standard = |priority| wire::Isolation::StandardIsolation(wire::StandardIsolation { priority });
        assert_eq!(asked(standard(1)), Ok(Priority::Low));
        assert_eq!(asked(standard(0)), Ok(Priority::High));
        assert_eq!(asked(wire::Isolation::Priority(2)), Ok(Priority::Medium));
        assert_eq!(asked(standard(4)).unwrap_err().reason, Reason::InvalidArgument);
        let boost = wire::Isolation::DataBoostIsolationReadOnly(Default::default());
        assert_eq!(asked(boost).unwrap_err().reason, Reason::Unimplemented);
    }

    #[test]
    fn a_profile_without_a_place_to_go_is_refused() {
        let nowhere = admin::AppProfile { description: "d".into(), ..Default::default() };
        assert_eq!(app_profile_from_admin(name(), &nowhere).unwrap_err().reason, Reason::InvalidArgument);
        let unnamed = described("", single("", true));
        assert_eq!(app_profile_from_admin(name(), &unnamed).unwrap_err().reason, Reason::InvalidArgument);
    }

    #[test]
    fn an_update_changes_what_its_mask_names() {
        let present = profile("old", single("c", true));
        let update = described("new", single("d", false));
        let by = |mask: &[&str]| updated(&present, &update, mask);
        assert_eq!(by(&[]), Ok(profile("new", single("d", false))));
        assert_eq!(by(&["*"]), Ok(profile("new", single("d", false))));
        assert_eq!(by(&["description"]), Ok(profile("new", single("c", true))));
        assert_eq!(by(&["single_cluster_routing"]), Ok(profile("old", single("d", false))));
        assert_eq!(by(&["single_cluster_routing.cluster_id"]), Ok(profile("old", single("d", true))));
        let part = by(&["single_cluster_routing.allow_transactional_writes", "etag"]);
        assert_eq!(part, Ok(profile("old", single("c", false))));
        let parts = ["single_cluster_routing.cluster_id", "single_cluster_routing.allow_transactional_writes"];
        assert_eq!(by(&parts), Ok(profile("old", single("d", false))));
        let routed = updated(&present, &described("", any(&["x"])), &["multi_cluster_routing_use_any"]);
        assert_eq!(routed, Ok(profile("old", any(&["x"]))));
        let widened = updated(
            &profile("", any(&["x"])),
            &described("", any(&["y"])),
            &["multi_cluster_routing_use_any.cluster_ids"],
        );
        assert_eq!(widened, Ok(profile("", any(&["y"]))));
    }

    #[test]
    fn an_update_that_makes_no_sense_is_refused() {
        let present = profile("old", single("c", true));
        let wrong = [
            (described("", single("d", true)), "name"),
            (described("", single("d", true)), "colour"),
            (described("", single("d", true)), "description.x"),
            (described("", single("d", true)), "multi_cluster_routing_use_any.cluster_id"),
            (described("", single("d", true)), "single_cluster_routing.colour"),
            (described("", single("d", true)), "multi_cluster_routing_use_any"),
            (described("", any(&[])), "single_cluster_routing"),
            (described("", any(&[])), "multi_cluster_routing_use_any.cluster_ids"),
            (admin::AppProfile::default(), "single_cluster_routing"),
        ];
        for (update, path) in wrong {
            let error = updated(&present, &update, &[path]).unwrap_err();
            assert_eq!(error.reason, Reason::InvalidArgument, "{path}");
        }
    }

    #[test]
    fn damaged_profiles_are_not_believed() {
        let single = record::SingleCluster { cluster: "c".to_owned(), transactions: true };
        let whole = record::AppProfile {
            name: name().to_string(),
            routing: Some(record::app_profile::Routing::Single(single)),
            priority: record::Priority::Low.into(),
            ..Default::default()
        };
        assert!(app_profile_from_bytes(encode_record(whole.clone())).is_ok());
        let parts = [
            record::AppProfile { name: "a".to_owned(), ..whole.clone() },
            record::AppProfile { priority: 0, ..whole.clone() },
            record::AppProfile { routing: None, ..whole },
        ];
        for part in parts {
            assert_eq!(app_profile_from_bytes(encode_record(part)).unwrap_err().reason, Reason::DataDamaged);
        }
    }
}
