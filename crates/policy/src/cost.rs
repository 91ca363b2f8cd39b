//! What a plan costs a step: the one order of plans, for all that choose between some.

use crate::simulate::Simulation;

/// What a plan costs a step. The lowest cost is the best: what fits comes first, then what is fast,
/// then what leaves little to demand.
///
/// A plan does not fit if it says so itself, since what it moves is not enough, or else if memory
/// runs out in the simulated step.
#[derive(Clone, Copy, PartialEq, PartialOrd, Debug)]
pub struct Cost {
    missing_bytes: u64,
    /// Endless where memory runs out: what is simulated is only a part of the step then.
    step_us: f64,
    /// Moves that the plan has not made.
    on_demand: u64,
}

impl Cost {
    /// The cost of a simulated step, under a plan that lacks `missing_bytes` by its own account.
    pub(crate) fn new(missing_bytes: u64, simulation: &Simulation) -> Cost {
        let short = simulation.shortfall;
        Cost {
            missing_bytes: match (missing_bytes, short) {
                (0, Some(short)) => short.missing_bytes,
                (own, _) => own,
            },
            step_us: if short.is_none() { simulation.step_us } else { f64::INFINITY },
            on_demand: simulation.misses + simulation.rescues,
        }
    }
}

#[cfg(test)]
mod tests {
    use swap_core::{OpIndex, Plan};

    use super::*;
    use crate::machine::{Link, Machine};
    use crate::simulate::{Shortfall, simulate};
    use crate::synthetic::TraceBuilder;

    fn step(step_us: f64, misses: u64, missing_bytes: u64) -> Simulation {
        let trace = TraceBuilder::new().finish();
        let link = Link { out_bytes_per_us: 1.0, in_bytes_per_us: 1.0, both_bytes_per_us: 1.0 };
        let machine = Machine { limit_bytes: 1, host_limit_bytes: 1, link, copy_submit_us: 0.0 };
        let short = Shortfall { op: OpIndex(0), missing_bytes };
        let shortfall = (missing_bytes > 0).then_some(short);
        let empty = simulate(&trace, &Plan::default(), &machine);
        Simulation { step_us, misses, shortfall, ..empty }
    }

    #[test]
    fn what_fits_comes_first_then_what_is_fast_then_what_leaves_little_to_demand() {
        let in_order = [
            Cost::new(0, &step(10.0, 0, 0)),
            Cost::new(0, &step(10.0, 1, 0)),
            Cost::new(0, &step(11.0, 0, 0)),
            Cost::new(1, &step(5.0, 0, 0)),
            // Where memory runs out, the time says nothing.
            Cost::new(0, &step(5.0, 0, 1)),
            Cost::new(2, &step(5.0, 0, 0)),
            // What the plan lacks is more than what the first allocation that fails does.
            Cost::new(3, &step(5.0, 0, 1)),
        ];
        assert!(in_order.is_sorted_by(|one, other| one < other), "{in_order:?}");
        assert_eq!(Cost::new(0, &step(4.0, 0, 1)), Cost::new(1, &step(5.0, 0, 1)));
    }
}
