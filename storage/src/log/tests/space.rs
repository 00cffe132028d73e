//! A disk without space: batches wait.

use super::*;

#[test]
fn a_batch_waits_for_space_and_is_written_then() {
    // Within a segment, and as the first batch of the next one.
    for (payload, starts) in [(20, 0), (60_000, 1)] {
        let fixture = Fixture::new(64 << 10);
        fixture.log.add_group(A).unwrap();
        fixture.write(vec![sized(A, 1, payload)]);
        let before = fixture.log.stats().segments;
        fixture.disk.fill();
        let waiting = [2, 3].map(|index| fixture.submit(vec![sized(A, index, payload)]));
        for _ in 0..3 {
            assert_eq!(fixture.log.step().unwrap(), LogStep::NoSpace);
        }
        assert!(waiting.iter().all(|outcome| outcome.result().is_none()), "neither written nor refused");
        assert!(fixture.log.syncs().running_since.is_some(), "the disk counts as one that hangs");
        fixture.disk.make_room();
        while fixture.log.step().unwrap() == LogStep::Wrote {}
        assert!(waiting.iter().all(|outcome| matches!(outcome.result(), Some(Ok(())))));
        assert!(fixture.log.stats().segments >= before + starts, "{:?}", fixture.log.stats());
        assert_eq!(fixture.indexes(A), [1, 2, 3]);
        assert_eq!(fixture.log.syncs().running_since, None);
        assert_eq!(fixture.again().indexes(A), [1, 2, 3]);
    }
}

#[test]
fn the_writer_waits_for_space_and_stops_without_it() {
    let fixture = Fixture::new(1 << 20);
    fixture.log.add_group(A).unwrap();
    fixture.log.start_writer().unwrap();
    fixture.log.submit_and_wait(vec![entry(A, 1)]).unwrap();
    fixture.disk.fill();
    let waiting = fixture.submit(vec![entry(A, 2)]);
    while fixture.log.syncs().running_since.is_none() {
        std::thread::yield_now();
    }
    assert!(waiting.result().is_none());
    fixture.disk.make_room();
    fixture.log.submit_and_wait(vec![entry(A, 3)]).unwrap();
    assert!(matches!(waiting.result(), Some(Ok(()))));
    fixture.disk.fill();
    let waiting = fixture.submit(vec![entry(A, 4)]);
    fixture.log.stop();
    assert!(matches!(waiting.result(), Some(Err(LogError::Stopped))), "{:?}", waiting.result());
}
