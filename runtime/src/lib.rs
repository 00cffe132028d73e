//! The interfaces between the code and the machine: time, randomness, network, tasks and blocking calls.
//!
//! All other crates take these as values, so the same code runs in production, in tests with a manual clock, and in a
//! simulation with a simulated network (ARCHITECTURE.md, invariant 11). Only this crate may make the calls that
//! `clippy.toml` bans; each place gives the reason in an `#[expect]`.
//!
//! ```text
//!   Runtime { clock, rng, net, tasks, .. } passed to each component
//!     clock            wall time, and time since boot that never jumps
//!     rng              random numbers, seeded in tests
//!     net              listen and connect; TCP, or another implementation of net::Network
//!     tasks            a tree of named tasks with an owner that stops and joins them
//!   blocking           bounded thread pools for calls that wait for a disk
//!   call_stream        small calls as messages of one gRPC stream
//!   call_timeout       the timeout that a caller gives its call
//!   members_only       who may call the services between the parts of a cluster
//!   tls                certificates from files, handshakes, and the role of the other end
//!   peer               which connections are those of other servers
//!   reflection         gRPC server reflection: the services of a port, and their types
//!   serve              a gRPC server on a listener, stopped with its tasks
//!   metrics            what a process tells a monitoring system
//!   trace              operations with their stages: what a slow call waited for
//!   http_port          metrics, health and readiness over HTTP
//!   connection_limit   how many connections a process has at once
//!   resource_counter   reservations of a bounded resource
//!   resources          the disk space, files and memory that the process may use
//!   units              sizes and durations with units
//!   logging            log filter and log output
//!   panic_hook         aborts the process on a panic
//!   watchdog           reports tasks that do not yield
//!   failpoint          injected faults, which only the simulation enables
//!   step               steps of long operations, which only tests observe
//! ```

pub mod blocking;
pub mod call_stream;
pub mod call_timeout;
pub mod clock;
mod connection_limit;
pub mod failpoint;
pub mod http_port;
pub mod logging;
pub mod members_only;
pub mod metrics;
pub mod net;
pub mod panic_hook;
pub mod peer;
pub mod reflection;
pub mod resource_counter;
pub mod resources;
pub mod rng;
pub mod serve;
pub mod step;
pub mod tasks;
pub mod tls;
pub mod trace;
pub mod units;
pub mod watchdog;

pub use blocking::{Blocking, BlockingError, Thread, spawn_thread};
pub use clock::Clock;
pub use connection_limit::{CONNECTIONS_MAX, ConnectionLimit};
pub use failpoint::Failpoint;
pub use http_port::{HttpPort, Readiness};
pub use members_only::{callers_only, members_only};
pub use metrics::Metrics;
pub use net::{Connection, Listener, Net, Network};
pub use reflection::add_reflection;
pub use resource_counter::{Reservation, ResourceCounter};
pub use resources::{FixedResources, ResourceProbe, SystemResources};
pub use rng::Rng;
pub use serve::{ConnectionInfo, LoadShed, Protocol, ServeOptions, serve};
pub use step::{Step, StepObserver, Steps};
pub use tasks::Tasks;
pub use tls::{Security, Tls};
pub use watchdog::{PollWatch, Watchdog};

/// The interfaces to the machine that a component needs; cheap to clone.
#[derive(Clone, Debug)]
pub struct Runtime {
    /// Wall time and time since boot.
    pub clock: Clock,
    /// Random numbers.
    pub rng: Rng,
    /// Network: listen and connect.
    pub net: Net,
    /// The owner of the tasks that the component starts.
    pub tasks: Tasks,
    /// The observer of steps, in tests.
    pub steps: Steps,
}

impl Runtime {
    /// The real machine: system clock, system randomness, TCP. `name` names the root of the task tree.
    #[must_use]
    pub fn system(name: &str) -> Self {
        Self {
            clock: Clock::system(),
            rng: Rng::from_entropy(),
            net: Net::tcp(),
            tasks: Tasks::new(name),
            steps: Steps::default(),
        }
    }

    /// The same interfaces with a child of the task tree: stopping the child does not stop the parent.
    #[must_use]
    pub fn child(&self, name: &str) -> Self {
        Self { tasks: self.tasks.child(name), ..self.clone() }
    }
}
