//! One replica's part in its tablet's Raft group: propose, lead, read safely, change, stop.
//!
//! A `Group` says nothing about what a command means; the [`StateMachine`] does. What it knows of leadership comes from
//! what openraft's core last published, which may be a moment old: that is safe, because a proposal is bound to its
//! term, and a read to a lease that outlives every moment before it ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use ebla_model::id::{LogId, ReplicaId};
use ebla_model::metadata::Replica;
use ebla_runtime::{Clock, Runtime, Tasks};
use ebla_storage::log::{CommitLog, GroupId};
use openraft::async_runtime::WatchReceiver;
use openraft::errors::{ClientWriteError, Fatal, ForwardToLeader, LinearizableReadError, RaftError};
use openraft::impls::ProgressResponder;
use openraft::raft::ClientWriteResult;
use openraft::type_config::alias::{OneshotReceiverOf, WatchReceiverOf};
use openraft::{RaftMetrics, ReadPolicy, ServerState};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, SemaphorePermit, watch};

use super::acknowledged::Acknowledged;
use super::comeback::Comeback;
use super::config::{GroupConfig, RaftTimings, openraft_config};
use super::crew::Crew;
use super::driver;
use super::durability::Durability;
use super::fault::{ChangeError, ProposeError, ReadError, StartError, TransferError};
use super::link::{Answer, Ask, SentSnapshot, Unreachable};
use super::log_store::LogStore;
use super::membership::{MembershipChange, change};
use super::network::Network;
use super::peer::Peers;
use super::read_gate::{LeaderView, ReadGate, ReadsClosed};
use super::snapshot::{Checkpoints, sane};
use super::state_machine::{Machine, SnapshotData, StateMachine, snapshot_meta};
use super::status::{GroupStatus, Leadership, has_reached, is_matched, leadership, status};
use super::types::{AppendRequest, AppendResponse, Command, Raft, RaftVote, TypeConfig, replica};
use super::voting::VotingWait;

/// One replica's part in a Raft group.
pub struct Group {
    config: GroupConfig,
    raft: Raft,
    metrics: WatchReceiverOf<TypeConfig, RaftMetrics<TypeConfig>>,
    gate: ReadGate,
    /// What the followers have accepted of this replica, when it leads.
    acknowledged: Acknowledged,
    /// The replica that leadership is being handed to, or 0.
    handing_to: AtomicU64,
    voting: VotingWait,
    /// The server is about to end.
    abstains: AtomicBool,
    clock: Clock,
    status: watch::Receiver<GroupStatus>,
    proposals: Semaphore,
    tasks: Tasks,
    /// What the core runs with.
    crew: Crew,
    /// The runtime of the crew.
    handle: Handle,
}

impl Group {
    /// Starts the replica's part. Its tasks run on the runtime of `runtime.tasks`, wherever this is called.
    ///
    /// A replica that starts fresh, from a seed, has an empty log and a state machine at `LogId::SEED`.
    ///
    /// # Errors
    /// When log or state machine are unreadable, or contradict each other.
    pub async fn start(
        config: GroupConfig,
        log: CommitLog,
        machine: Arc<dyn StateMachine>,
        network: &Arc<Network>,
        runtime: &Runtime,
    ) -> Result<Arc<Self>, StartError> {
        let clock = runtime.clock.clone();
        let voting = VotingWait::new(clock.monotonic(), config.wait_before_voting);
        let tasks = runtime.tasks.child("raft-group");
        log.add_group(config.group).map_err(|error| StartError::Damaged(error.to_string()))?;
        let crew = network.crew(config.group.tablet);
        let (acknowledged, comeback) = (Acknowledged::default(), Comeback::default());
        let heard = (acknowledged.clone(), comeback.clone());
        let (raft, handle) = start_core(&config, log, machine, network, &crew, heard).await?;
        let (sender, status) = watch::channel(GroupStatus::default());
        let metrics = raft.metrics();
        let proposals = Semaphore::new(permits(config.proposal_bytes_max));
        let gate = ReadGate::default();
        let handing_to = AtomicU64::new(0);
        let group = Self {
            config,
            raft,
            metrics,
            gate,
            acknowledged,
            handing_to,
            voting,
            abstains: AtomicBool::new(false),
            clock,
            status,
            proposals,
            tasks,
            crew,
            handle,
        };
        let group = Arc::new(group);
        driver::start(&group, sender, comeback);
        Ok(group)
    }

    /// Which replica of which tablet this is.
    pub const fn id(&self) -> GroupId {
        self.config.group
    }

    /// The times of its protocol.
    pub const fn timings(&self) -> RaftTimings {
        self.config.timings
    }

    /// How the group stands now.
    pub fn status(&self) -> GroupStatus {
        status(&self.raft, self.replica())
    }

    /// The status as of the last change of leader, readiness or membership; wakes at the next one.
    pub fn watch(&self) -> watch::Receiver<GroupStatus> {
        self.status.clone()
    }

    /// The leadership, once the first entry of the term has been applied here.
    pub fn leadership(&self) -> Option<Leadership> {
        leadership(&self.raft)
    }

    /// Proposes commands, in their order, and waits until each is applied here or its outcome is known otherwise.
    ///
    /// `term`: refuse them as `NotLeader` unless this replica leads in exactly this term. Waits while too many bytes of
    /// proposals are under way. Not cancel-safe in this sense: what was proposed stays proposed.
    pub async fn propose(&self, commands: Vec<Bytes>, term: Option<u64>) -> Vec<Result<Bytes, ProposeError>> {
        if let Some(hint) = self.handing_over() {
            return commands.iter().map(|_| Err(ProposeError::NotLeader { hint })).collect();
        }
        let _permit = self.admit(commands.iter().map(Bytes::len).sum()).await;
        let mut asked = Vec::with_capacity(commands.len());
        for command in commands {
            asked.push(self.propose_one(command, term).await);
        }
        let mut outcomes = Vec::with_capacity(asked.len());
        for answer in asked {
            outcomes.push(match answer {
                Ok(answer) => outcome(answer.await),
                Err(error) => Err(error),
            });
        }
        outcomes
    }

    async fn propose_one(
        &self,
        command: Bytes,
        term: Option<u64>,
    ) -> Result<OneshotReceiverOf<TypeConfig, ClientWriteResult<TypeConfig>>, ProposeError> {
        let (responder, answer) = ProgressResponder::complete_only();
        let request = self.raft.write(Command(command)).responder(responder);
        let request = match term {
            Some(term) => request.with_leader(term),
            None => request,
        };
        request.await.map(|()| answer).map_err(|_fatal| ProposeError::Stopped)
    }

    async fn admit(&self, bytes: usize) -> Option<SemaphorePermit<'_>> {
        // One larger proposal takes everything and travels alone.
        let wanted = permits(bytes).min(permits(self.config.proposal_bytes_max));
        let wanted = u32::try_from(wanted).unwrap_or(u32::MAX);
        // The semaphore is never closed.
        self.proposals.acquire_many(wanted).await.ok()
    }

    /// Whether a read that has arrived may be answered from this replica's state at once. `now`: time since boot, taken
    /// after the read arrived. The view is to be pinned after this call. `None`: use [`Group::read_barrier`].
    pub fn read_permit(&self, now: Duration) -> Option<()> {
        let view = self.leader_view()?;
        let open = self.gate.is_open(view.term) && view.lease_holds(now, self.config.timings.election_max);
        open.then_some(())
    }

    fn leader_view(&self) -> Option<LeaderView> {
        let metrics = self.metrics.borrow_watched();
        if metrics.state != ServerState::Leader {
            return None;
        }
        let term = metrics.current_term;
        Some(LeaderView {
            term,
            applied_term: metrics.last_applied.as_ref().map(|id| id.leader_id.term),
            acknowledged: self.accepted_since(&metrics, term),
        })
    }

    /// Has a majority confirm the leadership and waits until all that was committed by then is applied here; then a read
    /// that arrived before the call may be answered.
    ///
    /// # Errors
    /// `Timeout` when this was not reached by `deadline`, as time since boot.
    pub async fn read_barrier(&self, deadline: Duration) -> Result<(), ReadError> {
        let wait = deadline.saturating_sub(self.clock.monotonic());
        let confirmed = async {
            let linearizer = loop {
                let asked = self.clock.monotonic();
                let linearizer =
                    self.raft.get_read_linearizer(ReadPolicy::ReadIndex).await.map_err(|e| self.read_error(e))?;
                // In whose term it is; openraft alone may take too much for acknowledged.
                let term = linearizer.read_log_id().log_id().leader_id.term;
                if self.accepted_since(&self.metrics.borrow_watched(), term) >= Some(asked) {
                    break linearizer;
                }
            };
            match linearizer.try_await_ready(&self.raft, Some(wait)).await {
                Ok(Ok(_ready)) => Ok(()),
                Ok(Err(_behind)) => Err(ReadError::Timeout),
                Err(_fatal) => Err(ReadError::Stopped),
            }
        };
        tokio::time::timeout(wait, confirmed).await.unwrap_or(Err(ReadError::Timeout))
    }

    /// The latest moment from which on a majority has accepted something that was sent in this term.
    fn accepted_since(&self, metrics: &RaftMetrics<TypeConfig>, term: u64) -> Option<Duration> {
        let voters = metrics.membership_config.membership().get_joint_config();
        self.acknowledged.by_majority(term, voters, self.replica().get())
    }

    fn read_error(&self, error: RaftError<TypeConfig, LinearizableReadError<TypeConfig>>) -> ReadError {
        match error {
            RaftError::APIError(LinearizableReadError::ForwardToLeader(forward)) => {
                ReadError::NotLeader { hint: self.other(hint(&forward)) }
            }
            RaftError::APIError(LinearizableReadError::QuorumNotEnough(_)) => ReadError::Timeout,
            RaftError::Fatal(_) => ReadError::Stopped,
        }
    }

    /// A hint at this replica itself, which may still believe in a leadership that has passed, helps nobody.
    fn other(&self, hint: Option<Replica>) -> Option<Replica> {
        hint.filter(|replica| replica.replica != self.replica())
    }

    /// Shuts the fast way of reading until the guard is dropped; see [`ReadsClosed`].
    pub fn close_reads(&self) -> ReadsClosed {
        self.gate.close()
    }

    /// Stands for election unless a live leader is known: for a fresh group, and for one that has surely lost its leader, so
    /// that it need not wait its time out.
    pub async fn elect(&self) {
        if self.voting.left(self.clock.monotonic()).is_none() && !self.abstains.load(Ordering::Relaxed) {
            // A core that has stopped tells so at the next proposal.
            let _stopped = self.raft.trigger().elect(true).await;
        }
    }

    /// Stands for no election any more: for a server that is about to end.
    pub fn abstain(&self) {
        self.abstains.store(true, Ordering::Relaxed);
        self.raft.runtime_config().elect(false);
    }

    /// Hands leadership to another voter. Proposals are refused meanwhile, as surely not in the log; reads take the
    /// slow way until the term ends.
    ///
    /// # Errors
    /// `Lags` leaves the leadership here; after `NotTaken` there is none until the next election.
    pub async fn transfer(&self, to: ReplicaId) -> Result<(), TransferError> {
        let Leadership { term } = self.leadership().ok_or(TransferError::NotLeader)?;
        let status = self.status();
        if to == self.replica() || !status.membership.is_voter(to) {
            return Err(TransferError::NotVoter(to));
        }
        let _closed = self.gate.close();
        let _refusing = HandingOver::begin(&self.handing_to, to);
        let matched = self.wait_for(self.config.timings.election_min / 2, |m| is_matched(m, to, term)).await;
        match matched {
            Some(true) => {}
            Some(false) => return Err(TransferError::NotLeader),
            None => return Err(TransferError::Lags),
        }
        // From here on the target may be elected whatever the lease says.
        self.gate.close_term(term);
        self.raft.trigger().transfer_leader(to.get()).await.map_err(|_fatal| TransferError::Stopped)?;
        let taken = self.wait_for(self.config.timings.election_max, |m| (m.current_term > term).then_some(())).await;
        taken.ok_or(TransferError::NotTaken)
    }

    /// Waits until what the core publishes answers the question; `None` when it did not in time.
    async fn wait_for<T>(
        &self,
        wait: Duration,
        mut question: impl FnMut(&RaftMetrics<TypeConfig>) -> Option<T>,
    ) -> Option<T> {
        let mut metrics = self.raft.metrics();
        let answered = async {
            loop {
                let answer = question(&metrics.borrow_watched());
                if answer.is_some() {
                    return answer;
                }
                if metrics.changed().await.is_err() {
                    return None;
                }
            }
        };
        tokio::time::timeout(wait, answered).await.unwrap_or(None)
    }

    /// Changes who belongs to the group; returns the entry of the resulting membership. The change goes on when the
    /// future is dropped.
    ///
    /// `expected`: the entry of the membership that the order was made for.
    ///
    /// # Errors
    /// See [`ChangeError`]. Removing the leader is refused: transfer first.
    pub async fn change_membership(
        self: &Arc<Self>,
        wanted: MembershipChange,
        expected: Option<LogId>,
    ) -> Result<LogId, ChangeError> {
        if let MembershipChange::Voters(voters) = &wanted
            && !voters.contains(&self.replica())
        {
            return Err(ChangeError::Refused("the leader would remove itself: transfer leadership first".to_owned()));
        }
        let group = Arc::clone(self);
        // On its own, because a change that is given up half way would leave the group with two sets of voters.
        let work = async move { change(&group.raft, wanted, expected).await };
        let outcome = self.tasks.start_until_stopped("raft-change", work);
        outcome.await.unwrap_or(Err(ChangeError::Unknown))
    }

    /// Waits until a learner holds the log as it is now, and then once more what has come meanwhile, so that little is left
    /// for it to catch up on as a voter. Cancel-safe.
    ///
    /// # Errors
    /// `Behind` when that takes longer than `wait`, `NotLeader` when the leadership is lost.
    pub async fn catch_up(&self, learner: ReplicaId, wait: Duration) -> Result<(), ChangeError> {
        let end = self.clock.monotonic().saturating_add(wait);
        for _round in 0..2 {
            let upto = self.status().last.map_or(0, |last| last.index);
            let left = end.saturating_sub(self.clock.monotonic());
            match self.wait_for(left, |m| has_reached(m, learner, upto)).await {
                Some(true) => {}
                Some(false) => return Err(ChangeError::NotLeader { hint: self.other(self.status().leader) }),
                None => return Err(ChangeError::Behind),
            }
        }
        Ok(())
    }

    /// Lets the log up to `upto` go, as far as the state machine has it on disk and no follower is being sent it.
    ///
    /// A follower that needs more than is left gets a snapshot.
    pub async fn purge(&self, upto: u64) {
        let covered =
            |m: &RaftMetrics<TypeConfig>| m.snapshot.as_ref().is_some_and(|id| id.index >= upto).then_some(());
        if self.raft.trigger().snapshot().await.is_err() {
            return;
        }
        // openraft purges nothing that it has not heard of as being in a snapshot. When the store has less on disk than
        // was asked for, it cuts the request down itself.
        let _behind = self.wait_for(PURGE_WAIT, covered).await;
        let _stopped = self.raft.trigger().purge_log(upto).await;
    }

    /// Runs `work` with the group, so that it and the core wake each other for free. It must not block, and is dropped when
    /// the server ends.
    pub fn accompany(&self, work: impl Future<Output = ()> + Send + 'static) {
        // Who owns it waits for it; nobody else does.
        drop(self.crew.spawn(work));
    }

    /// Whether the core still runs. One that has ended by itself is damaged, and the process should end.
    pub async fn is_alive(&self) -> bool {
        self.raft.with_raft_state(|_state| ()).await.is_ok()
    }

    /// Ends this replica's part; leadership is not handed over. May be called again.
    pub async fn stop(&self) {
        self.tasks.cancel();
        let ended = self.end_core();
        // It errs when the runtime ends at the same time.
        let _gone = ended.await;
        self.tasks.stop(Duration::from_secs(1)).await;
    }

    /// As [`Group::stop`], without waiting for the end: for a stop without warning.
    pub fn abort(&self) {
        self.tasks.cancel();
        drop(self.end_core());
    }

    /// Tells the core to end. On a task of its own that nobody can cancel: openraft breaks everyone who waits for the end
    /// of a core when the first of them is dropped half way.
    fn end_core(&self) -> tokio::task::JoinHandle<()> {
        let raft = self.raft.clone();
        self.handle.spawn(async move {
            // Its only error is a core that ended by itself, which was told when it happened.
            let _ended = raft.shutdown().await;
        })
    }

    pub(super) const fn raft(&self) -> &Raft {
        &self.raft
    }

    pub(super) const fn tasks(&self) -> &Tasks {
        &self.tasks
    }

    pub(super) const fn config(&self) -> &GroupConfig {
        &self.config
    }

    pub(super) const fn gate(&self) -> &ReadGate {
        &self.gate
    }

    pub(super) const fn replica(&self) -> ReplicaId {
        self.config.group.replica
    }

    pub(super) async fn receive_append(&self, request: AppendRequest) -> Result<AppendResponse, Unreachable> {
        self.raft.append_entries(request).await.map_err(stopped)
    }

    pub(super) async fn receive_ask(&self, ask: Ask) -> Result<Answer, Unreachable> {
        if let Some(left) = self.voting.left(self.clock.monotonic()) {
            return Err(Unreachable(format!("started a short while ago, keeps out of elections for {left:?}")));
        }
        match ask {
            Ask::Vote(request) => self.raft.vote(request).await.map(Answer::Vote).map_err(stopped),
            Ask::PreVote(request) => self.raft.pre_vote(request).await.map(Answer::Vote).map_err(stopped),
            Ask::Transfer(request) => match self.raft.handle_transfer_leader(request).await {
                Ok(Ok(())) => Ok(Answer::Done),
                Ok(Err(refused)) => Err(Unreachable(refused.to_string())),
                Err(fatal) => Err(stopped(fatal)),
            },
        }
    }

    pub(super) async fn receive_snapshot(&self, snapshot: SentSnapshot) -> Result<RaftVote, Unreachable> {
        sane(&snapshot.applied).map_err(|fault| Unreachable(fault.to_string()))?;
        let newer = |last: &LogId| last.term > snapshot.vote.leader_id.term;
        if snapshot.applied.last.as_ref().is_some_and(newer) {
            return Err(Unreachable("the snapshot is newer than its sender".to_owned()));
        }
        let meta = snapshot_meta(&snapshot.applied).map_err(|fault| Unreachable(fault.to_string()))?;
        let arrived = openraft::Snapshot { meta, snapshot: SnapshotData::Arrived(snapshot.folder) };
        let response = self.raft.install_full_snapshot(snapshot.vote, arrived).await.map_err(stopped)?;
        Ok(response.vote)
    }

    /// While leadership is being handed over: to whom.
    #[expect(clippy::option_option, reason = "whether it is, and whether the server of the target is known")]
    fn handing_over(&self) -> Option<Option<Replica>> {
        let to = self.handing_to.load(Ordering::SeqCst);
        if to == 0 {
            return None;
        }
        let to = ReplicaId::new(to);
        let server = self.status.borrow().membership.server_of(to);
        Some(server.map(|server| Replica { replica: to, server }))
    }
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Group").field("id", &self.config.group).finish_non_exhaustive()
    }
}

/// Refuses proposals while it lives.
struct HandingOver<'a>(&'a AtomicU64);

impl<'a> HandingOver<'a> {
    fn begin(to_whom: &'a AtomicU64, to: ReplicaId) -> Self {
        to_whom.store(to.get(), Ordering::SeqCst);
        Self(to_whom)
    }
}

impl Drop for HandingOver<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::SeqCst);
    }
}

/// How long a purge waits for openraft to hear of what the store has on disk.
const PURGE_WAIT: Duration = Duration::from_secs(5);

/// Semaphore permits are kibibytes, so that their number fits.
fn permits(bytes: usize) -> usize {
    (bytes / 1024 + 1).min(Semaphore::MAX_PERMITS)
}

/// openraft's core; all that it spawns joins the crew.
async fn start_core(
    config: &GroupConfig,
    log: CommitLog,
    machine: Arc<dyn StateMachine>,
    network: &Arc<Network>,
    crew: &Crew,
    (acknowledged, comeback): (Acknowledged, Comeback),
) -> Result<(Raft, Handle), StartError> {
    let settings = openraft_config(config)?;
    let durability = Arc::new(Durability::default());
    let peers = Peers {
        network: Arc::clone(network),
        group: config.group,
        origin: config.origin,
        checkpoints: Checkpoints {
            machine: Arc::clone(&machine),
            group: config.group,
            scratch: config.scratch.clone(),
            maintenance: config.pools.maintenance.clone(),
        },
        acknowledged,
        comeback,
    };
    let store = LogStore::new(log, config.group, Arc::clone(&durability));
    let machine = Machine::new(machine, durability, config.pools.clone());
    let node = config.group.replica.get();
    let started = crew.spawn(async move {
        let raft = Raft::new(node, settings, peers, store, machine).await?;
        Ok::<_, Fatal<TypeConfig>>((raft, Handle::current()))
    });
    let started = started.await.map_err(|_lost| StartError::Damaged("the server is ending".to_owned()))?;
    started.map_err(|fatal| StartError::Damaged(fatal.to_string()))
}

fn stopped(fatal: impl std::error::Error) -> Unreachable {
    Unreachable(format!("the replica does not run: {fatal}"))
}

fn hint(forward: &ForwardToLeader<TypeConfig>) -> Option<Replica> {
    Some(replica(forward.leader_id?, forward.leader_node?))
}

/// What became of a proposal. An answer that never came is unknown: the core ended, or apply failed.
fn outcome<E>(answer: Result<ClientWriteResult<TypeConfig>, E>) -> Result<Bytes, ProposeError> {
    match answer {
        Ok(Ok(applied)) => Ok(applied.data),
        // Told before anything was appended.
        Ok(Err(ClientWriteError::ForwardToLeader(forward))) => Err(ProposeError::NotLeader { hint: hint(&forward) }),
        Ok(Err(_)) | Err(_) => Err(ProposeError::Unknown),
    }
}
