//! The host arena: slots never overlap, the cap holds, and reuse names the earlier uses.

use std::cell::RefCell;
use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::{Config as Runs, TestCaseError, TestRng, TestRunner};
use vmem::devices::{CheckConfig, CheckDriver, HostConfig, HostDriver};
use vmem::{
    Arena, ArenaConfig, DeviceMemory, MemoryError, PoolConfig, Slot, StreamId, Streams, Uses,
};

const LIMIT: u64 = 96 << 10;
const REGION: u64 = 32 << 10;

#[derive(Clone, Debug)]
enum Call {
    Take(u64),
    GiveBack(prop::sample::Index, u8),
    Trim,
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let call = prop_oneof![
        6 => (1u64..40_000).prop_map(Call::Take),
        5 => (any::<prop::sample::Index>(), 0u8..3).prop_map(|(at, on)| Call::GiveBack(at, on)),
        1 => Just(Call::Trim),
    ];
    prop::collection::vec(call, 1..120)
}

#[derive(Default, Debug)]
struct Tally {
    taken: u64,
    full: u64,
    reused: u64,
    trimmed: u64,
    coalesced: u64,
}

struct Former {
    from: u64,
    to: u64,
    uses: Uses,
}

fn run(calls: &[Call], tally: &mut Tally) -> Result<(), TestCaseError> {
    let mut settings = HostConfig::lockstep(1 << 20, 7);
    settings.granularity_bytes = 4096;
    let host = HostDriver::new(settings).expect("opens");
    let check = Arc::new(CheckDriver::new(host.clone(), CheckConfig::ORDER));
    let pool =
        PoolConfig { limit_bytes: 1 << 20, swap_threshold_bytes: 8192, segment_bytes: 16_384 };
    let arena = ArenaConfig { region_bytes: REGION, ..ArenaConfig::new(LIMIT) };
    let mut memory = DeviceMemory::new(check.clone(), pool, arena).expect("opens");
    let streams: Vec<StreamId> =
        (0..3).map(|_| memory.streams.create().expect("a stream")).collect();
    let mut live: Vec<Slot> = Vec::new();
    let mut former: Vec<Former> = Vec::new();
    for call in calls {
        match call {
            Call::Take(size_bytes) => {
                let size_bytes = size_bytes.next_multiple_of(4096);
                match memory.arena.take(size_bytes) {
                    Ok((slot, uses)) => {
                        tally.taken += 1;
                        let (from, to) = (slot.start().0, slot.start().0 + slot.size_bytes());
                        prop_assert!(slot.size_bytes() >= size_bytes);
                        for other in &live {
                            let start = other.start().0;
                            prop_assert!(to <= start || start + other.size_bytes() <= from);
                        }
                        for before in former.iter().filter(|it| from < it.to && it.from < to) {
                            tally.reused += 1;
                            for point in before.uses.points() {
                                let known = uses.points().iter().any(|use_| {
                                    use_.stream == point.stream && use_.position >= point.position
                                });
                                prop_assert!(known, "a use of the slot is forgotten");
                            }
                        }
                        // The new holder answers for them from here on.
                        let cut = |before: Former| {
                            let Former { from: start, to: end, uses } = before;
                            let left =
                                Former { from: start, to: end.min(from), uses: uses.clone() };
                            let right = Former { from: start.max(to), to: end, uses };
                            [left, right].into_iter().filter(|rest| rest.from < rest.to)
                        };
                        former = former.into_iter().flat_map(cut).collect();
                        live.push(slot);
                    }
                    Err(MemoryError::HostFull { requested_bytes, used_bytes, .. }) => {
                        tally.full += 1;
                        prop_assert_eq!(requested_bytes, size_bytes);
                        let used: u64 = live.iter().map(Slot::size_bytes).sum();
                        prop_assert_eq!(used_bytes, used);
                        prop_assert!(LIMIT - host.ledger().registered_bytes < size_bytes);
                    }
                    Err(error) => return Err(TestCaseError::fail(error.to_string())),
                }
            }
            Call::GiveBack(at, on) if !live.is_empty() => {
                let slot = live.swap_remove(at.index(live.len()));
                let uses = Uses::of(memory.streams.advance(streams[*on as usize]));
                let (from, to) = (slot.start().0, slot.start().0 + slot.size_bytes());
                former.push(Former { from, to, uses: uses.clone() });
                memory.arena.give_back(slot, uses);
            }
            Call::GiveBack(..) => {}
            Call::Trim => {
                let before = host.ledger().registered_bytes;
                memory.arena.trim(&mut memory.streams).expect("trims");
                let after = host.ledger().registered_bytes;
                tally.trimmed += u64::from(after < before);
                // What is left is in use, and what is unpinned has no former users.
                prop_assert!(!live.is_empty() || after == 0);
                former.clear();
            }
        }
        let ledger = host.ledger();
        let used: u64 = live.iter().map(Slot::size_bytes).sum();
        prop_assert!(ledger.registered_bytes <= LIMIT);
        prop_assert_eq!(memory.arena.pinned_bytes().current, ledger.registered_bytes);
        prop_assert_eq!(memory.arena.pinned_bytes().peak, ledger.registered_bytes_peak);
        prop_assert_eq!(memory.arena.used_bytes().current, used);
    }
    // Once all is given back, each region is one piece again.
    for slot in live.drain(..) {
        memory.arena.give_back(slot, Uses::default());
    }
    tally.coalesced += u64::from(host.ledger().registered_bytes > 0);
    memory.arena.trim(&mut memory.streams).expect("trims");
    prop_assert_eq!(host.ledger().registered_bytes, 0);
    prop_assert_eq!(memory.arena.pinned_bytes().current, 0);
    drop(memory);
    prop_assert!(host.ledger().is_empty());
    prop_assert_eq!(check.violation_count(), 0);
    Ok(())
}

#[test]
fn slots_never_overlap_and_remember_their_uses() {
    let config = Runs { cases: 1500, failure_persistence: None, ..Runs::default() };
    let rng = TestRng::deterministic_rng(config.rng_algorithm);
    let tally = RefCell::new(Tally::default());
    let mut runner = TestRunner::new_with_rng(config, rng);
    let result = runner.run(&calls(), |calls| run(&calls, &mut tally.borrow_mut()));
    if let Err(error) = result {
        panic!("{error}");
    }
    let tally = tally.into_inner();
    println!("{tally:?}");
    let Tally { taken, full, reused, trimmed, coalesced } = tally;
    assert!([taken, full, reused, trimmed, coalesced].iter().all(|&count| count > 50));
}

#[test]
fn a_slot_waits_its_turn_behind_others_that_are_free() {
    const SLOT: u64 = 4096;
    let host = HostDriver::new(HostConfig::lockstep(1 << 20, 1)).expect("opens");
    let mut streams = Streams::new(host.clone());
    let stream = streams.create().expect("a stream");
    let config = ArenaConfig { region_bytes: 8 * SLOT, ..ArenaConfig::new(8 * SLOT) };
    let mut arena = Arena::new(host, config);
    let mut slots: Vec<_> = (0..8).map(|_| arena.take(SLOT).expect("room").0).collect();
    let mut freed = Vec::new();
    for _ in 0..4 {
        let slot = slots.remove(0);
        let used = streams.advance(stream);
        freed.push((slot.start(), Uses::of(used)));
        arena.give_back(slot, Uses::of(used));
    }
    // Longest free first, each with its own last use and nobody else's.
    for (start, uses) in freed {
        let (slot, waits) = arena.take(SLOT).expect("room");
        assert_eq!((slot.start(), waits), (start, uses));
        slots.push(slot);
    }
    // Together they are one piece again where a larger slot needs it.
    slots.drain(..).for_each(|slot| arena.give_back(slot, Uses::default()));
    let (whole, _) = arena.take(8 * SLOT).expect("all of it is free");
    assert_eq!(arena.pinned_bytes().peak, 8 * SLOT);
    arena.give_back(whole, Uses::default());
    arena.trim(&mut streams).expect("trims");
}
