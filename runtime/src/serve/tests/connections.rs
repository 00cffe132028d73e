//! How many connections a process has, and clients that do not begin.

use super::*;
use crate::connection_limit::ConnectionLimit;
use crate::serve::preface::PREFACE_TIMEOUT;

/// Whether the server keeps a connection that has sent its preface: it answers with its settings, and does not close it.
async fn is_served(mut connection: Connection) -> Option<Connection> {
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    connection.write_all(PREFACE).await.ok()?;
    timely(connection.read_exact(&mut [0; 9])).await.ok()?;
    Some(connection)
}

#[tokio::test]
async fn listeners_of_a_process_share_a_limit() {
    let net = Net::tcp().with_connections(ConnectionLimit::new(3));
    let first = Fixture::start_on(net.clone(), ServeOptions::default()).await;
    let second = Fixture::start_on(net, ServeOptions::default()).await;
    let held = is_served(first.connect().await).await.unwrap();
    let _others = (is_served(first.connect().await).await.unwrap(), is_served(second.connect().await).await.unwrap());
    for fixture in [&first, &second] {
        assert!(is_served(fixture.connect().await).await.is_none());
        // What a peer sends first exempts from nothing.
        let mut connection = fixture.connect().await;
        connection.write_all(PREAMBLE).await.unwrap();
        assert!(is_served(connection).await.is_none());
    }
    drop(held);
    let again = async {
        while is_served(second.connect().await).await.is_none() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timely(again).await;
    first.tasks.stop(Duration::ZERO).await;
    second.tasks.stop(Duration::ZERO).await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_begin_is_cut() {
    // Probes would end the connection that stays, because its client does not answer them.
    let never = KeepAlive { interval: Duration::from_secs(3_600), ..KeepAlive::PUBLIC };
    let options = ServeOptions { public_keep_alive: never, ..ServeOptions::default() };
    let fixture = Fixture::start(options).await;
    for begin in [b"".as_slice(), b"PRI * HTTP/2.0\r\n\r\nSM"] {
        let mut connection = fixture.connect().await;
        connection.write_all(begin).await.unwrap();
        let started = tokio::time::Instant::now();
        let _cut = timely(connection.read_to_end(&mut Vec::new())).await;
        assert!(started.elapsed() <= 2 * PREFACE_TIMEOUT, "{:?}", started.elapsed());
    }
    // One that has begun stays.
    let mut begun = is_served(fixture.connect().await).await.unwrap();
    let read = tokio::time::timeout(2 * PREFACE_TIMEOUT, begun.read_to_end(&mut Vec::new())).await;
    assert!(read.is_err(), "{read:?}");
    fixture.tasks.stop(Duration::ZERO).await;
}

#[tokio::test(start_paused = true)]
async fn a_silent_client_keeps_its_connection_longer_than_a_silent_peer() {
    let fixture = Fixture::start(ServeOptions::default()).await;
    let mut kept = Vec::new();
    for first_bytes in [PREAMBLE.as_slice(), b""] {
        let mut connection = fixture.connect().await;
        connection.write_all(first_bytes).await.unwrap();
        let mut connection = is_served(connection).await.unwrap();
        let started = tokio::time::Instant::now();
        let _closed = connection.read_to_end(&mut Vec::new()).await;
        kept.push(started.elapsed());
    }
    let until_closed = |keep_alive: KeepAlive| keep_alive.interval + keep_alive.timeout;
    let (peer, public) = (kept[0], kept[1]);
    assert!(peer < until_closed(KeepAlive::PUBLIC) - Duration::from_secs(5), "{peer:?}");
    assert!(public > until_closed(KeepAlive::PUBLIC) - Duration::from_secs(5), "{public:?}");
    fixture.tasks.stop(Duration::ZERO).await;
}
