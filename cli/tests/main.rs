//! Everything that is tested through the program `ebla` and its library, as one test program: a module a suite.
//!
//! `cargo test --release -p ebla-cli --test suites chaos::` runs one suite. Tests run two at a time on two cores, so those
//! that wait for faults run concurrently with those that compute.

mod access;
mod capacity;
mod chaos;
mod clients;
mod commands;
mod config;
mod conformance;
mod console;
mod containers;
mod elastic;
mod etcd_outage;
mod files_run_out;
mod first_run;
mod kill;
mod metrics;
mod mounttable;
mod mounttables;
mod moves;
mod planted;
mod power_loss;
mod quorum_loss;
mod quotas;
mod recover;
mod roles;
mod rot;
mod rot_in_turn;
mod secured;
mod support;
mod tls;
mod tools;
mod trial;
mod upgrade;
mod verify;
