//! The master with real tablet servers in one process, as one test program.

mod access;
mod api;
mod auto_merge;
mod check;
mod chubby_outage;
mod life;
mod metadata;
mod repair;
mod restored;
mod standby;
mod unregistered;
mod upgrade;
mod waiting;
