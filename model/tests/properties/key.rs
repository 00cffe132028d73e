//! Ranges and sets of rows against a naive model: the result of `contains` for every short key.

use ebla_model::key::{KeyRange, RowKey, RowSet};
use proptest::collection::vec;
use proptest::prelude::{Strategy, any, prop_assert, prop_assert_eq, proptest};

use crate::values::{bytes, key, range};

fn row_set() -> impl Strategy<Value = (Vec<KeyRange>, RowSet)> {
    vec(range(), 0..6).prop_map(|ranges| (ranges.clone(), RowSet::from_ranges(ranges)))
}

proptest! {
    #[test]
    fn a_set_holds_what_any_of_its_ranges_holds((ranges, set) in row_set(), keys in vec(key(), 30)) {
        for key in keys {
            let naive = ranges.iter().any(|range| range.contains(key.as_bytes()));
            prop_assert_eq!(set.contains(key.as_bytes()), naive);
        }
    }

    #[test]
    fn a_sets_ranges_are_in_order_with_gaps_between((_, set) in row_set()) {
        for pair in set.ranges().windows(2) {
            prop_assert!(pair[0].end().unwrap() < pair[1].start());
        }
    }

    #[test]
    fn clamping_is_intersection((_, set) in row_set(), bounds in range(), keys in vec(key(), 30)) {
        let clamped = set.clamp(&bounds);
        for key in keys {
            let naive = set.contains(key.as_bytes()) && bounds.contains(key.as_bytes());
            prop_assert_eq!(clamped.contains(key.as_bytes()), naive);
        }
        prop_assert_eq!(RowSet::from_ranges(clamped.ranges().to_vec()), clamped);
    }

    #[test]
    fn an_intersection_holds_what_both_sets_hold((_, a) in row_set(), (_, b) in row_set(), keys in vec(key(), 30)) {
        let both = a.intersect(&b);
        for key in keys {
            let naive = a.contains(key.as_bytes()) && b.contains(key.as_bytes());
            prop_assert_eq!(both.contains(key.as_bytes()), naive);
        }
        prop_assert_eq!(RowSet::from_ranges(both.ranges().to_vec()), both.clone());
        prop_assert_eq!(b.intersect(&a), both);
    }

    #[test]
    fn a_scan_goes_on_after_its_last_row((_, set) in row_set(), at in key(), keys in vec(key(), 30)) {
        for key in keys {
            prop_assert_eq!(set.after(&at).contains(key.as_bytes()), set.contains(key.as_bytes()) && key > at);
            prop_assert_eq!(set.before(&at).contains(key.as_bytes()), set.contains(key.as_bytes()) && key < at);
        }
    }

    #[test]
    fn halves_make_the_whole(range in range(), at in key(), other in key()) {
        match range.split_at(&at) {
            Some((left, right)) => {
                prop_assert_eq!(left.end(), Some(&at));
                prop_assert_eq!(right.start(), &at);
                let halves = [&left, &right].iter().filter(|half| half.contains(other.as_bytes())).count();
                prop_assert_eq!(halves, usize::from(range.contains(other.as_bytes())));
                prop_assert!(range.covers(&left) && range.covers(&right) && !left.covers(&right));
            }
            None => prop_assert!(!range.contains(at.as_bytes()) || at == *range.start()),
        }
    }

    #[test]
    fn intersections_hold_what_both_hold(a in range(), b in range(), other in key()) {
        let both = a.contains(other.as_bytes()) && b.contains(other.as_bytes());
        let intersection = a.intersect(&b);
        prop_assert_eq!(intersection.as_ref().is_some_and(|range| range.contains(other.as_bytes())), both);
        prop_assert_eq!(a.covers(&b), intersection.as_ref() == Some(&b));
    }

    #[test]
    fn special_ranges_hold_what_they_say(prefix in bytes(), other in key()) {
        prop_assert_eq!(KeyRange::prefix(&prefix).contains(other.as_bytes()), other.as_bytes().starts_with(&prefix));
        let single = KeyRange::single(RowKey::new(prefix.clone()));
        prop_assert_eq!(single.contains(other.as_bytes()), other.as_bytes() == prefix);
    }

    #[test]
    fn printed_keys_come_back(bytes in vec(any::<u8>(), 0..20)) {
        let key = RowKey::new(bytes);
        prop_assert_eq!(RowKey::parse_escaped(&key.to_string()), Ok(key));
    }
}
