//! Which gaps to use: peak shaving.
//!
//! ```text
//!   bytes   ╭──╮  highest row: of the ways to have less there, the cheapest
//!  ┄┄┄┄┄┄┄┄┄│┄┄│┄┄┄┄ limit
//!        ╭──╯  ╰─╮
//!   ─────╯       ╰────  rows
//!         ◀─ gap ─▶     swap: time that the link lacks   drop: time of the replays
//! ```
//!
//! Starting from the step with everything resident, the highest row of the memory curve is
//! lowered by the gap that buys it at the least added time, again and again. The order of choices
//! does not depend on the limit, which only says when to stop. So the choice for a larger limit is
//! a part of the choice for a smaller one, and more memory never means more bytes to swap. Only
//! replays that would find no room for what they make beside are left out by the limit.
//!
//! A replay uses what it reads: that splits gaps, and brings back earlier what was away. What is
//! freed by then is made again too ([`chain`](super::chain)).
//! Where nothing lowers the highest row any more, drops whose chains keep blocks there are taken
//! back ([`undo`]).

mod drops;
mod early;
mod undo;

use std::collections::{BTreeMap, BTreeSet};
use std::mem;

use swap_core::{Origin, Trace};

use drops::back_in;
pub(super) use early::late_blocks;

use super::chain::{Chain, ChainLink, Chains, Need, Needs};
use super::need::{Scale, need_curve};
use super::offers::{Offers, Priced};
use super::taste::Taste;
use super::{GenerateConfig, Movable, Preference, RecomputeOption};
use crate::candidate::{Gap, find_gaps};
use crate::curve::{Curve, FreeTime};
use crate::machine::Machine;
use crate::usage::{NONE, Recipe, Usage};

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
    /// Blocks whose replays bring others back to that row.
    pub(crate) blamed: Vec<u32>,
    /// Freed blocks that others are made from, each with the slot behind which it is dropped: the
    /// first slot for which one of the others must be back, or is freed.
    pub(crate) links: BTreeMap<(i64, u32), i64>,
}

#[derive(Clone, Copy, Debug)]
struct Item {
    /// Place of its gap.
    gap: u32,
    mode: Mode,
    /// The block is back for the step's end, and leaves anew.
    cut: bool,
    /// The least that it can cost, in microseconds.
    least_us: f64,
    /// Bytes times the covered part of the step.
    value: f64,
}

struct Selector<'a> {
    trace: &'a Trace,
    usage: &'a Usage,
    machine: &'a Machine,
    chains: Chains<'a>,
    preference: Preference,
    hidden_share: f64,
    taste: &'a Taste,
    /// Bytes that swaps may still send away.
    swap_bytes_left: u64,
    /// When each slot starts if nobody waits, in microseconds.
    slot_start_us: Vec<f64>,
    curve: Curve,
    host: Curve,
    out_free: FreeTime,
    in_free: FreeTime,
    scale: Scale,
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
    /// By choice: what else it takes.
    taken: Vec<Chain>,
    needs: Needs,
    /// By slot: what is to come back for replays before its op.
    forced_bytes: Vec<u64>,
    /// By block: slots in which replays use it.
    replay_uses: Vec<Vec<i64>>,
    /// Freed blocks that chosen chains make again.
    linked: BTreeSet<u32>,
    /// By freed block: items whose chains would make it again.
    users: BTreeMap<u32, Vec<u32>>,
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
    let slot_us = &usage.slot_us;
    let gaps = movable_gaps(trace, usage, config);
    let versions = gaps.iter().map(|gap| gap.version as usize + 1).max().unwrap_or(0);
    let mut selector = Selector {
        trace,
        usage,
        machine,
        chains: Chains::new(trace, usage, options, config.min_block_bytes),
        preference: config.preference,
        hidden_share,
        taste,
        swap_bytes_left: config.swap_bytes_max,
        slot_start_us: starts_us(slot_us),
        scale: Scale::new(trace, usage, &need, &gaps, slot_us),
        curve: Curve::new(&need),
        host: Curve::new(&vec![0; usage.slot_count()]),
        out_free: FreeTime::new(slot_us.clone()),
        in_free: FreeTime::new(slot_us.clone()),
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
        taken: Vec::new(),
        needs: Needs::default(),
        forced_bytes: vec![0; usage.slot_count()],
        replay_uses: vec![Vec::new(); trace.blocks.len()],
        linked: BTreeSet::new(),
        users: BTreeMap::new(),
    };
    for gap in gaps {
        selector.offer(gap);
    }
    selector.send_early();
    let excess = selector.shave();
    let links = selector.links();
    let blamed = excess.map_or_else(Vec::new, |(row, _)| selector.blamed_for(row));
    Selection { choices: selector.choices, curve: selector.curve.values(), excess, blamed, links }
}

/// The gaps of all blocks that may leave.
pub(super) fn movable_gaps(trace: &Trace, usage: &Usage, config: &GenerateConfig) -> Vec<Gap> {
    let mut gaps = find_gaps(trace, usage);
    gaps.retain(|gap| trace.blocks[gap.block as usize].size_bytes >= config.min_block_bytes);
    if config.movable == Movable::Activations {
        gaps.retain(|gap| trace.blocks[gap.block as usize].origin != Origin::Persistent);
    }
    gaps
}

/// When each slot starts, of how long each takes.
fn starts_us(slot_us: &[f64]) -> Vec<f64> {
    let mut end_us = 0.0;
    let start = |us: &f64| {
        let start_us = end_us;
        end_us += us;
        start_us
    };
    slot_us.iter().map(start).collect()
}

/// The recipe for the bytes that a block holds in a gap.
pub(crate) fn gap_recipe<'a>(usage: &'a Usage, gap: &Gap) -> Option<&'a Recipe> {
    let op = usage.slots.get(usize::try_from(gap.from).ok()?)?;
    let end = usage.op_end[op.0 as usize] as usize;
    usage.recipe_at(gap.block as usize, end).map(|(_, recipe)| recipe)
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
                if self.undo_at(row) {
                    continue;
                }
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
            let gap = self.gap_of(&item);
            let (added_us, hidden_us, value) = match item.mode {
                // The host only fills up.
                Mode::Swap if !self.host_has_room(&gap) => continue,
                Mode::Swap => {
                    let hidden_us = self.link_us(&gap).into_iter().sum();
                    (self.stall_us(&gap, slot), hidden_us, item.value)
                }
                Mode::Recompute => {
                    let Some(chain) = self.chain_over(&gap) else { continue };
                    let Some(cascade) = self.cascade(&gap, &chain) else { continue };
                    if let Some(choice) = self.keeps_away_an_input(&gap, &chain) {
                        self.waiting_for[choice as usize].push((offer, node));
                        continue;
                    }
                    let (added_us, value) = self.worth(&gap, &chain, item.value);
                    (added_us + cascade.replay_us, 0.0, value)
                }
            };
            if value <= 0.0 {
                continue;
            }
            let cost_us = added_us + self.hidden_share * hidden_us;
            let score = cost_us * self.taste.factor(gap.block, item.mode) / value;
            self.offers[kind].put_back(node, Priced { score, ..offer });
            if score <= offer.score {
                return Some((offer.item, added_us));
            }
        }
    }

    /// Offers the ways to use a gap, at the least that they can cost for each unit of value.
    fn offer(&mut self, gap: Gap) {
        let place = self.offer_swap(gap);
        let last = self.usage.slots.len() as i64 - 1;
        let crosses = gap.to > last && last - gap.from >= 2;
        for cut in [false, true].into_iter().filter(|&cut| !cut || crosses) {
            let gap = if cut { back_in(gap, last) } else { gap };
            if let Some(chain) = self.chains.over(&gap) {
                let item = self.add_item(place, Mode::Recompute, cut, chain.own_us);
                for link in chain.links {
                    self.users.entry(link.block).or_default().push(item);
                }
            }
        }
    }

    /// Offers a swap over a gap. Returns the gap's place.
    fn offer_swap(&mut self, gap: Gap) -> u32 {
        let back_us =
            if gap.returns { self.machine.in_us(self.size_bytes(gap.block)) } else { 0.0 };
        let place = self.gaps.len() as u32;
        self.gaps.push(gap);
        self.spent.push(false);
        self.gaps_of[gap.block as usize].push(place);
        if gap.to - gap.from >= 2 {
            self.add_item(place, Mode::Swap, false, self.hidden_share * back_us);
        }
        place
    }

    fn add_item(&mut self, gap: u32, mode: Mode, cut: bool, least_us: f64) -> u32 {
        let number = self.items.len() as u32;
        let mut item = Item { gap, mode, cut, least_us, value: 0.0 };
        let used = self.gap_of(&item);
        let (start, count) = used.cover();
        item.value = self.size_bytes(used.block) as f64 * self.scale.weight_of(start, count);
        self.items.push(item);
        self.put_offer(number);
        number
    }

    /// Offers an item for all its rows.
    fn put_offer(&mut self, number: u32) {
        let item = self.items[number as usize];
        let gap = self.gap_of(&item);
        let factor = self.taste.factor(gap.block, item.mode);
        let (first_row, row_count) = gap.rows(self.usage);
        let offer = Priced { score: item.least_us * factor / item.value, item: number };
        let first_row = first_row % self.usage.row_slot.len();
        self.offers[item.mode as usize].add(first_row, row_count, offer);
    }

    /// The gap that an item uses. A copy to the host would make the op wait, so it comes behind.
    fn gap_of(&self, item: &Item) -> Gap {
        let gap = self.gaps[item.gap as usize];
        match item.mode {
            Mode::Swap => self.ahead(Gap { early: false, ..gap }),
            Mode::Recompute if item.cut => back_in(gap, self.usage.slots.len() as i64 - 1),
            Mode::Recompute => gap,
        }
    }

    /// The gap if the block is back as early as is wished.
    fn ahead(&self, gap: Gap) -> Gap {
        let lead_us = self.taste.lead_us(gap.block);
        if lead_us <= 0.0 || !gap.returns {
            return gap;
        }
        let slot_count = self.usage.slot_count() as i64;
        let mut step = gap.to.div_euclid(slot_count);
        let mut time_us = self.slot_start_us[gap.to.rem_euclid(slot_count) as usize] - lead_us;
        if time_us < 0.0 {
            time_us += self.slot_start_us[slot_count as usize - 1];
            step -= 1;
        }
        // Nothing can be back between the last op and the step's end.
        let slots = &self.slot_start_us[..slot_count as usize - 1];
        let slot = slots.partition_point(|&start_us| start_us <= time_us).max(1) as i64 - 1;
        let to = step * slot_count + slot;
        if to >= gap.to || to - gap.from < 2 {
            gap
        } else if to < slot_count {
            back_in(gap, to)
        } else {
            Gap { to, ..gap }
        }
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
        let item = self.items[item as usize];
        self.spent[item.gap as usize] = true;
        let (whole, gap) = (self.gaps[item.gap as usize], self.gap_of(&item));
        let size_bytes = self.size_bytes(gap.block) as i64;
        match item.mode {
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
                self.add_choice(gap, Mode::Swap, added_us);
            }
            Mode::Recompute => {
                let mut chain = self.chain_over(&gap).expect("it was looked at just now");
                chain.forced_bytes = self.cascade(&gap, &chain).map_or(0, |cascade| cascade.bytes);
                let choice = self.add_choice(gap, Mode::Recompute, added_us);
                self.take(choice, chain);
            }
        }
        if item.cut {
            self.offer_part(Gap { from: gap.to, ..whole });
        }
    }

    fn add_choice(&mut self, gap: Gap, mode: Mode, added_us: f64) -> u32 {
        let index = self.choices.len() as u32;
        self.choices_of[gap.block as usize].push(index);
        self.choices.push(Choice { gap, mode, added_us, stands: true });
        self.waiting_for.push(Vec::new());
        self.taken.push(Chain::default());
        self.cover(&gap, -1);
        index
    }

    /// Adds the block of a gap to its rows, or takes it off them.
    fn cover(&mut self, gap: &Gap, sign: i64) {
        let size_bytes = self.size_bytes(gap.block);
        let (first_row, row_count) = gap.rows(self.usage);
        self.curve.add(first_row, row_count, sign * size_bytes as i64);
        if gap.early {
            // It is still there before the op begins.
            let slot = gap.from as usize % self.usage.slot_count();
            let there_bytes = size_bytes.saturating_sub(self.scale.unused_bytes[slot]);
            let row = self.usage.begin_row[slot] as usize;
            self.curve.add(row, 1, -sign * there_bytes as i64);
        }
    }

    fn size_bytes(&self, block: u32) -> u64 {
        self.trace.blocks[block as usize].size_bytes
    }
}
