//! The verifying load: it writes, notes every answer, reads everything back, and says what a correct store could not
//! have done. It speaks to a Bigtable as any program would, so the same load checks a cluster in this process, `ebla up`
//! that is killed, containers, a simulation, or another maker's Bigtable.
//!
//! ```text
//!   Load ---- workers ---- Store        what is written and read, at random, closed loop, a deadline for each call
//!    |           |
//!    |        History, Ledger           what was answered: acknowledged, surely not made, or unknown
//!    |           '---- LogFile          the same on disk, as it comes
//!    |
//!    '-- read back ---- check ---- Finding, Report
//! ```
//!
//! Each write ends in one of three states. *Acknowledged*: it must be there, once. *Unknown* (an error, or no answer): it
//! may be there once, or not at all. *Failed* ("unavailable", a refusal): it must not be there. What is seen otherwise is
//! lost, stale, doubled, half or invented.

pub mod check;
pub mod finding;
pub mod history;
pub mod ledger;
pub mod load;
pub mod log;
mod read_back;
pub mod report;
pub mod rows;
pub mod store;
#[cfg(test)]
mod tests;
mod worker;

pub use finding::{Anomaly, Finding};
pub use history::{History, Moment};
pub use load::{Load, Plan, Running};
pub use report::{Report, Stall, Tally};
pub use store::{Access, Store, create_table, through};
