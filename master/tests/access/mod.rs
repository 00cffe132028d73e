//! Access control as callers meet it: a master and a tablet server with token keys, official messages, real tokens.
//!
//! | file | what |
//! |---|---|
//! | this one | the cluster, its callers, rows |
//! | [`attacks`] | identities, policies, lists, and what must be refused |
//! | [`heat`] | who sees which keys are used |
//! | [`limits`] | limits of identities |
//! | [`property`] | no answer depends on what the caller cannot read, for any filter |
//! | [`views`] | authorized views, and attacks on them |

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test may fail, also in its helpers")]

mod attacks;
mod heat;
mod limits;
mod property;
mod views;

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use ebla_chubby::embedded::Embedded;
use ebla_chubby::testing::faulty::FaultyChubby;
use ebla_master::{Master, MasterConfig};
use ebla_model::heat::HeatOption;
use ebla_proto::admin::{self, iam};
use ebla_proto::convert::filter_to_bytes;
use ebla_proto::data::read_rows_response::CellChunk;
use ebla_proto::data::{self, mutation};
use ebla_proto::services::bigtable_client::BigtableClient;
use ebla_proto::services::bigtable_instance_admin_client::BigtableInstanceAdminClient;
use ebla_proto::services::bigtable_table_admin_client::BigtableTableAdminClient;
use ebla_runtime::Runtime;
use ebla_tablet_server::{
    AccessOptions, AuditOptions, AuditedData, IdentityLimits, LocalServers, ServerConfig, ServerOptions, TabletServer,
    TokenOptions,
};
use jsonwebtoken::jwk::{Jwk, JwkSet};
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use prost::Message;
use serde_json::{Value, json};
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

const ED: &[u8] = include_bytes!("../../../mounttable/server/testdata/tokens/ed25519.der");
const TIMEOUT: Duration = Duration::from_secs(60);
const INSTANCE: &str = "projects/p/instances/i";
const ISSUER: &str = "https://login.example.org";
/// An end that no test reaches, in seconds.
const LATER: i64 = 32_000_000_000;

/// A tablet server with access control, and a master.
struct Guarded {
    server: TabletServer,
    master: Master,
    chubby: std::sync::Arc<FaultyChubby>,
    channel: Channel,
    runtime: Runtime,
    folder: tempfile::TempDir,
}

impl Guarded {
    async fn start() -> Self {
        Self::start_with(IdentityLimits::default()).await
    }

    async fn start_with(limits: IdentityLimits) -> Self {
        Self::start_of(limits, HeatOption::Off).await
    }

    async fn start_of(limits: IdentityLimits, heat: HeatOption) -> Self {
        ebla_runtime::logging::init(&std::env::var("EBLA_LOG").unwrap_or_else(|_unset| "off".to_owned()));
        let runtime = Runtime::system("test");
        let folder = tempfile::tempdir().unwrap();
        let keys = folder.path().join("keys.json");
        let jwk = Jwk::from_encoding_key(&EncodingKey::from_ed_der(ED), Algorithm::EdDSA).unwrap();
        std::fs::write(&keys, serde_json::to_vec(&JwkSet { keys: vec![jwk] }).unwrap()).unwrap();
        let access = AccessOptions {
            tokens: TokenOptions { keys, issuer: ISSUER.to_owned(), audience: "ebla".to_owned() },
            administrators: vec!["subject:root".parse().unwrap()],
            audit: AuditOptions { file: Some(folder.path().join("audit.log")), rotation: None, data: AuditedData::All },
            limits,
        };
        let chubby = FaultyChubby::new(Embedded::in_memory(runtime.clock.clone(), &runtime.tasks).shared());
        let options = ServerOptions { access: Some(access), heat, ..ServerOptions::up(LocalServers::default()) };
        let config = ServerConfig::new(folder.path().join("data"), "127.0.0.1:0", options);
        let server = TabletServer::start(config, chubby.shared(), runtime.clone()).await.unwrap();
        let config = MasterConfig { heat, ..MasterConfig::new("127.0.0.1:0", 1) };
        let master = Master::start(config, chubby.shared(), runtime.clone()).await.unwrap();
        tokio::time::timeout(TIMEOUT, master.ready()).await.unwrap();
        tokio::time::timeout(TIMEOUT, server.ready()).await.unwrap();
        let channel = runtime.net.channel(server.address());
        Self { server, master, chubby, channel, runtime, folder }
    }

    async fn stop(self) {
        self.master.stop().await;
        self.server.stop().await;
        self.runtime.tasks.stop(Duration::from_secs(5)).await;
    }

    /// A caller with this subject.
    fn caller(&self, subject: &str) -> TestCaller {
        self.with_token(Some(token(&claims(subject))))
    }

    fn with_token(&self, token: Option<String>) -> TestCaller {
        TestCaller { channel: self.channel.clone(), token }
    }

    fn audit(&self) -> Vec<Value> {
        let lines = std::fs::read_to_string(self.folder.path().join("audit.log")).unwrap();
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

fn claims(subject: &str) -> Value {
    json!({"iss": ISSUER, "aud": "ebla", "exp": LATER, "sub": subject})
}

fn token(claims: &Value) -> String {
    encode(&Header::new(Algorithm::EdDSA), claims, &EncodingKey::from_ed_der(ED)).unwrap()
}

/// A client with a token.
#[derive(Clone)]
struct TestCaller {
    channel: Channel,
    token: Option<String>,
}

/// The cells of a read, and its statistics.
#[derive(Clone, PartialEq, Debug, Default)]
struct ReadResult {
    cells: Vec<CellChunk>,
    stats: Option<data::ReadIterationStats>,
}

impl ReadResult {
    /// Family, row and value of each cell; each has a family of its own in these tests.
    fn shown(&self) -> Vec<String> {
        let mut row = Bytes::new();
        let mut family = String::new();
        let show = |chunk: &CellChunk| {
            if !chunk.row_key.is_empty() {
                row = chunk.row_key.clone();
            }
            if let Some(name) = &chunk.family_name {
                family.clone_from(&name.value);
            }
            let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
            format!("{} {family} {}", text(&row), text(&chunk.value))
        };
        self.cells.iter().map(show).collect()
    }
}

impl TestCaller {
    fn request<M>(&self, message: M) -> Request<M> {
        let mut request = Request::new(message);
        if let Some(token) = &self.token {
            request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
        }
        request.metadata_mut().insert("x-request-id", "r-1".parse().unwrap());
        request
    }

    fn data(&self) -> BigtableClient<Channel> {
        BigtableClient::new(self.channel.clone())
    }

    fn tables(&self) -> BigtableTableAdminClient<Channel> {
        BigtableTableAdminClient::new(self.channel.clone())
    }

    fn instances(&self) -> BigtableInstanceAdminClient<Channel> {
        BigtableInstanceAdminClient::new(self.channel.clone())
    }

    async fn create_table(&self, id: &str, families: &[&str]) -> Result<(), Status> {
        let families: HashMap<_, _> =
            families.iter().map(|family| ((*family).to_owned(), admin::ColumnFamily::default())).collect();
        let request = admin::CreateTableRequest {
            parent: INSTANCE.to_owned(),
            table_id: id.to_owned(),
            table: Some(admin::Table { column_families: families, ..Default::default() }),
            ..Default::default()
        };
        self.tables().create_table(self.request(request)).await.map(drop)
    }

    async fn set_policy(
        &self,
        resource: &str,
        bindings: &[(&str, &[&str])],
        etag: Bytes,
    ) -> Result<iam::Policy, Status> {
        let binding = |(role, members): &(&str, &[&str])| iam::Binding {
            role: (*role).to_owned(),
            members: members.iter().map(|member| (*member).to_owned()).collect(),
            ..Default::default()
        };
        let bindings = bindings.iter().map(binding).collect();
        let policy = Some(iam::Policy { bindings, etag, ..Default::default() });
        let request = iam::SetIamPolicyRequest { resource: resource.to_owned(), policy, ..Default::default() };
        self.tables().set_iam_policy(self.request(request)).await.map(Response::into_inner)
    }

    async fn policy(&self, resource: &str) -> Result<iam::Policy, Status> {
        let request = iam::GetIamPolicyRequest { resource: resource.to_owned(), ..Default::default() };
        self.tables().get_iam_policy(self.request(request)).await.map(Response::into_inner)
    }

    async fn test_permissions(&self, resource: &str, permissions: &[&str]) -> Result<Vec<String>, Status> {
        let permissions = permissions.iter().map(|name| (*name).to_owned()).collect();
        let request = iam::TestIamPermissionsRequest { resource: resource.to_owned(), permissions };
        Ok(self.tables().test_iam_permissions(self.request(request)).await?.into_inner().permissions)
    }

    async fn read(&self, table: &str, filter: Option<&ebla_model::Filter>) -> Result<ReadResult, Status> {
        let stats = data::read_rows_request::RequestStatsView::RequestStatsFull.into();
        let (table_name, authorized_view_name) = named(table);
        let request = data::ReadRowsRequest {
            table_name,
            authorized_view_name,
            filter: filter.map(filter_to_bytes),
            request_stats_view: stats,
            ..Default::default()
        };
        let mut messages = self.data().read_rows(self.request(request)).await?.into_inner();
        let mut read = ReadResult::default();
        while let Some(message) = messages.message().await? {
            assert_eq!(message.last_scanned_row_key, Bytes::new());
            read.cells.extend(message.chunks);
            if let Some(stats) = message.request_stats {
                let data::request_stats::StatsView::FullReadStatsView(full) = stats.stats_view.unwrap();
                read.stats = full.read_iteration_stats;
            }
        }
        Ok(read)
    }

    async fn write(&self, table: &str, row: &str, mutations: Vec<Bytes>) -> Result<(), Status> {
        let (table_name, authorized_view_name) = named(table);
        let request = data::MutateRowRequest {
            table_name,
            authorized_view_name,
            row_key: Bytes::copy_from_slice(row.as_bytes()),
            mutations,
            ..Default::default()
        };
        self.data().mutate_row(self.request(request)).await.map(drop)
    }

    /// Writes several rows in one call; returns the code of each.
    async fn write_many(&self, table: &str, rows: &[(&str, Vec<Bytes>)]) -> Result<Vec<i32>, Status> {
        let entry = |(row, mutations): &(&str, Vec<Bytes>)| data::mutate_rows_request::Entry {
            row_key: Bytes::copy_from_slice(row.as_bytes()),
            mutations: mutations.clone(),
            idempotency: None,
        };
        let entries = rows.iter().map(entry).collect();
        let (table_name, authorized_view_name) = named(table);
        let request = data::MutateRowsRequest { table_name, authorized_view_name, entries, ..Default::default() };
        let mut messages = self.data().mutate_rows(self.request(request)).await?.into_inner();
        let mut codes = Vec::new();
        while let Some(message) = messages.message().await? {
            codes.extend(message.entries.into_iter().map(|entry| entry.status.unwrap_or_default().code));
        }
        Ok(codes)
    }

    async fn check(
        &self,
        table: &str,
        row: &str,
        predicate: Option<&ebla_model::Filter>,
        then: Vec<Bytes>,
    ) -> Result<bool, Status> {
        let (table_name, authorized_view_name) = named(table);
        let request = data::CheckAndMutateRowRequest {
            table_name,
            authorized_view_name,
            row_key: Bytes::copy_from_slice(row.as_bytes()),
            predicate_filter: predicate.map(filter_to_bytes),
            true_mutations: then,
            ..Default::default()
        };
        Ok(self.data().check_and_mutate_row(self.request(request)).await?.into_inner().predicate_matched)
    }

    /// Appends to a cell; returns the encoded answer. `token`: the header of the caller's idempotency token.
    async fn append(&self, table: &str, row: &str, family: &str, token: Option<&str>) -> Result<Vec<u8>, Status> {
        let rule = data::ReadModifyWriteRule {
            family_name: family.to_owned(),
            column_qualifier: "q".into(),
            rule: Some(data::read_modify_write_rule::Rule::AppendValue("+".into())),
        };
        let (table_name, authorized_view_name) = named(table);
        let message = data::ReadModifyWriteRowRequest {
            table_name,
            authorized_view_name,
            row_key: Bytes::copy_from_slice(row.as_bytes()),
            rules: vec![rule.encode_to_vec().into()],
            ..Default::default()
        };
        let mut request = self.request(message);
        if let Some(token) = token {
            request.metadata_mut().insert("ebla-idempotency-token", token.parse().unwrap());
        }
        Ok(self.data().read_modify_write_row(request).await?.into_inner().encode_to_vec())
    }

    /// The keys of samples with their offsets.
    async fn sample(&self, table: &str) -> Result<Vec<(Bytes, i64)>, Status> {
        let (table_name, authorized_view_name) = named(table);
        let request = data::SampleRowKeysRequest { table_name, authorized_view_name, ..Default::default() };
        let mut messages = self.data().sample_row_keys(self.request(request)).await?.into_inner();
        let mut samples = Vec::new();
        while let Some(sample) = messages.message().await? {
            samples.push((sample.row_key, sample.offset_bytes));
        }
        Ok(samples)
    }

    /// Creates a view of these rows and columns (`family:` is all columns of the family).
    async fn create_view(&self, view: &str, rows: &[&str], columns: &[&str]) -> Result<(), Status> {
        let (parent, id) = view.split_once('/').unwrap();
        let request = admin::CreateAuthorizedViewRequest {
            parent: name(parent),
            authorized_view_id: id.to_owned(),
            authorized_view: Some(view_message("", rows, columns)),
        };
        self.tables().create_authorized_view(self.request(request)).await.map(drop)
    }
}

fn name(table: &str) -> String {
    format!("{INSTANCE}/tables/{table}")
}

/// The names of the table and of the view in a request: `TABLE` or `TABLE/VIEW`.
fn named(text: &str) -> (String, String) {
    match text.split_once('/') {
        Some(_) => (String::new(), view_name(text)),
        None => (name(text), String::new()),
    }
}

fn view_name(text: &str) -> String {
    let (table, view) = text.split_once('/').unwrap();
    format!("{}/authorizedViews/{view}", name(table))
}

fn view_message(name: &str, rows: &[&str], columns: &[&str]) -> admin::AuthorizedView {
    let mut subset = admin::authorized_view::SubsetView {
        row_prefixes: rows.iter().map(|prefix| Bytes::copy_from_slice(prefix.as_bytes())).collect(),
        ..Default::default()
    };
    for column in columns {
        let (family, qualifier) = column.split_once(':').unwrap();
        let columns = subset.family_subsets.entry(family.to_owned()).or_default();
        match qualifier {
            "" => columns.qualifier_prefixes.push(Bytes::new()),
            qualifier => columns.qualifiers.push(Bytes::copy_from_slice(qualifier.as_bytes())),
        }
    }
    admin::AuthorizedView {
        name: name.to_owned(),
        authorized_view: Some(admin::authorized_view::AuthorizedView::SubsetView(subset)),
        ..Default::default()
    }
}

fn family_name(table: &str, family: &str) -> String {
    format!("{}/columnFamilies/{family}", name(table))
}

fn encoded(kind: mutation::Mutation) -> Bytes {
    data::Mutation { mutation: Some(kind), ..Default::default() }.encode_to_vec().into()
}

fn set(family: &str, value: &str) -> Bytes {
    set_column(family, "q", value)
}

fn set_column(family: &str, qualifier: &'static str, value: &str) -> Bytes {
    encoded(mutation::Mutation::SetCell(mutation::SetCell {
        family_name: family.to_owned(),
        column_qualifier: qualifier.into(),
        timestamp_micros: 1_000,
        value: Bytes::copy_from_slice(value.as_bytes()),
    }))
}

fn delete_family(family: &str) -> Bytes {
    encoded(mutation::Mutation::DeleteFromFamily(mutation::DeleteFromFamily { family_name: family.to_owned() }))
}

fn delete_row() -> Bytes {
    encoded(mutation::Mutation::DeleteFromRow(mutation::DeleteFromRow {}))
}

/// Repeats a call until its answer is as expected; fails when that takes longer than a second, which is the promise.
async fn within_a_second<T: std::fmt::Debug>(
    call: impl AsyncFn() -> Result<T, Status>,
    is_expected: impl Fn(&Result<T, Status>) -> bool,
) -> Result<T, Status> {
    let mut last = None;
    let wait = async {
        loop {
            let answer = call().await;
            if is_expected(&answer) {
                return answer;
            }
            last = Some(answer);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    match tokio::time::timeout(Duration::from_secs(1), wait).await {
        Ok(answer) => answer,
        Err(_elapsed) => panic!("not within a second; the last answer: {last:?}"),
    }
}
