//! `ebla mt publish`: keeps servers mounted while a command runs, or until a signal.
//!
//! The command starts when its servers are mounted, or at once when there is a health check: then it may be the server
//! itself. On a signal, `publish` first unmounts the servers, so that no client is directed to them any more, and then stops
//! the command.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::process::ExitStatus;
use std::time::Duration;

use ebla_mounttable_namespace::publisher::{PairState, PublisherStatus};
use ebla_mounttable_namespace::{Namespace, Publisher};
use ebla_mounttable_tree::{Error, Reason, ServerAddress, Target, naming};
use ebla_runtime::Net;
use futures::future::join_all;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::sync::watch;

use super::health::{self, Check};
use super::to_failure;
use crate::output::{self, Failure};
use crate::process::Signals;

/// What to keep mounted, and for how long.
pub(super) struct Plan {
    pub(super) names: Vec<String>,
    pub(super) servers: Vec<ServerAddress>,
    pub(super) period: u32,
    pub(super) target: Target,
    /// Timeout of the first mounts; after that the command is not started.
    pub(super) wait: Duration,
    /// The health check and its interval; `None`: all servers are considered healthy.
    pub(super) check: Option<(Check, Duration)>,
    /// The command; empty: publish until a signal.
    pub(super) command: Vec<String>,
}

pub(super) async fn run(names: &Namespace, net: &Net, plan: Plan) -> Result<(), Failure> {
    let mut signals = Signals::watch()?;
    let publisher = Publisher::start(names, Duration::from_secs(plan.period.into()));
    if plan.check.is_none() {
        for server in &plan.servers {
            publisher.add_server(server.clone()).await;
        }
    }
    for name in &plan.names {
        publisher.add_name(name, plan.target).await;
    }
    let begun = tokio::select! {
        begun = begin(&plan, publisher.status()) => begun,
        () = signals.next() => {
            signals.stop(publisher.shutdown()).await;
            return Ok(());
        }
    };
    let mut child = match begun {
        Ok(child) => child,
        Err(failure) => {
            signals.stop(publisher.shutdown()).await;
            return Err(failure);
        }
    };
    let ended = tokio::select! {
        status = wait(child.as_mut()) => Some(status),
        () = signals.next() => None,
        never = report(publisher.status()) => match never {},
        never = monitor_health(&plan, &publisher, net) => match never {},
    };
    signals.stop(publisher.shutdown()).await;
    let is_signalled = ended.is_none();
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
        // The command was stopped by our signal.
        None if is_signalled => Ok(()),
        code => {
            let code = code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
            Err(Failure { message: format!("the command failed: {status}"), code })
        }
    }
}

/// Starts the command, if there is one, as soon as its servers are mounted.
async fn begin(plan: &Plan, status: watch::Receiver<PublisherStatus>) -> Result<Option<Child>, Failure> {
    let Some((program, arguments)) = plan.command.split_first() else { return Ok(None) };
    if plan.check.is_none() {
        mounted(plan, status).await?;
    }
    start(program, arguments).map(Some)
}

/// Waits until every server is mounted under every name.
async fn mounted(plan: &Plan, mut status: watch::Receiver<PublisherStatus>) -> Result<(), Failure> {
    let all = async {
        loop {
            match progress(plan, &status.borrow_and_update()) {
                Progress::Mounted => return Ok(()),
                Progress::Refused(error) => return Err(error),
                Progress::Pending => {}
            }
            if status.changed().await.is_err() {
                return Err(Error::new(Reason::Unavailable, "the publisher has stopped"));
            }
        }
    };
    let outcome = tokio::time::timeout(plan.wait, all).await;
    let outcome = outcome.unwrap_or_else(|_elapsed| {
        let last = status_error(&status.borrow());
        let why = last.map_or_else(|| "no answer".to_owned(), |error| error.message);
        Err(Error::new(Reason::Unavailable, format!("not mounted after {:?}: {why}", plan.wait)))
    });
    outcome.map_err(|error| {
        let failure = to_failure(error);
        Failure { message: format!("{}; the command was not started", failure.message), ..failure }
    })
}

/// Progress of the first mounts.
enum Progress {
    /// All mounts exist.
    Mounted,
    /// One mount was refused, and a retry would be refused too.
    Refused(Error),
    /// Some mounts are missing.
    Pending,
}

fn progress(plan: &Plan, status: &PublisherStatus) -> Progress {
    let refusal = status.pairs.iter().filter_map(|pair| pair.error.as_ref()).find(|error| is_final(error));
    if let Some(error) = refusal {
        return Progress::Refused(error.clone());
    }
    let names: BTreeSet<_> = plan.names.iter().map(|name| naming::clean(name)).collect();
    let servers: BTreeSet<_> = plan.servers.iter().collect();
    let made = status.pairs.iter().filter(|pair| pair.state == PairState::Mounted).count();
    if made >= names.len().saturating_mul(servers.len()) { Progress::Mounted } else { Progress::Pending }
}

/// Whether a retry would fail with the same error.
fn is_final(error: &Error) -> bool {
    !matches!(error.reason, Reason::Unavailable | Reason::Contention | Reason::ReadOnly)
}

fn status_error(status: &PublisherStatus) -> Option<Error> {
    status.pairs.iter().find_map(|pair| pair.error.clone())
}

/// Runs the health checks of all servers.
async fn monitor_health(plan: &Plan, publisher: &Publisher, net: &Net) -> Infallible {
    if let Some((check, every)) = &plan.check {
        join_all(plan.servers.iter().map(|server| health::monitor(check, *every, server, publisher, net))).await;
    }
    std::future::pending().await
}

fn start(program: &str, arguments: &[String]) -> Result<Child, Failure> {
    let child = Command::new(program).args(arguments).kill_on_drop(true).spawn();
    child.map_err(|error| Failure::usage(format!("cannot start {program}: {error}")))
}

/// Waits for the command; forever when there is none.
async fn wait(child: Option<&mut Child>) -> std::io::Result<ExitStatus> {
    match child {
        Some(child) => child.wait().await,
        None => std::future::pending().await,
    }
}

fn terminate(child: &Child) {
    let pid = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    if let Some(pid) = pid {
        // The process may have exited already.
        let _ = kill_process(pid, Signal::TERM);
    }
}

/// Prints the state of each mount on stderr whenever it changes.
async fn report(mut status: watch::Receiver<PublisherStatus>) -> Infallible {
    let mut reported = Vec::new();
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
        for line in lines.iter().filter(|line| !reported.contains(*line)) {
            output::note(line);
        }
        reported = lines;
        if status.changed().await.is_err() {
            // The publisher has stopped; another branch of the caller's `select!` handles that.
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use ebla_mounttable_namespace::publisher::PairStatus;

    use super::*;

    #[test]
    fn a_command_waits_for_every_mount_and_fails_at_a_refusal() {
        let plan = Plan {
            names: vec!["a".to_owned(), "b/".to_owned(), "/b".trim_start_matches('/').to_owned()],
            servers: vec!["h:1".parse().unwrap()],
            period: 60,
            target: Target::Object,
            wait: Duration::from_secs(1),
            check: None,
            command: Vec::new(),
        };
        let pair = |name: &str, state, reason: Option<Reason>| PairStatus {
            name: name.to_owned(),
            server: "h:1".parse().unwrap(),
            state,
            error: reason.map(|reason| Error::new(reason, "why")),
        };
        let of = |pairs: &[PairStatus]| {
            progress(&plan, &PublisherStatus { pairs: pairs.to_vec(), ..PublisherStatus::default() })
        };
        let (a, b) = (pair("a", PairState::Mounted, None), pair("b", PairState::Mounted, None));
        assert!(matches!(of(&[]), Progress::Pending));
        assert!(matches!(of(std::slice::from_ref(&a)), Progress::Pending), "the second name is missing");
        let unavailable = pair("b", PairState::Mounting, Some(Reason::Unavailable));
        assert!(matches!(of(&[a.clone(), unavailable]), Progress::Pending), "a retry may succeed");
        assert!(matches!(of(&[a.clone(), b]), Progress::Mounted));
        let denied = pair("b", PairState::Mounting, Some(Reason::NoAccess));
        assert!(matches!(of(&[a, denied]), Progress::Refused(error) if error.reason == Reason::NoAccess));
    }
}
