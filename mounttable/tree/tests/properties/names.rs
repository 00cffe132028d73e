//! Names: cleaning is idempotent, splitting and joining are inverse, and a node's name keeps its validity.

use ebla_mounttable_tree::name::{DEPTH_MAX, ELEMENT_BYTES_MAX, NAME_BYTES_MAX};
use ebla_mounttable_tree::{NodeName, naming};
use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

proptest! {
    #[test]
    fn cleaning_is_final(name in "[a./%]{0,12}") {
        let clean = naming::clean(&name);
        prop_assert_eq!(naming::clean(&clean), clean.clone());
        prop_assert!(!clean.contains("//") && (clean == "/" || !clean.ends_with('/')));
        prop_assert!(naming::elements(&clean).eq(naming::elements(&name)));
        prop_assert_eq!(naming::is_rooted(&clean), naming::is_rooted(&name));
    }

    #[test]
    fn an_address_and_a_name_go_together_again(name in "/[a:@()/]{0,16}") {
        let (address, rest) = naming::split_address(&name);
        prop_assert!(!rest.starts_with('/'));
        if !address.is_empty() {
            prop_assert_eq!(naming::join_address(&address, &rest), naming::clean(&name));
        }
    }

    #[test]
    fn a_suffix_that_was_joined_is_trimmed(head in "[ab]{1,3}(/[ab]{1,3}){0,3}", tail in "[ab]{1,3}(/[ab]{1,3}){0,3}") {
        prop_assert_eq!(naming::trim_suffix(&naming::join(&[&head, &tail]), &tail), head);
    }

    #[test]
    fn elements_come_back(text in any::<String>()) {
        let element = naming::encode_element(&text);
        prop_assert!(!element.contains('/'));
        prop_assert_eq!(naming::decode_element(&element), Some(text));
    }

    #[test]
    fn names_of_nodes_keep_what_was_checked(text in "[a_./\u{1}ü]{0,40}") {
        if let Ok(name) = text.parse::<NodeName>() {
            prop_assert_eq!(name.as_str().parse::<NodeName>(), Ok(name.clone()));
            prop_assert!(name.as_str().len() <= NAME_BYTES_MAX && name.depth() <= DEPTH_MAX);
            for element in name.elements() {
                prop_assert!((1..=ELEMENT_BYTES_MAX).contains(&element.len()));
                prop_assert!(!element.starts_with("__") && !element.chars().any(char::is_control));
            }
        }
    }

    #[test]
    fn paths_lead_from_the_root_to_the_node(text in "[ab]{1,2}(/[ab]{1,2}){0,5}") {
        let name: NodeName = text.parse().unwrap();
        let path = name.path();
        prop_assert_eq!(path.len(), name.depth() + 1);
        prop_assert!(path.first().unwrap().is_root());
        prop_assert_eq!(path.last(), Some(&name));
        for pair in path.windows(2) {
            let (parent, element) = pair[1].split_last().unwrap();
            prop_assert_eq!(&parent, &pair[0]);
            prop_assert_eq!(parent.child(element), Ok(pair[1].clone()));
        }
        for above in path {
            let suffix = name.suffix_below(&above).unwrap();
            prop_assert_eq!(naming::join(&[above.as_str(), suffix]), text.clone());
        }
    }
}
