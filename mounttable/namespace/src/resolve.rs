//! Following a name from table to table: what to ask next, as a function of what was answered.
//!
//! ```text
//!   entry is no mount table, or nothing is left of the name    the end
//!   otherwise                                                  ask its servers for what is left
//!     an entry                                                 go on there
//!     "I am no mount table"                                    this entry is the object
//!     nothing is mounted                                       an error; or the table that would hold the name
//! ```
//!
//! Tables may lead to each other in circles, which only the number of steps bounds.

use ebla_mounttable::{Error, Reason, Target};

use crate::entry::MountEntry;

/// Most tables that are asked for one name.
pub const STEPS_MAX: usize = 32;

/// What is looked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Goal {
    /// What the name leads to.
    Object,
    /// The table that holds the name, or would hold it.
    MountTable,
}

/// What to do next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Ask any of this entry's servers for one step, and tell [`Resolution::answer`].
    Ask(MountEntry),
    /// It is over.
    Done(Result<MountEntry, Error>),
}

/// One name on its way.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Resolution {
    goal: Goal,
    current: MountEntry,
    /// Where `current` was found; where all begins, itself.
    above: MountEntry,
    asked: usize,
}

impl Resolution {
    /// Begins at `entry`.
    pub fn begin(goal: Goal, entry: MountEntry) -> (Self, Step) {
        let mut resolution = Self { goal, above: entry.clone(), current: entry, asked: 0 };
        let step = resolution.proceed();
        (resolution, step)
    }

    /// What to do after this answer of the table that was to be asked.
    pub fn answer(&mut self, answer: Result<MountEntry, Error>) -> Step {
        match answer {
            Ok(next) => {
                self.above = std::mem::replace(&mut self.current, next);
                self.proceed()
            }
            Err(error) => Step::Done(self.conclude(error)),
        }
    }

    fn proceed(&mut self) -> Step {
        if self.current.target != Target::MountTable || self.current.suffix.is_empty() {
            let end = match self.goal {
                Goal::Object => &self.current,
                Goal::MountTable => &self.above,
            };
            return Step::Done(Ok(end.clone()));
        }
        if self.asked == STEPS_MAX {
            let wrong = format!("after {STEPS_MAX} tables there still is no end; do they lead to each other?");
            return Step::Done(Err(Error::new(Reason::DepthExceeded, wrong)));
        }
        self.asked = self.asked.saturating_add(1);
        Step::Ask(self.current.clone())
    }

    /// What a refusal means for who looks for the goal.
    fn conclude(&self, error: Error) -> Result<MountEntry, Error> {
        match (self.goal, error.reason) {
            (Goal::Object, Reason::NotAMountTable) | (Goal::MountTable, Reason::NoSuchName) => Ok(self.current.clone()),
            (Goal::MountTable, Reason::NotAMountTable | Reason::NoSuchNameRoot) => Ok(self.above.clone()),
            // To the caller it is a name like any other.
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

    fn begin(goal: Goal, suffix: &str) -> (Resolution, Step) {
        Resolution::begin(goal, entry("/root:1", suffix, Target::MountTable))
    }

    /// What follows when the tables answer so, one after the other; each that is asked is expected to be.
    fn followed(goal: Goal, suffix: &str, answers: Vec<Result<MountEntry, Error>>) -> Result<Vec<String>, Reason> {
        let (mut resolution, mut step) = begin(goal, suffix);
        for answer in answers {
            assert!(matches!(step, Step::Ask(_)), "{step:?}");
            step = resolution.answer(answer);
        }
        match step {
            Step::Done(outcome) => outcome.map(|entry| entry.names()).map_err(|error| error.reason),
            Step::Ask(entry) => panic!("{entry:?} is to be asked"),
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
        while let Step::Ask(entry) = step {
            asked += 1;
            step = resolution.answer(Ok(entry));
        }
        let Step::Done(Err(error)) = step else { panic!("{step:?}") };
        assert_eq!((asked, error.reason), (STEPS_MAX, Reason::DepthExceeded));
    }
}
