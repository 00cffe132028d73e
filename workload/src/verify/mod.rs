//! The verifying load: it writes data, records every response, reads all data back, and reports anomalies that a correct store
//! cannot produce. It uses the public API, so the same load checks a cluster in this process, a killed `ebla up`, containers,
//! or another Bigtable. The simulation uses its history and checkers.
//!
//! ```text
//!   Load ---- workers ---- Store        random reads and writes in closed loops, with a timeout for each call
//!    |           |
//!    |        History, BlindWrites      the outcomes: acknowledged, failed, or unknown
//!    |           '---- LogFile          the same on disk
//!    |
//!    '-- read back ---- check ---- Finding, Report
//! ```
//!
//! Each write has one of three outcomes. *Acknowledged*: its data must exist, once. *Unknown* (an error, or no response): its
//! data may exist once, or not at all. *Failed* ("unavailable", or refused): its data must not exist. Everything else is lost,
//! stale, duplicate, torn or phantom.

pub mod blind_writes;
pub mod check;
pub mod finding;
pub mod history;
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
pub use report::{Counts, Report, Stall};
pub use store::{Endpoint, Store, create_table, create_table_of, endpoints, endpoints_of};
