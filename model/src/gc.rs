//! Garbage collection rules: which versions of a column are dead.
//!
//! A version is judged by two facts: how many newer versions its column has, and its age at the tablet's GC time.
//! Both only speak louder against older versions, so of a column's versions, newest first, a rule keeps a prefix. That
//! is what lets a reader stop at the first dead version, and what makes reads independent of how far collection has
//! come: removing dead versions never changes the judgement of the others.
//!
//! | rule | a version is dead when |
//! |---|---|
//! | `MaxVersions(n)` | n or more versions of its column are newer |
//! | `MaxAge(d)` | its timestamp is less than GC time - d |
//! | `Any` (union) | some member says so |
//! | `All` (intersection) | all members say so |
//!
//! GC time is the tablet's, carried by its log; never a replica's clock.

use std::fmt;
use std::time::Duration;

use crate::error::Error;
use crate::time::Micros;

/// Largest encoded rule that the public API takes, in bytes.
pub const GC_RULE_BYTES_MAX: usize = 500;

/// The shortest age that a rule may set.
const AGE_MIN: Duration = Duration::from_millis(1);

/// When versions of a column are dead. A family without a rule keeps everything.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum GcRule {
    /// All but the newest so many versions.
    MaxVersions(u32),
    /// Versions older than this.
    MaxAge(Duration),
    /// What any member calls dead.
    Any(Vec<Self>),
    /// What all members call dead.
    All(Vec<Self>),
}

impl GcRule {
    /// Checks what holds for every rule, whatever the table.
    ///
    /// # Errors
    /// `InvalidArgument` when a rule keeps no version, an age is under a millisecond, or a union or intersection has
    /// no members.
    pub fn validate(&self) -> Result<(), Error> {
        match self {
            Self::MaxVersions(0) => Err(Error::invalid("a garbage collection rule must keep at least 1 version")),
            Self::MaxVersions(_) => Ok(()),
            Self::MaxAge(age) if *age < AGE_MIN => {
                Err(Error::invalid("a garbage collection rule's max_age must be at least 1 millisecond"))
            }
            Self::MaxAge(_) => Ok(()),
            Self::Any(members) | Self::All(members) => {
                if members.is_empty() {
                    return Err(Error::invalid("a union or intersection of garbage collection rules needs members"));
                }
                members.iter().try_for_each(Self::validate)
            }
        }
    }

    /// Whether a version is dead.
    ///
    /// `newer`: how many versions of its column have greater timestamps.
    pub fn is_dead(&self, gc_time: Micros, newer: u64, timestamp: Micros) -> bool {
        match self {
            Self::MaxVersions(kept) => newer >= u64::from(*kept),
            Self::MaxAge(age) => timestamp < gc_time.minus(*age),
            Self::Any(members) => members.iter().any(|rule| rule.is_dead(gc_time, newer, timestamp)),
            // An intersection of nothing would call everything dead; it is refused at the edge, and harmless here.
            Self::All(members) => {
                !members.is_empty() && members.iter().all(|rule| rule.is_dead(gc_time, newer, timestamp))
            }
        }
    }

    /// Whether it counts versions anywhere: then a delete of a newer version could bring a dead one back.
    pub fn counts(&self) -> bool {
        match self {
            Self::MaxVersions(_) => true,
            Self::MaxAge(_) => false,
            Self::Any(members) | Self::All(members) => members.iter().any(Self::counts),
        }
    }
}

impl fmt::Display for GcRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let join = |f: &mut fmt::Formatter<'_>, members: &[Self], word: &str| {
            f.write_str("(")?;
            for (at, member) in members.iter().enumerate() {
                if at > 0 {
                    f.write_str(word)?;
                }
                member.fmt(f)?;
            }
            f.write_str(")")
        };
        match self {
            Self::MaxVersions(kept) => write!(f, "versions > {kept}"),
            Self::MaxAge(age) => write!(f, "age > {age:?}"),
            Self::Any(members) => join(f, members, " or "),
            Self::All(members) => join(f, members, " and "),
        }
    }
}

/// How many of a column's versions are to be seen: the first so many of `versions`, timestamps newest first.
pub fn visible(rule: Option<&GcRule>, gc_time: Micros, versions: impl IntoIterator<Item = Micros>) -> usize {
    let mut judge = Judge::new(rule, gc_time);
    versions.into_iter().take_while(|timestamp| judge.keeps(*timestamp)).count()
}

/// Judges the versions of a column one by one, newest first.
#[derive(Clone, Copy, Debug)]
pub struct Judge<'a> {
    rule: Option<&'a GcRule>,
    gc_time: Micros,
    newer: u64,
}

impl<'a> Judge<'a> {
    /// A judge at the first version of a column.
    pub const fn new(rule: Option<&'a GcRule>, gc_time: Micros) -> Self {
        Self { rule, gc_time, newer: 0 }
    }

    /// Whether the next older version is to be seen. Once one is not, no older one of the column is.
    pub fn keeps(&mut self, timestamp: Micros) -> bool {
        let dead = self.rule.is_some_and(|rule| rule.is_dead(self.gc_time, self.newer, timestamp));
        self.newer += 1;
        !dead
    }
}

/// The timestamp below which a rule calls every version dead by age alone; `None` when age alone kills none.
///
/// This is the only part of a rule that may be acted upon without looking at other versions.
pub fn age_floor(rule: Option<&GcRule>, gc_time: Micros) -> Option<Micros> {
    match rule? {
        GcRule::MaxVersions(_) => None,
        GcRule::MaxAge(age) => Some(gc_time.minus(*age)).filter(|floor| *floor > Micros::ZERO),
        GcRule::Any(members) => members.iter().filter_map(|member| age_floor(Some(member), gc_time)).max(),
        GcRule::All(members) => {
            let floors: Option<Vec<_>> = members.iter().map(|member| age_floor(Some(member), gc_time)).collect();
            floors?.into_iter().min()
        }
    }
}
