//! Steps that the linear program judges, and what plans come to in them.

use policy::synthetic::{Numbers, RandomShape, TransformerShape, random_trace, transformer_trace};
use policy::{Machine, Plan, Simulator, Trace};

/// What a plan adds to a step once every step is like the one before.
pub(crate) fn steady_us(trace: &Trace, plan: &Plan, machine: &Machine) -> Option<f64> {
    let steps = Simulator::new(trace, *machine).steps(plan, 8);
    let [.., one, other] = &steps[..] else { return None };
    let device_us: f64 = trace.ops.iter().map(|op| op.device_us).sum();
    let steady = other.went_to_plan() && (one.step_us - other.step_us).abs() < 1e-6;
    steady.then_some(other.step_us - device_us)
}

/// A step of anything, or of a small transformer with odd sizes and times.
pub(crate) fn step(seed: u64) -> Trace {
    let mut numbers = Numbers::new(seed);
    let mut any = |from: u64, to: u64| from + numbers.below(to - from);
    if seed.is_multiple_of(3) {
        let shape = RandomShape { ops: any(40, 54) as u32, op_us: 900, ..RandomShape::small() };
        return random_trace(seed, &shape);
    }
    transformer_trace(&TransformerShape {
        layers: any(3, 5) as u32,
        weight_mib: any(2, 20),
        activation_mib: any(4, 20),
        forward_us: any(2_000, 20_000) as f64,
    })
}
