//! What the master serves of google.bigtable.admin.v2 and google.longrunning.
//!
//! | module | what |
//! |---|---|
//! | [`tables`] | tables and families |
//! | [`instances`] | instances, clusters, app profiles |
//! | [`operations`] | long-running operations, which have run when they are answered |
//! | [`request`] [`update`] [`page`] | what requests ask for, checked; pure |
//! | [`desk`] | where calls are taken while this master is in office |
//!
//! Calls that are not served answer UNIMPLEMENTED with their name: `docs/reference/api.md`.

pub(crate) mod desk;
pub(crate) mod instances;
pub(crate) mod operations;
mod page;
mod request;
pub(crate) mod tables;
mod update;
