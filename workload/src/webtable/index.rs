//! Reading a Debian package index: paragraphs of `Field: value` lines, an empty line between two packages.

/// What the Webtable uses of a package.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Package {
    /// Its name, unique among those of one architecture.
    pub name: String,
    /// The address of its home page, where it has one.
    pub homepage: Option<String>,
    /// One line.
    pub description: String,
    /// `shells`, `admin`, …
    pub section: String,
    /// The packages that it depends on.
    pub links: Vec<Link>,
}

/// A dependency: the package pointed to, and the words that point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// The package depended on.
    pub to: String,
    /// As written: `Depends: bash (>= 5)`.
    pub text: String,
}

/// The packages of an index, in its order; further versions of a package are skipped.
pub fn parse(text: &str) -> Vec<Package> {
    let mut seen = std::collections::HashSet::new();
    text.split("\n\n")
        .map(paragraph)
        .filter(|package| !package.name.is_empty() && seen.insert(package.name.clone()))
        .collect()
}

fn paragraph(text: &str) -> Package {
    let mut package = Package::default();
    for (field, value) in text.lines().filter_map(|line| line.split_once(": ")) {
        match field {
            "Package" => package.name = value.to_owned(),
            "Homepage" => package.homepage = Some(value.to_owned()),
            "Description" => package.description = value.to_owned(),
            "Section" => package.section = value.to_owned(),
            "Depends" | "Pre-Depends" => package.links.extend(links(field, value)),
            _ => {}
        }
    }
    package
}

/// Alternatives (`a | b`) all count as links; a package named twice keeps its first words.
fn links(field: &str, value: &str) -> Vec<Link> {
    let mut links: Vec<Link> = Vec::new();
    for relation in value.split([',', '|']).map(str::trim).filter(|relation| !relation.is_empty()) {
        let to = relation.split([' ', ':', '(']).next().unwrap_or_default();
        if !links.iter().any(|link| link.to == to) {
            links.push(Link { to: to.to_owned(), text: format!("{field}: {relation}") });
        }
    }
    links
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn continuation_lines_and_unknown_fields_are_skipped() {
        let packages = parse("Package: a\nTag: x::y,\n z::w\nSection: admin\nDescription: first\n\nPackage: b\n");
        assert_eq!(packages.len(), 2);
        assert_eq!(packages[0].section, "admin");
        assert_eq!(packages[1].name, "b");
    }

    #[test]
    fn alternatives_versions_and_architectures_are_understood() {
        let names: Vec<_> = links("Depends", "a (>= 1) | b, c:any, a (<< 2)").into_iter().map(|link| link.to).collect();
        assert_eq!(names, ["a", "b", "c"]);
    }

    #[test]
    fn a_second_version_of_a_package_is_left_out() {
        assert_eq!(parse("Package: a\nVersion: 1\n\nPackage: a\nVersion: 2\n").len(), 1);
    }
}
