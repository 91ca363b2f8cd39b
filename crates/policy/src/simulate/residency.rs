//! Who is on the device when, in a step that has settled and whose memory never runs out.

use swap_core::{Plan, Trace};

use super::state::{Place, State};
use super::{ActionTable, run_step};
use crate::machine::{Link, Machine};
use crate::usage::Usage;

/// A block comes to the device or leaves it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Change {
    pub(crate) block: u32,
    pub(crate) arrives: bool,
}

/// A step's comings and goings.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Residency {
    /// By block: whether it is there when the step starts.
    pub(crate) at_start: Vec<bool>,
    /// In call order, those with which the step ends included.
    pub(crate) changes: Vec<Change>,
}

/// How many steps a plan has until each starts like the one before it. A block that passes from
/// place to place of the step needs one for each.
const SETTLING_STEPS: u32 = 16;

/// Memory for everything, so that nothing moves but what the plan moves. Times do not matter.
const ROOMY: Machine = Machine {
    limit_bytes: u64::MAX / 2,
    host_limit_bytes: u64::MAX,
    link: Link { out_bytes_per_us: 1.0, in_bytes_per_us: 1.0, both_bytes_per_us: 1.0 },
    copy_submit_us: 0.0,
};

/// What a plan makes of a step. Nothing if its steps do not settle.
pub(crate) fn residency(trace: &Trace, usage: &Usage, plan: &Plan) -> Option<Residency> {
    let actions = ActionTable::new(trace, plan);
    let mut state = State::new(trace, usage, ROOMY, &actions);
    let mut at_start = residents(&state);
    for _ in 0..SETTLING_STEPS {
        run_step(&mut state, &actions);
        state.roll_over();
        if state.shortfall.is_some() {
            return None;
        }
        let next = residents(&state);
        if next == at_start {
            return Some(Residency { at_start, changes: state.changes });
        }
        at_start = next;
    }
    None
}

fn residents(state: &State<'_>) -> Vec<bool> {
    state.blocks.iter().map(|block| block.place == Place::Resident).collect()
}
