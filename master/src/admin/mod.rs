//! The public admin APIs: google.bigtable.admin.v2 and google.longrunning.
//!
//! | module | what |
//! |---|---|
//! | [`tables`] | tables and families |
//! | [`instances`] | instances, clusters, app profiles |
//! | [`views`] | authorized views |
//! | [`policies`] | policies of instances, tables, column families and views |
//! | [`operations`] | long-running operations, which have finished when their call returns |
//! | [`request`] [`update`] [`page`] | validated requests; pure |
//! | [`handle`] | access to the active master |
//!
//! Calls that are not supported return UNIMPLEMENTED with their name: `docs/reference/api.md`.

pub(crate) mod handle;
pub(crate) mod instances;
pub(crate) mod operations;
mod page;
mod policies;
mod request;
pub(crate) mod tables;
mod update;
mod views;
