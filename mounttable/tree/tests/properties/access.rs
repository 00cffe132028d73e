//! Access lists: denied callers stay denied, JSON round-trips, order does not matter, and callers cannot lock
//! themselves out.

use ebla_mounttable_tree::rules::{self, Action};
use ebla_mounttable_tree::{AccessList, BlessingName, BlessingPattern, Caller, Permissions, Tag};
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
    (patterns(), patterns()).prop_map(|(allowed, denied)| {
        AccessList::new(allowed.iter().map(String::as_str), denied.iter().map(String::as_str))
    })
}

/// Permissions with up to two nested templates.
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

/// The same permissions, with an Admin whom no list denies.
fn with_admin(mut permissions: Permissions, name: &str) -> Permissions {
    for denied in permissions.list(Tag::Admin).cloned().unwrap_or_default().denied() {
        permissions.clear(denied, &[Tag::Admin]);
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
    fn an_invalid_pattern_matches_nobody(text in any::<String>(), name in name()) {
        let pattern = BlessingPattern::new(text);
        prop_assert!(pattern.is_valid() || !pattern.matches(&name.parse().unwrap()));
    }

    #[test]
    fn a_delegate_of_a_denied_caller_is_denied(list in list(), name in name(), denied in name()) {
        let denied_list = AccessList::new(list.allowed().map(BlessingPattern::as_str), [denied.as_str()]);
        let delegate: BlessingName = format!("{denied}:{name}").parse().unwrap();
        let everybody = list.allowed().any(|pattern| pattern.as_str() == "...");
        prop_assert_eq!(denied_list.grants(&[delegate]), everybody);
    }

    /// T083
    #[test]
    fn neither_order_nor_doubles_count(allowed in patterns(), denied in patterns(), names in names()) {
        let straight = AccessList::new(allowed.iter().map(String::as_str), denied.iter().map(String::as_str));
        let twice = allowed.iter().rev().chain(&allowed).map(String::as_str);
        let twisted = AccessList::new(twice, denied.iter().rev().map(String::as_str));
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
        let _ = ebla_mounttable_tree::file::parse(&text, &Permissions::open());
    }

    /// T083
    #[test]
    fn adding_is_idempotent_and_clearing_removes(
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
            let is_in = twice.list(tag).is_some_and(|list| list.allowed().any(|one| *one == pattern));
            let was_in = permissions.list(tag).is_some_and(|list| list.allowed().any(|one| *one == pattern));
            prop_assert_eq!(is_in, was_in && !tags.contains(&tag));
        }
    }

    #[test]
    fn admin_grants_everything(permissions in permissions(), name in name()) {
        let (names, permissions) = (vec![name.parse().unwrap()], with_admin(permissions, &name));
        let caller = Caller::new(names, &[]);
        for action in [Action::Traverse, Action::Resolve, Action::Mount, Action::BeListed, Action::SetPermissions] {
            prop_assert!(rules::is_allowed(action, &caller, &permissions));
        }
    }

    #[test]
    fn the_creator_of_a_child_may_create_grandchildren(parent in permissions(), names in names()) {
        let caller = Caller::new(names, &[]);
        if let Ok(child) = rules::create_child(&caller, &parent, "c") {
            prop_assert!(parent.allow(&caller, &[Tag::Create]) && child.allow(&caller, &[Tag::Create]));
        }
    }

    /// T012
    #[test]
    fn callers_cannot_lock_themselves_out(old in permissions(), new in permissions(), name in name(), other in name()) {
        let old = with_admin(old, &name);
        let names: Vec<BlessingName> = vec![other.parse().unwrap(), name.parse().unwrap()];
        let caller = Caller::new(names.clone(), &[]);
        if let Ok(stored) = rules::replacement(&caller, Some(&old), new) {
            prop_assert!(is_admin(&stored, &names));
        }
    }
}
