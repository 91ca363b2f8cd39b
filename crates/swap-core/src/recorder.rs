//! Records a step: its events, and the device time of its outermost ops.

use std::collections::BTreeMap;

use vmem::{BlockId, EventHandle, Stall};

use host::{DeviceSpan, HostRecord};

use crate::trace::{
    BlockIndex, HostCosts, OpIndex, Origin, Signature, Trace, TraceBlock, TraceEvent, TraceOp,
};

mod host;
mod order;

/// A step being recorded.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    pub(crate) trace: Trace,
    timings: Vec<Timing>,
    stalls: Vec<(OpIndex, Stall)>,
    /// By block that lived at the start: the step in which it was made.
    births: Vec<u64>,
    /// By small block: ops that read it as it is and can run again.
    readers: BTreeMap<BlockId, Vec<OpIndex>>,
    pub(crate) host: HostRecord,
    /// When the host ended the step, by its clock.
    pub(crate) host_end_us: f64,
}

/// Two timing events around an outermost op.
#[derive(Debug)]
pub(crate) struct Timing {
    pub(crate) op: OpIndex,
    pub(crate) start: EventHandle,
    pub(crate) end: EventHandle,
}

impl Recorder {
    pub(crate) fn event(&mut self, event: TraceEvent) {
        self.trace.events.push(event);
    }

    pub(crate) fn op(&mut self, name: &str, depth: usize) {
        self.trace.ops.push(TraceOp {
            name: name.to_owned(),
            depth: u32::try_from(depth).expect("ops nest a few levels"),
            ..TraceOp::default()
        });
    }

    /// A block that lives at the start, made in the step of this number.
    pub(crate) fn persistent(&mut self, size_bytes: u64, name: &str, held: bool, born_in: u64) {
        self.births.push(born_in);
        let (origin, name) = (Origin::Persistent, name.to_owned());
        self.trace.blocks.push(TraceBlock { size_bytes, origin, name, held, nth: 0 });
    }

    pub(crate) fn block(&mut self, size_bytes: u64, origin: Origin, name: &str, nth: u32) {
        let name = name.to_owned();
        self.trace.blocks.push(TraceBlock { size_bytes, origin, name, held: false, nth });
    }

    pub(crate) fn set_held(&mut self, place: BlockIndex, held: bool) {
        if let Some(block) = self.trace.blocks.get_mut(place.0 as usize) {
            block.held = held;
        }
    }

    /// An op that reads these small blocks can run again.
    pub(crate) fn replayable(
        &mut self,
        op: OpIndex,
        at_any_size: bool,
        small: impl Iterator<Item = BlockId>,
    ) {
        let record = &mut self.trace.ops[op.0 as usize];
        (record.replayable, record.at_any_size) = (true, at_any_size);
        for input in small {
            self.readers.entry(input).or_default().push(op);
        }
    }

    /// A block is about to change.
    pub(crate) fn changes(&mut self, block: BlockId) {
        let Some(readers) = self.readers.remove(&block) else { return };
        let last = self.trace.ops.len().checked_sub(1).expect("its readers have begun");
        for op in readers {
            let outdated_by = &mut self.trace.ops[op.0 as usize].outdated_by;
            outdated_by.get_or_insert(OpIndex(last as u32));
        }
    }

    pub(crate) fn timing(&mut self, timing: Timing) {
        self.timings.push(timing);
    }

    /// Waits inside an op, which are not part of its own time.
    pub(crate) fn stalls(&mut self, op: OpIndex, stalls: &[Stall]) {
        self.stalls.extend(stalls.iter().map(|&stall| (op, stall)));
    }

    /// The trace, with times asked of `elapsed_us`.
    pub(crate) fn trace<E>(
        &self,
        signature: Signature,
        step_us: f64,
        host_costs: HostCosts,
        elapsed_us: impl Fn(EventHandle, EventHandle) -> Result<f64, E>,
    ) -> Result<Trace, E> {
        let mut trace = self.trace.clone();
        order::put_what_stays_first(&mut trace, &self.births);
        let mut device = Vec::with_capacity(self.timings.len());
        for &Timing { op, start, end } in &self.timings {
            let device_us = elapsed_us(start, end)?;
            let start_us = elapsed_us(self.timings[0].start, start)?;
            device.push(DeviceSpan { op, start_us, end_us: start_us + device_us });
            trace.ops[op.0 as usize].device_us = device_us;
        }
        self.host.fill_in(self.host_end_us, &device, &mut trace.ops);
        for (op, stall) in &self.stalls {
            let op = &mut trace.ops[op.0 as usize];
            op.device_us = (op.device_us - elapsed_us(stall.start, stall.end)?).max(0.0);
        }
        trace.signature = signature;
        trace.step_us = step_us;
        trace.host_costs = host_costs;
        Ok(trace)
    }

    /// The timers around ops. Those of stalls belong to the step.
    pub(crate) fn into_timers(self) -> Vec<EventHandle> {
        self.timings.into_iter().flat_map(|timing| [timing.start, timing.end]).collect()
    }
}
