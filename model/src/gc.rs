//! Garbage collection rules: which versions of a column are dead (garbage).
//!
//! A rule depends on two facts: how many newer versions the column has, and the version's age at the tablet's GC time. Both
//! are monotonic, so the live versions of a column, newest first, are a prefix. Therefore a reader can stop at the first
//! dead version, and reads do not depend on the progress of garbage collection: removing dead versions never changes whether
//! the others are dead.
//!
//! | rule | a version is dead when |
//! |---|---|
//! | `MaxVersions(n)` | n or more versions of its column are newer |
//! | `MaxAge(d)` | its timestamp is less than GC time - d |
//! | `Any` (union) | it is dead for some member |
//! | `All` (intersection) | it is dead for all members |
//!
//! GC time is part of the tablet's log; it is never a replica's clock.

use std::fmt;
use std::time::Duration;

use crate::error::Error;
use crate::time::Micros;

/// Maximum size of an encoded rule in the public API, in bytes.
pub const GC_RULE_BYTES_MAX: usize = 500;

/// The shortest age that a rule may set.
const AGE_MIN: Duration = Duration::from_millis(1);

/// A garbage collection rule. A family without a rule retains all versions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum GcRule {
    /// Retains only this many versions, the newest.
    MaxVersions(u32),
    /// Removes versions older than this.
    MaxAge(Duration),
    /// Union: removes versions that any member removes.
    Any(Vec<Self>),
    /// Intersection: removes versions that all members remove.
    All(Vec<Self>),
}

impl GcRule {
    /// Validates the rule.
    ///
    /// # Errors
    /// `InvalidArgument` when a rule retains no version, an age is under a millisecond, or a union or intersection has no
    /// members.
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
            // An empty intersection would remove everything; validation refuses it, and here it removes nothing.
            Self::All(members) => {
                !members.is_empty() && members.iter().all(|rule| rule.is_dead(gc_time, newer, timestamp))
            }
        }
    }

    /// Whether any part of it counts versions: then deleting a newer version could make a dead one live again.
    pub fn counts_versions(&self) -> bool {
        match self {
            Self::MaxVersions(_) => true,
            Self::MaxAge(_) => false,
            Self::Any(members) | Self::All(members) => members.iter().any(Self::counts_versions),
        }
    }
}

impl GcRule {
    /// The rule as the command line and cbt write it, such as `maxversions=3 && maxage=30d`.
    #[must_use]
    pub fn notation(&self) -> String {
        let join = |rules: &[Self], operator: &str| rules.iter().map(Self::notation).collect::<Vec<_>>().join(operator);
        match self {
            Self::MaxVersions(count) => format!("maxversions={count}"),
            Self::MaxAge(age) => match age.as_millis() {
                millis if millis % 86_400_000 == 0 => format!("maxage={}d", millis / 86_400_000),
                millis if millis % 1_000 == 0 => format!("maxage={}s", millis / 1_000),
                millis => format!("maxage={millis}ms"),
            },
            Self::Any(rules) => join(rules, " || "),
            Self::All(rules) => join(rules, " && "),
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

/// Number of live versions of a column: a prefix of `versions`, timestamps newest first.
pub fn visible(rule: Option<&GcRule>, gc_time: Micros, versions: impl IntoIterator<Item = Micros>) -> usize {
    let mut gc = VersionGc::new(rule, gc_time);
    versions.into_iter().take_while(|timestamp| gc.is_live(*timestamp)).count()
}

/// Applies a rule to the versions of a column one by one, newest first.
#[derive(Clone, Copy, Debug)]
pub struct VersionGc<'a> {
    rule: Option<&'a GcRule>,
    gc_time: Micros,
    newer: u64,
}

impl<'a> VersionGc<'a> {
    /// Starts at the first version of a column.
    pub const fn new(rule: Option<&'a GcRule>, gc_time: Micros) -> Self {
        Self { rule, gc_time, newer: 0 }
    }

    /// Whether the next older version is live. After the first dead version all older ones are dead.
    pub fn is_live(&mut self, timestamp: Micros) -> bool {
        let dead = self.rule.is_some_and(|rule| rule.is_dead(self.gc_time, self.newer, timestamp));
        self.newer += 1;
        !dead
    }
}

/// The timestamp below which every version is dead by age alone; `None` when there is none.
///
/// This is the only part of a rule that can be applied without knowledge of other versions.
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
