//! The part of choosing that drops blocks: what a chain costs and is worth, and what taking it does
//! to other gaps.

use super::*;

/// More blocks than this never come back for one replay.
const CASCADE_MAX: usize = 48;

/// What else comes back for a replay.
pub(super) struct Cascade {
    pub(super) bytes: u64,
    /// Time of replays that are not made anyway.
    pub(super) replay_us: f64,
}

/// Whether a choice's block comes back soon after a slot.
fn is_near(choice: &Choice, slot: i64) -> bool {
    let gap = &choice.gap;
    gap.returns && 4 * (gap.to - slot) < gap.to - gap.from
}

impl Selector<'_> {
    /// What dropping the block over a gap takes beside what is chosen; nothing if that cannot be.
    pub(super) fn chain_over(&self, gap: &Gap) -> Option<Chain> {
        let chain = self.chains.over(gap)?;
        let usage = self.usage;
        let is_swapped =
            |choice: &Choice| choice.stands && choice.mode == Mode::Swap && !choice.gap.returns;
        // It must be dropped when its owner frees it.
        let goes_before_free = |slot: i64, block: u32| {
            let end = self.chains.end_of_op(slot);
            end.is_some_and(|end| end < usage.freed[block as usize])
        };
        let links_hold = chain.links.iter().all(|link| {
            let mut choices = self.choices_of[link.block as usize].iter();
            goes_before_free(self.drop_slot(link), link.block)
                && !choices.any(|&choice| is_swapped(&self.choices[choice as usize]))
        });
        let may_use = |input: &&u32| self.linked.contains(input) && gap.returns;
        let mut used = chain.inputs.iter().filter(may_use);
        let inputs_hold = used.all(|&input| goes_before_free(gap.to, input));
        (links_hold && inputs_hold).then_some(chain)
    }

    /// What else comes back for the replay at a gap's end, because the replay reads it or what it
    /// reads is made from it. Nothing if that is more than there can be room for.
    pub(super) fn cascade(&self, gap: &Gap, chain: &Chain) -> Option<Cascade> {
        let mut cascade = Cascade { bytes: chain.scratch_bytes, replay_us: 0.0 };
        let mut seen: BTreeSet<u32> = BTreeSet::new();
        let mut open: Vec<u32> = if gap.returns { chain.inputs.clone() } else { Vec::new() };
        while let Some(input) = open.pop() {
            for &index in &self.choices_of[input as usize] {
                let choice = &self.choices[index as usize];
                let away = choice.stands && choice.gap.from < gap.to && gap.to < choice.gap.to;
                if !away || !seen.insert(input) {
                    continue;
                }
                cascade.bytes += self.size_bytes(input);
                if choice.mode == Mode::Recompute {
                    let taken = &self.taken[index as usize];
                    cascade.bytes += taken.scratch_bytes;
                    open.extend(&taken.inputs);
                    if !is_near(choice, gap.to) {
                        // It is made once more for the rest of its gap.
                        cascade.replay_us += self.chains.replay_us(input).unwrap_or(0.0);
                    }
                }
            }
            if seen.len() > CASCADE_MAX {
                return None;
            }
        }
        (cascade.bytes == 0 || self.has_room(gap, cascade.bytes)).then_some(cascade)
    }

    /// Whether there can be room before the op of a gap's end for so many bytes beside.
    fn has_room(&self, gap: &Gap, bytes: u64) -> bool {
        let slot = gap.to as usize;
        let row = self.usage.begin_row[slot] as usize;
        let least_bytes = i128::from(self.scale.least[row]);
        let beside_bytes = i128::from(self.forced_bytes[slot]) + i128::from(bytes);
        let beside_bytes = beside_bytes - i128::from(self.scale.unused_bytes[slot]);
        least_bytes + beside_bytes.max(0) <= i128::from(self.machine.limit_bytes)
    }

    /// What the replays need before the op of a gap's end beyond what that op needs then.
    fn scratch_bytes(&self, gap: &Gap, chain: &Chain) -> i64 {
        if !gap.returns {
            return 0;
        }
        let unused_bytes = self.scale.unused_bytes[gap.to as usize % self.usage.slot_count()];
        chain.scratch_bytes.saturating_sub(unused_bytes) as i64
    }

    /// The copy because of which an input of the replay at the gap's end is not there then, and
    /// that would come to little if the input came back for it.
    pub(super) fn keeps_away_an_input(&self, gap: &Gap, chain: &Chain) -> Option<u32> {
        let inputs = chain.inputs.iter().filter(|_| gap.returns);
        let mut choices = inputs.flat_map(|&input| &self.choices_of[input as usize]).copied();
        choices.find(|&index| {
            let choice = &self.choices[index as usize];
            let away = choice.stands && choice.gap.from < gap.to && gap.to < choice.gap.to;
            away && choice.mode == Mode::Swap && !is_near(choice, gap.to)
        })
    }

    /// What a chain adds to the step, and what of a gap's value is left beside the blocks that stay
    /// on the device for it.
    pub(super) fn worth(&self, gap: &Gap, chain: &Chain, value: f64) -> (f64, f64) {
        let mut added_us = chain.own_us;
        let mut value = value;
        let need = self.need(0, gap);
        for link in chain.links.iter().filter(|link| gap.returns && !self.needs.is_made(link.block))
        {
            added_us += link.replay_us;
        }
        for (block, freed_row) in self.freed_blocks(chain) {
            let [before, after] = [None, Some(need)].map(|more| {
                let stay = self.needs.stay(block, freed_row, more);
                stay.map_or(0.0, |(first, last)| self.weight_of_rows(first, last))
            });
            value -= self.size_bytes(block) as f64 * (after - before);
        }
        (added_us, value)
    }

    fn weight_of_rows(&self, first: usize, last: usize) -> f64 {
        if first >= last {
            return 0.0;
        }
        let slot = |row: usize| self.usage.row_slot[row] as usize;
        self.scale.weight_of(slot(first), slot(last - 1) - slot(first) + 1)
    }

    /// The freed blocks of a chain, each with the row from which it stays if it is not made again.
    pub(super) fn freed_blocks(&self, chain: &Chain) -> Vec<(u32, Option<usize>)> {
        let kept = chain.kept.iter().map(|&block| {
            let freed = self.usage.freed[block as usize] as usize;
            (block, Some(self.usage.event_row[freed] as usize + 1))
        });
        chain.links.iter().map(|link| (link.block, None)).chain(kept).collect()
    }

    pub(super) fn need(&self, choice: u32, gap: &Gap) -> Need {
        let row = match gap.returns {
            true => self.usage.begin_row[gap.to as usize] as usize,
            false => self.usage.event_row[gap.freed as usize] as usize + 1,
        };
        Need { choice, row, replays: gap.returns }
    }

    /// Makes a chain part of a choice.
    pub(super) fn take(&mut self, index: u32, chain: Chain) {
        let gap = self.choices[index as usize].gap;
        let need = self.need(index, &gap);
        for (block, freed_row) in self.freed_blocks(&chain) {
            let more = need.replays && !self.needs.is_made(block);
            self.change_stay(block, freed_row, |needs| needs.add(block, need));
            if more && freed_row.is_none() {
                self.offer_again(block);
            }
        }
        if gap.returns {
            self.forced_bytes[gap.to as usize] += chain.forced_bytes;
            self.curve.add(need.row, 1, self.scratch_bytes(&gap, &chain));
        }
        for link in &chain.links {
            self.linked.insert(link.block);
            self.drop_until_free(link.block);
        }
        let inputs = chain.inputs.clone();
        self.taken[index as usize] = chain;
        if gap.returns {
            self.use_inputs(&inputs, gap.to);
        }
    }

    /// Takes the chain of a choice off again.
    pub(super) fn release(&mut self, index: u32) {
        let gap = self.choices[index as usize].gap;
        let chain = mem::take(&mut self.taken[index as usize]);
        for (block, freed_row) in self.freed_blocks(&chain) {
            self.change_stay(block, freed_row, |needs| needs.remove(block, index));
        }
        if gap.returns {
            let slot = gap.to as usize % self.usage.slot_count();
            let row = self.usage.begin_row[slot] as usize;
            self.forced_bytes[slot] -= chain.forced_bytes;
            self.curve.add(row, 1, -self.scratch_bytes(&gap, &chain));
        }
    }

    fn change_stay(
        &mut self,
        block: u32,
        freed_row: Option<usize>,
        change: impl FnOnce(&mut Needs),
    ) {
        let size_bytes = self.size_bytes(block) as i64;
        let before = self.needs.stay(block, freed_row, None);
        change(&mut self.needs);
        let after = self.needs.stay(block, freed_row, None);
        for (stay, bytes) in [(before, -size_bytes), (after, size_bytes)] {
            if let Some((first, last)) = stay {
                self.curve.add(first, last - first, bytes);
            }
        }
    }

    /// Others that are made from a block cost less once it is made again anyway.
    fn offer_again(&mut self, block: u32) {
        for item in self.users.get(&block).cloned().unwrap_or_default() {
            if !self.spent[self.items[item as usize].gap as usize] {
                self.put_offer(item);
            }
        }
    }

    /// A block that is dropped before its owner frees it is away until then.
    fn drop_until_free(&mut self, block: u32) {
        for place in self.gaps_of[block as usize].clone() {
            let gap = self.gaps[place as usize];
            let is_last = !gap.returns && gap.again == block && gap.freed != NONE;
            if is_last && !mem::replace(&mut self.spent[place as usize], true) {
                self.add_choice(gap, Mode::Recompute, 0.0);
            }
        }
    }

    /// A replay in `slot` is a use of its inputs there: it splits their gaps.
    fn use_inputs(&mut self, inputs: &[u32], slot: i64) {
        let around = |gap: &Gap| gap.from < slot && slot < gap.to;
        for &input in inputs {
            let index = input as usize;
            self.replay_uses[index].push(slot);
            for place in self.gaps_of[index].clone() {
                let gap = self.gaps[place as usize];
                if !self.spent[place as usize] && around(&gap) {
                    self.spent[place as usize] = true;
                    self.offer_part(back_in(gap, slot));
                    self.offer_part(left_in(gap, slot));
                }
            }
            for choice in self.choices_of[index].clone() {
                if self.choices[choice as usize].stands
                    && around(&self.choices[choice as usize].gap)
                {
                    self.shorten(choice, slot);
                }
            }
        }
    }

    /// Adds a gap that came of splitting another, if it has a whole slot.
    pub(super) fn offer_part(&mut self, gap: Gap) {
        if gap.to - gap.from >= 2 - i64::from(gap.early) {
            self.offer(gap);
        }
    }

    /// Brings a chosen block back earlier, in `slot`.
    fn shorten(&mut self, index: u32, slot: i64) {
        let Choice { gap, mode, .. } = self.choices[index as usize];
        self.release(index);
        self.cover(&gap, 1);
        let short = back_in(gap, slot);
        self.choices[index as usize].gap = short;
        for (offer, node) in mem::take(&mut self.waiting_for[index as usize]) {
            self.offers[Mode::Recompute as usize].put_back(node, offer);
        }
        self.offer_part(left_in(gap, slot));
        let chain = match mode {
            _ if slot - gap.from < 2 - i64::from(gap.early) => None,
            Mode::Swap => Some(Chain::default()),
            Mode::Recompute => self.chain_over(&short),
        };
        let Some(chain) = chain else {
            self.choices[index as usize].stands = false;
            return;
        };
        self.cover(&short, -1);
        if mode == Mode::Recompute {
            self.take(index, chain);
        }
    }

    /// The slot behind which a block is used no more before its owner frees it.
    fn drop_slot(&self, link: &ChainLink) -> i64 {
        let uses = self.replay_uses[link.block as usize].iter();
        uses.fold(link.last_slot, |last, &slot| last.max(slot))
    }

    /// The freed blocks that chains make again, each with the slot behind which it is dropped, and
    /// the first slot that ends a gap of those that are made from it.
    pub(super) fn links(&self) -> BTreeMap<(i64, u32), i64> {
        let mut links = BTreeMap::new();
        let standing = self.choices.iter().zip(&self.taken).filter(|(choice, _)| choice.stands);
        for (choice, chain) in standing {
            let slot_last = self.usage.slots.len() as i64 - 1;
            let back = choice.gap.to.min(slot_last);
            for link in &chain.links {
                let first = links.entry((self.drop_slot(link), link.block)).or_insert(back);
                *first = back.min(*first);
            }
        }
        links
    }
}

/// The gap if the block is back in a slot of it.
pub(super) fn back_in(gap: Gap, slot: i64) -> Gap {
    Gap { to: slot, again: gap.block, returns: true, freed: NONE, ..gap }
}

/// The gap if a replay needs the block before the op of a slot of it.
fn left_in(gap: Gap, slot: i64) -> Gap {
    Gap { from: slot, early: true, ..gap }
}
