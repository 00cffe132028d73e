//! What the suites that need a whole cluster share: clusters whose parts can be made to fail, faults as values, a verifying
//! load with its ledger, and ways to make tables and count tablets through the public API alone.
//!
//! The load speaks to a cluster as any program would, through gRPC, so the same check runs against a cluster in this
//! process, against `ebla up` as a process that is killed, or against any other Bigtable. Faults speak to a cluster through
//! one trait, so the same schedule works on processes and on network namespaces.
//!
//! ```text
//!   cluster    what can be done to a cluster, whatever it is made of
//!   nemesis    faults as values, schedules, a driver, and whose fault a stall was
//!   process    a cluster of processes; child: one of them; etcd: its lock service
//!   site       where processes live: loopback here, network namespaces in netns
//!   containers a cluster of containers, as `make cluster` starts it
//! ```

pub mod api;
pub mod child;
pub mod cluster;
pub mod containers;
pub mod etcd;
pub mod in_process;
pub mod ledger;
pub mod load;
pub mod nemesis;
pub mod netns;
pub mod process;
pub mod site;
