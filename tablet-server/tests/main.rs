//! Tablet servers in one process, as one test program: one server alone, and several that share tablets.

mod alone;
mod cluster;
