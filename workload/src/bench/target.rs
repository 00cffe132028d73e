//! One system under load: its addresses, protocol and processes.
//!
//! Clients are spread over all addresses of a system, as behind a load balancer. For etcd there are two modes: clients on all
//! members, or all clients on the leader, which is fastest for reads.

use std::sync::Arc;

use ebla_client::{BearerToken, Credentials};
use ebla_model::access::Member;
use ebla_model::error::Error;
use ebla_proto::status;
use ebla_runtime::Runtime;
use ebla_runtime::net::{Origin, Windows};
use tonic::Status;
use tonic::transport::Channel;

use super::bigtable::{self, Bigtable, Caller};
use super::counters::{self, ServerCounters};
use super::etcd::{self, Etcd};
use super::postgres::Postgres;
use super::processes::Processes;
use super::{Plan, Values, WIDE_ROWS, Workload};

/// Clients that share one connection.
const CLIENTS_PER_CHANNEL: usize = 16;

/// The protocol of a system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `google.bigtable.v2`.
    Bigtable,
    /// etcd's own API, clients on all members.
    Etcd,
    /// etcd's own API, all clients on the leader.
    EtcdLeader,
    /// PostgreSQL's, one connection for each client.
    Postgres,
}

/// A system under load, with its name in the report.
#[derive(Clone)]
pub struct Target {
    /// `ebla`, `emulator`, ….
    pub name: String,
    /// The processes whose processor time is measured.
    pub processes: Processes,
    kind: Kind,
    addresses: Vec<String>,
    /// The network of its connections: with TLS or without.
    runtime: Runtime,
    channels: Vec<Channel>,
    token: Option<BearerToken>,
    /// The only caller in the lists of the families of its tables.
    member: Option<Member>,
    /// Instead of channels, for PostgreSQL.
    connections: Vec<Arc<Postgres>>,
}

impl Target {
    /// Channels for up to `clients` clients to the addresses: `HOST:PORT`, `etcd://HOST:PORT`, `etcd-leader://HOST:PORT` or
    /// `postgres://HOST:PORT`, several of one protocol separated by commas.
    ///
    /// # Errors
    /// When different protocols are mixed, no etcd leader is found, or PostgreSQL does not answer.
    pub async fn new(
        runtime: &Runtime,
        name: &str,
        addresses: &str,
        processes: Processes,
        clients: usize,
    ) -> Result<Self, Error> {
        let (kind, mut addresses) = parse(addresses)?;
        if kind == Kind::EtcdLeader {
            addresses = vec![etcd::leader(runtime, &addresses).await?];
        }
        let (mut channels, mut connections) = (Vec::new(), Vec::new());
        if kind == Kind::Postgres {
            for address in addresses.iter().cycle().take(clients.max(1)) {
                connections.push(Postgres::connect(runtime, address).await?);
            }
        } else {
            let count = clients.div_ceil(CLIENTS_PER_CHANNEL).max(addresses.len());
            channels.extend(addresses.iter().cycle().take(count).map(|address| runtime.net.channel(address)));
        }
        let (name, runtime) = (name.to_owned(), runtime.clone());
        Ok(Self { name, processes, kind, addresses, runtime, channels, token: None, member: None, connections })
    }

    /// The same system, on connections of this origin: those of a peer have many concurrent calls.
    #[must_use]
    pub fn with_origin(mut self, origin: Origin) -> Self {
        let addresses = self.addresses.iter().cycle();
        let open = |address: &String| self.runtime.net.channel_of(origin, address, Windows::CALLS);
        self.channels = addresses.take(self.channels.len()).map(open).collect();
        self
    }

    /// The same Bigtable, called by the caller whom this token names. With `member` (that caller, who must not be an administrator) its tables
    /// have lists of families: that of the values has this member only, and another family is hidden from it.
    #[must_use]
    pub fn with_caller(self, token: Option<BearerToken>, member: Option<Member>) -> Self {
        Self { token, member, ..self }
    }

    /// Calls of its caller on this channel.
    fn caller(&self, channel: &Channel) -> Caller {
        Caller::new(channel.clone(), Credentials::new(self.token.clone(), &self.runtime.net))
    }

    /// Whether the number of tablets means anything to this system. One that has no tablets is prepared once for all numbers.
    #[must_use]
    pub const fn has_tablets(&self) -> bool {
        match self.kind {
            Kind::Bigtable => true,
            Kind::Etcd | Kind::EtcdLeader | Kind::Postgres => false,
        }
    }

    /// Creates the tables of `plan` again, that of the rows with this number of tablets, and fills them.
    ///
    /// # Errors
    /// The error of the system.
    pub async fn prepare(&self, plan: &Plan, tablets: u64, values: &Values) -> Result<(), Error> {
        let rows = plan.rows;
        let read = |status: Status| status::from_status(&status).0.context(&format!("fill {}", self.name));
        self.create(rows, tablets).await?;
        let mut client = self.client(0).ok_or_else(|| Error::internal("the target has no address"))?;
        let step = Workload::Batch.rows_per_request();
        for start in (0..rows).step_by(usize::try_from(step).unwrap_or(1)) {
            let numbers: Vec<u64> = (start..rows.min(start + step)).collect();
            client.write_rows(&numbers, values).await.map_err(read)?;
        }
        if plan.workloads.contains(&Workload::Wide)
            && let Client::Bigtable(client, _fresh) = &mut client
            && let Some(channel) = self.channels.first()
        {
            bigtable::create_wide(self.caller(channel), self.member.as_ref(), WIDE_ROWS).await.map_err(read)?;
            for number in 0..WIDE_ROWS {
                client.write_wide(number, values).await.map_err(read)?;
            }
        }
        Ok(())
    }

    /// Creates the table again, empty and pre-split for this number of rows into this number of tablets, if the system has
    /// tables and tablets.
    ///
    /// # Errors
    /// The error of the system.
    pub async fn create(&self, rows: u64, tablets: u64) -> Result<(), Error> {
        let read =
            |status: Status| status::from_status(&status).0.context(&format!("create the table of {}", self.name));
        if self.kind == Kind::Bigtable
            && let Some(channel) = self.channels.first()
        {
            bigtable::create(self.caller(channel), self.member.as_ref(), rows, tablets).await.map_err(read)?;
        }
        if let Some(connection) = self.connections.first() {
            connection.create().await.map_err(read)?;
        }
        Ok(())
    }

    /// A client of one of the channels or connections; `None` when there are none.
    pub fn client(&self, number: usize) -> Option<Client> {
        Some(match self.kind {
            Kind::Bigtable => {
                let client = Bigtable::new(self.caller(&in_turn(&self.channels, number)?));
                // As the channels go over the addresses.
                let address = in_turn(&self.addresses, number % self.channels.len().max(1))?;
                let fresh = FreshConnections { target: self.clone(), address };
                Client::Bigtable(client, Box::new(fresh))
            }
            Kind::Etcd | Kind::EtcdLeader => Client::Etcd(Etcd::new(in_turn(&self.channels, number)?)),
            Kind::Postgres => Client::Postgres(in_turn(&self.connections, number)?),
        })
    }

    /// The sum of the counters of all its servers; `None` when the system does not report them.
    pub async fn server_counters(&self) -> Option<ServerCounters> {
        match self.kind {
            Kind::Bigtable => counters::of_cluster(&self.runtime, self.addresses.first()?).await,
            Kind::Etcd | Kind::EtcdLeader | Kind::Postgres => None,
        }
    }
}

fn in_turn<T: Clone>(all: &[T], number: usize) -> Option<T> {
    all.get(number % all.len().max(1)).cloned()
}

fn parse(list: &str) -> Result<(Kind, Vec<String>), Error> {
    let mut kinds = Vec::new();
    let mut addresses = Vec::new();
    for element in list.split(',') {
        let (kind, address) = match element.split_once("://") {
            None => (Kind::Bigtable, element),
            Some(("etcd", address)) => (Kind::Etcd, address),
            Some(("etcd-leader", address)) => (Kind::EtcdLeader, address),
            Some(("postgres", address)) => (Kind::Postgres, address),
            Some((scheme, _)) => {
                return Err(Error::invalid(format!(
                    "unknown protocol {scheme}; expected etcd, etcd-leader or postgres"
                )));
            }
        };
        kinds.push(kind);
        addresses.push(address.to_owned());
    }
    let kind = kinds.first().copied().unwrap_or(Kind::Bigtable);
    if kinds.iter().any(|other| *other != kind) {
        return Err(Error::invalid("the addresses of one target must use the same protocol"));
    }
    Ok((kind, addresses))
}

/// Further connections of a client to its address.
pub struct FreshConnections {
    target: Target,
    address: String,
}

impl FreshConnections {
    /// A client on a connection of its own, which is opened at the first call.
    fn open(&self) -> Bigtable {
        Bigtable::new(self.target.caller(&self.target.runtime.net.channel(&self.address)))
    }
}

/// The protocol client of one closed loop.
pub enum Client {
    /// Of a Bigtable.
    Bigtable(Bigtable, Box<FreshConnections>),
    /// Of an etcd.
    Etcd(Etcd),
    /// Of a PostgreSQL.
    Postgres(Arc<Postgres>),
}

impl Client {
    /// Sends one request of `workload` that starts at row `number` of `rows`.
    ///
    /// # Errors
    /// The error of the system; an incomplete scan is an error too.
    pub async fn request(&mut self, workload: Workload, number: u64, rows: u64, values: &Values) -> Result<(), Status> {
        match workload {
            Workload::Write => match self {
                Self::Bigtable(client, _fresh) => client.write_row(number, values).await,
                Self::Etcd(client) => client.write_row(number, values).await,
                Self::Postgres(client) => client.write_row(number, values).await,
            },
            // `zipfian::Requests` chooses the updates of workload B.
            Workload::Read | Workload::YcsbB | Workload::YcsbC => self.read_rows(number, number + 1).await,
            Workload::Scan => {
                let (start, end) = hundred(number, rows);
                self.read_rows(start, end).await
            }
            Workload::Filtered => {
                let (start, end) = hundred(number, rows);
                let seen = self.bigtable(workload)?.read_filtered(start, end).await?;
                complete(seen, end - start)
            }
            Workload::Wide => {
                let seen = self.bigtable(workload)?.read_wide(number % WIDE_ROWS).await?;
                complete(seen, workload.rows_per_request())
            }
            Workload::Connect => {
                let Self::Bigtable(_, fresh) = self else { return Err(unsupported(workload)) };
                complete(fresh.open().read_rows(number, number + 1).await?, 1)
            }
            Workload::Batch => self.write_rows(&batch_rows(number, rows), values).await,
            Workload::Check => match self {
                Self::Bigtable(client, _fresh) => client.replace_row(number, values).await,
                Self::Etcd(client) => client.replace_row(number, values).await,
                Self::Postgres(client) => client.replace_row(number, values).await,
            },
        }
    }

    /// Writes these rows in one request.
    ///
    /// # Errors
    /// The error of the system; a refused row.
    pub async fn write_rows(&mut self, numbers: &[u64], values: &Values) -> Result<(), Status> {
        match self {
            Self::Bigtable(client, _fresh) => client.write_rows(numbers, values).await,
            Self::Etcd(client) => client.write_rows(numbers, values).await,
            Self::Postgres(client) => client.write_rows(numbers, values).await,
        }
    }

    async fn read_rows(&mut self, start: u64, end: u64) -> Result<(), Status> {
        let seen = match self {
            Self::Bigtable(client, _fresh) => client.read_rows(start, end).await?,
            Self::Etcd(client) => client.read_rows(start, end).await?,
            Self::Postgres(client) => client.read_rows(start, end).await?,
        };
        complete(seen, end - start)
    }

    fn bigtable(&mut self, workload: Workload) -> Result<&mut Bigtable, Status> {
        match self {
            Self::Bigtable(client, _fresh) => Ok(client),
            Self::Etcd(_) | Self::Postgres(_) => Err(unsupported(workload)),
        }
    }
}

fn unsupported(workload: Workload) -> Status {
    let message = format!(
        "workload {} is not supported by this target, only by a Bigtable: remove the workload or the peer",
        workload.name()
    );
    status::to_status(&Error::invalid(message))
}

/// A hundred rows from `number` on, or the last hundred.
pub(super) fn hundred(number: u64, rows: u64) -> (u64, u64) {
    let start = number.min(rows.saturating_sub(Workload::Scan.rows_per_request()));
    (start, rows.min(start + Workload::Scan.rows_per_request()))
}

/// The rows of a batch, all different if there are enough: from `number` on, spread over all `rows`.
pub(super) fn batch_rows(number: u64, rows: u64) -> Vec<u64> {
    let count = Workload::Batch.rows_per_request();
    let spread = (rows / count).max(1);
    (0..count).map(|n| (number + n * spread) % rows).collect()
}

/// Checks that the condition of a replacement held: every row of the table has a value.
pub(super) fn replaced(has_matched: bool, number: u64) -> Result<(), Status> {
    let missing = || status::to_status(&Error::internal(format!("row {number} has no value to replace")));
    if has_matched { Ok(()) } else { Err(missing()) }
}

/// Checks the number of results.
fn complete(seen: usize, wanted: u64) -> Result<(), Status> {
    let wanted = usize::try_from(wanted).unwrap_or(usize::MAX);
    if seen == wanted { Ok(()) } else { Err(count_mismatch("rows or cells", seen, wanted)) }
}

/// The error for a response with the wrong number of results.
pub(super) fn count_mismatch(what: &str, got: usize, wanted: usize) -> Status {
    status::to_status(&Error::internal(format!("{got} {what} instead of {wanted}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_select_the_protocol() {
        assert_eq!(parse("a:1,b:2").unwrap(), (Kind::Bigtable, vec!["a:1".to_owned(), "b:2".to_owned()]));
        assert_eq!(parse("etcd://a:1").unwrap(), (Kind::Etcd, vec!["a:1".to_owned()]));
        assert_eq!(parse("postgres://a:1").unwrap(), (Kind::Postgres, vec!["a:1".to_owned()]));
        assert!(parse("etcd://a:1,b:2").is_err());
        assert!(parse("http://a:1").is_err());
    }
}
