//! Promises of the one planner: the loop is offered what `plan` shows for the same step, the faster
//! of both where nobody says what may leave, and the time that planning takes is bounded.

use adaptive::{
    Feedback, Generated, JointConfig, JointPlanner, Link, Machine, Movable, Planner, Prefer,
    Strategy, Trace, simulate,
};
use policy::synthetic::{
    LargeShape, RandomShape, TransformerShape, large_trace, random_trace, transformer_trace,
};
use policy::{ActionKind, GenerateConfig, Layout, Origin, Plan, lay_out};

fn machine(trace: &Trace, percent: u64) -> Machine {
    let rate = 20_000.0;
    let link =
        Link { out_bytes_per_us: rate, in_bytes_per_us: rate, both_bytes_per_us: 0.8 * rate };
    let endless = u64::MAX / 8;
    let machine =
        Machine { limit_bytes: endless, host_limit_bytes: endless, link, copy_submit_us: 2.0 };
    let peak_bytes = simulate(trace, &Plan::default(), &machine).resident_bytes_peak;
    machine.with_limit(peak_bytes * percent / 100)
}

fn config(strategy: Strategy, prefer: Option<Prefer>) -> JointConfig {
    let generate = GenerateConfig { min_block_bytes: 1, ..GenerateConfig::default() };
    JointConfig { strategy, prefer, generate, ..JointConfig::default() }
}

/// What the loop is offered at first.
fn in_loop(trace: &Trace, machine: &Machine, config: JointConfig) -> Generated {
    let mut planner = JointPlanner::new(*machine, config);
    let proposal = planner.plan(trace, &Feedback::default()).expect("the trace is well formed");
    let proposal = proposal.expect("something must move");
    let made = planner.latest().expect("it was asked").clone();
    assert_eq!(proposal.plan, made.plan, "what is told is what was offered");
    // The figures are those of the plan, whoever asks.
    assert_eq!(simulate(trace, &made.plan, machine).step_us, proposal.predicted.step_us);
    made
}

fn moves_state(trace: &Trace, made: &Generated) -> bool {
    let mut blocks = made.plan.actions.iter().map(|action| &trace.blocks[action.block.0 as usize]);
    blocks.any(|block| block.origin == Origin::Persistent)
}

fn transformer(weight_mib: u64, activation_mib: u64) -> Trace {
    let shape = TransformerShape { layers: 12, weight_mib, activation_mib, forward_us: 4_000.0 };
    transformer_trace(&shape)
}

#[test]
fn without_a_wish_the_faster_of_both_is_taken() {
    let mut chosen = Vec::new();
    for (weight_mib, activation_mib, percent) in [(96, 64, 80), (24, 64, 70), (24, 64, 98)] {
        let trace = transformer(weight_mib, activation_mib);
        let machine = machine(&trace, percent);
        let made = |prefer| in_loop(&trace, &machine, config(Strategy::Swap, prefer));
        let [free, performance, memory] =
            [None, Some(Prefer::Performance), Some(Prefer::Memory)].map(made);
        // Activations alone are enough, and so state stays where that was asked for.
        assert_eq!(performance.movable, Movable::Activations, "{weight_mib}");
        assert!(performance.infeasible.is_none() && !moves_state(&trace, &performance));
        let fastest_us = performance.simulation.step_us.min(memory.simulation.step_us);
        assert!(free.simulation.step_us <= fastest_us, "{weight_mib}");
        assert_eq!(free.movable == Movable::All, moves_state(&trace, &free), "{weight_mib}");
        let gain = performance.simulation.step_us / free.simulation.step_us;
        chosen.push((free.movable, gain > 1.01));
    }
    assert!(chosen.contains(&(Movable::All, true)), "{chosen:?}");
    assert!(chosen.contains(&(Movable::Activations, false)), "{chosen:?}");
}

#[test]
fn the_loop_is_offered_what_plan_shows() {
    let (mut same, mut on_demand) = (0, 0);
    for seed in 0..24 {
        let trace = random_trace(seed, &RandomShape::small());
        let machine = machine(&trace, 40 + 10 * (seed % 2));
        for strategy in [Strategy::Swap, Strategy::Recompute, Strategy::Joint] {
            let config = config(strategy, None);
            let shown = JointPlanner::new(machine, config).make(&trace);
            if shown.infeasible.is_some() {
                continue;
            }
            let offered = in_loop(&trace, &machine, config);
            if shown.simulation.went_to_plan() {
                assert_eq!(shown, offered, "{strategy:?} {seed}");
                same += 1;
            } else {
                // That is a plan of others, and the loop takes none of those.
                assert!(shown.cost() < offered.cost(), "{strategy:?} {seed}");
                assert!(offered.simulation.went_to_plan() || offered.infeasible.is_some());
                on_demand += 1;
            }
        }
    }
    assert!(same > 30 && on_demand > 0, "{same} {on_demand}");
}

#[test]
fn beside_the_training_a_sketch_comes_first_and_then_the_plan_itself() {
    let trace = transformer(24, 64);
    let machine = machine(&trace, 60);
    let config = config(Strategy::Swap, None);
    let whole = in_loop(&trace, &machine, config);
    let mut beside = JointPlanner::new(machine, config).beside_training();
    let first = Feedback::default();
    let sketch = beside.plan(&trace, &first).expect("the trace is well formed");
    assert!(sketch.is_some_and(|sketch| sketch.is_sketch) && !beside.is_busy(trace.signature));
    let later = Feedback { tries: 2, ..first };
    let mut asked = 0;
    let proposal = loop {
        asked += 1;
        if let Some(proposal) = beside.plan(&trace, &later).expect("as before") {
            break proposal;
        }
        assert!(beside.is_busy(trace.signature), "what it does not have yet, it is making");
        std::thread::yield_now();
    };
    assert!(asked > 1 && !proposal.is_sketch && !beside.is_busy(trace.signature));
    assert_eq!(proposal.plan, whole.plan, "the same as without haste");
    // Who asks for something else gets no plan that was made for this.
    assert_eq!(beside.plan(&trace, &later).expect("as before"), None);
    let wider = Feedback { margin_bytes: 1 << 30, ..later };
    while beside.is_busy(trace.signature) {
        if let Some(proposal) = beside.plan(&trace, &wider).expect("as before") {
            assert_ne!(proposal.plan, whole.plan);
        }
    }
}

#[test]
fn a_sketch_whose_layout_lacks_a_little_is_made_again() {
    let (mut fit, mut mended) = (0, 0);
    for seed in 0..24 {
        let trace = random_trace(seed, &RandomShape::small());
        let machine = machine(&trace, 50 + 10 * (seed % 3));
        let config = JointConfig { fits_layout: true, ..config(Strategy::Joint, None) };
        let mut hasty = config;
        hasty.generate.effort = 1;
        let first = JointPlanner::new(machine, hasty).make(&trace);
        let lacks = |layout: &Layout| layout.excess_bytes(machine.limit_bytes) > 0;
        let first_lacks = lacks(&lay_out(&trace, &first.plan, &machine));
        let mut beside = JointPlanner::new(machine, config).beside_training();
        let sketch = beside.plan(&trace, &Feedback::default()).expect("the trace is well formed");
        let Some(sketch) = sketch.filter(|sketch| sketch.is_sketch) else { continue };
        let sketch_lacks = lacks(sketch.layout.as_ref().expect("it was asked for"));
        fit += u32::from(!sketch_lacks);
        mended += u32::from(first_lacks && !sketch_lacks);
        assert!(first_lacks || !sketch_lacks, "{seed}");
    }
    assert!(fit > 5 && mended > 2, "{fit} {mended}");
}

#[test]
fn large_steps_get_one_plan_in_which_everything_may_leave() {
    let trace = large_trace(&LargeShape::with_ops(2_000));
    let machine = machine(&trace, 60);
    let made = |effort, prefer| {
        let mut config = config(Strategy::Joint, prefer);
        config.generate.effort = effort;
        JointPlanner::new(machine, config).make(&trace)
    };
    let large = made(1, None);
    assert_eq!(large, made(1, Some(Prefer::Memory)));
    assert_eq!(large.movable, Movable::All);
    assert!(large.plan.actions.iter().any(|action| action.kind == ActionKind::SwapOut));
    // A wish holds for them too.
    assert_eq!(made(1, Some(Prefer::Performance)).movable, Movable::Activations);
    let small = made(8, None);
    assert!(small.cost() <= made(8, Some(Prefer::Performance)).cost());
    assert!(small.cost() <= made(8, Some(Prefer::Memory)).cost());
}
