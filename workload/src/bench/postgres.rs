//! PostgreSQL under load: rows of one table, one connection for each client, prepared statements.

use std::sync::Arc;

use ebla_model::error::{Error, Reason};
use ebla_proto::status;
use ebla_runtime::Runtime;
use tokio::sync::OnceCell;
use tokio_postgres::{Client, Config, NoTls, Statement};
use tonic::Status;

use super::target::replaced;
use super::{Values, row_key};

const WRITE: &str = "INSERT INTO bench VALUES ($1, $2) ON CONFLICT (key) DO UPDATE SET value = EXCLUDED.value";
const READ: &str = "SELECT value FROM bench WHERE key = $1";
const SCAN: &str = "SELECT value FROM bench WHERE key >= $1 AND key < $2 ORDER BY key";
/// In key order, so that two batches never deadlock.
const BATCH: &str = "INSERT INTO bench SELECT * FROM unnest($1::text[], $2::bytea[]) AS rows (key, value) ORDER BY key \
    ON CONFLICT (key) DO UPDATE SET value = EXCLUDED.value";

const REPLACE: &str = "UPDATE bench SET value = $2 WHERE key = $1 AND value IS NOT NULL";

/// One connection. Statements are prepared at their first use, because the table must exist then.
pub struct Postgres {
    client: Client,
    write: OnceCell<Statement>,
    read: OnceCell<Statement>,
    scan: OnceCell<Statement>,
    batch: OnceCell<Statement>,
    replace: OnceCell<Statement>,
}

impl Postgres {
    /// Connects to `address`: user and database `postgres`, no password.
    ///
    /// # Errors
    /// `Unavailable` when the connection fails.
    pub(super) async fn connect(runtime: &Runtime, address: &str) -> Result<Arc<Self>, Error> {
        let refused = |error: &dyn std::fmt::Display| {
            Error::new(Reason::Unavailable, format!("connect to PostgreSQL at {address}: {error}"))
        };
        let stream = runtime.net.connect(address).await.map_err(|error| refused(&error))?;
        let mut config = Config::new();
        config.user("postgres").dbname("postgres");
        let (client, connection) = config.connect_raw(stream, NoTls).await.map_err(|error| refused(&error))?;
        runtime.tasks.spawn_until_stopped("postgres connection", async move {
            // The next request returns the error that closed the connection.
            drop(connection.await);
        });
        let none = OnceCell::new;
        Ok(Arc::new(Self { client, write: none(), read: none(), scan: none(), batch: none(), replace: none() }))
    }

    /// Creates the table again.
    pub(super) async fn create(&self) -> Result<(), Status> {
        let statements = "DROP TABLE IF EXISTS bench; CREATE TABLE bench (key text PRIMARY KEY, value bytea NOT NULL)";
        self.client.batch_execute(statements).await.map_err(failed)
    }

    pub(super) async fn write_row(&self, number: u64, values: &Values) -> Result<(), Status> {
        let (key, value) = (row_key(number), values.value(number));
        let statement = self.prepared(&self.write, WRITE).await?;
        self.client.execute(statement, &[&key, &value.as_ref()]).await.map(drop).map_err(failed)
    }

    pub(super) async fn write_rows(&self, numbers: &[u64], values: &Values) -> Result<(), Status> {
        let keys: Vec<_> = numbers.iter().map(|number| row_key(*number)).collect();
        let values: Vec<_> = numbers.iter().map(|number| values.value(*number)).collect();
        let values: Vec<&[u8]> = values.iter().map(AsRef::as_ref).collect();
        let statement = self.prepared(&self.batch, BATCH).await?;
        self.client.execute(statement, &[&keys, &values]).await.map(drop).map_err(failed)
    }

    /// Replaces the value of a row if the row has one.
    pub(super) async fn replace_row(&self, number: u64, values: &Values) -> Result<(), Status> {
        let (key, value) = (row_key(number), values.value(number));
        let statement = self.prepared(&self.replace, REPLACE).await?;
        let changed = self.client.execute(statement, &[&key, &value.as_ref()]).await.map_err(failed)?;
        replaced(changed == 1, number)
    }

    /// Number of rows in `[start, end)`.
    pub(super) async fn read_rows(&self, start: u64, end: u64) -> Result<usize, Status> {
        let (from, to) = (row_key(start), row_key(end));
        let rows = if end == start + 1 {
            self.client.query(self.prepared(&self.read, READ).await?, &[&from]).await
        } else {
            self.client.query(self.prepared(&self.scan, SCAN).await?, &[&from, &to]).await
        };
        rows.map(|rows| rows.len()).map_err(failed)
    }

    async fn prepared<'a>(&self, cached: &'a OnceCell<Statement>, text: &str) -> Result<&'a Statement, Status> {
        cached.get_or_try_init(|| self.client.prepare(text)).await.map_err(failed)
    }
}

#[expect(clippy::needless_pass_by_value, reason = "the shape that map_err wants")]
fn failed(error: tokio_postgres::Error) -> Status {
    status::to_status(&Error::new(Reason::Unavailable, format!("PostgreSQL: {error}")))
}
