//! One system under load: where it listens, what it speaks, which processes it is made of.
//!
//! Clients are spread over all addresses of a system, as programs behind a load balancer are. For etcd there are two
//! ways: over all members, or all clients on the member that leads, which is etcd at its best for reads.

use std::sync::Arc;

use ebla_model::error::Error;
use ebla_proto::status;
use ebla_runtime::Runtime;
use tonic::Status;
use tonic::transport::Channel;

use super::bigtable::{self, Bigtable};
use super::counters::{self, LogCounters};
use super::etcd::{self, Etcd};
use super::postgres::Postgres;
use super::processes::Processes;
use super::{Plan, Values, WIDE_ROWS, Workload};

/// Clients share connections: this many clients one.
const CLIENTS_PER_CHANNEL: usize = 16;

/// What a system speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `google.bigtable.v2`.
    Bigtable,
    /// etcd's own API, clients on all members.
    Etcd,
    /// etcd's own API, all clients on the leader.
    EtcdLeader,
    /// PostgreSQL's, a connection for each client.
    Postgres,
}

/// A system under load, by the name that it has in the report.
#[derive(Clone)]
pub struct Target {
    /// `ebla`, `emulator`, ….
    pub name: String,
    /// Whose processor time is counted.
    pub processes: Processes,
    kind: Kind,
    addresses: Vec<String>,
    channels: Vec<Channel>,
    /// In place of channels.
    connections: Vec<Arc<Postgres>>,
}

impl Target {
    /// Channels for up to `clients` clients to the places named: `HOST:PORT`, `etcd://HOST:PORT`,
    /// `etcd-leader://HOST:PORT` or `postgres://HOST:PORT`, several of one kind with commas.
    ///
    /// # Errors
    /// When places of different kinds are mixed, no leader of an etcd is found, or a PostgreSQL does not answer.
    pub async fn new(
        runtime: &Runtime,
        name: &str,
        places: &str,
        processes: Processes,
        clients: usize,
    ) -> Result<Self, Error> {
        let (kind, mut addresses) = parse(places)?;
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
        Ok(Self { name: name.to_owned(), processes, kind, addresses, channels, connections })
    }

    /// Makes the tables that `plan` needs anew and fills them.
    ///
    /// # Errors
    /// What the system answers.
    pub async fn prepare(&self, plan: &Plan, values: &Values) -> Result<(), Error> {
        let rows = plan.rows;
        let read = |status: Status| status::from_status(&status).0.context(&format!("fill {}", self.name));
        self.create(rows).await?;
        let mut client = self.client(0).ok_or_else(|| Error::internal("no address to fill"))?;
        let step = Workload::Batch.rows_per_request();
        for start in (0..rows).step_by(usize::try_from(step).unwrap_or(1)) {
            let numbers: Vec<u64> = (start..rows.min(start + step)).collect();
            client.write_rows(&numbers, values).await.map_err(read)?;
        }
        if plan.workloads.contains(&Workload::Wide)
            && let Client::Bigtable(client) = &mut client
            && let Some(channel) = self.channels.first()
        {
            bigtable::create_wide(channel.clone(), WIDE_ROWS).await.map_err(read)?;
            for number in 0..WIDE_ROWS {
                client.write_wide(number, values).await.map_err(read)?;
            }
        }
        Ok(())
    }

    /// Creates the table again, empty and divided for this many rows, where the system has tables.
    ///
    /// # Errors
    /// What the system answers.
    pub async fn create(&self, rows: u64) -> Result<(), Error> {
        let read = |status: Status| status::from_status(&status).0.context(&format!("make the table of {}", self.name));
        if self.kind == Kind::Bigtable
            && let Some(channel) = self.channels.first()
        {
            bigtable::create(channel.clone(), rows).await.map_err(read)?;
        }
        if let Some(connection) = self.connections.first() {
            connection.create().await.map_err(read)?;
        }
        Ok(())
    }

    /// A client over one of the channels or connections; `None` without any.
    pub fn client(&self, number: usize) -> Option<Client> {
        Some(match self.kind {
            Kind::Bigtable => Client::Bigtable(Bigtable::new(in_turn(&self.channels, number)?)),
            Kind::Etcd | Kind::EtcdLeader => Client::Etcd(Etcd::new(in_turn(&self.channels, number)?)),
            Kind::Postgres => Client::Postgres(in_turn(&self.connections, number)?),
        })
    }

    /// What the commit logs of all its servers have done so far; `None` where nothing tells.
    pub async fn log_counters(&self, runtime: &Runtime) -> Option<LogCounters> {
        match self.kind {
            Kind::Bigtable => counters::of_cluster(runtime, self.addresses.first()?).await,
            Kind::Etcd | Kind::EtcdLeader | Kind::Postgres => None,
        }
    }
}

fn in_turn<T: Clone>(all: &[T], number: usize) -> Option<T> {
    all.get(number % all.len().max(1)).cloned()
}

fn parse(places: &str) -> Result<(Kind, Vec<String>), Error> {
    let mut kinds = Vec::new();
    let mut addresses = Vec::new();
    for place in places.split(',') {
        let (kind, address) = match place.split_once("://") {
            None => (Kind::Bigtable, place),
            Some(("etcd", address)) => (Kind::Etcd, address),
            Some(("etcd-leader", address)) => (Kind::EtcdLeader, address),
            Some(("postgres", address)) => (Kind::Postgres, address),
            Some((scheme, _)) => return Err(Error::invalid(format!("nothing here speaks {scheme}"))),
        };
        kinds.push(kind);
        addresses.push(address.to_owned());
    }
    let kind = kinds.first().copied().unwrap_or(Kind::Bigtable);
    if kinds.iter().any(|other| *other != kind) {
        return Err(Error::invalid("one target speaks one protocol"));
    }
    Ok((kind, addresses))
}

/// What one closed-loop client sends.
pub enum Client {
    /// To a Bigtable.
    Bigtable(Bigtable),
    /// To an etcd.
    Etcd(Etcd),
    /// To a PostgreSQL.
    Postgres(Arc<Postgres>),
}

impl Client {
    /// One request of `workload` that begins at row `number` of `rows`.
    ///
    /// # Errors
    /// What the address answers; a scan that comes up short is an error too.
    pub async fn request(&mut self, workload: Workload, number: u64, rows: u64, values: &Values) -> Result<(), Status> {
        match workload {
            Workload::Write => match self {
                Self::Bigtable(client) => client.write_row(number, values).await,
                Self::Etcd(client) => client.write_row(number, values).await,
                Self::Postgres(client) => client.write_row(number, values).await,
            },
            Workload::Read => self.read_rows(number, number + 1).await,
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
            Workload::Batch => {
                let spread = (rows / workload.rows_per_request()).max(1);
                let numbers: Vec<_> = (0..workload.rows_per_request()).map(|n| (number + n * spread) % rows).collect();
                self.write_rows(&numbers, values).await
            }
        }
    }

    /// Writes these rows in one request.
    ///
    /// # Errors
    /// What the system answers; a row that it does not take.
    pub async fn write_rows(&mut self, numbers: &[u64], values: &Values) -> Result<(), Status> {
        match self {
            Self::Bigtable(client) => client.write_rows(numbers, values).await,
            Self::Etcd(client) => client.write_rows(numbers, values).await,
            Self::Postgres(client) => client.write_rows(numbers, values).await,
        }
    }

    async fn read_rows(&mut self, start: u64, end: u64) -> Result<(), Status> {
        let seen = match self {
            Self::Bigtable(client) => client.read_rows(start, end).await?,
            Self::Etcd(client) => client.read_rows(start, end).await?,
            Self::Postgres(client) => client.read_rows(start, end).await?,
        };
        complete(seen, end - start)
    }

    fn bigtable(&mut self, workload: Workload) -> Result<&mut Bigtable, Status> {
        match self {
            Self::Bigtable(client) => Ok(client),
            Self::Etcd(_) | Self::Postgres(_) => {
                let message = format!("{} is for a Bigtable: leave it out, or this peer", workload.name());
                Err(status::to_status(&Error::invalid(message)))
            }
        }
    }
}

/// A hundred rows that begin at `number`, or the last hundred.
fn hundred(number: u64, rows: u64) -> (u64, u64) {
    let start = number.min(rows.saturating_sub(Workload::Scan.rows_per_request()));
    (start, rows.min(start + Workload::Scan.rows_per_request()))
}

/// Refuses an answer that came up short, or has too much.
fn complete(seen: usize, wanted: u64) -> Result<(), Status> {
    let wanted = usize::try_from(wanted).unwrap_or(usize::MAX);
    if seen == wanted { Ok(()) } else { Err(short("rows or cells", seen, wanted)) }
}

/// An answer that is not what must be there.
pub(super) fn short(what: &str, got: usize, wanted: usize) -> Status {
    status::to_status(&Error::internal(format!("{got} {what} where there must be {wanted}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_tell_what_is_spoken_there() {
        assert_eq!(parse("a:1,b:2").unwrap(), (Kind::Bigtable, vec!["a:1".to_owned(), "b:2".to_owned()]));
        assert_eq!(parse("etcd://a:1").unwrap(), (Kind::Etcd, vec!["a:1".to_owned()]));
        assert_eq!(parse("postgres://a:1").unwrap(), (Kind::Postgres, vec!["a:1".to_owned()]));
        assert!(parse("etcd://a:1,b:2").is_err());
        assert!(parse("http://a:1").is_err());
    }
}
