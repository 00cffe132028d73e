//! The one binary, `ebla`: a cluster in one process (`up`), and the commands that look at a cluster or use it.
//!
//! ```text
//!   main        arguments in, exit code out
//!   commands    one file a command: it asks, it shows
//!   address     HOST:PORT,… as it is given
//!   picture     what is known of a cluster, with and without its master
//!   verdict     whether a cluster is well, and why not
//!   process     data folder, addresses, ready file, signals: what a running part has to do with the machine
//!   local       a whole cluster in this process: Chubby, master, tablet servers
//!   webtable    a real data set: the home pages of a Debian package index
//!   bench       load on Bigtable addresses, as ratios
//!   verify      a load that checks what it was told, and the checkers
//!   output      tables, JSON, exit codes
//!   reference   the command-line reference, for its test
//!   escape      bytes as text, in and out; size: sizes as text
//! ```
//!
//! The library part exists so that tests can start the same cluster that `up` starts.

pub mod address;
pub mod bench;
pub mod commands;
pub mod escape;
pub mod local;
pub mod output;
pub mod picture;
pub mod process;
#[cfg(test)]
mod reference;
pub mod size;
pub mod verdict;
pub mod verify;
pub mod webtable;
