//! How the arena comes by its memory: region by region, at once, ahead of need, or not at all.

use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::{Config as Runs, TestRng, TestRunner};
use vmem::devices::{FaultDriver, FaultPlan, HostConfig, HostDriver};
use vmem::{
    Arena, ArenaConfig, DeviceMemory, ErrorKind, MemoryError, PoolConfig, Slot, StreamId, Uses,
};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// A device whose calls can be made to fail, and its memory.
struct Lab {
    host: Arc<HostDriver>,
    fault: Arc<FaultDriver>,
    memory: DeviceMemory,
    stream: StreamId,
}

impl Lab {
    fn new(arena: ArenaConfig) -> Lab {
        Lab::with(arena, HostConfig::threads(MIB))
    }

    fn with(arena: ArenaConfig, device: HostConfig) -> Lab {
        let host = HostDriver::new(device).expect("opens");
        let fault = Arc::new(FaultDriver::new(host.clone()));
        let pool =
            PoolConfig { limit_bytes: MIB, swap_threshold_bytes: 64 * KIB, segment_bytes: MIB };
        let mut memory = DeviceMemory::new(fault.clone(), pool, arena).expect("opens");
        let stream = memory.streams.create().expect("a stream");
        Lab { host, fault, memory, stream }
    }

    fn arena(&mut self) -> &mut Arena {
        &mut self.memory.arena
    }

    fn take(&mut self, size_bytes: u64) -> Slot {
        self.arena().take(size_bytes).expect("there is room").0
    }

    /// Calls of that name that reached the driver or were failed on the way.
    fn calls(&self, name: &str) -> u64 {
        self.fault.calls_by_name().get(name).copied().unwrap_or(0)
    }

    /// What the arena says is what the driver holds.
    fn agree(&self) {
        let (ledger, arena) = (self.host.ledger(), &self.memory.arena);
        assert_eq!(arena.pinned_bytes().current, ledger.registered_bytes + ledger.pinned_bytes);
        assert_eq!(arena.free_bytes(), arena.pinned_bytes().current - arena.used_bytes().current);
        assert!(arena.pinned_bytes().peak <= arena.limit_bytes());
    }

    fn finish(self) {
        let Lab { host, fault, memory, .. } = self;
        fault.disarm();
        drop(memory);
        assert!(host.ledger().is_empty(), "{:?}", host.ledger());
    }
}

fn regions(limit_bytes: u64, region_bytes: u64) -> ArenaConfig {
    ArenaConfig { region_bytes, ..ArenaConfig::new(limit_bytes) }
}

#[test]
fn slots_of_one_size_fill_their_regions_to_the_byte() {
    for slot_bytes in [4 * KIB, 12 * KIB, 20 * KIB, 52 * KIB, 100 * KIB, 2 * MIB + 4 * KIB] {
        let mut lab = Lab::new(regions(16 * MIB, 64 * KIB));
        let per_region = (64 * KIB / slot_bytes).max(1);
        for count in 1..=3 * per_region {
            lab.take(slot_bytes);
            let held = count.next_multiple_of(per_region) * slot_bytes;
            assert_eq!(lab.arena().pinned_bytes().current, held);
            lab.agree();
        }
        assert_eq!(lab.calls("register_host"), 3, "one call a region");
        assert_eq!(lab.arena().free_bytes(), 0);
        lab.finish();
    }
}

#[test]
fn regions_grow_with_what_is_pinned_until_the_host_is_short() {
    let growing = ArenaConfig { largest_region_bytes: 256 * KIB, ..regions(64 * MIB, 64 * KIB) };
    let mut lab = Lab::new(growing);
    let mut held = vec![0];
    while held.len() < 20 {
        lab.take(4 * KIB);
        let now = lab.arena().pinned_bytes().current;
        if held.last() != Some(&now) {
            held.push(now);
        }
        lab.agree();
    }
    let grown: Vec<u64> = held.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(grown[..2].iter().all(|&bytes| bytes == 64 * KIB), "{grown:?}");
    assert_eq!(grown[19 - 1], 256 * KIB, "{grown:?}");
    for (&before, &bytes) in held.iter().zip(&grown) {
        let half = (before / 2).clamp(64 * KIB, 256 * KIB);
        assert!(bytes <= half && bytes > half - 4 * KIB, "{bytes} beside {before}");
    }
    while lab.arena().free_bytes() > 0 {
        lab.take(4 * KIB);
    }
    lab.fault.arm(FaultPlan::once(1, ErrorKind::OutOfMemory).only("register_host"));
    let before = lab.arena().pinned_bytes().current;
    lab.take(4 * KIB);
    lab.take(4 * KIB);
    let now = lab.arena().pinned_bytes().current;
    assert_eq!(now - before, 68 * KIB, "just the slot, then as at the start");
    lab.finish();
}

#[test]
fn the_cap_is_filled_whatever_the_size() {
    let mut lab = Lab::new(regions(100 * KIB, 64 * KIB));
    let taken = std::iter::from_fn(|| lab.arena().take(12 * KIB).ok()).count();
    assert_eq!(taken, 8, "eight twelves fit into a hundred");
    assert_eq!(lab.take(4 * KIB).size_bytes(), 4 * KIB, "and the rest is for others");
    assert!(lab.arena().take(4 * KIB).is_err());
    assert_eq!(lab.host.ledger().registered_bytes, 100 * KIB);
    lab.finish();
}

#[test]
fn reserved_memory_is_held_for_any_sizes_at_one_percent_above_what_is_asked() {
    let total_bytes = 24 * MIB;
    let runs = Runs { cases: 60, failure_persistence: None, ..Runs::default() };
    let rng = TestRng::deterministic_rng(runs.rng_algorithm);
    let sizes = prop::collection::vec(4 * KIB..200 * KIB, 400..500);
    let result = TestRunner::new_with_rng(runs, rng).run(&sizes, |sizes| {
        let mut lab = Lab::new(regions(total_bytes, MIB));
        lab.arena().reserve(total_bytes).expect("there is room");
        assert_eq!(lab.calls("register_host"), 1);
        let mut asked = 0;
        for size_bytes in sizes {
            if lab.arena().take(size_bytes).is_err() {
                break;
            }
            // What is lost to whole pages of a slot is not the arena's.
            asked += size_bytes.next_multiple_of(4 * KIB);
        }
        assert_eq!(lab.calls("register_host"), 1, "nothing was pinned later");
        let held = lab.host.ledger().registered_bytes;
        prop_assert!(held * 100 <= asked * 101, "{held} held for {asked}");
        lab.finish();
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}

#[test]
fn reserving_pins_only_what_is_missing() {
    let mut lab = Lab::new(regions(MIB, 64 * KIB));
    let slot = lab.take(16 * KIB);
    assert_eq!(lab.arena().free_bytes(), 48 * KIB);
    lab.arena().reserve(48 * KIB).expect("it is there");
    assert_eq!(lab.calls("register_host"), 1);
    lab.arena().reserve(100 * KIB).expect("there is room");
    assert_eq!((lab.arena().free_bytes(), lab.calls("register_host")), (100 * KIB, 2));
    let error = lab.arena().reserve(MIB).expect_err("a slot is in use");
    assert!(matches!(error, MemoryError::HostFull { shortage: None, .. }), "{error:?}");
    assert_eq!(lab.calls("register_host"), 2, "it was not even tried");
    lab.agree();
    lab.arena().give_back(slot, Uses::default());
    lab.arena().reserve(MIB).expect("all of the cap");
    assert_eq!(lab.host.ledger().registered_bytes, MIB);
    lab.finish();
}

#[test]
fn what_is_trimmed_is_refunded() {
    let mut lab = Lab::new(regions(64 * KIB, 64 * KIB));
    for _ in 0..3 {
        let slots = [(); 4].map(|()| lab.take(16 * KIB));
        assert!(lab.arena().take(4 * KIB).is_err());
        slots.into_iter().for_each(|slot| lab.arena().give_back(slot, Uses::default()));
        let DeviceMemory { arena, streams, .. } = &mut lab.memory;
        arena.trim(streams).expect("trims");
        assert_eq!(lab.host.ledger().registered_bytes, 0);
        lab.agree();
    }
    lab.finish();
}

#[test]
fn a_driver_that_cannot_register_allocates_instead_and_is_asked_once() {
    let mut lab = Lab::new(regions(MIB, 64 * KIB));
    lab.fault.arm(FaultPlan::for_good(1, ErrorKind::Unsupported).only("register_host"));
    let slots = [(); 3].map(|()| lab.take(64 * KIB));
    lab.arena().reserve(128 * KIB).expect("there is room");
    assert_eq!((lab.calls("register_host"), lab.calls("allocate_pinned")), (1, 4));
    assert_eq!(lab.host.ledger().pinned_bytes, 320 * KIB);
    lab.agree();
    slots.into_iter().for_each(|slot| lab.arena().give_back(slot, Uses::default()));
    let DeviceMemory { arena, streams, .. } = &mut lab.memory;
    arena.trim(streams).expect("trims");
    assert_eq!(lab.host.ledger().pinned_bytes, 0);
    lab.finish();
}

/// Pins, uses, trims and reserves, as far as it gets.
fn script(lab: &mut Lab) -> Result<(), MemoryError> {
    let (first, _) = lab.memory.arena.take(48 * KIB)?;
    lab.agree();
    let (second, _) = lab.memory.arena.take(48 * KIB)?;
    lab.agree();
    let used = Uses::of(lab.memory.streams.advance(lab.stream));
    lab.memory.arena.give_back(second, used);
    let DeviceMemory { arena, streams, .. } = &mut lab.memory;
    arena.trim(streams)?;
    lab.agree();
    lab.memory.arena.reserve(96 * KIB)?;
    lab.agree();
    lab.memory.arena.give_back(first, Uses::default());
    Ok(())
}

#[test]
fn whatever_call_fails_the_count_stays_exact() {
    let mut lab = Lab::new(regions(256 * KIB, 64 * KIB));
    script(&mut lab).expect("nothing fails");
    let calls = lab.fault.calls();
    lab.finish();
    assert!(calls >= 6, "the script pins and unpins: {calls} calls");
    let mut failed = 0;
    for call in 1..=calls {
        for kind in [ErrorKind::OutOfMemory, ErrorKind::Failed, ErrorKind::Unsupported] {
            let mut lab = Lab::new(regions(256 * KIB, 64 * KIB));
            // The stream was created before the plan was armed.
            lab.fault.arm(FaultPlan::once(call, kind));
            let result = script(&mut lab);
            failed += u64::from(result.is_err());
            lab.agree();
            lab.finish();
        }
    }
    assert!(failed > 3, "{failed}");
}

#[test]
fn a_region_that_stays_remembers_who_used_it() {
    let mut lab = Lab::new(regions(128 * KIB, 64 * KIB));
    let slot = lab.take(64 * KIB);
    let used = Uses::of(lab.memory.streams.advance(lab.stream));
    lab.arena().give_back(slot, used.clone());
    lab.fault.arm(FaultPlan::once(1, ErrorKind::Failed).only("unregister_host"));
    let DeviceMemory { arena, streams, .. } = &mut lab.memory;
    arena.trim(streams).expect_err("it cannot be unpinned");
    lab.agree();
    let (_, uses) = lab.arena().take(64 * KIB).expect("it is free");
    assert_eq!(uses, used);
    lab.finish();
}

#[test]
fn a_short_host_is_told_apart_from_the_cap_and_how_to_mend_it_is_said() {
    let device = HostConfig { host_limit_bytes: Some(64 * KIB), ..HostConfig::threads(MIB) };
    let mut lab = Lab::with(regions(MIB, 128 * KIB), device);
    lab.take(32 * KIB);
    lab.take(32 * KIB);
    let error = lab.arena().take(32 * KIB).expect_err("the host has no more");
    let MemoryError::HostFull { used_bytes, limit_bytes, shortage: Some(shortage), .. } = &error
    else {
        panic!("{error:?}");
    };
    assert_eq!((*used_bytes, *limit_bytes, shortage.tried_bytes), (64 * KIB, MIB, 32 * KIB));
    let text = error.to_string();
    let parts = [
        "64.0 KiB of its cap of 1.0 MiB are in use",
        "32.0 KiB were not pinned: register_host failed",
        "available",
        "control group",
        "`ulimit -l` is",
        "ask for less host memory",
        "larger container",
    ];
    for part in parts {
        assert!(text.contains(part), "'{part}' is not in '{text}'");
    }
    lab.agree();
    lab.finish();

    let mut lab = Lab::new(regions(64 * KIB, 64 * KIB));
    let text = lab.arena().take(65 * KIB).expect_err("the cap").to_string();
    assert!(text.ends_with("raise the cap on host memory"), "{text}");
    assert_eq!(lab.calls("register_host"), 0);
    lab.finish();
}

fn ahead(limit_bytes: u64) -> ArenaConfig {
    ArenaConfig { grow_ahead_bytes: 64 * KIB, ..regions(limit_bytes, 64 * KIB) }
}

#[test]
fn growth_ahead_keeps_the_cap_and_fills_it() {
    for _ in 0..50 {
        let mut lab = Lab::new(ahead(320 * KIB));
        let slots: Vec<Slot> = (0..20).map(|_| lab.take(16 * KIB)).collect();
        let error = lab.arena().take(16 * KIB).expect_err("the cap is reached");
        assert!(matches!(error, MemoryError::HostFull { shortage: None, .. }), "{error:?}");
        assert_eq!(lab.calls("register_host"), 5, "no region was pinned twice");
        assert_eq!(lab.host.ledger().registered_bytes_peak, 320 * KIB);
        lab.agree();
        slots.into_iter().for_each(|slot| lab.arena().give_back(slot, Uses::default()));
        lab.finish();
    }
}

#[test]
fn a_region_on_its_way_counts_under_the_cap() {
    // Large enough to be on their way for a while.
    let region_bytes = 32 * MIB;
    for _ in 0..5 {
        let limits = regions(3 * region_bytes, region_bytes);
        let mut lab = Lab::new(ArenaConfig { grow_ahead_bytes: region_bytes, ..limits });
        let slot = lab.take(MIB);
        // One is pinned and one on its way: a third has no room for this slot.
        let error = lab.arena().take(region_bytes + MIB).expect_err("too little is left");
        assert!(matches!(error, MemoryError::HostFull { shortage: None, .. }), "{error:?}");
        assert_eq!(lab.host.ledger().registered_bytes_peak, 2 * region_bytes);
        lab.arena().give_back(slot, Uses::default());
        lab.finish();
    }
}

#[test]
fn a_slot_waits_its_turn_while_there_is_other_memory() {
    let mut lab = Lab::new(regions(192 * KIB, 32 * KIB));
    let first: Vec<Slot> = (0..2).map(|_| lab.take(16 * KIB)).collect();
    let starts: Vec<_> = first.iter().map(Slot::start).collect();
    first.into_iter().for_each(|slot| lab.arena().give_back(slot, Uses::default()));
    // Two wait: another region is pinned for these.
    let others: Vec<Slot> = (0..2).map(|_| lab.take(16 * KIB)).collect();
    assert!(others.iter().all(|slot| !starts.contains(&slot.start())));
    assert_eq!(lab.calls("register_host"), 2);
    others.into_iter().for_each(|slot| lab.arena().give_back(slot, Uses::default()));
    // Four wait: the one that has waited longest is next.
    assert_eq!(lab.take(16 * KIB).start(), starts[0]);
    assert_eq!(lab.take(16 * KIB).start(), starts[1]);
    assert_eq!(lab.calls("register_host"), 2);
    lab.finish();
}

#[test]
fn a_region_on_its_way_is_finished_and_given_back_at_the_end() {
    for trim in [false, true] {
        for _ in 0..50 {
            let mut lab = Lab::new(ahead(MIB));
            let slot = lab.take(16 * KIB);
            if trim {
                lab.arena().give_back(slot, Uses::default());
                let DeviceMemory { arena, streams, .. } = &mut lab.memory;
                arena.trim(streams).expect("trims");
                assert_eq!(lab.calls("register_host"), 1, "nobody needed the next region");
                assert_eq!(lab.host.ledger().registered_bytes, 0);
                lab.agree();
            }
            lab.finish();
        }
    }
}

#[test]
fn what_a_driver_allocated_ahead_of_need_is_freed_at_the_end() {
    for _ in 0..50 {
        let mut lab = Lab::new(ahead(MIB));
        lab.fault.arm(FaultPlan::for_good(1, ErrorKind::Unsupported).only("register_host"));
        let slot = lab.take(16 * KIB);
        lab.arena().give_back(slot, Uses::default());
        let DeviceMemory { arena, streams, .. } = &mut lab.memory;
        arena.trim(streams).expect("trims");
        assert_eq!(lab.calls("allocate_pinned"), 2, "the next region was on its way");
        assert_eq!(lab.host.ledger().pinned_bytes, 0);
        lab.agree();
        lab.finish();
    }
}

#[test]
fn what_is_ready_from_the_start_is_taken_first_and_pinned_when_it_is_needed() {
    let mut lab = Lab::new(ArenaConfig { initial_bytes: 100 * KIB, ..ahead(320 * KIB) });
    assert_eq!(lab.calls("register_host"), 0);
    let slots: Vec<Slot> = (0..5).map(|_| lab.take(20 * KIB)).collect();
    assert_eq!((lab.calls("register_host"), lab.host.ledger().registered_bytes), (1, 100 * KIB));
    lab.agree();
    // Those that come next find their region touched, and pin it.
    let more: Vec<Slot> = (0..11).map(|_| lab.take(20 * KIB)).collect();
    assert!(lab.arena().take(4 * KIB).is_err(), "320 KiB are in use");
    assert_eq!(lab.host.ledger().registered_bytes, 320 * KIB);
    slots.into_iter().chain(more).for_each(|slot| lab.arena().give_back(slot, Uses::default()));
    lab.finish();

    let mut lab = Lab::new(ArenaConfig { initial_bytes: MIB, ..regions(64 * KIB, 64 * KIB) });
    let slot = lab.take(4 * KIB);
    assert_eq!(lab.host.ledger().registered_bytes, 64 * KIB, "within the cap");
    lab.arena().give_back(slot, Uses::default());
    lab.finish();
}

#[test]
fn what_is_on_its_way_goes_back_once_users_have_what_they_need() {
    for registers in [true, false] {
        let mut lab = Lab::new(ahead(MIB));
        if !registers {
            lab.fault.arm(FaultPlan::for_good(1, ErrorKind::Unsupported).only("register_host"));
        }
        let first = lab.take(16 * KIB);
        lab.arena().stop_growing().expect("gives back");
        let pinned_bytes = |lab: &Lab| {
            let ledger = lab.host.ledger();
            ledger.registered_bytes + ledger.pinned_bytes
        };
        assert_eq!(pinned_bytes(&lab), 64 * KIB);
        // There is room for these, and nothing more comes.
        let others = [(); 3].map(|()| lab.take(16 * KIB));
        lab.arena().stop_growing().expect("there is nothing");
        assert_eq!(pinned_bytes(&lab), 64 * KIB);
        // One too many makes it grow, ahead again.
        let last = lab.take(16 * KIB);
        let more: Vec<Slot> = (0..7).map(|_| lab.take(16 * KIB)).collect();
        assert_eq!(pinned_bytes(&lab), 192 * KIB);
        lab.agree();
        let all = [first, last].into_iter().chain(others).chain(more);
        all.for_each(|slot| lab.arena().give_back(slot, Uses::default()));
        lab.finish();
    }
}

#[test]
fn growth_that_fails_ahead_of_need_is_not_seen_before_the_need() {
    for kind in [ErrorKind::OutOfMemory, ErrorKind::Failed] {
        let mut lab = Lab::new(ahead(MIB));
        // The first region is pinned by the call that needs it, the second ahead of need.
        lab.fault.arm(FaultPlan::for_good(2, kind).only("register_host"));
        let slots: Vec<Slot> = (0..4).map(|_| lab.take(16 * KIB)).collect();
        let error = lab.arena().take(16 * KIB).expect_err("there is no second region");
        match kind {
            ErrorKind::OutOfMemory => {
                assert!(matches!(error, MemoryError::HostFull { shortage: Some(_), .. }));
            }
            _ => assert!(matches!(error, MemoryError::Driver(_)), "{error:?}"),
        }
        // Not once more ahead of need; without memory, a smaller region is tried too.
        let tries = lab.calls("register_host");
        assert_eq!(tries, if kind == ErrorKind::OutOfMemory { 4 } else { 3 });
        lab.fault.disarm();
        assert_eq!(lab.take(16 * KIB).size_bytes(), 16 * KIB, "the host recovered");
        slots.into_iter().for_each(|slot| lab.arena().give_back(slot, Uses::default()));
        lab.finish();
    }
}

#[test]
fn an_arena_alone_gives_back_what_nobody_used_yet() {
    let host = HostDriver::new(HostConfig::threads(MIB)).expect("opens");
    let fault = Arc::new(FaultDriver::new(host.clone()));
    let mut arena = Arena::new(fault.clone(), ahead(MIB));
    let (slot, _) = arena.take(16 * KIB).expect("there is room");
    drop(arena);
    let calls = fault.calls_by_name();
    let registered = ["register_host", "unregister_host"].map(|name| calls.get(name).copied());
    assert_eq!(registered, [Some(1), None], "the region on its way was never pinned");
    // What was given out stays pinned: nobody told the arena that the device is done with it.
    assert_eq!((slot.size_bytes(), host.ledger().registered_bytes), (16 * KIB, 64 * KIB));
}
