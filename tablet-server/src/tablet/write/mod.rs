//! The write path: from a request to a proposed command, and to the reply.
//!
//! `mutate` writes rows: `admission` control limits the bytes in flight, `latch` excludes concurrent writers of a row, `queue`
//! assigns timestamps and proposes queued writes in groups (group commit), `gather` decides how long a group is gathered, and `batch_times` reports to traces where the time of a command went. `rmw` is the read-modify-write path.

pub mod admission;
mod batch_times;
mod gather;
pub mod latch;
pub(in crate::tablet) mod mutate;
pub(in crate::tablet) mod queue;
mod rmw;
