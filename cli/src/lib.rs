//! The library of the program `ebla`: a cluster in one process (`up`), and the commands that inspect or use a cluster.
//!
//! ```text
//!   main        arguments in, exit code out
//!   commands    the commands, one file each
//!   config      the configuration file of a process
//!   address     HOST:PORT,… on the command line
//!   snapshot    the state of a cluster, fetched with or without its master
//!   verdict     the health of a cluster, with reasons
//!   process     data folder, addresses, ready file, signals
//!   local       a whole cluster in this process: Chubby, master, tablet servers
//!   output      tables, JSON, exit codes
//!   reference   the command-line reference, for its test
//!   tls         the options of TLS
//!   encoding    text encodings of bytes; size: sizes as text
//! ```
//!
//! It is a library so that tests can start the same cluster as `up`. Benchmarks and the verifying load are in `ebla-workload`.

pub mod address;
pub mod commands;
pub mod config;
pub mod encoding;
pub mod local;
pub mod metrics_reference;
pub mod output;
pub mod process;
#[cfg(test)]
mod reference;
pub mod size;
pub mod snapshot;
pub mod tls;
pub mod verdict;
