//! The space of an etcd: filled up to its quota with keys that are not Ebla's, and freed again by the steps of
//! `docs/operate/troubleshooting.md`.
//!
//! etcd compares the size of its database file with its quota (`--quota-backend-bytes`). The first put beyond it raises the alarm
//! NOSPACE, which stays until it is disarmed, also when there is space again.

use std::io;
use std::time::Duration;

use etcd_client::{
    AlarmAction, AlarmMember, AlarmOptions, AlarmType, Client, CompactionOptions, ConnectOptions, DeleteOptions, Error,
    ResponseHeader,
};

/// The prefix of the keys that fill it. Ebla's is `/ebla/`.
const PREFIX: &str = "/junk/";
/// Size of each of their values, far below etcd's limit of a request (1.5 MiB).
const VALUE_BYTES: usize = 64 << 10;
/// The number of keys after which [`EtcdSpace::fill`] gives up, 256 MiB: the quota of a test is smaller.
const KEYS_MAX: usize = 4_096;
/// Timeout of a call. A compaction and a defragmentation take as long as the disk needs.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);
/// The end of etcd's message when it refuses a put for lack of space.
const NO_SPACE: &str = "database space exceeded";

/// The space of an etcd of one member, without TLS.
pub struct EtcdSpace {
    client: Client,
}

impl EtcdSpace {
    /// The space of the member at `endpoint`, `http://H:P`.
    ///
    /// # Errors
    /// When the endpoint is malformed.
    pub async fn connect(endpoint: &str) -> io::Result<Self> {
        let options = ConnectOptions::new().with_timeout(CALL_TIMEOUT);
        let client = Client::connect([endpoint], Some(options)).await.map_err(failed)?;
        Ok(Self { client })
    }

    /// Puts keys until etcd refuses one for lack of space, which raises its alarm. Returns the number of keys that it has stored.
    ///
    /// # Errors
    /// When a put fails otherwise, or 256 MiB were stored.
    pub async fn fill(&mut self) -> io::Result<usize> {
        for number in 0..KEYS_MAX {
            match self.client.put(format!("{PREFIX}{number}"), vec![0_u8; VALUE_BYTES], None).await {
                Ok(_stored) => {}
                Err(Error::GRpcStatus(status)) if status.message().contains(NO_SPACE) => return Ok(number),
                Err(error) => return Err(failed(error)),
            }
        }
        Err(io::Error::other(format!("etcd has stored {KEYS_MAX} keys of {VALUE_BYTES} bytes: it has a larger quota")))
    }

    /// Deletes those keys, compacts the history, defragments the database and disarms the alarm.
    ///
    /// # Errors
    /// When a step fails, or the alarm is raised afterwards.
    pub async fn free(&mut self) -> io::Result<()> {
        let deleted = self.client.delete(PREFIX, Some(DeleteOptions::new().with_prefix())).await.map_err(failed)?;
        let revision = deleted.header().map_or(0, ResponseHeader::revision);
        // Without `physical` etcd answers before the history is removed from the database.
        let physical = CompactionOptions::new().with_physical();
        self.client.compact(revision, Some(physical)).await.map_err(failed)?;
        // The pages of removed keys stay in the file, and the quota counts them, until the file is written again.
        self.client.defragment().await.map_err(failed)?;
        for member in self.members_with_alarm().await? {
            // etcd ignores a request to disarm that names no member.
            let mut of_member = AlarmOptions::new();
            of_member.with_member(member);
            self.client.alarm(AlarmAction::Deactivate, AlarmType::Nospace, Some(of_member)).await.map_err(failed)?;
        }
        if self.members_with_alarm().await?.is_empty() {
            Ok(())
        } else {
            Err(io::Error::other("etcd has no space after it was freed"))
        }
    }

    /// etcd's ids of the members whose alarm NOSPACE is raised.
    async fn members_with_alarm(&mut self) -> io::Result<Vec<u64>> {
        let raised = self.client.alarm(AlarmAction::Get, AlarmType::Nospace, None).await.map_err(failed)?;
        Ok(raised.alarms().iter().map(AlarmMember::member_id).collect())
    }
}

fn failed(error: Error) -> io::Error {
    io::Error::other(error.to_string())
}
