//! Ranks that saw a step differently agree on one, which is sound.

use proptest::prelude::*;

use super::*;
use crate::synthetic::{RandomShape, TraceBuilder, random_trace};

/// What ranks agree on: the largest of each number. The first of them leads.
fn agree(ranks: &mut [Trace]) {
    let touch_count = touch_count(&ranks[0]);
    let told: Vec<Vec<f64>> = (0..)
        .zip(ranks.iter())
        .map(|(rank, trace)| numbers(trace, rank == 0, touch_count))
        .collect();
    let most = told.into_iter().reduce(|one, other| {
        assert_eq!(one.len(), other.len());
        one.iter().zip(other).map(|(one, other)| one.max(other)).collect()
    });
    let most = most.expect("there is a rank");
    assert!(most.iter().all(|number| *number >= 0.0));
    for rank in ranks {
        set_numbers(rank, &most);
    }
}

/// Three ops that read one of two blocks; the other is used once and freed after an op.
fn step(used_by: u32, freed_after: u32) -> Trace {
    let mut made = TraceBuilder::new();
    let [kept, freed] = [made.persistent("a", 1 << 20), made.persistent("b", 1 << 20)];
    for number in 0..3 {
        made.begin("op", 1.0, number == used_by);
        made.read(kept);
        if number == used_by {
            made.update(freed);
        }
        made.end();
        if number == freed_after {
            made.free(freed);
        }
    }
    made.finish()
}

#[test]
fn ranks_take_the_touches_of_the_one_that_leads_and_the_latest_free() {
    let mut ranks = [step(1, 1), step(0, 2)];
    assert_eq!(kind(&ranks[0]), kind(&ranks[1]));
    agree(&mut ranks);
    assert_eq!(ranks[0], ranks[1]);
    assert_eq!(ranks[0].events, step(1, 2).events);
    assert!(ranks[0].ops.iter().all(|op| !op.replayable), "each lacks a recipe somewhere");
}

#[test]
fn ranks_take_the_longest_times_and_the_most_small_memory() {
    let mut ranks = [step(0, 0), step(0, 0)];
    ranks[0].ops[1].device_us = 7.0;
    ranks[0].segment_bytes = 10;
    ranks[1].ops[1].host_waits = true;
    ranks[0].ops[0].outdated_by = Some(OpIndex(2));
    ranks[1].ops[0].outdated_by = Some(OpIndex(1));
    ranks[1].ops[2].outdated_by = Some(OpIndex(2));
    ranks[1].blocks[0].held = true;
    ranks[1].events.insert(3, TraceEvent::Segments(1 << 20));
    agree(&mut ranks);
    assert_eq!(ranks[0], ranks[1]);
    let op = &ranks[0].ops[1];
    assert_eq!((op.device_us, op.host_waits, ranks[0].blocks[0].held), (7.0, true, true));
    let outdated_by = ranks[0].ops.iter().map(|op| op.outdated_by.map(|by| by.0));
    assert_eq!(outdated_by.collect::<Vec<_>>(), [Some(1), None, Some(2)], "the first change");
    assert_eq!(ranks[0].segment_bytes, 1 << 20);
    assert!(!ranks[0].events.iter().any(|event| matches!(event, TraceEvent::Segments(_))));
}

#[test]
fn steps_with_blocks_of_other_sizes_are_told_apart() {
    let mut other = step(0, 0);
    other.blocks[0].size_bytes += 1 << 20;
    assert_eq!(kind(&step(0, 0)), kind(&other));
    assert_ne!(blocks(&step(0, 0)), blocks(&other));
}

/// The trace as another rank could have recorded it: some touches fewer, some frees later, other
/// small memory.
fn seen_elsewhere(trace: &Trace, delays: &[u32], missed: &[bool], segment_bytes: u64) -> Trace {
    let late = places(trace).into_iter().zip(delays.iter().cycle());
    let late: Vec<f64> = late.map(|(place, delay)| place + f64::from(*delay)).collect();
    let seen = touches(trace).into_iter().zip(missed.iter().cycle());
    let seen: Vec<f64> =
        seen.filter(|(_, is_missed)| !**is_missed).map(|(touch, _)| touch).collect();
    let mut made = trace.clone();
    set_events(&mut made, &late, &seen);
    made.events.insert(made.events.len() / 2, TraceEvent::Segments(segment_bytes));
    made
}

proptest! {
    #[test]
    fn ranks_agree_on_a_sound_step(
        seed in any::<u64>(),
        delays in prop::collection::vec(prop::collection::vec(0..9_u32, 1..5), 2),
        missed in prop::collection::vec(any::<bool>(), 1..9),
        segment_bytes in 0..1_u64 << 30,
    ) {
        let trace = random_trace(seed, &RandomShape::small());
        let mut ranks = [
            seen_elsewhere(&trace, &delays[0], &[false], segment_bytes),
            seen_elsewhere(&trace, &delays[1], &missed, 0),
        ];
        prop_assert_eq!(kind(&ranks[0]), kind(&ranks[1]));
        prop_assert_eq!(blocks(&ranks[0]), blocks(&ranks[1]));
        let told = [touches(&ranks[0]), places(&ranks[0]), places(&ranks[1])];
        agree(&mut ranks);
        prop_assert_eq!(crate::check_trace(&ranks[0]), Ok(()));
        prop_assert_eq!(&ranks[0], &ranks[1]);
        prop_assert_eq!(&touches(&ranks[0]), &told[0]);
        let latest: Vec<f64> =
            told[1].iter().zip(&told[2]).map(|(one, two)| one.max(*two)).collect();
        prop_assert_eq!(places(&ranks[0]), latest);
    }
}
