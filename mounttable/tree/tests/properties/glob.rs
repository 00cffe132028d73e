//! Patterns: the matcher agrees with a naive one, and decomposition loses nothing.

use ebla_mounttable_tree::Pattern;
use ebla_mounttable_tree::glob::Element;
use proptest::prelude::{any, prop_assert, prop_assert_eq, prop_assert_ne, proptest};

/// A naive matcher of `*` and `?`: it tries all possibilities.
fn plainly(pattern: &[char], name: &[char]) -> bool {
    match (pattern.split_first(), name.split_first()) {
        (None, None) => true,
        (Some(('*', behind)), _) => (0..=name.len()).any(|taken| plainly(behind, &name[taken..])),
        (Some(('?', behind)), Some((_, rest))) => plainly(behind, rest),
        (Some((literal, behind)), Some((c, rest))) if literal == c => plainly(behind, rest),
        _ => false,
    }
}

/// The pattern that matches exactly this name.
fn escaped(name: &str) -> String {
    name.chars().flat_map(|c| ['\\', c]).collect()
}

proptest! {
    #[test]
    fn the_matcher_agrees_with_the_plainest_one(pattern in "[ab*?]{1,8}", name in "[ab]{0,8}") {
        let (plain, chars) = (pattern.chars().collect::<Vec<_>>(), name.chars().collect::<Vec<_>>());
        prop_assert_eq!(Element::parse(&pattern).unwrap().matches(&name), plainly(&plain, &chars));
    }

    #[test]
    fn a_class_is_the_characters_in_it(low in any::<char>(), high in any::<char>(), c in any::<char>()) {
        let parsed = Element::parse(&format!("[\\{low}-\\{high}]"));
        prop_assert_eq!(parsed.is_ok(), low <= high);
        if let Ok(class) = parsed {
            let negated = Element::parse(&format!("[^\\{low}-\\{high}]")).unwrap();
            prop_assert_eq!(class.matches(&c.to_string()), (low..=high).contains(&c));
            prop_assert_ne!(class.matches(&c.to_string()), negated.matches(&c.to_string()));
        }
    }

    #[test]
    fn an_escaped_name_matches_itself_alone(name in "[^/]{1,8}", other in "[^/]{1,8}") {
        let element = Element::parse(&escaped(&name)).unwrap();
        prop_assert!(element.is_fixed() && element.matches(&name));
        prop_assert_eq!(element.fixed_prefix(), name.clone());
        prop_assert_eq!(element.matches(&other), name == other);
    }

    #[test]
    fn matches_begin_with_the_fixed_prefix(pattern in r"[ab*?]{1,6}", name in "[ab]{0,6}") {
        let element = Element::parse(&pattern).unwrap();
        prop_assert!(!element.matches(&name) || name.starts_with(&element.fixed_prefix()));
    }

    #[test]
    fn no_text_stops_the_parser(text in any::<String>(), name in any::<String>()) {
        if let Ok(pattern) = text.parse::<Pattern>() {
            prop_assert_eq!(pattern.to_string(), text);
            let _ = pattern.head_matches(&name);
        }
    }

    #[test]
    fn tails_and_fixed_parts_lose_nothing(text in "([ab*]{1,2}/){0,4}(\\.\\.\\.|\\*\\*\\*|[ab*]{1,2})") {
        let pattern: Pattern = text.parse().unwrap();
        prop_assert_eq!(pattern.to_string().parse::<Pattern>(), Ok(pattern.clone()));
        let (fixed, rest) = pattern.split_fixed();
        let tail = fixed.iter().fold(pattern.clone(), |pattern, _| pattern.tail());
        prop_assert_eq!(&tail, &rest);
        prop_assert_eq!(fixed.len() + rest.depth(), pattern.depth());
        prop_assert!(rest.depth() == 0 || rest.lists_children());
    }
}
