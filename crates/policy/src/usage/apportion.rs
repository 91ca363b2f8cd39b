//! Times of nested ops: only outermost ops are measured, so what they call shares their time.

use swap_core::{BlockIndex, Trace, TraceEvent};

/// The time of each op in microseconds. Ops that an op calls share its time by the bytes that they
/// touch; those that write nothing, such as views, take none. An op that calls others does nothing
/// else, so that what it calls is rather counted too long than too short.
pub(crate) fn op_times(trace: &Trace) -> Vec<f64> {
    let mut bytes = own_bytes(trace);
    let callers = callers(trace);
    let mut called_bytes = vec![0_u64; trace.ops.len()];
    for (op, caller) in callers.iter().enumerate().rev() {
        if called_bytes[op] > 0 {
            bytes[op] = called_bytes[op];
        }
        if let Some(caller) = *caller {
            called_bytes[caller] += bytes[op];
        }
    }
    let mut times_us: Vec<f64> = trace.ops.iter().map(|op| op.device_us).collect();
    for (op, caller) in callers.iter().enumerate() {
        if let Some(caller) = *caller {
            let share = bytes[op] as f64 / called_bytes[caller].max(1) as f64;
            times_us[op] = times_us[caller] * share;
        }
    }
    times_us
}

/// The bytes of the blocks that each op touches itself, each once; none if it writes none.
fn own_bytes(trace: &Trace) -> Vec<u64> {
    let mut bytes = vec![0; trace.ops.len()];
    let mut open: Vec<(bool, Vec<BlockIndex>)> = Vec::new();
    for event in &trace.events {
        match *event {
            TraceEvent::Begin(_) => open.push((false, Vec::new())),
            TraceEvent::Touch(block, mode) => {
                let (writes, blocks) = open.last_mut().expect("touches are inside ops");
                *writes |= mode.writes();
                blocks.push(block);
            }
            TraceEvent::End(op) => {
                let (writes, mut blocks) = open.pop().expect("ops nest in a well-formed trace");
                blocks.sort_unstable();
                blocks.dedup();
                let size = |block: &BlockIndex| trace.blocks[block.0 as usize].size_bytes;
                let sum = blocks.iter().map(size).fold(0, u64::saturating_add);
                bytes[op.0 as usize] = if writes { sum } else { 0 };
            }
            _ => {}
        }
    }
    bytes
}

/// The op that calls each op; `None` for the outermost.
pub(crate) fn callers(trace: &Trace) -> Vec<Option<usize>> {
    let mut open: Vec<usize> = Vec::new();
    let mut callers = Vec::with_capacity(trace.ops.len());
    for (index, op) in trace.ops.iter().enumerate() {
        open.truncate(op.depth as usize);
        callers.push(open.last().copied());
        open.push(index);
    }
    callers
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic::TraceBuilder;

    #[test]
    fn called_ops_share_the_time_by_bytes_and_views_take_none() {
        let mut builder = TraceBuilder::new();
        let small = builder.persistent("small", 100);
        let large = builder.persistent("large", 300);
        builder.begin("backward", 40.0, false);
        builder.begin("view", 0.0, false);
        builder.read(large);
        builder.end();
        for block in [small, large] {
            builder.begin("wrapper", 0.0, false);
            builder.begin("kernel", 0.0, true);
            builder.read(block);
            builder.update(block);
            builder.end();
            builder.end();
        }
        builder.end();
        builder.begin("alone", 7.0, false);
        builder.end();
        let trace = builder.finish();
        assert_eq!(op_times(&trace), [40.0, 0.0, 10.0, 10.0, 30.0, 30.0, 7.0]);
    }
}
