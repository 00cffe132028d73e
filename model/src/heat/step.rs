//! The retention of key heat: the older it is, the longer the steps of time in which it is kept.

use std::time::Duration;

use crate::cell::FamilyName;
use crate::error::Error;
use crate::gc::GcRule;
use crate::schema::NewFamily;
use crate::time::Micros;

/// The length of a window.
pub const WINDOW: Duration = Duration::from_secs(60);

const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(24 * 3_600);

/// The length in time of what is stored together. The lengths are those with windows of a minute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HeatStep {
    /// A window: a minute. Kept for six hours.
    Minute,
    /// Ten windows: ten minutes. Kept for four days.
    TenMinutes,
    /// Sixty windows: an hour. Kept for 28 days.
    Hour,
}

impl HeatStep {
    /// All of them, the shortest first.
    pub const ALL: [Self; 3] = [Self::Minute, Self::TenMinutes, Self::Hour];

    /// The column family that stores it.
    #[must_use]
    pub const fn family(self) -> &'static str {
        match self {
            Self::Minute => "minute",
            Self::TenMinutes => "ten_minutes",
            Self::Hour => "hour",
        }
    }

    /// For how long it is kept.
    #[must_use]
    pub const fn retention(self) -> Duration {
        match self {
            Self::Minute => Duration::from_secs(6 * HOUR.as_secs()),
            Self::TenMinutes => Duration::from_secs(4 * DAY.as_secs()),
            Self::Hour => Duration::from_secs(28 * DAY.as_secs()),
        }
    }

    /// How many windows it has.
    #[must_use]
    pub const fn windows(self) -> u32 {
        match self {
            Self::Minute => 1,
            Self::TenMinutes => 10,
            Self::Hour => 60,
        }
    }

    /// The step that it is folded from; `None`: it is written by the tablet servers.
    #[must_use]
    pub const fn source(self) -> Option<Self> {
        match self {
            Self::Minute => None,
            Self::TenMinutes => Some(Self::Minute),
            Self::Hour => Some(Self::TenMinutes),
        }
    }

    /// Its length in time, with windows of this length.
    #[must_use]
    pub fn length(self, window: Duration) -> Duration {
        window.saturating_mul(self.windows())
    }

    /// The beginning of the step that contains `time`.
    #[must_use]
    pub fn start_of(self, time: Micros, window: Duration) -> Micros {
        let length = i64::try_from(self.length(window).as_micros()).unwrap_or(i64::MAX).max(1);
        Micros::new(time.get() - time.get().rem_euclid(length))
    }

    /// The shortest step that still has what was counted at `from`, or all but the first step of it: a time that was as long as the retention
    /// when its reader asked is a little longer when it is read.
    #[must_use]
    pub fn covering(from: Micros, now: Micros) -> Self {
        let age = now.since(from);
        Self::ALL.into_iter().find(|step| age <= step.retention() + step.length(WINDOW)).unwrap_or(Self::Hour)
    }
}

/// The families of the table of key heat, one for each step of time; the rule of each is its retention.
///
/// # Errors
/// Never: the names are legal.
pub fn families() -> Result<Vec<NewFamily>, Error> {
    let family = |step: HeatStep| {
        let name = FamilyName::new(step.family())?;
        Ok(NewFamily::plain(name, Some(GcRule::MaxAge(step.retention()))))
    };
    HeatStep::ALL.into_iter().map(family).collect()
}
