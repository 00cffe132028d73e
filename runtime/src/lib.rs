//! The seams between the code and the machine: time, chance, network, tasks and blocking calls.
//!
//! Everything above takes these as values, so the same code runs in production, in tests with a clock that a test moves,
//! and in a simulation whose network is not real (ARCHITECTURE.md, invariant 11). This is the one crate that may make
//! the calls that `clippy.toml` bans; each place says why with an `#[expect]`.
//!
//! ```text
//!   Runtime { clock, rng, net, tasks }     what a component takes
//!     clock     wall time, and time since boot that never jumps
//!     rng       random numbers, seeded in tests
//!     net       listen and connect; TCP, or whatever implements net::Network
//!     tasks     a tree of named tasks with an owner that stops and joins them
//!   blocking    bounded pools of threads for calls that wait for a disk
//!   serve       a gRPC server on a listener, stopped with its tasks
//!   meter       how much is held of something
//!   telemetry   logs, counters and histograms as text
//!   planted     faults on purpose, which only the simulation switches on
//!   config      file < environment < flags, unknown keys are errors
//! ```

pub mod blocking;
pub mod clock;
pub mod config;
pub mod meter;
pub mod net;
pub mod planted;
pub mod rng;
pub mod serve;
pub mod tasks;
pub mod telemetry;

pub use blocking::{Blocking, BlockingError, Thread, spawn_thread};
pub use clock::Clock;
pub use meter::{Held, Meter};
pub use net::{Connection, Listener, Net, Network};
pub use planted::{Bug, planted};
pub use rng::Rng;
pub use serve::{Origin, Protocol, ServeOptions, serve};
pub use tasks::Tasks;

/// What a component needs of the machine; cheap to clone.
#[derive(Clone, Debug)]
pub struct Runtime {
    /// Wall time and time since boot.
    pub clock: Clock,
    /// Random numbers.
    pub rng: Rng,
    /// How to listen and to connect.
    pub net: Net,
    /// The owner of the tasks that the component starts.
    pub tasks: Tasks,
}

impl Runtime {
    /// The real machine: system clock, random numbers of the system, TCP. `name` names the root of the task tree.
    #[must_use]
    pub fn system(name: &str) -> Self {
        Self { clock: Clock::system(), rng: Rng::from_entropy(), net: Net::tcp(), tasks: Tasks::new(name) }
    }

    /// The same seams with tasks of their own, a child of this one's: stopping the child leaves the parent alone.
    #[must_use]
    pub fn child(&self, name: &str) -> Self {
        Self { tasks: self.tasks.child(name), ..self.clone() }
    }
}
