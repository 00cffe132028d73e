//! The write path: from a request to a proposed command, and to the reply.
//!
//! `mutate` writes rows: `admission` control limits the bytes in flight, `latch` excludes concurrent writers of a row, `queue`
//! assigns timestamps and proposes queued writes in groups (group commit), `gather` decides how long a group is gathered. `rmw` is the read-modify-write path.

pub mod admission;
mod gather;
pub mod latch;
pub(in crate::tablet) mod mutate;
pub(in crate::tablet) mod queue;
mod rmw;
