//! Which gaps to use: peak shaving.
//!
//! Starting from the step with everything resident, the highest slot of the memory curve is
//! lowered by the gap that buys it at the least added time, again and again. The order of choices
//! does not depend on the limit, which only says when to stop. So the choice for a larger limit is
//! a part of the choice for a smaller one, and more memory never means more bytes to swap.

use std::mem;

use swap_core::{Origin, Trace, TraceEvent};

use super::offers::{Offers, Priced};
use super::taste::Taste;
use super::{GenerateConfig, Movable, Preference, RecomputeOption};
use crate::candidate::{Gap, find_gaps};
use crate::curve::{Curve, FreeTime};
use crate::machine::Machine;
use crate::usage::{Recipe, Usage};

/// What hidden link time counts for, beside time added to the step. The first share only decides
/// between moves that add nothing; higher ones keep the link free for others, which helps where
/// blocks can be made again.
pub(super) const HIDDEN_SHARES: [f64; 6] = [0.01, 0.1, 0.03, 0.3, 0.6, 1.0];

/// How a block is got rid of and back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    Swap,
    Recompute,
}

/// A gap that the plan uses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choice {
    pub(crate) gap: Gap,
    pub(crate) mode: Mode,
    /// Added step time that it was chosen at, in microseconds.
    pub(crate) added_us: f64,
    /// Whether it still is part of the plan.
    pub(crate) stands: bool,
}

/// The outcome of peak shaving.
#[derive(Clone, Debug)]
pub(crate) struct Selection {
    pub(crate) choices: Vec<Choice>,
    /// Resident bytes by row when every choice is away for its whole gap.
    pub(crate) curve: Vec<i64>,
    /// Bytes that remain above the limit, and the row.
    pub(crate) excess: Option<(usize, u64)>,
}

/// Bytes by row when everything stays resident.
pub(crate) fn need_curve(trace: &Trace, usage: &Usage) -> Vec<u64> {
    let persistent = trace.blocks.iter().filter(|block| block.origin == Origin::Persistent);
    let mut live_bytes: u64 = persistent.map(|block| block.size_bytes).sum();
    let mut segment_bytes = trace.segment_bytes;
    let mut curve = vec![0; usage.row_slot.len()];
    let mut started = 0;
    for (position, event) in trace.events.iter().enumerate() {
        let row = usage.event_row[position] as usize;
        // A row holds at least what the one before it left.
        for row in &mut curve[started..=row] {
            *row = live_bytes.max(*row);
        }
        started = row;
        match *event {
            TraceEvent::Allocate(block) => live_bytes += trace.blocks[block.0 as usize].size_bytes,
            TraceEvent::Free(block) => live_bytes -= trace.blocks[block.0 as usize].size_bytes,
            TraceEvent::Segments(bytes) => segment_bytes = segment_bytes.max(bytes),
            _ => {}
        }
        curve[row] = curve[row].max(live_bytes);
    }
    for row in &mut curve[started..] {
        *row = live_bytes.max(*row);
    }
    // Segments never shrink, so in the steady state they are at their largest all the time.
    curve.iter().map(|bytes| bytes + segment_bytes).collect()
}

/// The most bytes in each slot, of bytes by row.
pub(crate) fn by_slot(usage: &Usage, rows: &[u64]) -> Vec<u64> {
    let mut slots = vec![0; usage.slot_count()];
    for (bytes, &slot) in rows.iter().zip(&usage.row_slot) {
        let most = &mut slots[slot as usize];
        *most = (*bytes).max(*most);
    }
    slots
}

#[derive(Clone, Copy, Debug)]
struct Item {
    /// Place of its gap.
    gap: u32,
    mode: Mode,
    /// The replay's time; 0 for a swap.
    replay_us: f64,
    /// Bytes times the covered part of the step.
    value: f64,
}

struct Selector<'a> {
    trace: &'a Trace,
    usage: &'a Usage,
    machine: &'a Machine,
    options: &'a [RecomputeOption],
    preference: Preference,
    hidden_share: f64,
    taste: &'a Taste,
    /// Bytes that swaps may still send away.
    swap_bytes_left: u64,
    curve: Curve,
    host: Curve,
    out_free: FreeTime,
    in_free: FreeTime,
    /// Weight of the slots before each one.
    weight: Vec<f64>,
    gaps: Vec<Gap>,
    /// Gaps that are chosen already or were split.
    spent: Vec<bool>,
    gaps_of: Vec<Vec<u32>>,
    items: Vec<Item>,
    /// Items by mode and row.
    offers: [Offers; 2],
    choices: Vec<Choice>,
    choices_of: Vec<Vec<u32>>,
    /// By choice: offers of replays that need its block where it is away, and their nodes.
    waiting_for: Vec<Vec<(Priced, usize)>>,
    /// Whether a version of some bytes is on the host already.
    on_host: Vec<bool>,
}

pub(crate) fn select(
    trace: &Trace,
    usage: &Usage,
    machine: &Machine,
    options: &[RecomputeOption],
    config: &GenerateConfig,
    hidden_share: f64,
    taste: &Taste,
) -> Selection {
    let need = need_curve(trace, usage);
    let mut slot_us: Vec<f64> =
        usage.slots.iter().map(|op| trace.ops[op.0 as usize].device_us).collect();
    slot_us.push(0.0);
    let mut gaps = find_gaps(trace, usage);
    gaps.retain(|gap| trace.blocks[gap.block as usize].size_bytes >= config.min_block_bytes);
    if config.movable == Movable::Activations {
        gaps.retain(|gap| trace.blocks[gap.block as usize].origin != Origin::Persistent);
    }
    let versions = gaps.iter().map(|gap| gap.version as usize + 1).max().unwrap_or(0);
    let mut selector = Selector {
        trace,
        usage,
        machine,
        options,
        preference: config.preference,
        hidden_share,
        taste,
        swap_bytes_left: config.swap_bytes_max,
        weight: weights(trace, usage, &need, &gaps, &slot_us),
        curve: Curve::new(&need),
        host: Curve::new(&vec![0; usage.slot_count()]),
        out_free: FreeTime::new(slot_us.clone()),
        in_free: FreeTime::new(slot_us),
        gaps: Vec::new(),
        spent: Vec::new(),
        gaps_of: vec![Vec::new(); trace.blocks.len()],
        items: Vec::new(),
        offers: [(); 2]
            .map(|()| Offers::new(need.iter().map(|&bytes| bytes > machine.limit_bytes))),
        choices: Vec::new(),
        choices_of: vec![Vec::new(); trace.blocks.len()],
        waiting_for: Vec::new(),
        on_host: vec![false; versions],
    };
    for gap in gaps {
        selector.offer(gap);
    }
    let excess = selector.shave();
    Selection { choices: selector.choices, curve: selector.curve.values(), excess }
}

/// The recipe for the bytes that a block holds in a gap.
pub(crate) fn gap_recipe<'a>(usage: &'a Usage, gap: &Gap) -> Option<&'a Recipe> {
    let op = usage.slots.get(usize::try_from(gap.from).ok()?)?;
    let end = usage.op_end[op.0 as usize] as usize;
    usage.recipe_at(gap.block as usize, end).map(|(_, recipe)| recipe)
}

/// Sums of slot weights: slots count by their time and by how far they are above what can be
/// reached at all.
fn weights(trace: &Trace, usage: &Usage, need: &[u64], gaps: &[Gap], slot_us: &[f64]) -> Vec<f64> {
    let mut least = Curve::new(need);
    for gap in gaps {
        let (start, count) = gap.rows(usage);
        least.add(start, count, -(trace.blocks[gap.block as usize].size_bytes as i64));
    }
    let base = least.peak().1.max(0) as f64;
    let need = by_slot(usage, need);
    let peak = need.iter().copied().max().unwrap_or(0) as f64;
    let mean_us = slot_us.iter().sum::<f64>() / slot_us.len() as f64;
    let mut sums = vec![0.0];
    let mut sum = 0.0;
    for (bytes, us) in need.iter().zip(slot_us) {
        let height = ((*bytes as f64 - base) / (peak - base).max(1.0)).clamp(0.01, 1.0);
        sum += height * (us + 0.1 * mean_us + 1e-3);
        sums.push(sum);
    }
    sums.iter().map(|weight| weight / sum).collect()
}

impl Selector<'_> {
    /// Lowers the curve to the limit. Returns what remains above it.
    fn shave(&mut self) -> Option<(usize, u64)> {
        loop {
            let (row, bytes) = self.curve.peak();
            let excess_bytes =
                bytes.saturating_sub_unsigned(self.machine.limit_bytes.min(i64::MAX as u64));
            if excess_bytes <= 0 {
                return None;
            }
            let preferred = match self.preference {
                Preference::Cheapest => None,
                Preference::RecomputeFirst => self.best_for(row, &[Mode::Recompute]),
            };
            let best = preferred.or_else(|| self.best_for(row, &[Mode::Swap, Mode::Recompute]));
            let Some((position, added_us)) = best else {
                return Some((row, excess_bytes as u64));
            };
            self.choose(position, self.usage.row_slot[row] as usize, added_us);
        }
    }

    /// The unused item that lowers a row at the least added time, and that time.
    ///
    /// Items are looked at in the order of what they cost when last looked at. The link only
    /// fills up, so that hardly falls.
    fn best_for(&mut self, row: usize, modes: &[Mode]) -> Option<(u32, f64)> {
        let slot = self.usage.row_slot[row] as usize;
        loop {
            let tops = modes.iter().filter_map(|&mode| {
                let (offer, node) = self.offers[mode as usize].first(row)?;
                Some((offer, mode as usize, node))
            });
            let (offer, kind, node) = tops.min_by_key(|&(offer, ..)| offer)?;
            self.offers[kind].drop_first(node);
            let item = self.items[offer.item as usize];
            if self.spent[item.gap as usize] {
                continue;
            }
            let gap = self.gaps[item.gap as usize];
            let (added_us, hidden_us) = match item.mode {
                // The host only fills up.
                Mode::Swap if !self.host_has_room(&gap) => continue,
                Mode::Swap => (self.stall_us(&gap, slot), self.link_us(&gap).into_iter().sum()),
                Mode::Recompute => {
                    if let Some(choice) = self.keeps_away_an_input(&gap) {
                        self.waiting_for[choice as usize].push((offer, node));
                        continue;
                    }
                    (item.replay_us, 0.0)
                }
            };
            let cost_us = added_us + self.hidden_share * hidden_us;
            let score = cost_us * self.taste.factor(gap.block, item.mode) / item.value;
            self.offers[kind].put_back(node, Priced { score, ..offer });
            if score <= offer.score {
                return Some((offer.item, added_us));
            }
        }
    }

    /// Offers the ways to use a gap, at the least that they can cost for each unit of value.
    fn offer(&mut self, gap: Gap) {
        let (start, count) = gap.cover();
        let size_bytes = self.size_bytes(gap.block);
        let value = size_bytes as f64 * self.weight_of(start, count);
        let back_us = if gap.returns { self.machine.in_us(size_bytes) } else { 0.0 };
        let place = self.gaps.len() as u32;
        let replay_us = self.replay_us(&gap);
        self.gaps.push(gap);
        self.spent.push(false);
        self.gaps_of[gap.block as usize].push(place);
        let (first_row, row_count) = gap.rows(self.usage);
        let first_row = first_row % self.usage.row_slot.len();
        let mut add = |mode: Mode, replay_us: f64, score: f64| {
            let item = self.items.len() as u32;
            let score = score * self.taste.factor(gap.block, mode);
            self.items.push(Item { gap: place, mode, replay_us, value });
            self.offers[mode as usize].add(first_row, row_count, Priced { score, item });
        };
        add(Mode::Swap, 0.0, self.hidden_share * back_us / value);
        if let Some(replay_us) = replay_us {
            add(Mode::Recompute, replay_us, replay_us / value);
        }
    }

    /// Time of bringing the gap's block back by replay; nothing if that cannot be done.
    fn replay_us(&self, gap: &Gap) -> Option<f64> {
        let option = self.options.binary_search_by_key(&gap.block, |option| option.block.0).ok()?;
        let recipe = gap_recipe(self.usage, gap)?;
        let to = self.usage.slots.get(gap.to as usize)?;
        let begin = self.usage.op_begin[to.0 as usize];
        let valid = recipe.until_event > begin;
        (valid && gap.returns).then(|| self.options[option].replay_us)
    }

    /// Whether a block can be on the host for the whole gap.
    fn host_has_room(&self, gap: &Gap) -> bool {
        let (start, count) = gap.cover();
        let room = self.machine.host_limit_bytes.min(i64::MAX as u64) as i64;
        let size_bytes = self.size_bytes(gap.block) as i64;
        // The host copy is also there while the block is on its way.
        let span = (count + 2).min(self.usage.slot_count());
        let start = start + self.usage.slot_count() - 1;
        self.size_bytes(gap.block) <= self.swap_bytes_left
            && self.host.max_over(start, span) + size_bytes <= room
    }

    /// The choice by which an input of the replay at the gap's end is not there then, and would
    /// not be at little loss if it came back for it.
    fn keeps_away_an_input(&self, gap: &Gap) -> Option<u32> {
        let recipe = gap_recipe(self.usage, gap).expect("offered only with a recipe");
        let slot = gap.to;
        let choices = recipe.inputs.iter().flat_map(|&input| &self.choices_of[input as usize]);
        choices.copied().find(|&index| {
            let Choice { gap, stands, .. } = self.choices[index as usize];
            let away = stands && gap.from < slot && slot < gap.to;
            away && !(gap.returns && 4 * (gap.to - slot) < gap.to - gap.from)
        })
    }

    /// Times on the link of a swap over this gap: out and in.
    fn link_us(&self, gap: &Gap) -> [f64; 2] {
        let size_bytes = self.size_bytes(gap.block);
        let leaves = !gap.clean && !self.on_host[gap.version as usize];
        let out_us = if leaves { self.machine.out_us(size_bytes) } else { 0.0 };
        let in_us = if gap.returns { self.machine.in_us(size_bytes) } else { 0.0 };
        [out_us, in_us]
    }

    /// What a swap over this gap would add to the step if the block must be away in `slot`: the
    /// parts of its copies for which the link has no time between its uses and that slot.
    fn stall_us(&self, gap: &Gap, slot: usize) -> f64 {
        let [out_us, in_us] = self.link_us(gap);
        let [before, after] = self.sides(gap, slot);
        let out_free_us = self.out_free.sum_us(before.0, before.1);
        let in_free_us = self.in_free.sum_us(after.0, after.1);
        (out_us - out_free_us).max(0.0) + (in_us - in_free_us).max(0.0)
    }

    /// The slots of a gap before and after one of its slots, as first slot and count. Each step
    /// has a copy to make, so there is no more than one step's time for it.
    fn sides(&self, gap: &Gap, slot: usize) -> [(usize, usize); 2] {
        let (start, count) = gap.cover();
        let slot_count = self.usage.slot_count();
        let before = (slot + slot_count - start % slot_count) % slot_count;
        [(start, before), (slot + 1, count.saturating_sub(before + 1).min(slot_count))]
    }

    fn choose(&mut self, item: u32, slot: usize, added_us: f64) {
        let Item { gap, mode, .. } = self.items[item as usize];
        self.spent[gap as usize] = true;
        let gap = self.gaps[gap as usize];
        self.choices_of[gap.block as usize].push(self.choices.len() as u32);
        let size_bytes = self.size_bytes(gap.block) as i64;
        let (first_row, row_count) = gap.rows(self.usage);
        self.curve.add(first_row, row_count, -size_bytes);
        self.choices.push(Choice { gap, mode, added_us, stands: true });
        self.waiting_for.push(Vec::new());
        match mode {
            Mode::Swap => {
                let [out_us, in_us] = self.link_us(&gap);
                let [before, after] = self.sides(&gap, slot);
                self.out_free.take(before.0, before.1, out_us, false);
                self.in_free.take(after.0, after.1, in_us, true);
                self.on_host[gap.version as usize] = true;
                self.swap_bytes_left -= self.size_bytes(gap.block);
                let slot_count = self.usage.slot_count();
                let (start, count) = gap.cover();
                self.host.add(start + slot_count - 1, (count + 2).min(slot_count), size_bytes);
            }
            Mode::Recompute => self.use_inputs(&gap),
        }
    }

    /// A replay in `slot` is a use of its inputs there: it splits their gaps.
    fn use_inputs(&mut self, gap: &Gap) {
        let usage = self.usage;
        let slot = gap.to;
        let recipe = gap_recipe(usage, gap).expect("it is to be replayed");
        for &input in &recipe.inputs {
            let around = |gap: &Gap| gap.from < slot && slot < gap.to;
            let index = input as usize;
            for place in self.gaps_of[index].clone() {
                let gap = self.gaps[place as usize];
                if !self.spent[place as usize] && around(&gap) {
                    self.spent[place as usize] = true;
                    self.offer_part(Gap { to: slot, again: gap.block, returns: true, ..gap });
                    self.offer_part(Gap { from: slot, ..gap });
                }
            }
            for choice in self.choices_of[index].clone() {
                if self.choices[choice as usize].stands
                    && around(&self.choices[choice as usize].gap)
                {
                    self.shorten(choice as usize, slot);
                }
            }
        }
    }

    /// Adds a gap that came of splitting another, if it has a whole slot.
    fn offer_part(&mut self, gap: Gap) {
        if gap.to - gap.from < 2 {
            return;
        }
        self.offer(gap);
    }

    /// Brings a chosen block back earlier, in `slot`.
    fn shorten(&mut self, index: usize, slot: i64) {
        let Choice { gap, mode, .. } = self.choices[index];
        let size_bytes = self.size_bytes(gap.block) as i64;
        let (first_row, row_count) = gap.rows(self.usage);
        self.curve.add(first_row, row_count, size_bytes);
        let short = Gap { to: slot, again: gap.block, ..gap };
        self.choices[index].gap = short;
        for (offer, node) in mem::take(&mut self.waiting_for[index]) {
            self.offers[Mode::Recompute as usize].put_back(node, offer);
        }
        self.offer_part(Gap { from: slot, ..gap });
        if slot - gap.from < 2 {
            self.choices[index].stands = false;
            return;
        }
        let (first_row, row_count) = short.rows(self.usage);
        self.curve.add(first_row, row_count, -size_bytes);
        if mode == Mode::Recompute {
            self.use_inputs(&short);
        }
    }

    fn size_bytes(&self, block: u32) -> u64 {
        self.trace.blocks[block as usize].size_bytes
    }

    /// The part of the step's weight in `count` slots from `start` on.
    fn weight_of(&self, start: usize, count: usize) -> f64 {
        let slots = self.usage.slot_count();
        let (start, end) = (start % slots, start % slots + count);
        let rounds = (end / slots) as f64;
        (rounds - self.weight[start] + self.weight[end % slots]).max(1e-9)
    }
}
