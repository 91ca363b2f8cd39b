//! Families of steps: what is learnt from a few members holds for those that nobody saw, and the
//! plan of the largest is nearly as good for them as their own.

use policy::synthetic::{Numbers, RandomShape, TransformerShape, random_trace, transformer_trace};
use policy::{
    Family, GenerateConfig, Generated, Link, Machine, Origin, Signature, Trace, generate,
    peak_bytes, plan_for_member, simulate,
};

/// Sizes are so many parts of the largest.
const PARTS: u64 = 16;

fn machine(limit_bytes: u64) -> Machine {
    Machine {
        limit_bytes,
        host_limit_bytes: u64::MAX / 8,
        link: Link {
            out_bytes_per_us: 50_000.0,
            in_bytes_per_us: 50_000.0,
            both_bytes_per_us: 45_000.0,
        },
        copy_submit_us: 2.0,
    }
}

/// How a figure of a step grows.
#[derive(Clone, Copy)]
enum Growth {
    Not,
    InProportion,
    Squared,
}

impl Growth {
    fn draw(numbers: &mut Numbers) -> Growth {
        match numbers.below(8) {
            0 => Growth::Not,
            1 => Growth::Squared,
            _ => Growth::InProportion,
        }
    }

    fn of(self, parts: u64) -> f64 {
        let share = parts as f64 / PARTS as f64;
        match self {
            Growth::Not => 1.0,
            Growth::InProportion => share,
            Growth::Squared => share * share,
        }
    }
}

/// A random family: its largest member, and what becomes of each block and op in smaller ones.
struct Steps {
    largest: Trace,
    blocks: Vec<Growth>,
    ops: Vec<Growth>,
}

impl Steps {
    fn random(seed: u64) -> Steps {
        let mut numbers = Numbers::new(seed);
        let unit_bytes = (2 << 20) * PARTS * PARTS;
        let largest = match seed % 2 {
            0 => {
                let shape =
                    RandomShape { ops: 30, unit_bytes, op_us: 40_000, ..RandomShape::small() };
                random_trace(seed, &shape)
            }
            _ => transformer_trace(&TransformerShape {
                layers: 3 + (seed % 4) as u32,
                weight_mib: 64,
                activation_mib: 512,
                forward_us: 20_000.0 + numbers.below(40_000) as f64,
            }),
        };
        let blocks = largest.blocks.iter().map(|block| match block.origin {
            Origin::Persistent => Growth::Not,
            _ => Growth::draw(&mut numbers),
        });
        let blocks = blocks.collect();
        let ops = largest.ops.iter().map(|_| Growth::draw(&mut numbers)).collect();
        Steps { largest, blocks, ops }
    }

    fn of(&self, parts: u64) -> Trace {
        let mut trace = Trace { signature: Signature(parts), ..self.largest.clone() };
        for (block, growth) in trace.blocks.iter_mut().zip(&self.blocks) {
            let size_bytes = block.size_bytes as f64 * growth.of(parts);
            block.size_bytes = (size_bytes as u64).next_multiple_of(2 << 20);
        }
        for (op, growth) in trace.ops.iter_mut().zip(&self.ops) {
            op.device_us *= growth.of(parts);
        }
        trace
    }
}

fn planned(trace: &Trace, machine: &Machine) -> Generated {
    generate(trace, machine, &GenerateConfig { effort: 2, ..GenerateConfig::default() }, &[])
}

#[test]
fn members_that_nobody_saw_are_predicted_and_their_plans_are_safe_and_good() {
    let (mut families, mut moving, mut ratios) = (0, 0, Vec::new());
    for seed in 0..120 {
        let steps = Steps::random(seed);
        let mut numbers = Numbers::new(seed ^ 0xfa11);
        let mut family = Family::default();
        [5, 8, 11].iter().for_each(|&parts| family.learn(&steps.of(parts)));
        let (Some(probe), 3) = (family.probe(), family.member_count()) else { continue };
        families += 1;
        // A larger one than any that was seen.
        let largest = steps.of(PARTS);
        let probe_bytes = largest.blocks[probe.0 as usize].size_bytes;
        let predicted = family.member(probe_bytes, Signature(1)).expect("it is known to vary");
        for (found, truth) in predicted.blocks.iter().zip(&largest.blocks) {
            // Sizes are whole units, so that small ones tell little of how they grow.
            let off_bytes = found.size_bytes.abs_diff(truth.size_bytes);
            assert!(off_bytes <= (truth.size_bytes / 10).max(16 << 20), "{seed}: {off_bytes}");
        }
        let peak = peak_bytes(&predicted);
        assert!((peak as f64 / peak_bytes(&largest) as f64 - 1.0).abs() < 0.02, "{seed}");
        let machine = machine(peak * (60 + numbers.below(40)) / 100);
        let made = planned(&predicted, &machine);
        if made.infeasible.is_some() {
            continue;
        }
        moving += u32::from(!made.plan.actions.is_empty());
        for parts in [6, 9, 12, 14, PARTS] {
            let member = steps.of(parts);
            let served = simulate(&member, &plan_for_member(&made.plan, &member), &machine);
            assert_eq!(served.shortfall, None, "{seed}, {parts} parts");
            assert!(served.held_bytes_peak <= machine.limit_bytes);
            let own = planned(&member, &machine);
            ratios.push(served.step_us / own.simulation.step_us);
        }
    }
    ratios.sort_unstable_by(f64::total_cmp);
    let median = ratios[ratios.len() / 2];
    println!("{families} families, {moving} plans that move, {} members", ratios.len());
    println!("median {median:.4}, of ten the worst {:.3}", ratios[ratios.len() * 9 / 10]);
    assert!(families > 90 && moving > 60 && ratios.len() > 400);
    assert!(median <= 1.05);
}
