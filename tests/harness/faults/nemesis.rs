//! Injects faults into a [`Cluster`] in real time, one after the other, and records when each began and ended and when the
//! cluster had recovered.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use ebla_runtime::Clock;

use crate::cluster::{Cluster, Node, Role};
use crate::faults::driver::{Driver, Step};
use crate::faults::fault::{Action, Fault, FaultKind, Place};
use crate::faults::stalls::{FaultRecord, Leaders};
use crate::faults::view::View;

/// Injects faults into a cluster.
pub struct ClusterNemesis<'a, C> {
    cluster: &'a mut C,
    clock: Clock,
    records: Vec<FaultRecord>,
}

/// A fault that has ended.
struct Ended {
    targets: Vec<Node>,
    began: Duration,
    lifted: Duration,
}

impl<'a, C: Cluster> ClusterNemesis<'a, C> {
    /// The nemesis of `cluster`.
    pub fn new(cluster: &'a mut C, clock: Clock) -> Self {
        Self { cluster, clock, records: Vec::new() }
    }

    /// Injects a fault, ends it, and returns when the cluster is healthy again.
    ///
    /// # Errors
    /// An error of the cluster: the fault cannot be injected, or the cluster is not healthy in time.
    pub async fn inject(&mut self, fault: &Fault) -> io::Result<()> {
        self.inject_with_leaders(fault, &Leaders::new()).await
    }

    /// Like [`Self::inject`], with known leaders.
    ///
    /// # Errors
    /// As [`Self::inject`].
    pub async fn inject_with_leaders(&mut self, fault: &Fault, leaders: &Leaders) -> io::Result<()> {
        let Ended { targets, began, lifted } = self.run(fault).await?;
        self.cluster.wait_healthy().await.map_err(|error| after(fault, &error))?;
        let whole = self.clock.monotonic();
        let spared = leaders.iter().filter(|(_tablet, leaders)| targets.iter().all(|target| !leaders.contains(target)));
        let unaffected = spared.map(|(tablet, _leaders)| *tablet).collect();
        self.records.push(FaultRecord { kind: fault.name(), began, lifted, whole, unaffected });
        Ok(())
    }

    /// The injected faults.
    #[must_use]
    pub fn finish(self) -> Vec<FaultRecord> {
        self.records
    }

    /// Carries out what the driver decides until the fault has ended. The driver's time does not advance while an action is
    /// carried out: a process is down for the whole duration after a graceful stop, however long the stop has taken.
    async fn run(&mut self, fault: &Fault) -> io::Result<Ended> {
        let mut driver = Driver::new();
        driver.plan(Duration::ZERO, fault.clone());
        let mut now = Duration::ZERO;
        let mut first = None;
        while let Some(due) = driver.next_at() {
            tokio::time::sleep(due.saturating_sub(now)).await;
            now = now.max(due);
            let view = self.view(driver.next_role()).await?;
            let Some(Step::Actions(actions)) = driver.step(now, &view) else { continue };
            if first.is_none() {
                first = Some((nodes(&actions), self.clock.monotonic()));
            }
            self.carry_out(&actions).await?;
            if matches!(actions.first(), Some(Action::Lift(..))) && !driver.is_idle() {
                // The targets of the outer fault are still unavailable; those of the inner one must recover without them.
                let before = self.clock.monotonic();
                self.cluster.wait_ready(&nodes(&actions)).await.map_err(|error| after(fault, &error))?;
                now += self.clock.monotonic().saturating_sub(before);
            }
        }
        let lifted = self.clock.monotonic();
        let (targets, began) = first.unwrap_or_else(|| (Vec::new(), lifted));
        Ok(Ended { targets, began, lifted })
    }

    async fn view(&mut self, role: Option<Role>) -> io::Result<View> {
        let mut roles = BTreeMap::new();
        if let Some(role) = role {
            let found = self.cluster.find(role).await;
            let none = || io::Error::new(io::ErrorKind::NotFound, format!("no node has the role {role:?}"));
            roles.insert(role, found.ok_or_else(none)?);
        }
        Ok(View { nodes: self.cluster.nodes(), leaders: Vec::new(), roles })
    }

    /// `actions`: of one step, so all are of one kind.
    async fn carry_out(&mut self, actions: &[Action]) -> io::Result<()> {
        if let Some(Action::Inject(FaultKind::Kill, _)) = actions.first() {
            return self.cluster.kill_all(&nodes(actions)).await;
        }
        for action in actions {
            match *action {
                Action::Inject(FaultKind::Stop, Place::Node(node)) => self.cluster.stop(node).await?,
                Action::Inject(FaultKind::Pause, Place::Node(node)) => self.cluster.pause(node).await?,
                Action::Inject(FaultKind::Partition(direction), Place::Node(node)) => {
                    self.cluster.partition(node, direction).await?;
                }
                Action::Lift(FaultKind::Kill | FaultKind::Stop, Place::Node(node)) => {
                    self.cluster.restart(node).await?
                }
                Action::Lift(FaultKind::Pause, Place::Node(node)) => self.cluster.resume(node).await?,
                Action::Lift(FaultKind::Partition(_), Place::Node(node)) => self.cluster.heal(node).await?,
                other => {
                    let reason = format!("a cluster in real time cannot {other}");
                    return Err(io::Error::new(io::ErrorKind::Unsupported, reason));
                }
            }
        }
        Ok(())
    }
}

fn nodes(actions: &[Action]) -> Vec<Node> {
    let node = |action: &Action| match action {
        Action::Inject(_, Place::Node(node)) | Action::Lift(_, Place::Node(node)) => Some(*node),
        Action::Inject(_, Place::Link(..)) | Action::Lift(_, Place::Link(..)) => None,
    };
    actions.iter().filter_map(node).collect()
}

fn after(fault: &Fault, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("after {fault}: {error}"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::cluster::Direction;
    use crate::faults::fault::Target;

    const SERVERS: [Node; 3] = [Node::TabletServer(0), Node::TabletServer(1), Node::TabletServer(2)];

    /// A cluster that records the calls.
    #[derive(Default)]
    struct Recorder {
        calls: Vec<String>,
    }

    impl Recorder {
        fn record(&mut self, call: &str, nodes: &[Node]) -> io::Result<()> {
            let names: Vec<_> = nodes.iter().map(Node::to_string).collect();
            self.calls.push(format!("{call} {}", names.join(" ")));
            Ok(())
        }
    }

    impl Cluster for Recorder {
        fn nodes(&self) -> Vec<Node> {
            SERVERS.to_vec()
        }

        fn addresses(&self) -> Vec<String> {
            Vec::new()
        }

        async fn kill(&mut self, node: Node) -> io::Result<()> {
            self.record("kill", &[node])
        }

        async fn kill_all(&mut self, nodes: &[Node]) -> io::Result<()> {
            self.record("kill", nodes)
        }

        async fn stop(&mut self, node: Node) -> io::Result<()> {
            self.record("stop", &[node])
        }

        async fn restart(&mut self, node: Node) -> io::Result<()> {
            self.record("restart", &[node])
        }

        async fn pause(&mut self, node: Node) -> io::Result<()> {
            self.record("pause", &[node])
        }

        async fn resume(&mut self, node: Node) -> io::Result<()> {
            self.record("resume", &[node])
        }

        async fn partition(&mut self, node: Node, direction: Direction) -> io::Result<()> {
            self.record(&format!("partition {direction}"), &[node])
        }

        async fn heal(&mut self, node: Node) -> io::Result<()> {
            self.record("heal", &[node])
        }

        async fn find(&mut self, role: Role) -> Option<Node> {
            (role == Role::BusiestTabletServer).then_some(Node::TabletServer(2))
        }

        async fn wait_ready(&mut self, nodes: &[Node]) -> io::Result<()> {
            self.record("wait until ready", nodes)
        }

        async fn wait_healthy(&mut self) -> io::Result<()> {
            self.record("wait until healthy", &[])
        }
    }

    async fn calls(fault: &Fault) -> io::Result<Vec<String>> {
        let mut cluster = Recorder::default();
        ClusterNemesis::new(&mut cluster, Clock::system()).inject(fault).await?;
        Ok(cluster.calls)
    }

    #[tokio::test(start_paused = true)]
    async fn nodes_are_killed_at_once_and_restarted() {
        let fault = Fault::new(FaultKind::Kill, Target::Everything, Duration::from_secs(2));
        let restarts = SERVERS.map(|node| format!("restart {node}"));
        let kill = "kill tablet-server-0 tablet-server-1 tablet-server-2".to_owned();
        let expected = [vec![kill], restarts.to_vec(), vec!["wait until healthy ".to_owned()]].concat();
        assert_eq!(calls(&fault).await.unwrap(), expected);
    }

    #[tokio::test(start_paused = true)]
    async fn the_target_of_an_inner_fault_recovers_during_the_outer_one() {
        let inner = Fault::new(FaultKind::Stop, Target::Node(Node::TabletServer(0)), Duration::from_secs(1));
        let busiest = Target::Role(Role::BusiestTabletServer);
        let outer = Fault::new(FaultKind::Partition(Direction::In), busiest, Duration::from_secs(12));
        let fault = Fault { within: Some(Box::new(inner)), ..outer };
        let expected = [
            "partition in tablet-server-2",
            "stop tablet-server-0",
            "restart tablet-server-0",
            "wait until ready tablet-server-0",
            "heal tablet-server-2",
            "wait until healthy ",
        ];
        assert_eq!(calls(&fault).await.unwrap(), expected);
    }

    #[tokio::test(start_paused = true)]
    async fn tablets_of_other_leaders_are_recorded_as_unaffected() {
        let mut cluster = Recorder::default();
        let mut nemesis = ClusterNemesis::new(&mut cluster, Clock::system());
        let fault = Fault::new(FaultKind::Pause, Target::Node(SERVERS[1]), Duration::from_secs(12));
        let leaders = SERVERS.into_iter().zip(0..).map(|(node, tablet)| (tablet, BTreeSet::from([node]))).collect();
        nemesis.inject_with_leaders(&fault, &leaders).await.unwrap();
        let records = nemesis.finish();
        assert_eq!((records.len(), records[0].kind.as_str()), (1, "pause: a tablet server"));
        assert_eq!(records[0].unaffected, BTreeSet::from([0, 2]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_fault_that_only_the_simulation_has_is_refused() {
        let link = Target::Links(vec![(SERVERS[0], SERVERS[1])]);
        let refused = calls(&Fault::new(FaultKind::Hold, link, Duration::from_secs(1))).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::Unsupported);
        let nobody = Fault::new(FaultKind::Kill, Target::Role(Role::ActiveMaster), Duration::from_secs(1));
        assert_eq!(calls(&nobody).await.unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
