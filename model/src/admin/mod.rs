//! Resources of the admin API: instances with their clusters, and app profiles.
//!
//! They are stored and returned. Serving data does not depend on them.

pub mod app_profile;
pub mod instance;
