//! The HTTP port of a process (`--http`): it is open before the process is ready, and until it has stopped.

use std::sync::Arc;

use ebla_runtime::http_port::{Pages, ProcessInfo, Site, shown_arguments};
use ebla_runtime::metrics::{ProcessSource, Source};
use ebla_runtime::{HttpPort, Metrics, Readiness, Runtime};

use crate::output::Failure;
use crate::process::Listen;

/// How many ports are tried after the default one.
const PORTS_TRIED: u16 = 100;

/// What a process shows to a monitoring system. Without `--http` it is not served.
#[derive(Debug)]
pub struct Monitoring {
    /// Where its parts register their figures.
    pub metrics: Metrics,
    /// Whether it can serve.
    pub readiness: Readiness,
    pages: Pages,
    port: Option<HttpPort>,
}

impl Monitoring {
    /// Of a process with this role that starts now.
    pub fn new(role: &'static str, runtime: &Runtime) -> Self {
        let (metrics, readiness) = (Metrics::default(), Readiness::not_ready("the process is starting"));
        let tls = runtime.net.tls().cloned();
        let process = Arc::new(ProcessSource::new(role, env!("CARGO_PKG_VERSION"), runtime.clock.clone(), tls));
        metrics.register(Arc::clone(&process) as Arc<dyn Source>);
        let arguments = shown_arguments(std::env::args_os());
        let info = ProcessInfo { process, arguments, tasks: runtime.tasks.clone() };
        let pages = Pages::new(metrics.clone(), readiness.clone(), info);
        Self { metrics, readiness, pages, port: None }
    }

    /// Opens the port, if there is an address.
    ///
    /// # Errors
    /// When the address cannot be bound.
    pub async fn listen(mut self, address: Option<&str>, runtime: &Runtime) -> Result<Self, Failure> {
        if let Some(address) = address {
            let opened = HttpPort::start(address, self.pages.clone(), &runtime.child("http")).await;
            let port =
                opened.map_err(|error| Failure::other(format!("cannot listen on {address} (--http): {error}")))?;
            self.port = Some(port);
        }
        Ok(self)
    }

    /// Opens the port at this address, or at the next free one. Without a free one the process runs without the port.
    ///
    /// `taken`: where the process will listen itself; their ports are left free.
    pub async fn listen_near(mut self, address: &str, taken: &[Listen<'_>], runtime: &Runtime) -> Self {
        let Some((host, port)) = address.rsplit_once(':') else { return self };
        let first: u16 = port.parse().unwrap_or_default();
        let is_taken = |port: &u16| {
            let ports = taken.iter().filter_map(|one| one.address.rsplit_once(':'));
            ports.map(|(_host, port)| port).any(|taken| taken == port.to_string())
        };
        for port in (first..first.saturating_add(PORTS_TRIED)).filter(|port| !is_taken(port)) {
            let candidate = format!("{host}:{port}");
            if let Ok(port) = HttpPort::start(&candidate, self.pages.clone(), &runtime.child("http")).await {
                self.port = Some(port);
                break;
            }
        }
        self
    }

    /// From now on the port has the web console too.
    pub fn add_console(&self, console: Arc<dyn Site>) {
        self.pages.add_site(console);
    }

    /// From now on the first page of the port says where the console is: `place`, a sentence without its end.
    pub fn name_console(&self, place: &'static str) {
        self.pages.name_site(place);
    }

    /// Where the port is, `host:port`.
    pub fn address(&self) -> Option<&str> {
        self.port.as_ref().map(HttpPort::address)
    }

    /// Adds the figures of a part.
    pub fn register(&self, sources: &[Arc<dyn Source>]) {
        sources.iter().for_each(|source| self.metrics.register(Arc::clone(source)));
    }

    /// The process is stopping: it is not ready any more, and its console is gone.
    pub fn stopping(&self) {
        self.readiness.refuse("the process is stopping");
        // It has a handle of a tablet server, which must not outlive the server.
        self.pages.name_site("the process is stopping");
    }
}
