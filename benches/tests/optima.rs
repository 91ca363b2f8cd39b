//! Promise: the planner's bound is never above the best plan of a small step, and the suite's
//! optima are what its search finds.

use adaptive::{JointConfig, JointPlanner, Simulator};
use benches::optima::{Entry, Kind, added_us, machine, optimum, step, suite};

/// Every so many entries of the suite are looked at.
const EVERY: usize = 3;
/// Rounding in the file.
const ROUNDING_US: f64 = 2e-3;

#[test]
fn the_bound_is_below_certified_optima_which_their_plans_reach() {
    let all = suite();
    assert!(all.len() >= 200, "{} entries", all.len());
    let mut positive = 0;
    for entry in all.iter().step_by(EVERY) {
        let trace = step(entry.kind, entry.number);
        let machine = machine(entry.limit_bytes);
        let simulator = Simulator::new(&trace, machine);
        let found_us = added_us(&simulator, &trace, &entry.plan).expect("its plan fits");
        assert!((found_us - entry.added_us).abs() <= ROUNDING_US, "{}", entry.line());
        let made = JointPlanner::new(machine, JointConfig::default()).make(&trace);
        // The planner's plans may be of no class, and better.
        let ours_us = added_us(&simulator, &trace, &made.plan);
        let known_us = ours_us.map_or(found_us, |us| us.min(found_us));
        assert!(made.bound_us <= known_us + ROUNDING_US, "{} {}", made.bound_us, entry.line());
        positive += usize::from(made.bound_us > 0.0);
    }
    assert!(positive > all.len() / EVERY / 10, "only {positive} bounds say anything");
}

#[test]
fn the_search_finds_the_optima_again() {
    for kind in Kind::ALL {
        let entry: Entry = suite().into_iter().find(|entry| entry.kind == kind).expect("one each");
        let trace = step(kind, entry.number);
        let best = optimum(&trace, &machine(entry.limit_bytes)).expect("it was found before");
        assert!((best.added_us - entry.added_us).abs() <= ROUNDING_US, "{}", entry.line());
        assert!(best.looked_at > 0);
    }
}
