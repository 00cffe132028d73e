//! Fault injection: faults as values, one driver that decides when each begins and ends, and the attribution of a load's stalls
//! to faults.
//!
//! The driver is a function of a seed, the time and a view of the cluster. It keeps what is down, cut or slow, injects nothing
//! twice, and ends every fault. Two shells carry out its actions: [`nemesis`] on a [`Cluster`](crate::cluster::Cluster) in
//! real time, and `tests/sim/nemesis.rs` between two steps of the simulation.
//!
//! ```text
//!   schedule   items  --seed-->  faults, one after the other        rates, draw   recurring faults, which overlap
//!                            \                                     /
//!   driver                    fault …  --time, view-->  Inject or Lift (fault, place) …
//!                            /                                     \
//!   nemesis    kill, pause, partition of a Cluster                  tests/sim/effects.rs   crash, cut, slow link of turmoil
//!              |
//!   stalls     FaultRecord …  --stalls of the load-->  a table by kind
//! ```

mod draw;
pub mod driver;
pub mod fault;
pub mod nemesis;
pub mod parameters;
pub mod rates;
pub mod schedule;
pub mod stalls;
pub mod view;

#[cfg(test)]
mod tests;
