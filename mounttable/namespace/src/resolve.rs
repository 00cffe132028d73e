//! Resolution of a name from table to table: the next request, as a function of the answers.
//!
//! ```text
//!   the entry is not a mount table, or the name is used up    done
//!   otherwise                                                 ask its servers for the rest of the name
//!     an entry                                                continue there
//!     not a mount table                                       this entry is the object
//!     no such name                                            an error; or the table that would hold the name
//! ```
//!
//! Tables may refer to each other in cycles; only the number of steps is bounded.

use ebla_mounttable_tree::{Error, Reason, Target};

use crate::entry::MountEntry;

/// The largest number of tables asked for one name.
pub const STEPS_MAX: usize = 32;

/// The kind of result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Goal {
    /// The servers of the name.
    Object,
    /// The table that holds the name, or would hold it.
    MountTable,
}

/// The next action.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ResolutionStep {
    /// Ask any of this entry's servers for one step, and pass the answer to [`Resolution::answer`].
    Ask(MountEntry),
    /// Done.
    Done(Result<MountEntry, Error>),
}

/// A resolution in progress.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Resolution {
    goal: Goal,
    current: MountEntry,
    /// The entry that led to `current`; at the start, the same.
    above: MountEntry,
    asked: usize,
}

impl Resolution {
    /// Starts at `entry`.
    pub fn begin(goal: Goal, entry: MountEntry) -> (Self, ResolutionStep) {
        let mut resolution = Self { goal, above: entry.clone(), current: entry, asked: 0 };
        let step = resolution.proceed();
        (resolution, step)
    }

    /// Continues with the answer of the table.
    pub fn answer(&mut self, answer: Result<MountEntry, Error>) -> ResolutionStep {
        match answer {
            Ok(next) => {
                self.above = std::mem::replace(&mut self.current, next);
                self.proceed()
            }
            Err(error) => ResolutionStep::Done(self.conclude(error)),
        }
    }

    fn proceed(&mut self) -> ResolutionStep {
        if self.current.target != Target::MountTable || self.current.suffix.is_empty() {
            let end = match self.goal {
                Goal::Object => &self.current,
                Goal::MountTable => &self.above,
            };
            return ResolutionStep::Done(Ok(end.clone()));
        }
        if self.asked == STEPS_MAX {
            let wrong = format!("resolution exceeded {STEPS_MAX} tables; they may refer to each other in a cycle");
            return ResolutionStep::Done(Err(Error::new(Reason::DepthExceeded, wrong)));
        }
        self.asked = self.asked.saturating_add(1);
        ResolutionStep::Ask(self.current.clone())
    }

    /// The result that an error implies for the goal.
    fn conclude(&self, error: Error) -> Result<MountEntry, Error> {
        match (self.goal, error.reason) {
            (Goal::Object, Reason::NotAMountTable) | (Goal::MountTable, Reason::NoSuchName) => Ok(self.current.clone()),
            (Goal::MountTable, Reason::NotAMountTable | Reason::NoSuchNameRoot) => Ok(self.above.clone()),
            // For the caller it is a name like any other.
            (Goal::Object, Reason::NoSuchNameRoot) => Err(Error::new(Reason::NoSuchName, error.message)),
            _ => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::Server;

    fn entry(server: &str, suffix: &str, target: Target) -> MountEntry {
        MountEntry { servers: vec![Server::lasting(server.parse().unwrap())], suffix: suffix.to_owned(), target }
    }

    fn begin(goal: Goal, suffix: &str) -> (Resolution, ResolutionStep) {
        Resolution::begin(goal, entry("/root:1", suffix, Target::MountTable))
    }

    /// The result when the tables answer like this, one after the other; each request is expected.
    fn followed(goal: Goal, suffix: &str, answers: Vec<Result<MountEntry, Error>>) -> Result<Vec<String>, Reason> {
        let (mut resolution, mut step) = begin(goal, suffix);
        for answer in answers {
            assert!(matches!(step, ResolutionStep::Ask(_)), "{step:?}");
            step = resolution.answer(answer);
        }
        match step {
            ResolutionStep::Done(outcome) => outcome.map(|entry| entry.names()).map_err(|error| error.reason),
            ResolutionStep::Ask(entry) => panic!("unexpected request to {entry:?}"),
        }
    }

    fn refused(reason: Reason) -> Result<MountEntry, Error> {
        Err(Error::new(reason, "no"))
    }

    #[test]
    fn an_object_is_where_no_mount_table_is() {
        let table = || Ok(entry("/mt:1", "b/c", Target::MountTable));
        let object = || Ok(entry("/h:1", "c", Target::Object));
        assert_eq!(followed(Goal::Object, "a/b/c", vec![table(), object()]).unwrap(), ["/h:1/c"]);
        let answers = vec![table(), refused(Reason::NotAMountTable)];
        assert_eq!(followed(Goal::Object, "a/b/c", answers).unwrap(), ["/mt:1/b/c"]);
        let answers = vec![table(), refused(Reason::NoSuchNameRoot)];
        assert_eq!(followed(Goal::Object, "a/b/c", answers), Err(Reason::NoSuchName));
        assert_eq!(followed(Goal::Object, "", vec![]).unwrap(), ["/root:1"], "nothing is left to be asked");
    }

    #[test]
    fn a_mount_table_is_the_one_that_holds_the_name_or_would() {
        let table = |suffix| Ok(entry("/mt:1", suffix, Target::MountTable));
        let goal = Goal::MountTable;
        assert_eq!(followed(goal, "", vec![]).unwrap(), ["/root:1"]);
        assert_eq!(followed(goal, "a", vec![table("")]).unwrap(), ["/root:1/a"]);
        assert_eq!(followed(goal, "a/b", vec![table("b"), refused(Reason::NoSuchName)]).unwrap(), ["/mt:1/b"]);
        assert_eq!(followed(goal, "a/b", vec![table("b"), refused(Reason::NoSuchNameRoot)]).unwrap(), ["/root:1/a/b"]);
        let answers = vec![table("b/c"), Ok(entry("/h:1", "c", Target::Object))];
        assert_eq!(followed(goal, "a/b/c", answers).unwrap(), ["/mt:1/b/c"]);
        assert_eq!(followed(goal, "a/b", vec![refused(Reason::NoAccess)]), Err(Reason::NoAccess));
    }

    /// T091
    #[test]
    fn a_circle_ends_after_32_steps() {
        let (mut resolution, mut step) = begin(Goal::Object, "a/a");
        let mut asked = 0;
        while let ResolutionStep::Ask(entry) = step {
            asked += 1;
            step = resolution.answer(Ok(entry));
        }
        let ResolutionStep::Done(Err(error)) = step else { panic!("{step:?}") };
        assert_eq!((asked, error.reason), (STEPS_MAX, Reason::DepthExceeded));
    }
}
