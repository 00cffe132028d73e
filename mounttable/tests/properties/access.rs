//! Access lists: what is kept out stays out, JSON comes back, nobody gains by order, and nobody locks himself out.

use ebla_mounttable::rules::{self, Action};
use ebla_mounttable::{AccessList, BlessingName, BlessingPattern, Caller, Permissions, Tag};
use proptest::collection::vec;
use proptest::prelude::{Strategy, any, prop_assert, prop_assert_eq, proptest};
use proptest::sample::{select, subsequence};

fn name() -> impl Strategy<Value = String> {
    "[ab](:[ab]){0,2}"
}

fn names() -> impl Strategy<Value = Vec<BlessingName>> {
    vec(name().prop_map(|name| name.parse().unwrap()), 0..4)
}

fn patterns() -> impl Strategy<Value = Vec<String>> {
    let special = select(vec!["...", "$", "", "a:$", "%%", "a:%%"]).prop_map(str::to_string);
    vec(proptest::prop_oneof![3 => name(), 1 => special], 0..4)
}

fn list() -> impl Strategy<Value = AccessList> {
    (patterns(), patterns()).prop_map(|(let_in, kept_out)| {
        AccessList::new(let_in.iter().map(String::as_str), kept_out.iter().map(String::as_str))
    })
}

/// Permissions with up to two templates in each other.
fn permissions() -> impl Strategy<Value = Permissions> {
    let own = || vec((select(Tag::ALL.to_vec()), list()), 0..4);
    vec(own(), 1..4).prop_map(|levels| {
        let mut json = std::collections::BTreeMap::new();
        for (depth, level) in levels.into_iter().enumerate() {
            json.extend(level.into_iter().map(|(tag, list)| ("%%/".repeat(depth) + tag.name(), list)));
        }
        json.try_into().unwrap()
    })
}

/// The same permissions, with somebody as Admin whom nothing keeps out.
fn with_admin(mut permissions: Permissions, name: &str) -> Permissions {
    for kept_out in permissions.list(Tag::Admin).cloned().unwrap_or_default().kept_out() {
        permissions.clear(kept_out, &[Tag::Admin]);
    }
    permissions.add(&BlessingPattern::new(name), &[Tag::Admin]);
    permissions
}

fn is_admin(permissions: &Permissions, names: &[BlessingName]) -> bool {
    permissions.list(Tag::Admin).is_some_and(|list| list.grants(names))
}

proptest! {
    #[test]
    fn a_pattern_matches_a_name_and_what_extends_it(pattern in name(), name in name()) {
        let (parsed, exact) = (BlessingPattern::new(pattern.clone()), BlessingPattern::new(format!("{pattern}:$")));
        let name: BlessingName = name.parse().unwrap();
        let extends = name.as_str() == pattern || name.as_str().starts_with(&format!("{pattern}:"));
        prop_assert_eq!(parsed.matches(&name), extends);
        prop_assert_eq!(exact.matches(&name), name.as_str() == pattern);
    }

    #[test]
    fn what_is_no_pattern_matches_nobody(text in any::<String>(), name in name()) {
        let pattern = BlessingPattern::new(text);
        prop_assert!(pattern.is_valid() || !pattern.matches(&name.parse().unwrap()));
    }

    #[test]
    fn a_delegate_of_somebody_kept_out_is_kept_out(list in list(), name in name(), denied in name()) {
        let denied_list = AccessList::new(list.let_in().map(BlessingPattern::as_str), [denied.as_str()]);
        let delegate: BlessingName = format!("{denied}:{name}").parse().unwrap();
        let everybody = list.let_in().any(|pattern| pattern.as_str() == "...");
        prop_assert_eq!(denied_list.grants(&[delegate]), everybody);
    }

    /// T083
    #[test]
    fn neither_order_nor_doubles_count(let_in in patterns(), kept_out in patterns(), names in names()) {
        let straight = AccessList::new(let_in.iter().map(String::as_str), kept_out.iter().map(String::as_str));
        let twice = let_in.iter().rev().chain(&let_in).map(String::as_str);
        let twisted = AccessList::new(twice, kept_out.iter().rev().map(String::as_str));
        prop_assert_eq!(&straight, &twisted);
        let reversed: Vec<_> = names.iter().rev().cloned().collect();
        prop_assert_eq!(straight.grants(&names), twisted.grants(&reversed));
    }

    /// T083
    #[test]
    fn permissions_come_back_from_json(permissions in permissions()) {
        prop_assert_eq!(Permissions::from_json(&permissions.to_json()), Ok(permissions));
    }

    #[test]
    fn no_text_stops_the_parser(text in any::<String>()) {
        let _ = Permissions::from_json(&text);
        let _ = ebla_mounttable::file::nodes(&text);
    }

    /// T083
    #[test]
    fn adding_twice_is_adding_once_and_clearing_takes_it_away(
        permissions in permissions(),
        pattern in name(),
        tags in subsequence(Tag::ALL.to_vec(), 0..5),
    ) {
        let pattern = BlessingPattern::new(pattern);
        let mut once = permissions.clone();
        once.add(&pattern, &tags);
        let mut twice = once.clone();
        twice.add(&pattern, &tags);
        prop_assert_eq!(&once, &twice);
        twice.clear(&pattern, &tags);
        for tag in Tag::ALL {
            let is_in = twice.list(tag).is_some_and(|list| list.let_in().any(|one| *one == pattern));
            let was_in = permissions.list(tag).is_some_and(|list| list.let_in().any(|one| *one == pattern));
            prop_assert_eq!(is_in, was_in && !tags.contains(&tag));
        }
    }

    #[test]
    fn admin_grants_everything(permissions in permissions(), name in name()) {
        let (names, permissions) = (vec![name.parse().unwrap()], with_admin(permissions, &name));
        let caller = Caller::new(names, &[]);
        for action in [Action::Traverse, Action::Resolve, Action::Mount, Action::BeListed, Action::SetPermissions] {
            prop_assert!(rules::may(action, &caller, &permissions));
        }
    }

    #[test]
    fn who_makes_a_child_may_make_grandchildren(parent in permissions(), names in names()) {
        let caller = Caller::new(names, &[]);
        if let Ok(child) = rules::create_child(&caller, &parent, "c") {
            prop_assert!(parent.allow(&caller, &[Tag::Create]) && child.allow(&caller, &[Tag::Create]));
        }
    }

    /// T012
    #[test]
    fn nobody_locks_himself_out(old in permissions(), new in permissions(), name in name(), other in name()) {
        let old = with_admin(old, &name);
        let names: Vec<BlessingName> = vec![other.parse().unwrap(), name.parse().unwrap()];
        let caller = Caller::new(names.clone(), &[]);
        if let Ok(stored) = rules::replaced(&caller, Some(&old), new) {
            prop_assert!(is_admin(&stored, &names));
        }
    }
}
