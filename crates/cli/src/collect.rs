//! Turns finished training runs into the plain record that all reports are drawn from.

use adaptive::devices::{DeviceSpan, SpanKind};
use adaptive::{
    ActionKind, BlockIndex, Decision as Planned, Direction, Machine, OpIndex, OptimizerState, Plan,
    Simulation, Stage, Trace, TraceBlock, TraceEvent, Treatment, simulate,
};

use crate::gpt::call::REPLAY;
use crate::planner::is_moment;
use crate::report::run::{
    Away, Decision, LaneSpan, MemoryCurves, Mode, Step, WorkKind, spread_over_ops,
};
use crate::training::{Outcome, Progress, Timeline};

/// The mode of the reports for a stage of the loop.
pub(crate) fn mode(stage: Stage) -> Mode {
    match stage {
        Stage::WarmUp => Mode::WarmUp,
        Stage::SearchPolicy => Mode::SearchPolicy,
        Stage::Stable => Mode::Stable,
    }
}

/// Every step, in order.
pub(crate) fn steps(outcome: &Outcome) -> Vec<Step> {
    let step = |(number, (progress, finished)): (u64, &(Progress, adaptive::FinishedStep))| {
        let counters = &finished.report.counters;
        Step {
            step: number,
            mode: mode(finished.stage),
            loss: progress.loss,
            device_us: finished.report.device_us,
            step_us: progress.step_us,
            held_bytes_peak: finished.report.held_bytes_peak,
            swapped_out_bytes: counters.swapped_out_bytes,
            swapped_in_bytes: counters.swapped_in_bytes,
            recomputed_ops: counters.recomputed_ops,
            stall_us: counters.stall_us,
            misses: counters.misses,
            rescues: counters.rescues,
        }
    };
    (0..).zip(&outcome.steps).map(step).collect()
}

/// What the streams did in the recorded step.
pub(crate) fn spans(timeline: &Timeline) -> Vec<LaneSpan> {
    let mut replays = timeline.replays.iter();
    let moved = |direction| timeline.moves.iter().filter(move |m| m.direction == direction);
    let (mut out, mut back) = (moved(Direction::Out), moved(Direction::In));
    let name_of = |text: &str| if text.is_empty() { "unnamed" } else { text }.to_owned();
    let span = |span: &DeviceSpan| {
        let (kind, name) = match span.kind {
            SpanKind::Compute if span.name == REPLAY.text() => {
                (WorkKind::Replay, name_of(replays.next().copied().unwrap_or_default()))
            }
            SpanKind::Compute => (WorkKind::Op, name_of(span.name)),
            // Copies run in the order in which they were issued, each way.
            SpanKind::CopyOut => (WorkKind::SwapOut, name_of(out.next().map_or("", |m| &m.name))),
            SpanKind::CopyIn => (WorkKind::SwapIn, name_of(back.next().map_or("", |m| &m.name))),
            // The engine does not use these.
            SpanKind::CopyWithin | SpanKind::Fill => return None,
        };
        let is_copy = matches!(kind, WorkKind::SwapOut | WorkKind::SwapIn);
        Some(LaneSpan {
            kind,
            name,
            start_us: span.start_us - timeline.start_us,
            end_us: span.end_us - timeline.start_us,
            size_bytes: if is_copy { span.size_bytes } else { 0 },
        })
    };
    timeline.spans.iter().filter_map(span).collect()
}

/// Memory over the last step: on the time axis of `spans` if there are any, else on that of the
/// simulation.
pub(crate) fn memory(
    trace: &Trace,
    plan: Option<&Plan>,
    machine: &Machine,
    spans: &[LaneSpan],
) -> MemoryCurves {
    let simulation = simulate(trace, plan.unwrap_or(&Plan::default()), machine);
    let (op_start_us, step_us) = op_starts(trace, &simulation, spans);
    let ops = ops_of_events(trace);
    let planned: Vec<(u32, u64)> =
        ops.iter().copied().zip(simulation.resident_bytes_by_event.iter().copied()).collect();
    let uncapped: Vec<(u32, u64)> = ops.iter().copied().zip(uncapped_bytes(trace)).collect();
    MemoryCurves {
        uncapped: spread_over_ops(&uncapped, &op_start_us, step_us),
        planned: spread_over_ops(&planned, &op_start_us, step_us),
    }
}

/// When each op began, and how long the step took.
fn op_starts(trace: &Trace, simulation: &Simulation, spans: &[LaneSpan]) -> (Vec<f64>, f64) {
    let ran: Vec<&LaneSpan> = spans.iter().filter(|span| span.kind == WorkKind::Op).collect();
    if ran.len() == trace.ops.len() {
        let end_us = ran.iter().map(|span| span.end_us).fold(0.0, f64::max);
        return (ran.iter().map(|span| span.start_us).collect(), end_us);
    }
    (simulation.ops.iter().map(|span| span.start_us).collect(), simulation.step_us)
}

/// The op in which each event happened: the last one that had begun.
fn ops_of_events(trace: &Trace) -> Vec<u32> {
    let mut op = 0;
    let of_event = |event: &TraceEvent| {
        if let TraceEvent::Begin(begun) = event {
            op = begun.0;
        }
        op
    };
    trace.events.iter().map(of_event).collect()
}

/// Bytes of live blocks and segments after each event, if nothing ever leaves.
fn uncapped_bytes(trace: &Trace) -> impl Iterator<Item = u64> + '_ {
    let persistent = trace.blocks.iter().filter(|b| b.origin == adaptive::Origin::Persistent);
    let mut live_bytes: u64 = persistent.map(|block| block.size_bytes).sum();
    let mut segment_bytes = trace.segment_bytes;
    trace.events.iter().map(move |event| {
        match *event {
            TraceEvent::Allocate(block) => live_bytes += trace.blocks[block.0 as usize].size_bytes,
            TraceEvent::Free(block) => live_bytes -= trace.blocks[block.0 as usize].size_bytes,
            TraceEvent::Segments(bytes) => segment_bytes = bytes,
            TraceEvent::Begin(_) | TraceEvent::End(_) | TraceEvent::Touch(..) => {}
        }
        live_bytes + segment_bytes
    })
}

/// What became of each block, largest first.
pub(crate) fn decisions(
    outcome: &Outcome,
    trace: &Trace,
    fits: bool,
    optimizer_state: OptimizerState,
) -> Vec<Decision> {
    let mut decisions: Vec<Decision> = match (&outcome.about, &outcome.plan) {
        (Some(about), _) => {
            let stays = optimizer_state == OptimizerState::Device;
            about.decisions.iter().map(|planned| decision(planned, trace, stays)).collect()
        }
        (None, Some(plan)) => adopted(plan, trace),
        (None, None) => unplanned(trace, fits),
    };
    decisions.sort_by_key(|decision| std::cmp::Reverse(decision.size_bytes));
    decisions
}

fn decision(planned: &Planned, trace: &Trace, moments_stay: bool) -> Decision {
    let op = |index| op_label(trace, index);
    let away = (planned.treatment != Treatment::Keep).then(|| Away {
        from_op: planned.leaves_after.map_or_else(|| "the step's start".to_owned(), op),
        until_op: planned.returns_before.map_or_else(|| "the step's end".to_owned(), op),
    });
    let reason = if moments_stay && is_moment(&planned.name) {
        "optimizer state stays on the device, as asked for".to_owned()
    } else {
        planned.reason.to_string()
    };
    Decision {
        block: label(&planned.name),
        size_bytes: planned.size_bytes,
        treatment: planned.treatment,
        away,
        reason,
        added_us: planned.added_us,
    }
}

/// Ops of one name are many: the number tells them apart.
fn op_label(trace: &Trace, index: OpIndex) -> String {
    let name = trace.ops.get(index.0 as usize).map_or("op", |op| &op.name);
    format!("{name} #{}", index.0)
}

fn label(name: &str) -> String {
    if name.is_empty() { "unnamed" } else { name }.to_owned()
}

/// The decisions of a plan from a file, of which only the actions are known.
pub(crate) fn adopted(plan: &Plan, trace: &Trace) -> Vec<Decision> {
    let mut decisions = Vec::new();
    for (index, block) in (0..).zip(&trace.blocks) {
        let block_index = BlockIndex(index);
        let mut own = plan.actions.iter().filter(|action| action.block == block_index).peekable();
        let mut keeps = true;
        while let Some(action) = own.next() {
            let treatment = match action.kind {
                ActionKind::SwapOut => Treatment::Swap,
                ActionKind::Discard => Treatment::Recompute,
                ActionKind::SwapIn | ActionKind::Replay => continue,
            };
            keeps = false;
            let until_op = own.peek().map(|back| op_label(trace, back.due));
            decisions.push(Decision {
                block: label(&block.name),
                size_bytes: block.size_bytes,
                treatment,
                away: Some(Away {
                    from_op: op_label(trace, action.op),
                    until_op: until_op.unwrap_or_else(|| "the step's end".to_owned()),
                }),
                reason: "as the plan file says".to_owned(),
                added_us: 0.0,
            });
        }
        if keeps {
            decisions.push(kept(block, "not in the plan file"));
        }
    }
    decisions
}

/// The decisions of a step without a plan.
pub(crate) fn unplanned(trace: &Trace, fits: bool) -> Vec<Decision> {
    let reason = if fits { "everything fits" } else { "no plan: it leaves only to make room" };
    trace.blocks.iter().map(|block| kept(block, reason)).collect()
}

fn kept(block: &TraceBlock, reason: &str) -> Decision {
    Decision {
        block: label(&block.name),
        size_bytes: block.size_bytes,
        treatment: Treatment::Keep,
        away: None,
        reason: reason.to_owned(),
        added_us: 0.0,
    }
}
