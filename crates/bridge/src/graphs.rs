//! Graphs: work that is captured once and run any number of times. While it is captured nothing
//! runs, so what it uses is noted and kept on the device; a run is one op that uses all of it.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use adaptive::{AccessMode, BlockId, Error};

use crate::blocks::Tables;
use crate::context::Context;
use crate::failure::Failure;
use crate::local::{Local, Use};

/// The graphs that somebody may still run.
#[derive(Debug, Default)]
pub(crate) struct Graphs(Mutex<Numbered>);

#[derive(Debug, Default)]
struct Numbered {
    last: u64,
    by_number: BTreeMap<u64, Graph>,
}

/// The blocks that a graph uses, in the order of their first use.
#[derive(Clone, Debug, Default)]
struct Graph {
    used: Vec<Used>,
    /// Where in `used` a block is. A freed block's name is nobody else's, unlike its address.
    places: BTreeMap<BlockId, usize>,
}

#[derive(Clone, Copy, Debug)]
struct Used {
    start: u64,
    block: BlockId,
    mode: AccessMode,
}

impl Graph {
    /// Adds a use behind all others. What is written first is not read before.
    fn add(&mut self, used: Used) {
        let place = *self.places.entry(used.block).or_insert(self.used.len());
        match self.used.get_mut(place) {
            Some(known) if known.mode == AccessMode::Read && used.mode.writes() => {
                known.mode = AccessMode::ReadWrite;
            }
            Some(_) => {}
            None => self.used.push(used),
        }
    }

    /// The uses of blocks that are still live, as an op is told of them. Forgets the others.
    fn uses(&mut self, blocks: &mut Tables) -> Vec<(u64, Use)> {
        let is_live = |used: &Used, blocks: &mut Tables| {
            blocks.around(used.start).is_some_and(|live| live.id == used.block)
        };
        if !self.used.iter().all(|used| is_live(used, blocks)) {
            self.used.retain(|used| is_live(used, blocks));
            let numbered = self.used.iter().enumerate();
            self.places = numbered.map(|(place, used)| (used.block, place)).collect();
        }
        self.used.iter().map(|used| (used.start, Use::Known(used.mode))).collect()
    }
}

impl Numbered {
    fn find(&mut self, number: u64) -> Result<&mut Graph, Failure> {
        let none = || Failure::usage(format!("{number} is not a graph of this engine"));
        self.by_number.get_mut(&number).ok_or_else(none)
    }
}

impl Graphs {
    fn lock(&self) -> MutexGuard<'_, Numbered> {
        // A panic leaves no graph half-changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Context {
    /// A new graph, which nobody has captured yet. Returns its number, which is not 0.
    pub(crate) fn make_graph(&self) -> u64 {
        let mut graphs = self.graphs.lock();
        graphs.last += 1;
        let number = graphs.last;
        graphs.by_number.insert(number, Graph::default());
        number
    }

    pub(crate) fn forget_graph(&self, number: u64) {
        self.graphs.lock().by_number.remove(&number);
    }

    /// Notes that a graph uses blocks, and keeps them on the device until no capture goes on.
    pub(crate) fn note_in_graph(
        &self,
        number: u64,
        uses: impl Iterator<Item = (u64, Use)>,
    ) -> Result<(), Failure> {
        let mut graphs = self.graphs.lock();
        let graph = graphs.find(number)?;
        let mut blocks = self.blocks.lock();
        let mut used = Vec::new();
        for (address, how) in uses {
            // No block is made by what only runs later.
            let mode = match how {
                Use::Known(mode) => mode,
                Use::Unknown => AccessMode::ReadWrite,
                Use::Output => continue,
            };
            if let Some(live) = blocks.around(address) {
                graph.add(Used { start: live.start, block: live.id, mode });
                used.push(live.id);
            }
        }
        drop((blocks, graphs));
        self.keep_for_captures(used)
    }

    /// Notes that a graph runs all of another one, and keeps that on the device too.
    pub(crate) fn include_graph(&self, number: u64, inner: u64) -> Result<(), Failure> {
        let mut graphs = self.graphs.lock();
        let inner = graphs.find(inner)?.clone();
        let graph = graphs.find(number)?;
        inner.used.iter().for_each(|&used| graph.add(used));
        drop(graphs);
        self.keep_for_captures(inner.used.iter().map(|used| used.block))
    }

    fn keep_for_captures(&self, used: impl IntoIterator<Item = BlockId>) -> Result<(), Failure> {
        for block in used {
            match self.engine.keep_for_captures(block) {
                // Nobody uses what was freed.
                Ok(()) | Err(Error::Freed) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn uses_of_graph(&self, number: u64) -> Result<Vec<(u64, Use)>, Failure> {
        let mut graphs = self.graphs.lock();
        let graph = graphs.find(number)?;
        Ok(graph.uses(&mut self.blocks.lock()))
    }

    /// Whether the memory at `address` stays on the device until it is freed.
    pub(crate) fn stays(&self, address: u64) -> Result<bool, Failure> {
        let Some(live) = self.blocks.find_swappable(address) else { return Ok(true) };
        Ok(self.engine.is_held_for_good(live.id)?)
    }
}

impl Local {
    /// Makes all usable that a graph uses, until the running op ends.
    pub(crate) fn touch_graph(&mut self, number: u64) -> Result<(), Failure> {
        let uses = self.context.uses_of_graph(number)?;
        self.touch(uses.iter().copied())
    }
}
