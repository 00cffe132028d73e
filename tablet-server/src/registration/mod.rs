//! The server's registration in Chubby.
//!
//! - `identity`: the server's id, and the cluster that it belongs to;
//! - `lease`: the file `servers/<id>`, held by a lease, which shows that the server lives.

mod identity;
mod lease;

pub use self::identity::{check_version, identify, refuse_if_excluded};
pub use self::lease::{Registration, RegistrationStatus, maintain};
