//! Promise: what is measured of a step is what the device did, when the device did it; and a step
//! that is measured does the same as one that is not.
//!
//! The judge is the device's own log of what ran when.

use swap_core::devices::{DeviceSpan, HostConfig, SpanKind};
use swap_core::{Direction, LaneCopy, LaneOp, Lanes, OpIndex, StepReport};

use super::lab::{BLOCK, ENOUGH, Lab, read, write};

/// Four blocks where two fit, so that each op waits for a copy.
fn crowded(device: HostConfig) -> (Lab, Vec<(swap_core::BlockId, u64)>) {
    let mut lab = Lab::with(2 * BLOCK, ENOUGH, device);
    let blocks: Vec<_> = (1..=4).map(|tag| (lab.make(tag), tag)).collect();
    end_step(&mut lab);
    step(&mut lab, &blocks, 0.0);
    (lab, blocks)
}

/// One pass that reads the blocks, and one that writes them. The host is `late_us` late before the
/// third op.
fn step(lab: &mut Lab, blocks: &[(swap_core::BlockId, u64)], late_us: f64) -> StepReport {
    for (number, &(block, tag)) in blocks.iter().chain(blocks).enumerate() {
        if number == 2 && late_us > 0.0 {
            lab.complete_all();
            lab.host.advance(late_us).expect("a virtual clock");
        }
        let operand = if number < blocks.len() { read(block, tag) } else { write(block, tag) };
        lab.op(&[operand]).expect("it fits");
    }
    end_step(lab)
}

fn end_step(lab: &mut Lab) -> StepReport {
    let mut reports = lab.engine.end_step().expect("ends");
    reports.extend(lab.engine.drain_reports().expect("reports"));
    reports.pop().expect("the step is over")
}

/// A measured step: what was measured, what the device says, and when the step began.
fn measured(
    lab: &mut Lab,
    blocks: &[(swap_core::BlockId, u64)],
    late_us: f64,
) -> (Lanes, Vec<DeviceSpan>, f64, StepReport) {
    lab.complete_all();
    assert!(lab.engine.measure_lanes().expect("works"));
    lab.host.start_timeline();
    let began_us = lab.host.now_us();
    let report = step(lab, blocks, late_us);
    let spans = lab.host.take_timeline();
    let lanes = report.lanes.clone().expect("it was asked for");
    assert_eq!(lanes.step_us, report.device_us);
    (lanes, spans, began_us, report)
}

fn of_kind(spans: &[DeviceSpan], kind: SpanKind) -> Vec<DeviceSpan> {
    spans.iter().filter(|span| span.kind == kind).copied().collect()
}

fn going(lanes: &Lanes, direction: Direction) -> Vec<LaneCopy> {
    lanes.copies.iter().filter(|copy| copy.direction == direction).copied().collect()
}

#[test]
fn lanes_are_what_the_device_did_to_the_microsecond() {
    let (mut lab, blocks) = crowded(HostConfig::by_time(4 * BLOCK));
    let (lanes, spans, began_us, report) = measured(&mut lab, &blocks, 0.0);
    let close = |one: f64, other: f64| (one - other).abs() < 1e-6;
    for (direction, kind) in
        [(Direction::Out, SpanKind::CopyOut), (Direction::In, SpanKind::CopyIn)]
    {
        let (copies, spans) = (going(&lanes, direction), of_kind(&spans, kind));
        assert_eq!(copies.len(), spans.len());
        assert!(copies.len() >= 4, "{copies:?}");
        for (copy, span) in copies.iter().zip(&spans) {
            assert_eq!(copy.size_bytes, span.size_bytes);
            assert!(close(copy.start_us, span.start_us - began_us), "{copy:?} {span:?}");
            assert!(close(copy.end_us, span.end_us - began_us), "{copy:?} {span:?}");
            assert!(copy.block.is_some_and(|block| block.0 < 4), "{copy:?}");
        }
    }
    let kernels = of_kind(&spans, SpanKind::Compute);
    assert_eq!((lanes.ops.len(), kernels.len()), (8, 8));
    for ((number, op), kernel) in (0..).zip(&lanes.ops).zip(&kernels) {
        assert_eq!(op.op, OpIndex(number));
        assert!(close(op.start_us, kernel.start_us - began_us), "{op:?} {kernel:?}");
        assert!(close(op.end_us, kernel.end_us - began_us), "{op:?} {kernel:?}");
    }
    // Each wait ends with the copy that it names.
    assert!(lanes.waits.len() >= 6, "{:?}", lanes.waits);
    for wait in &lanes.waits {
        let copy = lanes.copies[wait.copy.expect("a copy of this step")];
        assert!(close(wait.end_us, copy.end_us), "{wait:?} {copy:?}");
        assert!(close(lanes.ops[wait.op.0 as usize].start_us, wait.end_us), "{wait:?}");
    }
    let waited_us: f64 = lanes.waits.iter().map(|wait| wait.end_us - wait.start_us).sum();
    assert!(close(waited_us, report.counters.stall_us) && waited_us > 0.0, "{waited_us}");
    lab.finish();
}

#[test]
fn on_threads_what_ran_lies_inside_of_what_was_measured() {
    let (mut lab, blocks) = crowded(HostConfig::threads(4 * BLOCK));
    let (lanes, spans, _, _) = measured(&mut lab, &blocks, 0.0);
    // The step's start is not known, but the same for all: measured minus true is at most that
    // before a piece of work, and at least that behind it. Copies begin there by the model of the
    // link, which may be before their thread woke up.
    let (mut before, mut behind) = (Vec::new(), Vec::new());
    for (direction, kind) in
        [(Direction::Out, SpanKind::CopyOut), (Direction::In, SpanKind::CopyIn)]
    {
        let (copies, spans) = (going(&lanes, direction), of_kind(&spans, kind));
        assert_eq!(copies.len(), spans.len());
        behind.extend(copies.iter().zip(&spans).map(|(copy, span)| copy.end_us - span.end_us));
    }
    let kernels = of_kind(&spans, SpanKind::Compute);
    assert_eq!(lanes.ops.len(), kernels.len());
    for (op, kernel) in lanes.ops.iter().zip(&kernels) {
        before.push(op.start_us - kernel.start_us);
        behind.push(op.end_us - kernel.end_us);
    }
    assert!(before.len() >= 8 && behind.len() >= 16, "{before:?}");
    let latest = before.iter().copied().fold(f64::MIN, f64::max);
    let earliest = behind.iter().copied().fold(f64::MAX, f64::min);
    assert!(latest <= earliest + 1e-6, "{before:?} {behind:?}");
    let starts = |ops: &[LaneOp]| ops.is_sorted_by(|one, other| one.end_us <= other.start_us);
    assert!(starts(&lanes.ops), "{:?}", lanes.ops);
    lab.finish();
}

#[test]
fn the_host_is_never_behind_the_device_and_its_lateness_is_seen() {
    let (mut lab, blocks) = crowded(HostConfig::by_time(4 * BLOCK));
    let (lanes, ..) = measured(&mut lab, &blocks, 5000.0);
    let host_us: Vec<(f64, f64)> =
        lanes.ops.iter().map(|op| op.host_us.expect("measured")).collect();
    assert!(host_us.is_sorted_by(|one, other| one.0 <= one.1 && one.1 <= other.0), "{host_us:?}");
    for (op, host) in lanes.ops.iter().zip(&host_us) {
        assert!(host.0 <= op.start_us, "{op:?}");
    }
    // On this device host and device have the same clock, so the truth is known.
    assert!(host_us[1].1 < 1e-6 && host_us[2].0 >= 5000.0, "{host_us:?}");
    assert!(lanes.ops[2].start_us - lanes.ops[1].end_us >= 5000.0, "{:?}", lanes.ops);
    lab.finish();
}

#[test]
fn a_measured_step_moves_what_others_move_and_the_next_is_not_measured() {
    let (mut lab, blocks) = crowded(HostConfig::by_time(4 * BLOCK));
    lab.engine.log_moves(true).expect("works");
    let plain = step(&mut lab, &blocks, 0.0);
    let (_, _, _, report) = measured(&mut lab, &blocks, 0.0);
    let next = step(&mut lab, &blocks, 0.0);
    assert_eq!((&plain.lanes, &next.lanes), (&None, &None));
    assert!(plain.moves.len() >= 8);
    assert_eq!((&plain.moves, &plain.counters.misses), (&report.moves, &report.counters.misses));
    assert_eq!(plain.moves, next.moves);
    assert!((plain.device_us - report.device_us).abs() < 1e-6);
    // In the middle of a step, or while it is recorded, it is too late.
    lab.op(&[read(blocks[0].0, 1)]).expect("fits");
    assert!(!lab.engine.measure_lanes().expect("works"));
    lab.end_step();
    lab.engine.set_orders(true, None).expect("between steps");
    assert!(!lab.engine.measure_lanes().expect("works"));
    lab.finish();
}

#[test]
fn replays_are_measured_as_such() {
    let mut lab = Lab::new(4 * BLOCK);
    let source = lab.make(1);
    let derived = lab.derive(&[read(source, 1)], 2);
    lab.discard(derived);
    lab.complete_all();
    assert!(lab.engine.measure_lanes().expect("works"));
    lab.host.start_timeline();
    let began_us = lab.host.now_us();
    lab.op(&[read(derived, 2)]).expect("it is made again");
    lab.complete_all();
    let kernels = of_kind(&lab.host.take_timeline(), SpanKind::Compute);
    let lanes = end_step(&mut lab).lanes.expect("measured");
    assert_eq!((lanes.replays.len(), lanes.ops.len(), kernels.len()), (1, 1, 2));
    let replay = &lanes.replays[0];
    assert_eq!(replay.name, "op");
    assert!((replay.start_us - (kernels[0].start_us - began_us)).abs() < 1e-6, "{replay:?}");
    assert!((replay.end_us - (kernels[0].end_us - began_us)).abs() < 1e-6, "{replay:?}");
    assert!((lanes.ops[0].start_us - replay.end_us).abs() < 1e-6, "{lanes:?}");
    lab.finish();
}

#[test]
fn a_recorded_step_tells_the_hosts_own_time() {
    let (mut lab, blocks) = crowded(HostConfig::by_time(4 * BLOCK));
    lab.engine.set_orders(true, None).expect("between steps");
    let trace = step(&mut lab, &blocks, 5000.0).trace.expect("recorded");
    let host_us: Vec<f64> = trace.ops.iter().map(|op| op.host_us).collect();
    assert_eq!(host_us.len(), 8);
    // The host also looked on while the device did what came before.
    assert!((5000.0..5100.0).contains(&host_us[1]), "{host_us:?}");
    // All else is the engine's, and the engine waited for copies.
    let others = host_us.iter().enumerate().filter(|&(op, _)| op != 1);
    assert!(others.into_iter().all(|(_, us)| *us < 1.0), "{host_us:?}");
    assert!(trace.step_us >= host_us[1], "{}", trace.step_us);
    lab.finish();
}
