//! Table jobs: long changes of tables, as steps that any master can repeat.
//!
//! | module | what |
//! |---|---|
//! | [`create`] | creates a table: plan, tablets, rows of METADATA |
//! | [`create_groups`] | creates the first replicas of a new group |
//! | [`delete`] | deletes a table: name, tablets, rows of METADATA |
//! | [`update_schema`] | changes a schema and applies it at every tablet |
//! | [`drop_range`] | drops a range of rows at every tablet |
//!
//! Each job first records its intent in Chubby. Then `finish` executes the remaining steps: for the caller of the job,
//! and for the reconciler if the master of that caller has crashed or was too slow.

pub(crate) mod create;
pub(crate) mod create_groups;
pub(crate) mod delete;
pub(crate) mod drop_range;
pub(crate) mod update_schema;
