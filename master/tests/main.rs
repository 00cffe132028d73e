//! The master with real tablet servers in one process, as one test program.

mod access;
mod api;
mod auto_merge;
mod check;
mod chubby_outage;
mod events;
mod heat;
mod life;
mod metadata;
mod reflection;
mod repair;
mod restored;
mod standby;
mod traces;
mod unregistered;
mod upgrade;
mod waiting;
