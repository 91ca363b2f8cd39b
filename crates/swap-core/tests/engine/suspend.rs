//! Somebody else gets the device meanwhile: all leaves, and comes back as it was.

use swap_core::devices::HostConfig;
use swap_core::{AccessMode, Error, MemoryError, Residency};

use super::lab::{BLOCK, Lab, OP, read, write};
use super::lending::lend;

#[test]
fn all_memory_is_for_others_until_it_comes_back() {
    let units = 8;
    let mut lab = Lab::new(units * BLOCK);
    let blocks: Vec<_> = (1..=12).map(|tag| lab.make(tag)).collect();
    let clean = blocks[11];
    lab.op(&[read(clean, 12)]).expect("reads");
    let addresses: Vec<_> = blocks.iter().map(|&block| lab.engine.address(block)).collect();
    let there: Vec<_> = blocks.iter().map(|&block| lab.is_there(block)).collect();
    assert_eq!(there.iter().filter(|&&there| there).count(), units as usize);
    for _ in 0..3 {
        assert_eq!(lab.engine.suspend(), Ok(0));
        assert!(blocks.iter().all(|&block| lab.state(block) == Residency::Away));
        assert_eq!(lab.host.ledger().chunk_bytes, 0);
        lab.engine.resume().expect("there is room");
        let again: Vec<_> = blocks.iter().map(|&block| lab.is_there(block)).collect();
        assert_eq!(again, there, "just those come back");
    }
    let again: Vec<_> = blocks.iter().map(|&block| lab.engine.address(block)).collect();
    assert_eq!(again, addresses);
    for (at, &block) in blocks.iter().enumerate() {
        lab.op(&[read(block, at as u64 + 1)]).expect("reads");
    }
    // What nobody changed is not copied again.
    let copied_bytes = lab.total().swapped_out_bytes;
    assert!((units * BLOCK..=3 * units * BLOCK).contains(&copied_bytes), "{copied_bytes}");
    lab.finish();
}

#[test]
fn what_is_held_small_or_in_use_stays_and_what_is_lent_is_taken_back() {
    let mut lab = Lab::new(8 * BLOCK);
    let [held, lent, used, other] = [1, 2, 3, 4].map(|tag| lab.make(tag));
    let small = lab.make_sized(1000, 5);
    lab.engine.hold(held, "a test").expect("lives");
    lend(&mut lab, lent).expect("is there");
    let compute = lab.engine.stream_handles().expect("handles")[0];
    lab.write_unseen(compute, lent, 12);
    lab.ops.begin(OP).expect("begins");
    lab.ops.touch(used, AccessMode::Read).expect("is there");
    let held_bytes = lab.engine.suspend().expect("the rest leaves");
    let segment_bytes = lab.engine.memory_stats().expect("counts").segment_bytes.current;
    assert_eq!(held_bytes, 2 * BLOCK + segment_bytes);
    assert_eq!(lab.host.ledger().chunk_bytes, held_bytes);
    assert_eq!([held, used].map(|block| lab.is_there(block)), [true; 2]);
    assert_eq!([lent, other].map(|block| lab.state(block)), [Residency::Away; 2]);
    lab.ops.end().expect("ends");
    lab.engine.resume().expect("there is room");
    lab.op(&[read(held, 1), read(lent, 12), read(used, 3), read(other, 4)]).expect("reads");
    lab.op(&[read(small, 5)]).expect("reads");
    lab.finish();
}

#[test]
fn a_host_without_room_is_an_error_before_anything_leaves() {
    let mut lab = Lab::with(8 * BLOCK, 2 * BLOCK, HostConfig::by_time(16 * BLOCK));
    let blocks = [1, 2, 3, 4].map(|tag| lab.make(tag));
    let error = lab.engine.suspend().expect_err("the host has room for two");
    assert!(matches!(error, Error::Memory(MemoryError::HostFull { .. })), "{error}");
    assert_eq!(blocks.map(|block| lab.is_there(block)), [true; 4]);
    lab.free(blocks[0]);
    lab.free(blocks[1]);
    assert_eq!(lab.engine.suspend(), Ok(0));
    // Nobody says resume: what is used comes back.
    lab.op(&[read(blocks[2], 3), write(blocks[3], 5)]).expect("comes back");
    lab.op(&[read(blocks[3], 5)]).expect("reads");
    lab.finish();
}

#[test]
fn what_took_the_room_meanwhile_keeps_it() {
    let mut lab = Lab::new(4 * BLOCK);
    let old = [1, 2, 3, 4].map(|tag| lab.make(tag));
    assert_eq!(lab.engine.suspend(), Ok(0));
    lab.free(old[0]);
    let new = [5, 6, 7].map(|tag| lab.make(tag));
    lab.engine.resume().expect("as much as there is room for");
    assert_eq!(new.map(|block| lab.is_there(block)), [true; 3]);
    assert_eq!(old[1..].iter().filter(|&&block| lab.is_there(block)).count(), 1);
    for (at, &block) in old.iter().enumerate().skip(1) {
        lab.op(&[read(block, at as u64 + 1)]).expect("reads");
    }
    for (at, &block) in new.iter().enumerate() {
        lab.op(&[read(block, at as u64 + 5)]).expect("reads");
    }
    lab.finish();
}

#[test]
fn what_was_dropped_is_made_again_as_ever() {
    let mut lab = Lab::new(8 * BLOCK);
    let source = lab.make(1);
    let made = lab.derive(&[read(source, 1)], 2);
    lab.discard(made);
    assert_eq!(lab.engine.suspend(), Ok(0));
    assert_eq!(lab.state(made), Residency::Discarded);
    lab.engine.resume().expect("there is room");
    assert_eq!(lab.state(made), Residency::Discarded);
    lab.op(&[read(made, 2), read(source, 1)]).expect("reads");
    lab.finish();
}
