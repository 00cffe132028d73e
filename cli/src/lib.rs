//! The library of the program `ebla`: a cluster in one process (`up`), and the commands that inspect or use a cluster.
//!
//! ```text
//!   main        arguments in, exit code out
//!   commands    the commands, one file each
//!   config      the configuration file of a process
//!   address     HOST:PORT,… on the command line
//!   doctor      what is wrong with a cluster and with this machine, since when, and what to do
//!   bundle      the file of ebla debug zip
//!   watch       commands that show their output again and again
//!   process     data folder, addresses, ready file, signals
//!   local       a whole cluster in this process: Chubby, master, tablet servers
//!   output      tables, JSON, exit codes
//!   reference   the command-line reference, for its test
//!   tls         the options of TLS
//!   size        sizes as text
//!   splits      the options of automatic splits
//! ```
//!
//! The state of a cluster, its health and text encodings come from `ebla_client`, which the console uses too.
//!
//! It is a library so that tests can start the same cluster as `up`. Benchmarks and the verifying load are in `ebla-workload`.

pub mod address;
pub mod bundle;
pub mod commands;
pub mod config;
pub mod doctor;
#[cfg(test)]
#[path = "../../tests/golden.rs"]
mod golden;
pub mod local;
pub mod metrics_reference;
pub mod output;
pub mod process;
#[cfg(test)]
mod reference;
pub mod size;
pub mod splits;
pub mod tls;
pub mod watch;
