//! Whether memory that is still being copied is in nobody's way.
//!
//! The simulator lets whoever uses such memory wait for the copy. This is the same question asked
//! of the step's times alone, so that it judges the simulator too.

use adaptive::{
    Action, ActionKind, CopySpan, Direction, Phase, Plan, Simulation, Trace, TraceEvent,
};

/// Less is rounding.
const EVEN_US: f64 = 1e-6;

/// Whether in some steps in a row all operators and all copies back have room beside what is still
/// being copied out.
pub(super) fn has_room(trace: &Trace, plan: &Plan, steps: &[Simulation], limit_bytes: u64) -> bool {
    let mut start_us = 0.0;
    let mut starts_us = Vec::new();
    let mut calls: Vec<Call> = Vec::new();
    for (number, step) in steps.iter().enumerate() {
        calls.extend(step.copies.iter().map(|&copy| Call::new(copy, number, step, start_us)));
        starts_us.push(start_us);
        start_us += step.step_us;
    }
    let ops: Vec<Op> = steps
        .iter()
        .enumerate()
        .flat_map(|(number, step)| {
            let start_us = starts_us[number];
            let spans = step.ops.iter().zip(bytes_of_ops(trace, step)).enumerate();
            spans.map(move |(op, (span, bytes))| Op {
                place: (number, op),
                begin_us: start_us + span.start_us,
                end_us: start_us + span.end_us,
                bytes,
            })
        })
        .collect();
    let has_room = |op: &Op, bytes: u64, begin_us: f64| {
        let at = Moment { plan, calls: &calls, place: op.place, begin_us };
        bytes + at.leaving_bytes() <= limit_bytes + at.coming_bytes()
    };
    let comes = |call: &Call| {
        // Just behind the start of the copy.
        let now_us = call.copy.span.start_us + 2.0 * EVEN_US;
        let op = ops.get(ops.partition_point(|op| op.end_us <= now_us));
        op.is_none_or(|op| has_room(op, op.bytes[usize::from(op.begin_us <= now_us)], now_us))
    };
    let mut ins = calls.iter().filter(|call| call.copy.direction == Direction::In);
    ops.iter().all(|op| has_room(op, op.bytes[1], op.begin_us)) && ins.all(comes)
}

/// An operator of some step.
struct Op {
    place: Position,
    begin_us: f64,
    end_us: f64,
    /// Resident bytes when it is about to begin, and the most while it runs.
    bytes: [u64; 2],
}

/// The bytes of each operator, those included that are yet to come.
fn bytes_of_ops(trace: &Trace, step: &Simulation) -> Vec<[u64; 2]> {
    let mut all = vec![[0; 2]; trace.ops.len()];
    let mut open = None;
    for (event, &bytes) in trace.events.iter().zip(&step.resident_bytes_by_event) {
        match *event {
            TraceEvent::Begin(op) => {
                open = Some(op.0 as usize);
                all[op.0 as usize] = [bytes; 2];
            }
            TraceEvent::End(_) => open = None,
            _ => {}
        }
        if let Some(op) = open {
            all[op][1] = bytes.max(all[op][1]);
        }
    }
    all
}

/// A step, and one of its operators.
type Position = (usize, usize);

/// A copy, and the step and the operator before which it was called.
struct Call {
    place: Position,
    copy: CopySpan,
}

impl Call {
    fn new(mut copy: CopySpan, number: usize, step: &Simulation, start_us: f64) -> Call {
        let starts = step.ops.iter().map(|span| span.start_us);
        let op = starts.filter(|&us| us < copy.called_us - EVEN_US).count();
        copy.called_us += start_us;
        copy.span.start_us += start_us;
        copy.span.end_us += start_us;
        Call { place: (number, op), copy }
    }
}

/// The begin of an operator of a step.
struct Moment<'a> {
    plan: &'a Plan,
    calls: &'a [Call],
    place: Position,
    begin_us: f64,
}

impl Moment<'_> {
    /// Bytes that are to come back and that no copy has reached.
    fn coming_bytes(&self) -> u64 {
        let comes = |call: &&Call| {
            call.copy.direction == Direction::In
                && call.place <= self.place
                && call.copy.span.start_us >= self.begin_us - EVEN_US
                && !self.has_left_again(call)
        };
        self.calls.iter().filter(comes).map(|call| call.copy.size_bytes).sum()
    }

    /// Bytes that have left and are still being copied.
    fn leaving_bytes(&self) -> u64 {
        let leaves = |&(number, call): &(usize, &Call)| {
            call.copy.direction == Direction::Out
                && call.place <= self.place
                && call.copy.span.end_us > self.begin_us + EVEN_US
                && !self.is_taken_back(number, call)
        };
        let leaving = self.calls.iter().enumerate().filter(leaves);
        leaving.map(|(_, call)| call.copy.size_bytes).sum()
    }

    /// What the plan does to a copied block, behind the call of the copy: in that step and the two
    /// after it, by place.
    fn actions_since(&self, call: &Call, kind: ActionKind) -> Vec<(Position, ActionKind)> {
        let own = self.plan.actions.iter().filter(|action| action.block == call.copy.block);
        let places = |step| own.clone().map(move |one| ((step, before(one)), one.kind));
        let mut all: Vec<(Position, ActionKind)> =
            (call.place.0..call.place.0 + 3).flat_map(places).collect();
        let called = all.iter().rposition(|&one| one == (call.place, kind));
        let until = |place: &Position| *place < call.place;
        let since = called.map_or_else(|| all.partition_point(|one| until(&one.0)), |at| at + 1);
        all.drain(..since);
        all
    }

    /// Whether a block left once more after it was called back.
    fn has_left_again(&self, call: &Call) -> bool {
        let since = self.actions_since(call, ActionKind::SwapIn);
        let mut since = since.iter().take_while(|one| one.0 <= self.place);
        since.any(|one| matches!(one.1, ActionKind::SwapOut | ActionKind::Discard))
    }

    /// Whether a block that left came back without a copy, into its own memory. It did if it was
    /// asked for, and has to leave again before it comes by a copy.
    fn is_taken_back(&self, number: usize, out: &Call) -> bool {
        let mut later = self.calls[number + 1..].iter();
        let next = later.find(|call| call.copy.block == out.copy.block).map(|call| call.place);
        let since = self.actions_since(out, ActionKind::SwapOut);
        let (before, after) = since.split_at(since.partition_point(|one| one.0 <= self.place));
        let is_asked = before.last().is_some_and(|one| one.1 == ActionKind::SwapIn);
        let mut after = after.iter().take_while(|one| next.is_some_and(|by| one.0 <= by));
        let leaves = after.any(|one| one.1 == ActionKind::SwapOut);
        is_asked && next.is_none_or(|by| by > self.place && leaves)
    }
}

/// The operator before which an action takes place.
fn before(action: &Action) -> usize {
    action.op.0 as usize + usize::from(action.phase == Phase::End)
}
