//! Generates the names of a load by number, with their servers and users.

/// The shape of the tree of names. All but the deep names have four elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TreeShape {
    /// Spread over 32 directories.
    Spread,
    /// Ten elements each, two of them shared.
    Deep,
    /// All names are the same one, with many servers.
    Together,
    /// All in one directory.
    Directory(&'static str),
}

/// Directories of [`TreeShape::Spread`].
const DIRECTORIES: u64 = 32;

/// Maximum number of nodes and mounts of one user: half of the default limit of a server.
const PER_USER: u64 = 5_000;

/// One mount.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Item {
    /// The name.
    pub name: String,
    /// The server mounted there.
    pub server: String,
    /// The number of the user who mounts it.
    pub user: u64,
}

/// Names of one shape.
#[derive(Clone, Debug)]
pub struct Names {
    /// The node above all names.
    folder: String,
    shape: TreeShape,
    /// Number of names.
    count: u64,
}

impl Names {
    /// `count` names below `folder`, which is one element.
    #[must_use]
    pub fn new(folder: &str, shape: TreeShape, count: u64) -> Self {
        Self { folder: folder.to_owned(), shape, count }
    }

    /// Number of names.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// The parent node of the names of one directory.
    #[must_use]
    pub fn directory(&self) -> String {
        self.name(0).rsplit_once('/').map(|(above, _)| above.to_owned()).unwrap_or_default()
    }

    /// The name of this number, below [`Self::count`].
    #[must_use]
    pub fn name(&self, number: u64) -> String {
        let folder = &self.folder;
        match self.shape {
            TreeShape::Spread => format!("{folder}/spread/{}/{number}", number % DIRECTORIES),
            TreeShape::Deep => format!("{folder}/deep/{number}/4/5/6/7/8/9/10"),
            TreeShape::Together => format!("{folder}/on/one/node"),
            TreeShape::Directory(called) => format!("{folder}/{called}/all/{number}"),
        }
    }

    /// The mount of this number.
    #[must_use]
    pub fn item(&self, number: u64) -> Item {
        let nodes = if self.shape == TreeShape::Deep { 8 } else { 1 };
        Item { name: self.name(number), server: format!("host-{number}:8000"), user: number * nodes / PER_USER }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_the_depth_of_their_shape() {
        let depth = |shape| Names::new("bench", shape, 10).name(7).split('/').count();
        assert_eq!([TreeShape::Spread, TreeShape::Together, TreeShape::Directory("wide")].map(depth), [4, 4, 4]);
        assert_eq!(depth(TreeShape::Deep), 10);
        assert_eq!(Names::new("bench", TreeShape::Directory("wide"), 10).directory(), "bench/wide/all");
    }

    #[test]
    fn no_user_exceeds_the_limit() {
        for (shape, each) in [(TreeShape::Deep, 8), (TreeShape::Spread, 1), (TreeShape::Together, 1)] {
            let names = Names::new("bench", shape, 20_000);
            let users: Vec<_> = (0..names.count()).map(|number| names.item(number).user).collect();
            let most = users.chunk_by(|a, b| a == b).map(<[u64]>::len).max().unwrap();
            assert!(u64::try_from(most).unwrap() * each <= PER_USER, "{shape:?}: {most}");
            assert_eq!(users[0], 0);
        }
    }

    #[test]
    fn servers_of_one_node_differ() {
        let names = Names::new("bench", TreeShape::Together, 2);
        assert_eq!(names.item(0).name, names.item(1).name);
        assert_ne!(names.item(0).server, names.item(1).server);
    }
}
