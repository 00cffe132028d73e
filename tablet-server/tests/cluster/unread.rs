//! Clients that open reads of large rows and do not read the responses.

use std::time::Duration;

use ebla_proto::data::{self, ReadRowsRequest, RowSet};
use ebla_proto::services::bigtable_client::BigtableClient;
use ebla_runtime::Runtime;
use ebla_tablet_server::TabletServer;
use ebla_tablet_server::response_budget::ResponseBytes;
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tonic::transport::Channel;
use tonic::{Request, Streaming};

use super::fixture::{Fixture, TABLET, schema, until};
use super::rows::{key, write};

const MIB: usize = 1 << 20;
const TOTAL: usize = 16 * MIB;
/// A row is sent in four messages.
const ROW: usize = 4 * MIB;
const ROWS: u32 = 8;
/// The threads that read: those of the pool, and those of the runtime. Each may read a batch of one row although another one exceeds the limit.
const READERS: usize = 2 + 4;
const READS: usize = 100;

fn client(runtime: &Runtime, server: &TabletServer) -> BigtableClient<Channel> {
    BigtableClient::new(runtime.net.channel(server.address())).max_decoding_message_size(2 * ROW)
}

fn request(rows: RowSet, timeout: Duration) -> Request<ReadRowsRequest> {
    let table_name = schema().name.to_string();
    let mut request = Request::new(ReadRowsRequest { table_name, rows: Some(rows), ..Default::default() });
    request.set_timeout(timeout);
    request
}

/// Opens reads of all rows; returns those that begin within a few seconds.
async fn open(client: &BigtableClient<Channel>) -> Vec<Streaming<data::ReadRowsResponse>> {
    let open = |_| {
        let mut client = client.clone();
        async move { client.read_rows(request(RowSet::default(), Duration::from_secs(3))).await }
    };
    let opening: FuturesUnordered<_> = (0..READS).map(open).collect();
    opening.filter_map(async |response| Some(response.ok()?.into_inner())).collect().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn clients_that_do_not_read_large_rows_hold_a_bounded_number_of_bytes_and_others_are_served() {
    let fixture = Fixture::start_with_responses(ResponseBytes { total: TOTAL, ..Default::default() }).await;
    let runtime = Runtime::system("clients");
    for row in 0..ROWS {
        write(fixture.server(0).cluster(), row, row + 1, ROW).await;
    }
    let leader = fixture.leader(TABLET).await;
    // Through the leader, and through a server that asks the leader.
    for at in [leader, (leader + 1) % 3] {
        let unread = open(&client(&runtime, fixture.server(at))).await;
        assert!((1..READS).contains(&unread.len()), "{} reads are open", unread.len());
        for server in fixture.servers.iter().flatten() {
            let in_use = server.responses().in_use();
            assert!(in_use <= TOTAL + READERS * (ROW + MIB), "{in_use} bytes");
        }
        let one = RowSet { row_keys: vec![key(3).bytes().clone()], ..Default::default() };
        let mut other = client(&runtime, fixture.server((leader + 2) % 3));
        let response = other.read_rows(request(one, Duration::from_secs(60))).await.unwrap().into_inner();
        let messages: Vec<_> = response.collect().await;
        let value = |message: &Result<data::ReadRowsResponse, _>| -> usize {
            message.as_ref().unwrap().chunks.iter().map(|chunk| chunk.value.len()).sum()
        };
        assert_eq!(messages.iter().map(value).sum::<usize>(), ROW);
        drop(unread);
        until("memory is free", || fixture.servers.iter().flatten().all(|server| server.responses().in_use() == 0))
            .await;
    }
    fixture.stop().await;
}
