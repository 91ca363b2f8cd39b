//! Where a step frees its blocks, as numbers that ranks can agree on.
//!
//! A thread of a communication library frees what it used whenever it is done. So the same step
//! frees a block a little earlier on one rank than on another, and would get another plan.

use swap_core::{BlockIndex, Trace, TraceEvent};

/// Of each block, the number of events before its free; more than there are if the step does not
/// free it. Frees do not count.
pub(super) fn places(trace: &Trace) -> Vec<f64> {
    let mut places = vec![f64::INFINITY; trace.blocks.len()];
    let mut count = 0_u32;
    for event in &trace.events {
        match event {
            TraceEvent::Free(block) => places[block.0 as usize] = f64::from(count),
            other => count += u32::from(counts(other)),
        }
    }
    let never = f64::from(count) + 1.0;
    places.into_iter().map(|place| place.min(never)).collect()
}

/// Frees each block at its place, which is no earlier than where it is freed now.
pub(super) fn set_places(trace: &mut Trace, places: &[f64]) {
    let indexed = (0..).map(BlockIndex).zip(places);
    let mut frees: Vec<(f64, BlockIndex)> = indexed.map(|(block, &place)| (place, block)).collect();
    frees.sort_by(|one, two| two.0.total_cmp(&one.0).then(two.1.cmp(&one.1)));
    let mut events = Vec::with_capacity(trace.events.len());
    let mut count = 0_u32;
    let mut free_until = |count: u32, events: &mut Vec<TraceEvent>| {
        while let Some((_, block)) = frees.pop_if(|(place, _)| *place <= f64::from(count)) {
            events.push(TraceEvent::Free(block));
        }
    };
    for event in std::mem::take(&mut trace.events) {
        if matches!(event, TraceEvent::Free(_)) {
            continue;
        }
        free_until(count, &mut events);
        count += u32::from(counts(&event));
        events.push(event);
    }
    free_until(count, &mut events);
    trace.events = events;
}

/// How many events ranks count alike.
pub(crate) fn counted(trace: &Trace) -> usize {
    trace.events.iter().filter(|event| counts(event)).count()
}

/// Whether an event comes in the same order on all ranks.
fn counts(event: &TraceEvent) -> bool {
    !matches!(event, TraceEvent::Free(_) | TraceEvent::Segments(_))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::synthetic::{RandomShape, TraceBuilder, random_trace};

    /// The trace with some frees later, where another rank could have freed.
    fn delayed(trace: &Trace, delays: &[u32]) -> Trace {
        let late = places(trace);
        let late = late.iter().zip(delays.iter().cycle());
        let late: Vec<f64> = late.map(|(place, delay)| place + f64::from(*delay)).collect();
        let mut made = trace.clone();
        set_places(&mut made, &late);
        made
    }

    #[test]
    fn the_rank_that_frees_early_takes_over_where_the_other_does() {
        let step = |early: bool| {
            let mut made = TraceBuilder::new();
            let blocks = [made.persistent("a", 1 << 20), made.persistent("b", 1 << 20)];
            let [kept, freed] = blocks;
            for number in 0..3 {
                made.begin("op", 1.0, false);
                made.read(kept);
                if number == 0 {
                    made.read(freed);
                }
                made.end();
                if number == if early { 0 } else { 1 } {
                    made.free(freed);
                }
            }
            made.finish()
        };
        let (mut early, late) = (step(true), step(false));
        assert_ne!(early.events, late.events);
        assert_eq!((places(&early), places(&late)), (vec![11.0, 4.0], vec![11.0, 7.0]));
        set_places(&mut early, &places(&late));
        assert_eq!(early.events, late.events);
    }

    proptest! {
        #[test]
        fn ranks_agree_on_the_latest_free(
            seed in any::<u64>(),
            one in prop::collection::vec(0..9_u32, 1..5),
            two in prop::collection::vec(0..9_u32, 1..5),
        ) {
            let trace = random_trace(seed, &RandomShape::small());
            let mut ranks = [delayed(&trace, &one), delayed(&trace, &two)];
            let told = ranks.each_ref().map(places);
            let latest: Vec<f64> =
                told[0].iter().zip(&told[1]).map(|(one, two)| one.max(*two)).collect();
            for rank in &mut ranks {
                set_places(rank, &latest);
                prop_assert_eq!(crate::check_trace(rank), Ok(()));
                prop_assert_eq!(counted(rank), counted(&trace));
                prop_assert_eq!(&places(rank), &latest);
            }
            prop_assert_eq!(&ranks[0], &ranks[1]);
        }
    }
}
