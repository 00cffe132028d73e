//! Garbage collection: visible cells do not depend on the progress of garbage collection.

use std::time::Duration;

use ebla_model::gc::{GcRule, age_floor, visible};
use ebla_model::time::Micros;
use proptest::collection::{btree_set, vec};
use proptest::prelude::{Strategy, any, prop_assert, prop_assert_eq, prop_oneof, proptest};

fn rule() -> impl Strategy<Value = GcRule> {
    let leaf = prop_oneof![
        (1_u32..5).prop_map(GcRule::MaxVersions),
        (1_u64..20).prop_map(|age| GcRule::MaxAge(Duration::from_millis(age))),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![vec(inner.clone(), 1..3).prop_map(GcRule::Any), vec(inner, 1..3).prop_map(GcRule::All)]
    })
}

/// Distinct timestamps, newest first.
fn versions() -> impl Strategy<Value = Vec<Micros>> {
    btree_set(0_i64..30, 0..10).prop_map(|times| times.into_iter().rev().map(Micros::from_millis).collect())
}

proptest! {
    #[test]
    fn what_is_seen_is_what_no_rule_calls_dead(rule in rule(), versions in versions(), now in 0_i64..40) {
        let now = Micros::from_millis(now);
        prop_assert_eq!(rule.validate(), Ok(()));
        let alive = |(newer, version): &(u64, Micros)| !rule.is_dead(now, *newer, *version);
        let naive: Vec<_> = (0..).zip(versions.iter().copied()).filter(alive).map(|(_, version)| version).collect();
        prop_assert_eq!(&versions[..visible(Some(&rule), now, versions.iter().copied())], naive);
    }

    #[test]
    fn removing_the_dead_changes_nothing(rule in rule(), versions in versions(), now in 0_i64..40, gone in vec(any::<bool>(), 10)) {
        let now = Micros::from_millis(now);
        let seen = visible(Some(&rule), now, versions.iter().copied());
        let (kept, dead) = versions.split_at(seen);
        let remaining = dead.iter().zip(gone).filter(|(_, gone)| !gone).map(|(version, _)| version);
        let left: Vec<_> = kept.iter().chain(remaining).copied().collect();
        prop_assert_eq!(visible(Some(&rule), now, left), seen);
    }

    #[test]
    fn the_dead_stay_dead_as_time_goes_on(rule in rule(), versions in versions(), now in 0_i64..40, later in 0_i64..40) {
        let at = |time| visible(Some(&rule), Micros::from_millis(time), versions.iter().copied());
        prop_assert!(at(now + later) <= at(now));
        let floor = |time| age_floor(Some(&rule), Micros::from_millis(time));
        prop_assert!(floor(now + later) >= floor(now));
    }

    #[test]
    fn below_the_age_floor_all_is_dead_whatever_else_exists(rule in rule(), version in 0_i64..30, now in 0_i64..40) {
        let (version, now) = (Micros::from_millis(version), Micros::from_millis(now));
        if age_floor(Some(&rule), now).is_some_and(|floor| version < floor) {
            prop_assert!(rule.is_dead(now, 0, version));
        }
    }
}
