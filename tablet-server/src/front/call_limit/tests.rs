//! The limit, the shares, and the order in which waiting calls begin.

use super::*;

const A: ConnectionId = ConnectionId(1);
const B: ConnectionId = ConnectionId(2);
const C: ConnectionId = ConnectionId(3);

/// A limit in use by `in_progress` calls of one connection.
fn used(in_progress: usize) -> CallLimit {
    let mut limit = CallLimit::new(Duration::ZERO);
    (0..in_progress).for_each(|_| begins(&mut limit, A));
    limit
}

fn begins(limit: &mut CallLimit, connection: ConnectionId) {
    assert_eq!(limit.arrive(connection), Arrival::Begins);
}

fn waits(limit: &mut CallLimit, connection: ConnectionId) -> CallId {
    let Arrival::Waits { call, displaced: None, .. } = limit.arrive(connection) else { panic!("it does not wait") };
    call
}

/// Whether a call of this connection begins at once. One that does not is forgotten.
fn tries(limit: &mut CallLimit, connection: ConnectionId) -> bool {
    match limit.arrive(connection) {
        Arrival::Begins => true,
        Arrival::Waits { call, .. } => {
            limit.leave(call);
            false
        }
    }
}

/// Ends and begins as many calls as fill a window, each with this outcome.
fn window(limit: &mut CallLimit, outcome: Outcome, now: &mut Duration) {
    *now += WINDOW;
    for _ in 0..WINDOW_CALLS {
        limit.end(A, outcome, *now);
        let _begun = tries(limit, A);
    }
}

#[test]
fn a_standing_queue_lowers_the_limit_and_fast_calls_raise_it() {
    let (mut limit, mut now) = (used(1_000), Duration::ZERO);
    window(&mut limit, Outcome::Answered(SLOW * 2), &mut now);
    assert_eq!(limit.limit(), LIMIT_MAX, "one slow window may be a failover");
    window(&mut limit, Outcome::Answered(SLOW * 2), &mut now);
    assert_eq!(limit.limit(), 800);
    for _ in 0..100 {
        window(&mut limit, Outcome::TooLate, &mut now);
    }
    assert_eq!(limit.limit(), LIMIT_MIN);
    assert!(!tries(&mut limit, A));
    window(&mut limit, Outcome::Answered(Duration::from_millis(5)), &mut now);
    assert_eq!(limit.limit(), LIMIT_MIN + LIMIT_MIN / 8);
    let raised = limit.limit();
    while tries(&mut limit, A) {}
    // A call that waits all the time shows too that the limit is too low.
    let waiting = waits(&mut limit, A);
    for _ in 0..4 {
        now += WINDOW;
        for _ in 0..WINDOW_CALLS {
            limit.end(A, Outcome::Answered(Duration::from_millis(5)), now);
            limit.begin(A);
        }
    }
    limit.leave(waiting);
    assert!(limit.limit() > raised * 3 / 2, "{}", limit.limit());
}

#[test]
fn one_fast_call_proves_that_no_queue_stands() {
    let (mut limit, mut now) = (used(1_000), Duration::ZERO);
    for _ in 0..10 {
        limit.end(A, Outcome::Answered(Duration::from_millis(5)), now);
        begins(&mut limit, A);
        window(&mut limit, Outcome::Answered(SLOW * 2), &mut now);
        window(&mut limit, Outcome::Ignored, &mut now);
    }
    assert_eq!(limit.limit(), LIMIT_MAX);
}

#[test]
fn a_limit_that_holds_nothing_back_stays() {
    let (mut limit, mut now) = (used(200), Duration::ZERO);
    (0..3).for_each(|_| window(&mut limit, Outcome::TooLate, &mut now));
    let lowered = limit.limit();
    (0..100).for_each(|_| limit.end(A, Outcome::Ignored, now));
    for _ in 0..10 {
        window(&mut limit, Outcome::Answered(Duration::ZERO), &mut now);
    }
    assert!((lowered..=lowered + lowered / 8).contains(&limit.limit()), "{} {lowered}", limit.limit());
}

#[test]
fn a_connection_gets_its_share_when_another_uses_all() {
    let mut limit = used(LIMIT_MAX);
    let (greedy, other) = (waits(&mut limit, A), waits(&mut limit, B));
    assert_eq!(limit.begin_next(), None, "the limit holds for all");
    limit.end(A, Outcome::Ignored, Duration::ZERO);
    assert_eq!(limit.begin_next(), Some(other), "the other connection is below its share");
    limit.end(A, Outcome::Ignored, Duration::ZERO);
    assert_eq!(limit.begin_next(), None, "the first one is above its share");
    begins(&mut limit, B);
    for _ in 0..LIMIT_MAX / 2 - 1 {
        limit.end(A, Outcome::Ignored, Duration::ZERO);
    }
    assert_eq!(limit.begin_next(), Some(greedy), "its own calls have ended");
    limit.end(B, Outcome::Ignored, Duration::ZERO);
    limit.end(B, Outcome::Ignored, Duration::ZERO);
    while limit.in_progress > 0 {
        limit.end(A, Outcome::Ignored, Duration::ZERO);
    }
    assert!(limit.connections.is_empty() && limit.active == 0, "{limit:?}");
}

#[test]
fn a_free_place_goes_to_the_connection_with_the_fewest_calls_and_there_to_the_newest() {
    let mut limit = CallLimit::new(Duration::ZERO);
    (0..LIMIT_MAX / 2).for_each(|_| begins(&mut limit, A));
    for _ in 0..LIMIT_MAX / 4 {
        begins(&mut limit, B);
        begins(&mut limit, C);
    }
    let [oldest, a] = [0; 2].map(|_| waits(&mut limit, A));
    let [b, left, newest] = [0; 3].map(|_| waits(&mut limit, B));
    limit.leave(left);
    let mut next = |ended| {
        limit.end(ended, Outcome::Ignored, Duration::ZERO);
        limit.begin_next()
    };
    assert_eq!(next(A), Some(newest));
    assert_eq!(next(A), Some(b), "one has left");
    assert_eq!(next(C), None, "the other one is beyond its share, a third");
    let begun: Vec<_> = (0..LIMIT_MAX / 4).filter_map(|_| next(A)).collect();
    assert_eq!(begun, [a, oldest], "some of its own have ended");
    assert!(limit.waiting.is_empty() && limit.order.is_empty(), "{limit:?}");
}

#[test]
fn waiting_calls_are_bounded_and_the_oldest_is_displaced() {
    let mut limit = used(LIMIT_MAX);
    let first: Vec<_> = (0..WAITING_MAX).map(|_| waits(&mut limit, A)).collect();
    for oldest in first.iter().take(3) {
        let Arrival::Waits { displaced, .. } = limit.arrive(B) else { panic!("it does not wait") };
        assert_eq!(displaced, Some(*oldest));
        assert_eq!(limit.waiting.len(), WAITING_MAX);
    }
    first.iter().for_each(|call| limit.leave(*call));
    assert_eq!((limit.waiting.len(), limit.order.len()), (3, 1), "those that were displaced do not leave again");
}

#[test]
fn the_time_to_wait_bounds_the_rate_of_refusals() {
    assert_eq!(waiting_timeout(1), SLOW);
    for waiting in [500, 1_000, 4_000, WAITING_MAX] {
        let timeout = waiting_timeout(waiting);
        assert!((SLOW..SLOW * 9).contains(&timeout), "{timeout:?}");
        let rate = waiting as f64 / timeout.as_secs_f64();
        assert!(rate < 4_000.1, "{rate} refusals per second");
    }
}

#[test]
fn a_table_gets_its_share_when_the_connections_of_another_use_all() {
    let mut limit = CallLimit::new(Duration::ZERO);
    // A connection for each call, so that their shares do not matter.
    let mut connections = (0..).map(ConnectionId);
    let mut begin = |limit: &mut CallLimit, own| {
        begins(limit, connections.next().unwrap());
        limit.try_begin_table(own)
    };
    (0..LIMIT_MAX - 1).for_each(|own| assert!(begin(&mut limit, own), "one table may use all of it"));
    assert!(begin(&mut limit, 0), "another one is below its share");
    let mut ended = (0..).map(ConnectionId);
    let mut end = |limit: &mut CallLimit| limit.end(ended.next().unwrap(), Outcome::Ignored, Duration::ZERO);
    end(&mut limit);
    limit.end_table(LIMIT_MAX - 2);
    assert!(!begin(&mut limit, LIMIT_MAX - 2), "the first one is beyond its share");
    end(&mut limit);
    assert!(begin(&mut limit, 1));
    while limit.in_progress > LIMIT_MAX / 2 - 1 {
        end(&mut limit);
    }
    assert!(begin(&mut limit, LIMIT_MAX / 2), "there is room for all");
}
