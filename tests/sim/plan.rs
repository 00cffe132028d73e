//! The plan of a run: random for each seed, or one with many faults of one kind.

use std::time::Duration;

use ebla_master::plan::replica_balance::ReplicaBalance;
use ebla_runtime::Rng;
use ebla_tests::faults::rates::Recurring;

use crate::cluster::FailureTimeouts;
use crate::names;
use crate::rates::FaultRates;
use crate::steps::StepCrash;

/// The host of the lock service and of all clients. None of them fails, and each step of the simulation costs time for every host and
/// for every link between two hosts.
pub(crate) const CLIENTS: &str = "clients";

/// The groups of the plan `many-groups`. Each costs processor time until the end of the run: heartbeats, and a store that is opened again
/// after each crash.
const MANY_GROUPS: usize = 40;
/// Those of the plan `hundreds`, which takes more than a minute.
const HUNDREDS: usize = 200;
/// Those of the plan `beside`.
const BESIDE_GROUPS: usize = 12;
/// The size of the largest values of the plan `large-values`, in bytes.
const LARGE_VALUE_BYTES_MAX: u64 = 4 << 20;
/// That of the plan `largest-values`: a cell may have 100 MiB.
const LARGEST_VALUE_BYTES: u64 = 99 << 20;

/// Parameters of a run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) servers: usize,
    pub(crate) masters: usize,
    pub(crate) clients: u64,
    /// Duration of the load under faults.
    pub(crate) load: Duration,
    pub(crate) fault_rates: FaultRates,
    /// Whether workers also overwrite the same rows repeatedly, which detects timestamps that go back.
    pub(crate) owns: bool,
    /// The size of the values of these rows, at least. Large ones let scans take several batches, and garbage collections begin.
    pub(crate) value_bytes: usize,
    /// Clients that count, in addition to the others.
    pub(crate) counters: u64,
    /// Whether one more client drops ranges of rows.
    pub(crate) drops: bool,
    /// When a split is ordered, and where.
    pub(crate) splits: Vec<(Duration, String)>,
    /// The mean time between two orders to move a tablet to another group.
    pub(crate) moves: Option<Duration>,
    /// Whether other tables are created, changed and deleted meanwhile.
    pub(crate) tables: bool,
    /// Whether there is a mounttable, with clients that use its names.
    pub(crate) names: bool,
    /// Users of names that send pairs of calls at the same moment.
    pub(crate) duels: u32,
    /// Whether the answers of the leader to clients are lost around each division and each move.
    pub(crate) loses_answers: bool,
    /// Whether a majority of the servers is lost permanently after the load, and everything is recovered from the last one.
    pub(crate) loses_majority: bool,
    /// Whether the lock service is restored from a backup after the load, and recovered.
    pub(crate) restores: bool,
    /// The number of groups for tables before the load begins, most of which then get no request until all faults have ended. `None`: as
    /// many as the master creates with the first table.
    pub(crate) groups: Option<usize>,
    /// The bytes of the largest values that one more client writes, each of 1 MiB or more; `None`: there is no such client. Commit logs that are
    /// purged are larger then.
    pub(crate) value_bytes_max: Option<u64>,
    /// Whether a client checks when the cells of a family with a maximum age are removed. Not with wall clocks that jump again and again:
    /// cells age twice as fast while the clock of their leader is ahead.
    pub(crate) ages: bool,
    /// Whether two servers of four are down at the same time, so that some groups have no majority beside healthy ones.
    pub(crate) beside: bool,
    /// Whether the wall clocks of all servers are ahead by an hour for a second, once.
    pub(crate) leaps: bool,
    /// Whether commit logs are so small that they are purged. The engine's files in a snapshot differ from run to run, and with them
    /// the time of its transfer: such a run is not repeated exactly.
    pub(crate) purges_logs: bool,
    /// Timeouts after which a failed server is replaced.
    pub(crate) failure_timeouts: FailureTimeouts,
    /// Whether the master moves replicas between healthy servers.
    pub(crate) balance: ReplicaBalance,
    /// The mean time between two drains of a server.
    pub(crate) drains: Option<Duration>,
    /// How long adjacent tablets must be quiet until the master merges them; `None`: it merges none.
    pub(crate) merge_after: Option<Duration>,
    /// The size above which a tablet of METADATA is split; `None`: none becomes so large.
    pub(crate) metadata_split_bytes: Option<u64>,
    /// Whether slow disks are the only faults: then it is checked who leads.
    pub(crate) is_only_slow: bool,
    /// The crash after a step, and the operator that drains servers.
    pub(crate) step_crash: Option<StepCrash>,
    /// Whether processes of an earlier release take part and are upgraded during the load.
    pub(crate) mixes_versions: bool,
    /// By how much the writes of the cluster record are late: servers may start meanwhile.
    pub(crate) record_delay: Duration,
    /// By how much servers apply entries late: up to this time for each fourth batch.
    pub(crate) apply_delay: Option<Duration>,
    /// Whether the run stops at the first anomaly.
    pub(crate) stops_at_first: bool,
}

impl Plan {
    /// The random plan of this seed.
    pub(crate) fn draw(seed: u64) -> Self {
        let rng = Rng::seeded(seed);
        let load = Duration::from_secs(20 + rng.below(20));
        let mut splits: Vec<(Duration, String)> = (0..rng.below(6))
            .map(|number| {
                let letter = char::from(b'b' + u8::try_from(rng.below(24)).unwrap());
                (Duration::from_millis(4_000 + rng.below(load.as_secs() * 1_000)), format!("{letter}/{number}"))
            })
            .collect();
        splits.sort();
        let masters = 1 + usize::try_from(rng.below(2)).unwrap();
        let clients = 1 + rng.below(3);
        let fault_rates = FaultRates::draw(&rng);
        // In a third of the runs there is a spare server, which replaces failed ones.
        let (servers, fault_rates, failure_timeouts) = match rng.below(3) {
            0 => {
                let (fault_rates, failure_timeouts) = fault_rates.with_losses(&rng);
                (4, fault_rates, failure_timeouts)
            }
            _ => (if seed % 4 == 2 { 4 } else { 3 }, fault_rates, FailureTimeouts::default()),
        };
        // Without losses, because a server that is drained cannot have the replicas of one that is lost.
        let drains = (servers == 4 && failure_timeouts.end().is_none()).then(|| Duration::from_secs(3));
        let balance = if seed.is_multiple_of(2) { ReplicaBalance::On } else { ReplicaBalance::Off };
        let merge_after = (seed % 8 < 3).then(|| Duration::from_secs(2));
        let moves = (rng.below(2) == 0).then(|| Duration::from_millis(500 + rng.below(4_000)));
        let tables = rng.below(2) == 0;
        let fault_rates = if seed % 4 == 1 { fault_rates.with_drift() } else { fault_rates };
        let ages = seed % 4 == 1 && !fault_rates.rates.recurs(Recurring::ClockStep);
        let names = seed % 6 == 4;
        let fault_rates = if names { fault_rates.with_mounttables() } else { fault_rates };
        let fault_rates = if seed % 5 == 3 && !names { fault_rates.with_full_disks() } else { fault_rates };
        // Which tables there are differs from run to run, and such runs are not repeated exactly in any case.
        let fault_rates = if seed % 8 == 7 { fault_rates.with_rot() } else { fault_rates };
        let fault_rates = if seed % 7 == 2 { fault_rates.with_slow_disks() } else { fault_rates };
        let fault_rates = if seed % 9 == 4 { fault_rates.with_disk_errors() } else { fault_rates };
        let fault_rates = if seed % 11 == 6 { fault_rates.with_full_lock_service() } else { fault_rates };
        // Without servers that lose all their replicas: those are not waited for.
        let mixes_versions = servers == 3 && seed % 6 == 5 && seed % 8 != 7 && seed % 13 != 7;
        Self {
            seed,
            servers,
            masters,
            clients,
            load,
            fault_rates,
            owns: seed.is_multiple_of(2),
            value_bytes: if seed % 7 == 3 { 32 << 10 } else { 0 },
            // Aggregates are refused until the later version is active.
            counters: if seed % 3 == 1 && !mixes_versions { 2 } else { 0 },
            drops: seed % 5 == 2,
            splits,
            moves,
            tables,
            names,
            duels: 2,
            loses_answers: false,
            loses_majority: false,
            restores: seed % 13 == 7 && drains.is_none() && failure_timeouts.end().is_none(),
            groups: None,
            value_bytes_max: None,
            ages,
            leaps: false,
            beside: false,
            purges_logs: seed % 4 == 3,
            failure_timeouts,
            balance,
            drains,
            merge_after,
            // A few rows.
            metadata_split_bytes: seed.is_multiple_of(3).then_some(2 << 10),
            is_only_slow: false,
            step_crash: None,
            mixes_versions,
            record_delay: Duration::ZERO,
            apply_delay: (seed % 7 == 5).then(|| Duration::from_millis(300)),
            stops_at_first: false,
        }
    }

    /// The plan of this name: `swarm` for random faults, or one with many faults of one kind.
    pub(crate) fn named(name: &str, seed: u64) -> Self {
        let plan = Self {
            servers: 3,
            failure_timeouts: FailureTimeouts::default(),
            // The other plans expect that a replica moves only because of a fault.
            balance: ReplicaBalance::Off,
            drains: None,
            merge_after: None,
            metadata_split_bytes: None,
            load: Duration::from_secs(20),
            owns: false,
            value_bytes: 0,
            counters: 0,
            drops: false,
            moves: None,
            tables: false,
            names: false,
            ages: false,
            purges_logs: false,
            restores: false,
            mixes_versions: false,
            apply_delay: None,
            stops_at_first: true,
            ..Self::draw(seed)
        };
        match name {
            "calm" => Self::calm(seed),
            "votes" => Self { fault_rates: FaultRates::votes(), splits: Vec::new(), ..plan },
            "power" => Self { fault_rates: FaultRates::power(), splits: Vec::new(), ..plan },
            "outage" => Self { fault_rates: FaultRates::outage(), splits: Vec::new(), clients: 8, ..plan },
            "clocks" => Self { fault_rates: FaultRates::clocks(), owns: true, ..plan },
            "parts" => Self { fault_rates: FaultRates::parts(), splits: many_splits(), ..plan },
            "alone" => Self { fault_rates: FaultRates::alone(), splits: Vec::new(), clients: 8, ..plan },
            "splits" => Self { fault_rates: FaultRates::calm(), splits: many_splits(), clients: 3, ..plan },
            "moves" => Self {
                fault_rates: FaultRates::moves(),
                splits: Vec::new(),
                moves: Some(Duration::from_millis(100)),
                clients: 8,
                ..plan
            },
            "lost-answers" => {
                let (fault_rates, moves) = (FaultRates::calm(), Some(Duration::from_secs(1)));
                Self { fault_rates, splits: Vec::new(), moves, loses_answers: true, clients: 8, counters: 2, ..plan }
            }
            "snapshots" => Self {
                fault_rates: FaultRates::snapshots(),
                splits: Vec::new(),
                moves: Some(Duration::from_secs(2)),
                tables: true,
                purges_logs: true,
                clients: 8,
                ..plan
            },
            "full" => Self { fault_rates: FaultRates::full(), splits: Vec::new(), owns: true, clients: 4, ..plan },
            "failing" => Self { fault_rates: FaultRates::failing(), splits: Vec::new(), clients: 4, ..plan },
            "rot" => {
                let (fault_rates, failure_timeouts) = FaultRates::rot();
                let (splits, load) = (Vec::new(), Duration::from_secs(40));
                let plan = Self { fault_rates, failure_timeouts, splits, load, ..plan };
                Self { purges_logs: true, tables: true, owns: true, value_bytes: 2 << 10, clients: 4, ..plan }
            }
            "rejoins" => {
                let (fault_rates, failure_timeouts) = FaultRates::rejoins();
                Self { fault_rates, failure_timeouts, splits: many_splits(), clients: 2, ..plan }
            }
            // Few flushes, so that hardly a compaction meets the damage, and no restarts.
            "decay" => {
                let plan = Self { fault_rates: FaultRates::decay(), splits: Vec::new(), ..plan };
                Self { purges_logs: true, owns: true, value_bytes: 2 << 10, clients: 2, ..plan }
            }
            "damage" => {
                let (fault_rates, failure_timeouts) = FaultRates::rot_races();
                Self { fault_rates, failure_timeouts, splits: Vec::new(), clients: 4, ..plan }
            }
            "drains" => {
                let (drains, merge_after) = (Some(Duration::from_secs(2)), Some(Duration::from_secs(1)));
                let plan = Self { servers: 4, balance: ReplicaBalance::On, drains, merge_after, ..plan };
                Self { fault_rates: FaultRates::parts(), splits: many_splits(), clients: 2, ..plan }
            }
            "slow" => {
                let plan = Self { fault_rates: FaultRates::slow_disks(), splits: Vec::new(), clients: 4, ..plan };
                Self { is_only_slow: true, owns: true, load: Duration::from_secs(80), ..plan }
            }
            "scans" => Self {
                fault_rates: FaultRates::calm(),
                splits: splits_at_the_end(),
                owns: true,
                value_bytes: 512 << 10,
                clients: 2,
                load: Duration::from_secs(10),
                ..plan
            },
            "sums" => Self { fault_rates: FaultRates::parts(), splits: many_splits(), clients: 1, counters: 3, ..plan },
            "transit" => Self {
                fault_rates: FaultRates::transit(),
                splits: Vec::new(),
                moves: Some(Duration::from_millis(100)),
                clients: 1,
                counters: 4,
                drops: true,
                ..plan
            },
            "drift" => Self {
                fault_rates: FaultRates::clocks(),
                splits: Vec::new(),
                moves: Some(Duration::from_millis(300)),
                owns: true,
                clients: 4,
                counters: 2,
                ..plan
            },
            "rates" => Self {
                fault_rates: FaultRates::clock_rates(),
                splits: Vec::new(),
                moves: Some(Duration::from_secs(2)),
                ages: true,
                owns: true,
                clients: 4,
                counters: 1,
                ..plan
            },
            "leap" => {
                let plan = Self { fault_rates: FaultRates::calm(), splits: Vec::new(), clients: 1, ..plan };
                Self { ages: true, leaps: true, load: Duration::from_secs(60), ..plan }
            }
            "suspend" => Self {
                fault_rates: FaultRates::suspensions(),
                splits: Vec::new(),
                ages: true,
                owns: true,
                clients: 4,
                counters: 1,
                ..plan
            },
            "bulk" => Self {
                fault_rates: FaultRates::kills(),
                splits: Vec::new(),
                owns: true,
                value_bytes: 64 << 10,
                clients: 4,
                ..plan
            },
            "divisions" => {
                let plan = Self { fault_rates: FaultRates::calm(), splits: splits_with_pauses(), ..plan };
                Self { loses_answers: true, clients: 8, counters: 2, ..plan }
            }
            "skew" => Self { fault_rates: FaultRates::skewed_lease_races(), splits: Vec::new(), ..plan },
            "lost" => {
                let splits =
                    vec![(Duration::from_secs(5), "g/9".to_owned()), (Duration::from_secs(6), "n/9".to_owned())];
                let failure_timeouts = FailureTimeouts::fixed();
                let plan = Self { fault_rates: FaultRates::kills(), failure_timeouts, splits, ..plan };
                Self { loses_majority: true, owns: true, clients: 4, load: Duration::from_secs(12), ..plan }
            }
            "restored" => {
                let plan = Self { servers: 4, balance: ReplicaBalance::On, restores: true, tables: true, ..plan };
                let (moves, splits) = (Some(Duration::from_secs(1)), many_splits());
                Self { fault_rates: FaultRates::transit(), moves, splits, clients: 2, counters: 1, drops: true, ..plan }
            }
            "many-groups" => {
                let plan = Self { fault_rates: FaultRates::many_groups(), splits: Vec::new(), clients: 2, ..plan };
                Self { groups: Some(MANY_GROUPS), moves: Some(Duration::from_secs(3)), ..plan }
            }
            "hundreds" => Self { groups: Some(HUNDREDS), ..Self::named("many-groups", seed) },
            "beside" => {
                let (fault_rates, load) = (FaultRates::calm(), Duration::from_secs(30));
                let plan = Self { fault_rates, load, splits: Vec::new(), servers: 4, clients: 1, ..plan };
                Self { groups: Some(BESIDE_GROUPS), beside: true, ..plan }
            }
            "large-values" => {
                let (fault_rates, load) = (FaultRates::large_values(), Duration::from_secs(30));
                let plan = Self { fault_rates, load, splits: Vec::new(), clients: 1, ..plan };
                Self { value_bytes_max: Some(LARGE_VALUE_BYTES_MAX), purges_logs: true, ..plan }
            }
            "largest-values" => {
                Self { value_bytes_max: Some(LARGEST_VALUE_BYTES), ..Self::named("large-values", seed) }
            }
            "duels" => {
                let plan = Self { fault_rates: FaultRates::calm(), splits: Vec::new(), clients: 1, ..plan };
                Self { names: true, duels: 24, ..plan }
            }
            "names" => Self { fault_rates: FaultRates::names(), splits: Vec::new(), clients: 1, names: true, ..plan },
            "steps" => Self {
                servers: 4,
                masters: 1,
                fault_rates: FaultRates::calm(),
                splits: many_splits(),
                moves: Some(Duration::from_millis(700)),
                clients: 2,
                counters: 1,
                step_crash: StepCrash::chosen(),
                stops_at_first: false,
                ..plan
            },
            "versions" => {
                let (moves, failure_timeouts) = (Some(Duration::from_secs(1)), FailureTimeouts::fixed());
                let plan =
                    Self { fault_rates: FaultRates::versions(), failure_timeouts, splits: many_splits(), ..plan };
                let plan = Self { moves, tables: true, owns: true, clients: 2, load: Duration::from_secs(45), ..plan };
                Self { mixes_versions: true, masters: 2, record_delay: Duration::from_secs(1), ..plan }
            }
            "lags" => {
                let plan =
                    Self { fault_rates: FaultRates::parts(), splits: Vec::new(), owns: true, clients: 8, ..plan };
                Self { apply_delay: Some(Duration::from_millis(1_500)), ..plan }
            }
            "kills" => Self { fault_rates: FaultRates::kills(), splits: many_splits(), clients: 3, ..plan },
            _ => Self::draw(seed),
        }
    }

    /// The names of all hosts.
    pub(crate) fn host_names(&self) -> Vec<String> {
        let numbered =
            |kind: &str, count: usize| (1..=count).map(|number| format!("{kind}-{number}")).collect::<Vec<_>>();
        let mut names = [
            numbered("server", self.servers),
            numbered("master", self.masters),
            numbered("mounttable", if self.names { names::SERVERS } else { 0 }),
        ]
        .concat();
        names.push(CLIENTS.to_owned());
        names
    }

    /// The number of clients that drain.
    pub(crate) fn drained(&self) -> u64 {
        let others = [self.drops, self.names, self.ages, self.value_bytes_max.is_some(), self.beside];
        self.clients + self.counters + others.map(u64::from).iter().sum::<u64>()
    }

    /// No faults.
    pub(crate) fn calm(seed: u64) -> Self {
        let splits = vec![(Duration::from_secs(8), "k/0".to_owned())];
        Self {
            fault_rates: FaultRates::calm(),
            load: Duration::from_secs(30),
            splits,
            moves: Some(Duration::from_secs(2)),
            tables: true,
            drains: None,
            ..Self::draw(seed)
        }
    }
}

/// About four splits per second, all of the first tablet, which keeps nearly all rows: a scan of it is interrupted again and again.
fn splits_at_the_end() -> Vec<(Duration, String)> {
    (0..40_u64).map(|at| (Duration::from_millis(5_000 + 250 * at), format!("z/{:02}", 99 - at))).collect()
}

/// Splits that leave a write that is sent again after a division the time for it.
fn splits_with_pauses() -> Vec<(Duration, String)> {
    let letters = ["k", "p", "e", "t", "c", "n"];
    let at = |number: usize| Duration::from_millis(4_000 + 2_500 * number as u64);
    letters.iter().enumerate().map(|(number, letter)| (at(number), format!("{letter}/9"))).collect()
}

/// About two splits per second.
fn many_splits() -> Vec<(Duration, String)> {
    let letters = (b'b'..=b'z').rev().map(char::from);
    letters
        .enumerate()
        .map(|(at, letter)| (Duration::from_millis(5_000 + 600 * at as u64), format!("{letter}/9")))
        .collect()
}
