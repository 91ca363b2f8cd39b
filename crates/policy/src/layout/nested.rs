//! Lets what left first come back last.
//!
//! Activations that the step makes first it uses last. They find room where state was that has
//! left, if that leaves before them and is back behind them:
//!
//! ```text
//!   in order   A ##______#######     nested   A ##_________####
//!              B ###______######              B ###_____#######
//!   made early    ---------                      ---------
//!   made later     ------                         ------
//! ```
//!
//! State comes back in the order of its use, which is that of its leaving, and long before it: an
//! optimizer uses all of it within a few milliseconds. Blocks of the same size can take each
//! other's return then, and the step takes the same time and memory.

use std::collections::BTreeMap;

use swap_core::{Action, ActionKind, BlockIndex, Direction, OpIndex, Plan, Trace};

use crate::machine::Machine;
use crate::simulate::{Simulation, Span, simulate_with};
use crate::usage::Usage;

/// A block that leaves once and comes back once, behind that.
struct Away {
    block: BlockIndex,
    /// When it is copied to the host.
    leaves: Span,
    /// When its bytes are needed again, in microseconds.
    needed_us: f64,
    back: Return,
}

/// A return: the place among the actions, and when the copy runs.
#[derive(Clone, Copy)]
struct Return {
    action: usize,
    copied: Span,
}

/// The plan with returns in another order, and the step under it. `simulation` is that of `plan`.
/// `None` if no order that is as good is known.
///
/// # Panics
/// As [`simulate`](crate::simulate()).
pub fn nested(
    trace: &Trace,
    plan: &Plan,
    simulation: &Simulation,
    machine: &Machine,
) -> Option<(Plan, Simulation)> {
    let usage = Usage::new(trace);
    let mut by_size: BTreeMap<u64, Vec<Away>> = BTreeMap::new();
    for away in away(&usage, plan, simulation) {
        by_size.entry(trace.blocks[away.block.0 as usize].size_bytes).or_default().push(away);
    }
    let mut nested = plan.clone();
    for (block, back, due) in by_size.into_values().filter_map(assigned(plan)).flatten() {
        let action = &mut nested.actions[back.action];
        *action = Action { block, due, ..*action };
    }
    if nested == *plan {
        return None;
    }
    let after = simulate_with(trace, &usage, &nested, machine);
    let is_as_good = after.step_us <= simulation.step_us
        && after.held_bytes_peak <= simulation.held_bytes_peak
        && (after.misses, after.rescues) == (simulation.misses, simulation.rescues)
        && after.shortfall.is_none();
    is_as_good.then_some((nested, after))
}

/// Gives each block the latest return that is early enough for it, those that leave first the first
/// choice. `None` if one finds none, so that all stay as they are.
fn assigned(plan: &Plan) -> impl Fn(Vec<Away>) -> Option<Vec<(BlockIndex, Return, OpIndex)>> {
    |mut away: Vec<Away>| {
        away.sort_by(|one, other| one.leaves.start_us.total_cmp(&other.leaves.start_us));
        let mut returns: Vec<Return> = away.iter().map(|away| away.back).collect();
        returns.sort_by(|one, other| one.copied.end_us.total_cmp(&other.copied.end_us));
        let assigned = away.iter().map(|away| {
            let is_fit = |back: &Return| {
                back.copied.end_us <= away.needed_us.max(away.back.copied.end_us)
                    && back.copied.start_us >= away.leaves.end_us
            };
            let back = returns.remove(returns.iter().rposition(is_fit)?);
            Some((away.block, back, plan.actions[away.back.action].due))
        });
        assigned.collect()
    }
}

/// What could come back in another order.
fn away(usage: &Usage, plan: &Plan, simulation: &Simulation) -> Vec<Away> {
    let [out, back] = [ActionKind::SwapOut, ActionKind::SwapIn].map(|kind| only(plan, kind));
    let mut copies: BTreeMap<(u32, bool), Span> = BTreeMap::new();
    for copy in &simulation.copies {
        copies.insert((copy.block.0, copy.direction == Direction::In), copy.span);
    }
    let away = back.into_iter().filter_map(|(block, action)| {
        out.get(&block)?;
        let (leaves, copied) = (*copies.get(&(block, false))?, *copies.get(&(block, true))?);
        let after = plan.actions[action].op;
        let mut used = usage.uses(block as usize).iter();
        let needed =
            used.find_map(|used| usage.slots.get(used.slot as usize).filter(|&&op| op >= after))?;
        let needed_us = simulation.ops.get(needed.0 as usize)?.start_us;
        let back = Return { action, copied };
        let away = Away { block: BlockIndex(block), leaves, needed_us, back };
        (leaves.end_us <= copied.start_us).then_some(away)
    });
    away.collect()
}

/// By block with one action of this kind: its place.
fn only(plan: &Plan, kind: ActionKind) -> BTreeMap<u32, usize> {
    let mut places: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for (place, action) in plan.actions.iter().enumerate().filter(|(_, it)| it.kind == kind) {
        places.entry(action.block.0).or_default().push(place);
    }
    let only = places.into_iter().filter(|(_, places)| places.len() == 1);
    only.map(|(block, places)| (block, places[0])).collect()
}
