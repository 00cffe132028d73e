//! The union of the windows of one session in two groups.

use std::collections::BTreeMap;

use bytes::Bytes;
use ebla_model::id::Sequence;
use ebla_model::session::{SequenceCheck, SessionWindow};
use ebla_model::time::Micros;
use proptest::collection::btree_map;
use proptest::option;
use proptest::prelude::*;

fn window() -> impl Strategy<Value = SessionWindow> {
    let result = option::of(Just(Bytes::from_static(b"result")));
    (0_u64..20, btree_map(0_u64..20, result, 0..12), 0_i64..100).prop_map(|(ahead, applied, used)| {
        let lowest_outstanding = Sequence::new(ahead);
        let applied = applied.into_iter().map(|(after, result)| (Sequence::new(ahead + after), result));
        SessionWindow { lowest_outstanding, applied: applied.collect(), last_used: Micros::new(used) }
    })
}

proptest! {
    #[test]
    fn the_union_of_two_windows_applies_nothing_that_one_of_them_has_applied(
        own in window(), other in window(), used in 0_i64..100
    ) {
        let mut union = own.clone();
        union.absorb(other.clone(), Micros::new(used));
        prop_assert_eq!(union.last_used, own.last_used.max(Micros::new(used)));
        for sequence in (0..45).map(Sequence::new) {
            let both: BTreeMap<&str, SequenceCheck> =
                [("own", own.check(sequence)), ("other", other.check(sequence))].into();
            match union.check(sequence) {
                SequenceCheck::New => prop_assert!(both.values().all(|check| *check == SequenceCheck::New)),
                SequenceCheck::Acknowledged => prop_assert!(both.values().any(|one| *one == SequenceCheck::Acknowledged)),
                duplicate => prop_assert!(both.values().any(|one| *one == duplicate)),
            }
        }
    }
}
