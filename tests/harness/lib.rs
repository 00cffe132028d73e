//! What the suites that need a whole cluster share: clusters whose parts can be made to fail, and faults as values.
//!
//! Faults speak to a cluster through one trait, so the same schedule works on processes, in network namespaces and on
//! containers. The load beside them is that of `ebla verify`; it speaks to a cluster as any program would.
//!
//! ```text
//!   cluster    what can be done to a cluster, whatever it is made of
//!   nemesis    faults as values, schedules, a driver, and whose fault a stall was
//!   process    a cluster of processes; child: one of them; etcd: its lock service
//!   in_process a cluster in the test's own process
//!   site       where processes live: loopback here, network namespaces in netns
//!   containers a cluster of containers, as `make cluster` starts it
//! ```

pub mod child;
pub mod cluster;
pub mod containers;
pub mod etcd;
pub mod in_process;
pub mod nemesis;
pub mod netns;
pub mod process;
pub mod site;
