//! Somebody else takes memory of the device under the same cap: the device's ledger has both.

use swap_core::{Driver, Error, Residency, TraceEvent};

use super::lab::{BLOCK, Lab, read, write};
use super::recording::record;

#[test]
fn others_get_memory_that_the_engine_had() {
    let mut lab = Lab::new(4 * BLOCK);
    let blocks = [1, 2, 3, 4].map(|tag| lab.make(tag));
    let small = lab.make_sized(1000, 5);
    let freed = lab.make(6);
    lab.free(freed);
    let mut taken = Vec::new();
    for count in 1..=2 {
        lab.engine.set_outside(count * BLOCK).expect("others leave");
        taken.push(lab.host.create_chunk(BLOCK).expect("the device has it"));
        let stats = lab.engine.memory_stats().expect("counts");
        assert_eq!(stats.outside_bytes.current, count * BLOCK);
        assert!(stats.reserved_bytes.peak <= 4 * BLOCK, "{stats:?}");
    }
    let away = blocks.iter().filter(|&&block| lab.state(block) != Residency::Resident).count();
    assert!(away >= 2, "{away}");
    for (at, &block) in blocks.iter().enumerate() {
        lab.op(&[read(block, at as u64 + 1)]).expect("reads");
    }
    lab.op(&[read(small, 5)]).expect("reads");
    for (count, chunk) in taken.into_iter().enumerate() {
        lab.host.release_chunk(chunk).expect("it is there");
        lab.engine.set_outside((1 - count as u64) * BLOCK).expect("less needs nothing");
    }
    lab.op(&[write(blocks[0], 7), read(blocks[1], 2), read(blocks[2], 3)]).expect("all fit");
    lab.finish();
}

#[test]
fn what_cannot_leave_is_an_error_and_nothing_counts() {
    let mut lab = Lab::new(4 * BLOCK);
    let held = [1, 2, 3].map(|tag| lab.make(tag));
    for block in held {
        lab.engine.hold(block, "a test").expect("lives");
    }
    lab.engine.set_outside(BLOCK).expect("one is free");
    let error = lab.engine.set_outside(2 * BLOCK).expect_err("the others are held");
    assert!(matches!(error, Error::OutOfMemory(_)), "{error}");
    assert!(error.to_string().contains("outside 16.0 KiB"), "{error}");
    let stats = lab.engine.memory_stats().expect("counts");
    assert_eq!(stats.outside_bytes.current, BLOCK);
    lab.op(&[read(held[0], 1), read(held[1], 2), read(held[2], 3)]).expect("reads");
    lab.finish();
}

#[test]
fn the_step_that_is_recorded_knows_of_it() {
    let mut lab = Lab::new(8 * BLOCK);
    let block = lab.make(1);
    let (trace, _) = record(&mut lab, |lab| {
        lab.engine.set_outside(3 * BLOCK).expect("there is room");
        lab.op(&[read(block, 1)]).expect("reads");
    });
    assert_eq!(trace.segment_bytes, 0);
    let most = trace.events.iter().filter_map(|event| match event {
        TraceEvent::Segments(bytes) => Some(*bytes),
        _ => None,
    });
    assert_eq!(most.max(), Some(3 * BLOCK));
    lab.finish();
}
