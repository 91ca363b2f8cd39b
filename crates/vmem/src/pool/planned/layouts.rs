//! The layouts of planned memory: the present one, and earlier ones that are not empty yet.

use std::collections::VecDeque;

use npu_sys::VaRange;

use super::{Planned, Shown, Tiles};
use crate::block::BlockId;

/// The present layout and those of which something is still held.
#[derive(Debug, Default)]
pub(in crate::pool) struct Layouts {
    /// In the order in which they were laid out.
    pub(super) all: Vec<Planned>,
    /// Number of the present one.
    pub(super) present: Option<u32>,
    count: u32,
    /// While the addresses of what is away are to show nothing: live blocks that may still show a
    /// lot which they gave away, oldest first.
    pub(super) hiding: Option<VecDeque<BlockId>>,
}

impl Layouts {
    pub(super) fn begin(&mut self, home: VaRange, tiles: Tiles) {
        self.count += 1;
        self.all.push(Planned { number: self.count, home, tiles, shown: Shown::default() });
        self.present = Some(self.count);
    }

    pub(in crate::pool) fn end_present(&mut self) {
        self.present = None;
    }

    /// Notes that a block gave its lot away and still shows it.
    pub(in crate::pool) fn note_kept(&mut self, id: BlockId) {
        self.hiding.iter_mut().for_each(|hiding| hiding.push_back(id));
    }

    fn index(&self, number: u32) -> usize {
        let index = self.all.iter().position(|planned| planned.number == number);
        index.expect("a layout is kept while it is the present one, and outlives its lots")
    }

    pub(super) fn get(&self, number: u32) -> &Planned {
        &self.all[self.index(number)]
    }

    pub(super) fn get_mut(&mut self, number: u32) -> &mut Planned {
        let index = self.index(number);
        &mut self.all[index]
    }

    pub(super) fn present(&self) -> Option<&Planned> {
        self.present.map(|number| self.get(number))
    }

    /// Numbers of all but the present one.
    pub(super) fn earlier(&self) -> Vec<u32> {
        let numbers = self.all.iter().map(|planned| planned.number);
        numbers.filter(|&number| self.present != Some(number)).collect()
    }

    /// Takes a layout out that has no memory left; returns its home addresses.
    pub(super) fn remove_empty(&mut self, number: u32) -> Option<VaRange> {
        let index = self.index(number);
        self.all[index].tiles.are_empty().then(|| self.all.remove(index).home)
    }
}
