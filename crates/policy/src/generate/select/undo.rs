//! The part of choosing that takes drops back.
//!
//! What a chain keeps on the device, or makes again early, is chosen while other rows are the
//! highest. Where nothing else lowers the row that is the highest now, what stays there for chains
//! goes: the blocks that they bring back can still be swapped.

use super::*;

/// A freed block that stays on the device for chains.
#[derive(Default)]
struct Stay {
    freed_row: Option<usize>,
    /// The choices whose chains need it behind the row.
    choices: Vec<u32>,
    /// Of the blocks that these bring back.
    bytes: u64,
}

impl Selector<'_> {
    /// Takes back the drops because of which a block stays on the device in a row: for the most
    /// bytes there, beside those of the blocks that were dropped. Returns whether there were some.
    pub(super) fn undo_at(&mut self, row: usize) -> bool {
        let mut stays: BTreeMap<u32, Stay> = BTreeMap::new();
        for (index, choice) in (0..).zip(&self.choices).filter(|(_, choice)| choice.stands) {
            for (block, freed_row) in self.freed_blocks(&self.taken[index as usize]) {
                if self.need(index, &choice.gap).row > row {
                    let stay = stays.entry(block).or_default();
                    stay.freed_row = freed_row;
                    stay.choices.push(index);
                    stay.bytes += self.size_bytes(choice.gap.block);
                }
            }
        }
        let worth = |(block, stay): (u32, Stay)| {
            let (first, _) = self.needs.stay(block, stay.freed_row, None)?;
            let share = self.size_bytes(block) as f64 / stay.bytes as f64;
            (first <= row).then_some((share, stay.choices))
        };
        let all = stays.into_iter().filter_map(worth);
        let best = all.max_by(|(one, _), (other, _)| one.total_cmp(other));
        let Some((_, choices)) = best else { return false };
        for index in choices {
            self.undo(index);
        }
        true
    }

    /// Takes a drop back. Its block can still be swapped.
    fn undo(&mut self, index: u32) {
        let gap = self.choices[index as usize].gap;
        self.release(index);
        self.cover(&gap, 1);
        self.choices[index as usize].stands = false;
        self.offer_swap(gap);
    }

    /// The blocks whose replays use others in a row, which are there only for them.
    pub(super) fn blamed_for(&self, row: usize) -> Vec<u32> {
        let slot = i64::from(self.usage.row_slot[row]);
        let brings_others = |&(choice, chain): &(&Choice, &Chain)| {
            let is_here = choice.stands && choice.gap.returns && choice.gap.to == slot;
            is_here && (!chain.inputs.is_empty() || chain.scratch_bytes > 0)
        };
        let all = self.choices.iter().zip(&self.taken).filter(brings_others);
        all.map(|(choice, _)| choice.gap.block).collect()
    }
}
