//! `ebla mt publish`: keeps servers mounted while a command runs, or until a signal.
//!
//! Told to stop, it takes the mounts away first, so that nobody comes any more, and then tells the command.

use std::convert::Infallible;
use std::process::ExitStatus;
use std::time::Duration;

use ebla_mounttable::{ServerAddress, Target};
use ebla_mounttable_namespace::publisher::Status;
use ebla_mounttable_namespace::{Namespace, Publisher};
use ebla_runtime::Net;
use futures::future::join_all;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::sync::watch;

use super::health::{self, Check};
use crate::output::Failure;
use crate::process::Signals;

/// What is to be kept mounted, and for how long.
pub(super) struct Plan {
    pub(super) names: Vec<String>,
    pub(super) servers: Vec<ServerAddress>,
    pub(super) period: u32,
    pub(super) target: Target,
    /// How it is seen whether a server is healthy, and how often; without it all are.
    pub(super) check: Option<(Check, Duration)>,
    /// Empty: until a signal.
    pub(super) command: Vec<String>,
}

pub(super) async fn run(names: &Namespace, net: &Net, plan: Plan) -> Result<(), Failure> {
    let mut signals = Signals::watch()?;
    let mut child = plan.command.split_first().map(|(program, arguments)| start(program, arguments)).transpose()?;
    let publisher = Publisher::start(names, Duration::from_secs(plan.period.into()));
    if plan.check.is_none() {
        for server in &plan.servers {
            publisher.add_server(server.clone()).await;
        }
    }
    for name in &plan.names {
        publisher.add_name(name, plan.target).await;
    }
    let ended = tokio::select! {
        status = wait(child.as_mut()) => Some(status),
        () = signals.next() => None,
        never = report(publisher.status()) => match never {},
        never = guard(&plan, &publisher, net) => match never {},
    };
    signals.stop(publisher.shutdown()).await;
    let is_told = ended.is_none();
    let status = match (ended, &mut child) {
        (Some(status), _) => status?,
        (None, None) => return Ok(()),
        (None, Some(child)) => {
            terminate(child);
            child.wait().await?
        }
    };
    match status.code() {
        Some(0) => Ok(()),
        // It did as it was told.
        None if is_told => Ok(()),
        code => {
            let code = code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
            Err(Failure { message: format!("the command ended: {status}"), code })
        }
    }
}

/// Has servers mounted while they are healthy.
async fn guard(plan: &Plan, publisher: &Publisher, net: &Net) -> Infallible {
    if let Some((check, every)) = &plan.check {
        join_all(plan.servers.iter().map(|server| health::guard(check, *every, server, publisher, net))).await;
    }
    std::future::pending().await
}

fn start(program: &str, arguments: &[String]) -> Result<Child, Failure> {
    let child = Command::new(program).args(arguments).kill_on_drop(true).spawn();
    child.map_err(|error| Failure::usage(format!("start {program}: {error}")))
}

/// Waits for the command; for ever when there is none.
async fn wait(child: Option<&mut Child>) -> std::io::Result<ExitStatus> {
    match child {
        Some(child) => child.wait().await,
        None => std::future::pending().await,
    }
}

fn terminate(child: &Child) {
    let pid = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    if let Some(pid) = pid {
        // It may have ended meanwhile.
        let _ = kill_process(pid, Signal::TERM);
    }
}

/// Says on stderr what is mounted and what is not, whenever that changes.
async fn report(mut status: watch::Receiver<Status>) -> Infallible {
    let mut said = Vec::new();
    loop {
        let lines: Vec<_> = status
            .borrow_and_update()
            .pairs
            .iter()
            .map(|pair| {
                let why = pair.error.as_ref().map(|error| format!(": {} ({})", error.message, error.reason));
                format!("{} at {}: {:?}{}", pair.name, pair.server, pair.state, why.unwrap_or_default())
            })
            .collect();
        for line in lines.iter().filter(|line| !said.contains(*line)) {
            eprintln!("{line}");
        }
        said = lines;
        if status.changed().await.is_err() {
            // The publisher has ended; whoever waits beside this knows.
            std::future::pending::<()>().await;
        }
    }
}
