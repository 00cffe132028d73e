//! Signatures of functions: no `bool` parameters in public functions, no bare integers for terms.

use std::collections::BTreeSet;

use super::{CRATES, production, relative, report, sources};

/// Public functions that take a `bool`, as `path: name`, and why. Use an enum instead.
const BOOLS: [(&str, &str); 0] = [];

/// Crates whose signatures still have terms as `u64`. Remove a crate when its terms have the type `Term`.
const UNTYPED_TERMS: [&str; 0] = [];

/// A function: whether it is `pub`, its name and its parameters.
struct Signature<'a> {
    is_public: bool,
    name: &'a str,
    parameters: &'a str,
}

/// All functions of a source text.
fn signatures(text: &str) -> Vec<Signature<'_>> {
    let mut found = Vec::new();
    for (start, _) in text.match_indices("fn ") {
        let before = text[..start].rsplit('\n').next().unwrap_or_default().trim_start();
        let is_declaration = before
            .split_whitespace()
            .all(|word| ["pub", "async", "const", "unsafe"].contains(&word) || word.starts_with("pub("));
        let rest = &text[start + 3..];
        let Some(open) = rest.find('(').filter(|_| is_declaration) else { continue };
        let name = rest[..open].split('<').next().unwrap_or_default();
        let mut depth = 0;
        let end = rest[open..].char_indices().find(|(_, c)| {
            depth += match c {
                '(' => 1,
                ')' => -1,
                _ => 0,
            };
            depth == 0
        });
        let Some((length, _)) = end else { continue };
        let parameters = &rest[open + 1..open + length];
        found.push(Signature { is_public: before.starts_with("pub ") || before == "pub", name, parameters });
    }
    found
}

/// Names of the parameters of this type.
fn parameters_of_type<'a>(parameters: &'a str, wanted: &str) -> Vec<&'a str> {
    let each = parameters.split(',').filter_map(|parameter| parameter.split_once(':'));
    each.filter(|(_, kind)| kind.trim() == wanted).map(|(name, _)| name.trim()).collect()
}

#[test]
fn public_functions_have_no_bool_parameters() {
    let mut wrong = Vec::new();
    for path in sources() {
        let text = production(&path);
        for signature in signatures(&text).into_iter().filter(|signature| signature.is_public) {
            let place = format!("{}: {}", relative(&path), signature.name);
            let names = parameters_of_type(signature.parameters, "bool");
            if !names.is_empty() && !BOOLS.iter().any(|(allowed, _reason)| *allowed == place) {
                wrong.push(format!("{place}({})", names.join(", ")));
            }
        }
    }
    report("use an enum instead of these `bool` parameters", wrong);
}

#[test]
fn terms_have_a_type() {
    let mut wrong = Vec::new();
    let mut untyped: BTreeSet<&str> = BTreeSet::new();
    for name in CRATES {
        for path in sources().into_iter().filter(|path| relative(path).starts_with(&format!("{name}/"))) {
            let text = production(&path);
            for signature in signatures(&text) {
                let terms = ["u64", "Option<u64>"].map(|kind| parameters_of_type(signature.parameters, kind));
                let is_term = |parameter: &&&str| **parameter == "term" || parameter.ends_with("_term");
                for parameter in terms.iter().flatten().filter(is_term) {
                    let place = format!("{}: {}({parameter})", relative(&path), signature.name);
                    untyped.insert(name);
                    if UNTYPED_TERMS.contains(&name) {
                        println!("still untyped: {place}");
                    } else {
                        wrong.push(place);
                    }
                }
            }
        }
    }
    for name in UNTYPED_TERMS.iter().filter(|name| !untyped.contains(**name)) {
        println!("{name} has no untyped terms: remove it from UNTYPED_TERMS");
    }
    report("use the type `Term` for these parameters", wrong);
}

#[test]
fn signatures_are_parsed() {
    let text = "pub fn a(x: bool, f: impl Fn(&T) -> bool) {}\npub(crate) async fn b<T>(\n    term: u64,\n) {}\nlet f: fn (bool);";
    let found = signatures(text);
    assert_eq!(found.iter().map(|one| (one.is_public, one.name)).collect::<Vec<_>>(), [(true, "a"), (false, "b")]);
    assert_eq!(parameters_of_type(found[0].parameters, "bool"), ["x"]);
    assert_eq!(parameters_of_type(found[1].parameters, "u64"), ["term"]);
}
