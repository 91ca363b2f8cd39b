//! Pairs of tests: memory is not reused too soon, and not too late. Addresses stay, and what is
//! not resident faults.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use swap_core::devices::HostConfig;
use swap_core::{Access, AccessMode, ActionKind, BlockId, Residency, StreamHandle, StreamId};

use super::lab::{BLOCK, ENOUGH, Lab, OP, read, submit_unseen, work, write};

/// A second stream, and a block of pattern 1 that an op reads there.
fn with_busy_side(seed: u64) -> (Lab, (StreamHandle, StreamId), BlockId) {
    let mut lab = Lab::with(ENOUGH, ENOUGH, HostConfig::lockstep(2 * ENOUGH, seed));
    let side = lab.check_stream();
    let block = lab.make(1);
    lab.order(side.0);
    lab.ops.begin_on(OP, side.1).expect("begins");
    work(&mut lab.ops, &[read(block, 1)], &lab.errors).expect("works");
    lab.ops.end().expect("ends");
    (lab, side, block)
}

#[test]
fn a_freed_chunk_is_reused_at_once_but_ordered() {
    for seed in 0..40 {
        // Not too soon: the side stream still reads when compute gets the chunk.
        let (mut lab, side, block) = with_busy_side(seed);
        let address = lab.engine.address(block).expect("lives");
        let chunks = lab.host.ledger().chunk_count;
        lab.free(block);
        let waits = lab.check.waits_seen();
        let fresh = lab.engine.allocate(BLOCK, "fresh").expect("room");
        lab.places.push((fresh, BLOCK));
        lab.op(&[write(fresh, 2)]).expect("is ordered");
        // Not too late: it is the same memory, with its mapping.
        assert_eq!(lab.engine.address(fresh), Ok(address));
        assert_eq!(lab.host.ledger().chunk_count, chunks);
        let stats = lab.engine.memory_stats().expect("stats");
        assert_eq!(stats.reserved_bytes.current, BLOCK);
        // On its own stream not even an event is needed.
        let waited = lab.check.waits_seen();
        assert!(waited <= waits + 1);
        lab.free(fresh);
        let last = lab.engine.allocate(BLOCK, "last").expect("room");
        lab.places.push((last, BLOCK));
        lab.op(&[write(last, 3)]).expect("is ordered");
        assert_eq!(lab.check.waits_seen(), waited);
        lab.errors();
        lab.close_with(side.0);
    }
}

#[test]
fn what_an_op_frees_waits_for_no_stream_but_those_of_open_ops() {
    for seed in 0..40 {
        let (mut lab, side, _) = with_busy_side(seed);
        let waits = lab.check.waits_seen();
        lab.ops.begin(OP).expect("begins");
        let temporary = lab.ops.allocate(BLOCK, "temporary").expect("room");
        work(&mut lab.ops, &[write(temporary, 2)], &lab.errors).expect("works");
        let address = lab.engine.address(temporary).expect("lives");
        lab.ops.free(temporary).expect("lives");
        let workspace = lab.ops.allocate_unshown(BLOCK).expect("room");
        assert_eq!(workspace.address, address);
        lab.ops.free(workspace.block).expect("lives");
        lab.ops.end().expect("ends");
        let next = lab.make(3);
        assert_eq!(lab.engine.address(next), Ok(address));
        assert_eq!(lab.check.waits_seen(), waits, "no other stream had this memory");

        // An op on the side stream is open, and has used what another op frees.
        lab.order(side.0);
        lab.ops.begin_on(OP, side.1).expect("begins");
        work(&mut lab.ops, &[read(next, 3)], &lab.errors).expect("works");
        lab.ops.begin(OP).expect("begins");
        lab.ops.free(next).expect("lives");
        lab.ops.end().expect("ends");
        lab.ops.end().expect("ends");
        let waits = lab.check.waits_seen();
        let last = lab.make(4);
        assert_eq!(lab.engine.address(last), Ok(address));
        assert_eq!(lab.check.waits_seen(), waits + 1);
        lab.errors();
        lab.close_with(side.0);
    }
}

#[test]
fn a_chunk_that_is_leaving_serves_others_at_once() {
    for seed in 0..40 {
        let mut lab = Lab::with(BLOCK, ENOUGH, HostConfig::lockstep(2 * BLOCK, seed));
        let first = lab.make(1);
        // There is one chunk. Each block gets it while the copy of the one before may run.
        let second = lab.make(2);
        assert_eq!(lab.host.ledger().chunk_count, 1);
        for _ in 0..3 {
            lab.op(&[read(first, 1)]).expect("reads");
            lab.op(&[read(second, 2)]).expect("reads");
        }
        assert_eq!(lab.host.ledger().chunk_count, 1);
        lab.finish();
    }
}

#[test]
fn a_slot_is_reused_at_once_but_ordered() {
    for seed in 0..40 {
        // The arena holds one block.
        let mut lab = Lab::with(ENOUGH, BLOCK, HostConfig::lockstep(2 * ENOUGH, seed));
        let (first, second) = (lab.make(1), lab.make(2));
        for _ in 0..3 {
            for (block, tag) in [(first, 1), (second, 2)] {
                lab.swap_out(block);
                let _thief = lab.try_make(BLOCK, 9).expect("room");
                lab.act(&[(ActionKind::SwapIn, block)]);
                lab.op(&[write(block, tag)]).expect("writes, so the slot is free");
            }
        }
        assert_eq!(lab.host.ledger().registered_bytes_peak, BLOCK);
        assert_eq!(lab.total().swapped_out_bytes, 6 * BLOCK);
        lab.op(&[read(first, 1), read(second, 2)]).expect("reads");
        lab.finish();
    }
}

#[test]
fn the_memory_of_small_blocks_goes_back_after_all_that_their_stream_was_given() {
    for has_virtual_memory in [true, false] {
        let device = HostConfig { has_virtual_memory, ..HostConfig::lockstep(2 * ENOUGH, 5) };
        let lab = Lab::with(ENOUGH, ENOUGH, device);
        let compute = lab.engine.stream_handles().expect("handles")[0];
        let small = lab.engine.allocate(512, "small").expect("room");
        // As a framework's operators do, which tell of what moves alone.
        let start = lab.engine.address(small).expect("lives");
        let access = Access { start, size_bytes: 512, mode: AccessMode::Write };
        submit_unseen(&lab.check, compute, vec![access], 500.0, |_| ()).expect("launches");
        lab.engine.free(small).expect("lives");
        lab.engine.trim().expect("waits, and gives back");
        assert_eq!(lab.host.ledger().chunk_count, 0);
        lab.finish();
    }
}

#[test]
fn an_address_stays_from_allocate_to_free() {
    let mut lab = Lab::new(3 * BLOCK);
    let blocks: Vec<_> = (1..8).map(|tag| (tag, lab.make(tag))).collect();
    let addresses: Vec<_> = blocks.iter().map(|&(_, block)| lab.engine.address(block)).collect();
    for round in 0..5 {
        for (&(tag, block), address) in blocks.iter().zip(&addresses) {
            lab.op(&[read(block, tag)]).expect("reads");
            assert_eq!(&lab.engine.address(block), address, "round {round}");
        }
    }
    assert!(lab.total().misses > 20);
    lab.finish();
}

const CHILD: &str = "SWAP_CORE_TOUCHES";

/// Reads one byte of a block on the host, where a kernel of the host driver would.
fn touch_behind_the_engines_back(what: &str) {
    let mut lab = Lab::new(ENOUGH);
    let block = lab.make(1);
    let address = lab.engine.address(block).expect("lives").0;
    if what == "away" {
        lab.swap_out(block);
        lab.complete_all();
        assert_eq!(lab.state(block), Residency::Away);
        // The next op finds the copy complete, and unmaps the address.
        lab.tick();
    }
    let start = std::ptr::with_exposed_provenance::<u8>(usize::try_from(address).expect("fits"));
    // SAFETY: a process of its own, and nothing writes there: the engine is idle. Where the block
    // is away nothing is mapped, and the fault ends the process, which is what is to be shown.
    let byte = unsafe { start.read_volatile() };
    println!("read {byte}");
}

#[test]
fn a_missed_touch_faults() {
    if let Ok(what) = std::env::var(CHILD) {
        touch_behind_the_engines_back(&what);
        return;
    }
    let run = |what: &str| {
        Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "engine::reuse::a_missed_touch_faults", "--nocapture"])
            .env(CHILD, what)
            .output()
            .expect("it runs")
    };
    let resident = run("resident");
    assert!(resident.status.success(), "{resident:?}");
    assert!(String::from_utf8_lossy(&resident.stdout).contains("read "));
    let away = run("away");
    // A segment or a bus error.
    assert!(matches!(away.status.signal(), Some(11 | 7)), "{away:?}");
}
