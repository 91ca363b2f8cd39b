//! All blocks of a pool, by their names.

use crate::block::{Block, BlockId, BlockMemory};
use crate::point::Uses;

/// Live blocks, and the room of freed ones. A name is good until its block is freed: the room's
/// next block has the next generation.
#[derive(Debug, Default)]
pub(crate) struct BlockTable {
    slots: Vec<Block>,
    free: Vec<u32>,
}

impl BlockTable {
    /// Adds a block and names it.
    pub(crate) fn insert(
        &mut self,
        requested_bytes: u64,
        size_bytes: u64,
        memory: BlockMemory,
        uses: Uses,
    ) -> BlockId {
        let is_disowned = false;
        let mut block =
            Block { generation: 0, requested_bytes, size_bytes, is_disowned, uses, memory };
        match self.free.pop() {
            Some(index) => {
                let slot = &mut self.slots[index as usize];
                block.generation = slot.generation + 1;
                *slot = block;
                BlockId { index, generation: slot.generation }
            }
            None => {
                let index = u32::try_from(self.slots.len()).expect("fewer than 2^32 blocks");
                self.slots.push(block);
                BlockId { index, generation: 0 }
            }
        }
    }

    /// Takes a block out: its size, its memory and its uses.
    ///
    /// # Panics
    /// If it is not live.
    pub(crate) fn remove(&mut self, id: BlockId) -> (u64, BlockMemory, Uses) {
        let block = self.get_mut(id);
        let memory = std::mem::replace(&mut block.memory, BlockMemory::Freed);
        let (size_bytes, uses) = (block.size_bytes, std::mem::take(&mut block.uses));
        self.free.push(id.index);
        (size_bytes, memory, uses)
    }

    /// The block, if it is live.
    pub(crate) fn find(&self, id: BlockId) -> Option<&Block> {
        let block = self.slots.get(id.index())?;
        let is_live =
            block.generation == id.generation && !matches!(block.memory, BlockMemory::Freed);
        is_live.then_some(block)
    }

    /// # Panics
    /// If the block is not live.
    pub(crate) fn get(&self, id: BlockId) -> &Block {
        self.find(id).unwrap_or_else(|| panic!("{id:?} was freed"))
    }

    /// # Panics
    /// If the block is not live.
    pub(crate) fn get_mut(&mut self, id: BlockId) -> &mut Block {
        assert!(self.find(id).is_some(), "{id:?} was freed");
        &mut self.slots[id.index()]
    }

    /// The names of live blocks that are as asked for.
    pub(crate) fn ids<'a>(
        &'a self,
        is_wanted: impl Fn(&Block) -> bool + 'a,
    ) -> impl Iterator<Item = BlockId> + 'a {
        let live = |block: &Block| !matches!(block.memory, BlockMemory::Freed);
        let blocks = (0..).zip(&self.slots);
        blocks
            .filter(move |(_, block)| live(block) && is_wanted(block))
            .map(|(index, block)| BlockId { index, generation: block.generation })
    }
}
