//! The harness of suites that need a whole cluster: clusters with fault injection, and faults as values.
//!
//! Faults are injected through one trait, so the same schedule works on processes, in network namespaces and on containers. The
//! load is that of `ebla verify`, which uses the public API.
//!
//! ```text
//!   cluster    the interface of a cluster under test
//!   faults     faults as values, schedules and rates, the driver, attribution of stalls
//!   mounts     what names of a mounttable must and may lead to
//!   process    a cluster of processes; child: one of them; etcd: its lock service
//!   etcd_space an etcd that reaches its quota, and is freed
//!   in_process a cluster in the test's own process
//!   network    the network of processes: loopback here, network namespaces in netns
//!   containers a cluster of containers, as `make cluster` starts it
//!   secured    certificates, tokens and callers of a cluster with TLS and access control
//! ```

pub mod child;
pub mod cluster;
pub mod containers;
pub mod etcd;
pub mod etcd_space;
pub mod faults;
pub mod in_process;
pub mod mounts;
pub mod netns;
pub mod network;
pub mod process;
pub mod secured;
