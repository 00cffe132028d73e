//! Three tablet servers in one process with real folders: rows are written and read through each of them; tablets are split;
//! servers fail and restart, and tablets move between groups; slow writes are traced. There is no master: the tests create the first tablets.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail")]

mod clocks;
mod damage;
mod failing;
mod failover;
mod fixture;
mod metadata;
mod moves;
mod rows;
mod serving;
mod slow_disk;
mod splits;
mod traces;
mod unread;
