//! The names of a load, by number: what they look like, who mounts what on them.

/// How the names of a load lie in the tree. All but the deep ones have four elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    /// Over 32 directories.
    Spread,
    /// Ten elements each, of which two are shared.
    Deep,
    /// All the same one: its servers are many.
    Together,
    /// In one directory.
    Directory(&'static str),
}

/// Directories of [`Shape::Spread`].
const DIRECTORIES: u64 = 32;

/// Nodes that one user makes, and servers that he mounts, at most: half of what a server allows if it is told nothing.
const PER_USER: u64 = 5_000;

/// What is mounted where, and by whom.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Item {
    /// The name.
    pub name: String,
    /// The server mounted there.
    pub server: String,
    /// The number of the user who does it.
    pub user: u64,
}

/// Names of one shape.
#[derive(Clone, Debug)]
pub struct Names {
    /// The node below which they all are.
    folder: String,
    shape: Shape,
    /// How many there are.
    count: u64,
}

impl Names {
    /// `count` names below `folder`, which is one element.
    #[must_use]
    pub fn new(folder: &str, shape: Shape, count: u64) -> Self {
        Self { folder: folder.to_owned(), shape, count }
    }

    /// How many there are.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// The node right above the names of one directory.
    #[must_use]
    pub fn directory(&self) -> String {
        self.name(0).rsplit_once('/').map(|(above, _)| above.to_owned()).unwrap_or_default()
    }

    /// The name of this number, below [`Self::count`].
    #[must_use]
    pub fn name(&self, number: u64) -> String {
        let folder = &self.folder;
        match self.shape {
            Shape::Spread => format!("{folder}/spread/{}/{number}", number % DIRECTORIES),
            Shape::Deep => format!("{folder}/deep/{number}/4/5/6/7/8/9/10"),
            Shape::Together => format!("{folder}/on/one/node"),
            Shape::Directory(called) => format!("{folder}/{called}/all/{number}"),
        }
    }

    /// What is mounted for this number.
    #[must_use]
    pub fn item(&self, number: u64) -> Item {
        let nodes = if self.shape == Shape::Deep { 8 } else { 1 };
        Item { name: self.name(number), server: format!("host-{number}:8000"), user: number * nodes / PER_USER }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_as_deep_as_they_say() {
        let depth = |shape| Names::new("bench", shape, 10).name(7).split('/').count();
        assert_eq!([Shape::Spread, Shape::Together, Shape::Directory("wide")].map(depth), [4, 4, 4]);
        assert_eq!(depth(Shape::Deep), 10);
        assert_eq!(Names::new("bench", Shape::Directory("wide"), 10).directory(), "bench/wide/all");
    }

    #[test]
    fn no_user_makes_more_than_his_share() {
        for (shape, each) in [(Shape::Deep, 8), (Shape::Spread, 1), (Shape::Together, 1)] {
            let names = Names::new("bench", shape, 20_000);
            let users: Vec<_> = (0..names.count()).map(|number| names.item(number).user).collect();
            let most = users.chunk_by(|a, b| a == b).map(<[u64]>::len).max().unwrap();
            assert!(u64::try_from(most).unwrap() * each <= PER_USER, "{shape:?}: {most}");
            assert_eq!(users[0], 0);
        }
    }

    #[test]
    fn servers_of_one_node_differ() {
        let names = Names::new("bench", Shape::Together, 2);
        assert_eq!(names.item(0).name, names.item(1).name);
        assert_ne!(names.item(0).server, names.item(1).server);
    }
}
