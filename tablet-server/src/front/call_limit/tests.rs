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
    let Arrival::Waits(call) = limit.arrive(connection) else { panic!("it does not wait") };
    call
}

/// Whether a call of this connection begins at once. One that does not is forgotten.
fn tries(limit: &mut CallLimit, connection: ConnectionId) -> bool {
    match limit.arrive(connection) {
        Arrival::Begins => true,
        Arrival::Waits(call) => {
            limit.leave(call);
            false
        }
        Arrival::Refused => false,
    }
}

/// A window in which this many calls end, each with this outcome. As many others begin, if they may.
fn window(limit: &mut CallLimit, outcome: Outcome, calls: usize, now: &mut Duration) {
    let within = *now + WINDOW / 2;
    *now += WINDOW;
    for call in 1..=calls {
        limit.end(A, outcome, if call == calls { *now } else { within });
        let _begun = tries(limit, A);
    }
}

const FAST: Outcome = Outcome::Answered(Duration::from_millis(5));
const SLOW: Outcome = Outcome::Answered(Duration::from_millis(500));

#[test]
fn a_standing_queue_lowers_the_limit_to_what_is_answered_soon() {
    // 10,000 answers in a second, and 5,000 calls in progress.
    let (mut limit, mut now) = (used(5_000), Duration::ZERO);
    window(&mut limit, SLOW, 1_000, &mut now);
    assert_eq!(limit.limit(), LIMIT_MAX, "one slow window may be a failover");
    window(&mut limit, SLOW, 1_000, &mut now);
    assert_eq!((limit.limit(), limit.waiting_max), (2_500, 2_500));
    for _ in 0..100 {
        window(&mut limit, Outcome::TooLate, 1_000, &mut now);
    }
    assert_eq!((limit.limit(), limit.waiting_max), (LIMIT_MIN, WAITING_MIN), "late calls are no answers");
}

#[test]
fn a_few_fast_calls_hide_no_queue_and_a_few_slow_ones_make_none() {
    for (slow, expected) in [(700, 2_500), (300, LIMIT_MAX)] {
        let (mut limit, mut now) = (used(5_000), Duration::ZERO);
        for _ in 0..3 {
            let within = now + WINDOW / 2;
            now += WINDOW;
            for call in 1..=1_000 {
                limit.end(A, if call <= slow { SLOW } else { FAST }, if call == 1_000 { now } else { within });
                let _begun = tries(&mut limit, A);
            }
        }
        assert_eq!(limit.limit(), expected, "{slow} of 1,000 are slow");
    }
}

#[test]
fn few_calls_lower_no_limit_while_they_are_fast() {
    let (mut limit, mut now) = (used(1), Duration::ZERO);
    for _ in 0..10 {
        now += WINDOW * 100;
        window(&mut limit, FAST, WINDOW_CALLS, &mut now);
        window(&mut limit, Outcome::Ignored, 1_000, &mut now);
    }
    assert_eq!(limit.limit(), LIMIT_MAX);
}

#[test]
fn fast_calls_raise_a_limit_that_holds_others_back() {
    let (mut limit, mut now) = (used(1_000), Duration::ZERO);
    (0..3).for_each(|_| window(&mut limit, Outcome::TooLate, 100, &mut now));
    assert_eq!(limit.limit(), LIMIT_MIN);
    assert!(!tries(&mut limit, A));
    while limit.in_progress > 20 {
        limit.end(A, Outcome::Ignored, now);
    }
    limit.window = Window::new(now);
    for _ in 0..10 {
        window(&mut limit, FAST, 1_000, &mut now);
    }
    assert_eq!(limit.limit(), LIMIT_MIN, "it holds nothing back");
    while tries(&mut limit, A) {}
    let _waiting = waits(&mut limit, A);
    for _ in 0..4 {
        window(&mut limit, FAST, 1_000, &mut now);
    }
    assert!(limit.limit() > LIMIT_MIN * 3 / 2, "{}", limit.limit());
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
fn a_free_place_goes_to_the_connection_with_the_fewest_calls_and_there_to_the_oldest() {
    let mut limit = CallLimit::new(Duration::ZERO);
    (0..LIMIT_MAX / 2).for_each(|_| begins(&mut limit, A));
    for _ in 0..LIMIT_MAX / 4 {
        begins(&mut limit, B);
        begins(&mut limit, C);
    }
    let [oldest, a] = [0; 2].map(|_| waits(&mut limit, A));
    let [first, left, b] = [0; 3].map(|_| waits(&mut limit, B));
    limit.leave(left);
    let mut next = |ended| {
        limit.end(ended, Outcome::Ignored, Duration::ZERO);
        limit.begin_next()
    };
    assert_eq!(next(A), Some(first));
    assert_eq!(next(A), Some(b), "one has left");
    assert_eq!(next(C), None, "the other one is beyond its share, a third");
    let begun: Vec<_> = (0..LIMIT_MAX / 4).filter_map(|_| next(A)).collect();
    assert_eq!(begun, [oldest, a], "some of its own have ended");
    assert!(limit.waiting.is_empty() && limit.order.is_empty(), "{limit:?}");
}

#[test]
fn calls_beyond_those_that_begin_soon_are_refused_and_connections_share_the_waiting_places() {
    let mut limit = used(LIMIT_MAX);
    let waiting: Vec<_> = (0..WAITING_MAX).map(|_| waits(&mut limit, A)).collect();
    assert!(limit.refuses(A));
    assert_eq!(limit.arrive(A), Arrival::Refused);
    assert!(!limit.refuses(B), "it has no call that waits");
    let other = waits(&mut limit, B);
    limit.leave(other);
    waiting.iter().take(WAITING_MAX / 2 + 1).for_each(|call| limit.leave(*call));
    assert!(!limit.refuses(A));
    waits(&mut limit, A);
    waiting.iter().for_each(|call| limit.leave(*call));
    assert_eq!((limit.waiting.len(), limit.order.len()), (1, 1));
    limit.end(A, Outcome::Ignored, Duration::ZERO);
    assert!(!limit.refuses(A), "there is a place");
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
