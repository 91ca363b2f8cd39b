//! Promise: the predicted lanes are the simulated step, and what is said of where a measured one
//! parts from it adds up to the difference.
//!
//! The judges are the simulator's own sums, and steps that were changed by hand.

use policy::synthetic::{Numbers, RandomShape, TransformerShape, random_trace, transformer_trace};
use policy::{
    BlockIndex, FileError, GenerateConfig, Lanes, Link, Machine, Part, Plan, Trace, compare_lanes,
    generate, load_lanes, predicted_lanes, save_lanes, simulate,
};

fn machine(limit_bytes: u64) -> Machine {
    let link =
        Link { out_bytes_per_us: 9_000.0, in_bytes_per_us: 8_000.0, both_bytes_per_us: 6_000.0 };
    Machine { limit_bytes, host_limit_bytes: 1 << 40, link, copy_submit_us: 3.0 }
}

/// Random steps and a transformer, each with the lanes under a plan for half of its memory.
fn steps() -> Vec<(Trace, Lanes, policy::Simulation)> {
    let shape = TransformerShape { layers: 4, weight_mib: 1, activation_mib: 2, forward_us: 500.0 };
    let random = (0..60).map(|seed| random_trace(seed, &RandomShape::small()));
    let traces = random.chain([transformer_trace(&shape)]);
    let planned = traces.filter_map(|trace| {
        let peak_bytes = simulate(&trace, &Plan::default(), &machine(1 << 40)).held_bytes_peak;
        let machine = machine(peak_bytes * 6 / 10);
        let made = generate(&trace, &machine, &GenerateConfig::default(), &[]);
        made.infeasible.is_none().then_some(())?;
        let simulation = simulate(&trace, &made.plan, &machine);
        let lanes = predicted_lanes(&trace, &simulation);
        Some((trace, lanes, simulation))
    });
    planned.collect()
}

fn close(one: f64, other: f64) -> bool {
    (one - other).abs() <= 1e-6 * one.abs().max(other.abs()).max(1.0)
}

#[test]
fn predicted_lanes_add_up_to_the_simulated_step() {
    let (mut waited, mut copied) = (0, 0);
    for (_, lanes, simulation) in steps() {
        let shares = compare_lanes(&lanes, &lanes).predicted;
        assert!(close(shares.total_us(), simulation.step_us), "{shares:?}");
        assert!(close(shares.waits_us, simulation.stall_us), "{shares:?} {}", simulation.stall_us);
        assert!(close(shares.replays_us, simulation.recomputed_us), "{shares:?}");
        waited += u32::from(shares.waits_us > 0.0);
        copied += lanes.copies.len();
        // What is waited for ends when the wait does.
        for wait in &lanes.waits {
            if let Some(copy) = wait.copy {
                assert!(close(lanes.copies[copy].end_us, wait.end_us));
            }
        }
        assert_eq!(compare_lanes(&lanes, &lanes).departures, []);
    }
    assert!(waited >= 10 && copied >= 100, "{waited} waited, {copied} copies");
}

/// All that begins at `from_us` or later comes `by_us` later.
fn put_off(lanes: &mut Lanes, from_us: f64, by_us: f64) {
    let later = |start_us: &mut f64, end_us: &mut f64| {
        if *start_us >= from_us {
            *start_us += by_us;
            *end_us += by_us;
        }
    };
    lanes.ops.iter_mut().for_each(|op| later(&mut op.start_us, &mut op.end_us));
    lanes.replays.iter_mut().for_each(|one| later(&mut one.start_us, &mut one.end_us));
    lanes.copies.iter_mut().for_each(|copy| later(&mut copy.start_us, &mut copy.end_us));
    lanes.waits.iter_mut().for_each(|wait| later(&mut wait.start_us, &mut wait.end_us));
    lanes.step_us += by_us;
}

#[test]
fn a_step_that_was_changed_parts_from_its_prediction_there() {
    let mut numbers = Numbers::new(3);
    let mut changed = [0; 3];
    for (_, predicted, _) in steps() {
        let at = numbers.below(predicted.ops.len() as u64) as usize;
        let op = predicted.ops[at];
        let more_us = 100.0 + numbers.below(1000) as f64;
        // The op takes longer, or nothing is computed before it, or its wait takes longer.
        for part in [Part::Op, Part::Idle, Part::Wait] {
            let mut measured = predicted.clone();
            let wait = predicted.waits.iter().position(|wait| wait.op == op.op);
            let is_alone = predicted.replays.is_empty();
            match (part, wait) {
                (Part::Op, _) => {
                    put_off(&mut measured, op.end_us.max(op.start_us + 1e-9), more_us);
                    measured.ops[at].end_us = op.end_us + more_us;
                }
                (Part::Idle, None) if is_alone => put_off(&mut measured, op.start_us, more_us),
                (Part::Wait, Some(wait)) if is_alone => {
                    put_off(&mut measured, op.start_us, more_us);
                    measured.waits[wait].end_us += more_us;
                }
                _ => continue,
            }
            let comparison = compare_lanes(&predicted, &measured);
            let widest = comparison.departures[0];
            assert_eq!((widest.op, widest.part), (op.op, part), "{comparison:?}");
            assert!(close(widest.measured_us - widest.predicted_us, more_us), "{widest:?}");
            assert!(close(comparison.measured.total_us(), measured.step_us));
            changed[part as usize] += 1;
        }
    }
    assert!(changed.iter().all(|&count| count >= 5), "{changed:?}");
}

/// A training may leave other blocks from step to step, and copies of them come first.
#[test]
fn copies_name_no_block_that_the_recorded_step_does_not_have() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("lanes.json");
    let mut changed = 0;
    for (trace, lanes, _) in steps() {
        assert_eq!(lanes.clone().named_by(&trace), lanes);
        let Some(first) = lanes.copies.first() else { continue };
        let unknown = BlockIndex(trace.blocks.len() as u32);
        for (block, size_bytes) in
            [(first.block, first.size_bytes + 512), (Some(unknown), first.size_bytes)]
        {
            let mut strange = lanes.clone();
            (strange.copies[0].block, strange.copies[0].size_bytes) = (block, size_bytes);
            let named = strange.named_by(&trace);
            assert_eq!(named.copies[0].block, None);
            assert_eq!(named.copies[1..], lanes.copies[1..]);
            save_lanes(&path, &named, &lanes).expect("saved");
            assert_eq!(load_lanes(&path, &trace).expect("of the step"), named);
            changed += 1;
        }
    }
    assert!(changed >= 10, "{changed}");
}

#[test]
fn a_file_of_lanes_gives_them_back_and_is_of_its_step_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("lanes.json");
    let mut steps = steps();
    let (other, ..) = steps.pop().expect("the transformer");
    let mut refused = 0;
    for (trace, mut lanes, _) in steps {
        for op in &mut lanes.ops {
            op.host_us = Some((op.start_us / 3.0, op.end_us / 3.0));
        }
        save_lanes(&path, &lanes, &lanes).expect("saved");
        assert_eq!(load_lanes(&path, &trace).expect("its own"), lanes);
        match load_lanes(&path, &other) {
            Err(FileError::OtherStep { .. }) => refused += 1,
            answer => assert!(answer.is_ok(), "{answer:?}"),
        }
        let text = std::fs::read_to_string(&path).expect("text");
        std::fs::write(&path, &text[..text.len() / 2]).expect("cut short");
        let cut = load_lanes(&path, &trace);
        assert!(matches!(cut, Err(FileError::Truncated { .. })), "{cut:?}");
        let strange = text.replacen("\"step_us\":", "\"step_us\":-", 1);
        std::fs::write(&path, strange).expect("written");
        let backwards = load_lanes(&path, &trace);
        assert!(matches!(backwards, Err(FileError::OtherStep { .. })), "{backwards:?}");
    }
    assert!(refused >= 10, "{refused}");
}
