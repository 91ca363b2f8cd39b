//! A recorded step as numbers that ranks can agree on: of each number the largest.
//!
//! Ranks that train alike run the same ops and make the same blocks, so they can follow one plan.
//! Yet no two record the same step: times differ, a thread of a communication library frees what
//! it used whenever it is done, small memory grows at another time, an update that waits meets
//! another op first. So the step that all plan for takes the longest times, the latest frees, the
//! most of small memory, and the touches that the leading rank saw.

use swap_core::{AccessMode, BlockIndex, HostCosts, OpIndex, Signature, Trace, TraceEvent};

/// Of the device and of the host, whether the host waits, which recipes are missing, and how many
/// ops begin from the one on that puts its recipe out of date.
const NUMBERS_PER_OP: usize = 6;
/// Where it is freed, and whether it is held.
const NUMBERS_PER_BLOCK: usize = 2;
/// Its time, what the engine's work costs the host, and small memory.
const NUMBERS_PER_STEP: usize = 4;

/// A touch as one number holds it: mode, block, and how many events came before.
const MODES: [AccessMode; 3] = [AccessMode::Read, AccessMode::Write, AccessMode::ReadWrite];
const MODE_VALUES: u64 = 4;
const BLOCK_VALUES: u64 = 1 << 24;

/// Tells steps of other models apart.
pub(crate) fn kind(trace: &Trace) -> Signature {
    let counts = [trace.ops.len(), trace.events.iter().filter(counts).count()];
    counts.into_iter().fold(trace.signature, |mixed, count| mixed.mix(count as u64))
}

/// Tells steps with other blocks apart.
pub(crate) fn blocks(trace: &Trace) -> Signature {
    let sizes = trace.blocks.iter().map(|block| block.size_bytes);
    sizes.fold(Signature::default(), Signature::mix)
}

/// How many touches there are.
pub(crate) fn touch_count(trace: &Trace) -> usize {
    trace.events.iter().filter(|event| matches!(event, TraceEvent::Touch(..))).count()
}

/// How many numbers tell a step of this kind, of which the leading rank saw so many touches.
pub(super) fn number_count(trace: &Trace, touch_count: usize) -> usize {
    NUMBERS_PER_OP * trace.ops.len()
        + NUMBERS_PER_BLOCK * trace.blocks.len()
        + NUMBERS_PER_STEP
        + touch_count
}

/// The step as `number_count` numbers, none of them negative. The touches come last; only the rank
/// that leads tells its own.
pub(super) fn numbers(trace: &Trace, leads: bool, touch_count: usize) -> Vec<f64> {
    let flag = |is_so: bool| f64::from(u8::from(is_so));
    let ops = trace.ops.iter().flat_map(|op| {
        let lacks = [flag(!op.replayable), flag(!op.at_any_size)];
        let behind = op.outdated_by.map_or(0, |by| trace.ops.len() - by.0 as usize);
        [op.device_us, op.host_us, flag(op.host_waits), lacks[0], lacks[1], behind as f64]
    });
    let blocks = places(trace).into_iter().zip(&trace.blocks);
    let blocks = blocks.flat_map(|(place, block)| [place, flag(block.held)]);
    let HostCosts { replay_us, move_us } = trace.host_costs;
    let step = [trace.step_us, replay_us, move_us, most_segment_bytes(trace) as f64];
    let mut numbers: Vec<f64> = ops.chain(blocks).chain(step).collect();
    if leads {
        numbers.extend(touches(trace));
    }
    numbers.resize(number_count(trace, touch_count), 0.0);
    numbers
}

/// Makes the step the one that the ranks agreed on.
pub(super) fn set_numbers(trace: &mut Trace, numbers: &[f64]) {
    let (ops, rest) = numbers.split_at(NUMBERS_PER_OP * trace.ops.len());
    let (blocks, rest) = rest.split_at(NUMBERS_PER_BLOCK * trace.blocks.len());
    let (step, touches) = rest.split_at(NUMBERS_PER_STEP);
    let op_count = trace.ops.len() as u32;
    for (op, told) in trace.ops.iter_mut().zip(ops.chunks_exact(NUMBERS_PER_OP)) {
        (op.device_us, op.host_us, op.host_waits) = (told[0], told[1], told[2] > 0.0);
        (op.replayable, op.at_any_size) = (told[3] == 0.0, told[4] == 0.0);
        op.outdated_by = (told[5] > 0.0).then(|| OpIndex(op_count - told[5] as u32));
    }
    let mut places = Vec::with_capacity(trace.blocks.len());
    for (block, told) in trace.blocks.iter_mut().zip(blocks.chunks_exact(NUMBERS_PER_BLOCK)) {
        places.push(told[0]);
        block.held = told[1] > 0.0;
    }
    trace.step_us = step[0];
    trace.host_costs = HostCosts { replay_us: step[1], move_us: step[2] };
    trace.segment_bytes = step[3] as u64;
    set_events(trace, &places, touches);
}

/// Whether an event comes in the same order on all ranks.
fn counts(event: &&TraceEvent) -> bool {
    matches!(event, TraceEvent::Begin(_) | TraceEvent::End(_) | TraceEvent::Allocate(_))
}

/// Of each block, the number of events before its free that count; more than there are if the step
/// does not free it.
fn places(trace: &Trace) -> Vec<f64> {
    let mut places = vec![f64::INFINITY; trace.blocks.len()];
    let mut count = 0_u32;
    for event in &trace.events {
        if let TraceEvent::Free(block) = event {
            places[block.0 as usize] = f64::from(count);
        }
        count += u32::from(counts(&event));
    }
    let never = f64::from(count) + 1.0;
    places.into_iter().map(|place| place.min(never)).collect()
}

/// The touches in order, each as a number greater than 0.
fn touches(trace: &Trace) -> Vec<f64> {
    let mut count = 0_u64;
    let mut touches = Vec::new();
    for event in &trace.events {
        if let TraceEvent::Touch(block, mode) = event {
            let mode = MODES.iter().position(|one| one == mode).expect("all modes are listed");
            let number = (count * BLOCK_VALUES + u64::from(block.0)) * MODE_VALUES + mode as u64;
            touches.push((number + 1) as f64);
        }
        count += u64::from(counts(&event));
    }
    touches
}

/// How many events that count come before a touch, and the touch.
fn touch_of(number: f64) -> (u64, TraceEvent) {
    let number = (number as u64).saturating_sub(1);
    let mode = MODES[(number % MODE_VALUES) as usize % MODES.len()];
    let block = BlockIndex((number / MODE_VALUES % BLOCK_VALUES) as u32);
    (number / MODE_VALUES / BLOCK_VALUES, TraceEvent::Touch(block, mode))
}

/// The most that small blocks and others held at any time in the step.
fn most_segment_bytes(trace: &Trace) -> u64 {
    let later = trace.events.iter().filter_map(|event| match event {
        TraceEvent::Segments(size_bytes) => Some(*size_bytes),
        _ => None,
    });
    later.chain([trace.segment_bytes]).max().unwrap_or(0)
}

/// Keeps the events that count. Between two of them come the touches that were told, then the
/// frees, so that no block is freed before its last touch.
fn set_events(trace: &mut Trace, places: &[f64], touches: &[f64]) {
    let indexed = (0..).map(BlockIndex).zip(places);
    let mut frees: Vec<(f64, BlockIndex)> = indexed.map(|(block, &place)| (place, block)).collect();
    frees.sort_by(|one, two| one.0.total_cmp(&two.0).then(one.1.cmp(&two.1)));
    let mut frees = frees.into_iter().peekable();
    let mut touches = touches.iter().map(|&number| touch_of(number)).peekable();
    let mut events = Vec::with_capacity(trace.events.len());
    let mut catch_up = |count: u64, events: &mut Vec<TraceEvent>| {
        while let Some((_, touch)) = touches.next_if(|(place, _)| *place <= count) {
            events.push(touch);
        }
        while let Some((_, block)) = frees.next_if(|(place, _)| *place <= count as f64) {
            events.push(TraceEvent::Free(block));
        }
    };
    let mut count = 0_u64;
    for event in std::mem::take(&mut trace.events).iter().filter(counts) {
        catch_up(count, &mut events);
        count += 1;
        events.push(*event);
    }
    catch_up(count, &mut events);
    trace.events = events;
}

#[cfg(test)]
mod tests;
