//! Which updates of a step could wait, and for what.

use std::collections::BTreeMap;

use swap_core::{Trace, TraceEvent};

use super::lives::{Lives, Update};

/// Outermost ops that run one after the other, as later ones use what the first ones made.
#[derive(Clone, Debug)]
pub(super) struct Unit {
    /// The first and the last one, by place among the outermost ops.
    pub(super) first: usize,
    pub(super) last: usize,
    /// Blocks of theirs that are gone behind them.
    pub(super) own: Vec<usize>,
    /// All other blocks that they use, and whether they change them.
    used: BTreeMap<usize, bool>,
    /// Whether it may run later: it leaves behind what it changed, and nothing new.
    may_wait: bool,
}

/// Units that wait for each other, in order.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) units: Vec<Unit>,
    /// How many of them are updates. The others follow.
    pub(super) update_count: usize,
    /// The outermost op before which they run, by place.
    pub(super) before: usize,
    /// What the passes made for them.
    pub(super) gradients: Vec<usize>,
}

/// The updates of a step that could wait.
#[derive(Debug)]
pub(super) struct Updates {
    /// The event with which the first update begins.
    pub(super) begin: usize,
    pub(super) groups: Vec<Group>,
}

impl Updates {
    pub(super) fn of(trace: &Trace, lives: &Lives) -> Option<Updates> {
        let Update { first, .. } = lives.update(trace)?;
        let begin = lives.ops[first].0;
        let mut units = units(lives, first);
        units.extend(followers(trace, lives, first, &units));
        let groups = connected(units).into_iter();
        let groups: Vec<Group> =
            groups.filter_map(|units| Group::of(lives, units, begin)).collect();
        (!groups.is_empty()).then_some(Updates { begin, groups })
    }
}

impl Unit {
    /// One op, of which it is not known yet what it uses.
    fn of(op: usize, may_wait: bool) -> Unit {
        Unit { first: op, last: op, own: Vec::new(), used: BTreeMap::new(), may_wait }
    }

    fn uses(&mut self, block: usize, changes: bool) {
        *self.used.entry(block).or_default() |= changes;
    }
}

impl Group {
    /// `None` where the units stay where they are.
    fn of(lives: &Lives, units: Vec<Unit>, begin: usize) -> Option<Group> {
        if !units.iter().all(|unit| unit.may_wait) {
            return None;
        }
        let runs = |at: usize| {
            let place = lives.op_at(at);
            place.is_some_and(|place| units.iter().any(|u| (u.first..=u.last).contains(&place)))
        };
        let (mut before, mut gradients) = (None::<usize>, Vec::new());
        for (&block, &is_changed) in units.iter().flat_map(|unit| &unit.used) {
            if lives.born[block].is_some() {
                gradients.push(block);
                continue;
            }
            let in_the_way = lives.touches[block]
                .iter()
                .find(|&&(at, mode)| at < begin && (is_changed || mode.writes()) && !runs(at));
            let place = in_the_way.and_then(|&(at, _)| lives.op_at(at));
            before = before.into_iter().chain(place).min();
        }
        gradients.sort_unstable();
        gradients.dedup();
        let update_count = units.iter().filter(|unit| lives.ops[unit.first].0 >= begin).count();
        Some(Group { before: before?, update_count, units, gradients })
    }
}

/// The ops from one on in units: between two of them nothing lives that is gone later.
fn units(lives: &Lives, first: usize) -> Vec<Unit> {
    let begin = lives.ops[first].0;
    let mut units: Vec<Unit> = (first..lives.ops.len()).map(|op| Unit::of(op, true)).collect();
    for (block, touches) in lives.touches.iter().enumerate() {
        let (born, freed) = (lives.born[block], lives.freed[block]);
        if born.is_some_and(|born| born >= begin) {
            // What an op needs for itself is not always touched.
            let events = touches.iter().map(|&(at, _)| at).chain(born).chain(freed);
            let places = || events.clone().filter_map(|at| lives.op_at(at));
            let (Some(opening), Some(last)) = (places().min(), places().max()) else { continue };
            let unit = &mut units[opening - first];
            unit.may_wait &= freed.is_some();
            unit.last = unit.last.max(last);
            unit.own.push(block);
            continue;
        }
        for &(at, mode) in touches {
            if let Some(place) = lives.op_at(at).filter(|&place| place >= first) {
                units[place - first].uses(block, mode.writes());
            }
        }
    }
    joined(units)
}

/// Units that overlap, as one.
fn joined(units: Vec<Unit>) -> Vec<Unit> {
    let mut joined: Vec<Unit> = Vec::new();
    for unit in units {
        match joined.last_mut().filter(|before| unit.first <= before.last) {
            Some(before) => {
                before.last = before.last.max(unit.last);
                before.own.extend(unit.own);
                before.may_wait &= unit.may_wait;
                for (block, is_changed) in unit.used {
                    before.uses(block, is_changed);
                }
            }
            None => joined.push(unit),
        }
    }
    joined
}

/// Ops of the passes that are the first to use what an update changed, and change only what nothing
/// else uses: operators over lists, which wait behind updates that wait.
fn followers(trace: &Trace, lives: &Lives, first: usize, updates: &[Unit]) -> Vec<Unit> {
    let mut changed = vec![false; trace.blocks.len()];
    for (&block, _) in updates.iter().flat_map(|unit| &unit.used).filter(|(_, changed)| **changed) {
        changed[block] = true;
    }
    let mut units: BTreeMap<usize, Unit> = BTreeMap::new();
    for (block, touches) in lives.touches.iter().enumerate() {
        for (at, &(touched, mode)) in touches.iter().enumerate() {
            let Some(op) = lives.op_at(touched).filter(|&op| op < first) else { continue };
            let unit = units
                .entry(op)
                .or_insert_with(|| Unit::of(op, is_over_lists_in_place(trace, lives, op)));
            let is_alone = touches.iter().all(|&(at, _)| lives.op_at(at) == Some(op));
            let follows = if mode.writes() { is_alone } else { changed[block] && at == 0 };
            unit.may_wait &= follows && lives.born[block].is_none();
            unit.uses(block, mode.writes());
        }
    }
    let reads = |unit: &Unit| unit.used.values().any(|is_changed| !is_changed);
    units.into_values().filter(|unit| unit.may_wait && reads(unit)).collect()
}

/// Whether an outermost op is an operator over lists that does nothing but touch blocks.
fn is_over_lists_in_place(trace: &Trace, lives: &Lives, op: usize) -> bool {
    let (begin, end) = lives.ops[op];
    let TraceEvent::Begin(op) = trace.events[begin] else { return false };
    let name = &trace.ops[op.0 as usize].name;
    let does_nothing_else =
        trace.events[begin + 1..end].iter().all(|event| matches!(event, TraceEvent::Touch(..)));
    name.starts_with("aten::_foreach_") && name.ends_with('_') && does_nothing_else
}

/// Units in groups: whoever uses what another one changes is of its group.
fn connected(units: Vec<Unit>) -> Vec<Vec<Unit>> {
    let mut root: Vec<usize> = (0..units.len()).collect();
    fn find(root: &mut [usize], mut unit: usize) -> usize {
        while root[unit] != unit {
            root[unit] = root[root[unit]];
            unit = root[unit];
        }
        unit
    }
    let mut users: BTreeMap<usize, (bool, Vec<usize>)> = BTreeMap::new();
    for (at, unit) in units.iter().enumerate() {
        for (&block, &is_changed) in &unit.used {
            let (any_changes, users) = users.entry(block).or_default();
            *any_changes |= is_changed;
            users.push(at);
        }
    }
    for (_, users) in users.into_values().filter(|(any_changes, _)| *any_changes) {
        for pair in users.windows(2) {
            let (one, other) = (find(&mut root, pair[0]), find(&mut root, pair[1]));
            root[one.max(other)] = one.min(other);
        }
    }
    let mut groups: BTreeMap<usize, Vec<Unit>> = BTreeMap::new();
    for (at, unit) in units.into_iter().enumerate() {
        groups.entry(find(&mut root, at)).or_default().push(unit);
    }
    groups.into_values().collect()
}
