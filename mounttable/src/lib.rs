//! The mounttable: a hierarchical name service, the first tenant of Ebla.
//!
//! ```text
//!   error                         what is refused, and what the caller should do
//!   naming  name  address         names as text, names of nodes, where servers are
//!   glob                          patterns that ask for many names
//!   key                           where a node's row is
//! ```
//!
//! Invariants: everything here is a function of values: no IO, no clock, no randomness. A name, a pattern and an address
//! are parsed once; afterwards the type is the proof.
//!
//! What is absent: the service, and the storage beneath it.

pub mod address;
pub mod error;
pub mod glob;
pub mod key;
pub mod name;
pub mod naming;

pub use crate::address::ServerAddress;
pub use crate::error::{Error, Reason};
pub use crate::glob::Pattern;
pub use crate::key::row_key;
pub use crate::name::NodeName;
