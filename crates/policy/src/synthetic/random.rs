//! Random traces: any mixture of sizes, nesting, lifetimes and access modes that is well formed.

use swap_core::{BlockIndex, Trace};

use super::{Numbers, TraceBuilder};

/// How large a random trace is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RandomShape {
    /// Number of outermost ops.
    pub ops: u32,
    /// Blocks that live at the start, at most.
    pub persistent: u32,
    /// Sizes are 1 to this many times `unit_bytes`.
    pub size_units: u64,
    /// The smallest size.
    pub unit_bytes: u64,
    /// Ops take 1 to this many microseconds.
    pub op_us: u64,
    /// Of a hundred nested ops, how many are plain ones that can run again.
    pub nested_recipes: u64,
    /// Blocks that the step makes for the next one, at most: each takes the place of one that lived
    /// at the start and is freed in the step, as batches do that are loaded ahead.
    pub carried: u32,
}

impl RandomShape {
    /// A small one, for tests that look at many.
    pub fn small() -> RandomShape {
        RandomShape {
            ops: 24,
            persistent: 6,
            size_units: 4,
            unit_bytes: 1 << 21,
            op_us: 400,
            nested_recipes: 0,
            carried: 0,
        }
    }
}

struct Writer {
    numbers: Numbers,
    shape: RandomShape,
    builder: TraceBuilder,
    /// Live blocks that the step made.
    live: Vec<BlockIndex>,
    persistent: Vec<BlockIndex>,
    sizes: Vec<u64>,
    segment_bytes: u64,
    carried: Vec<Carried>,
}

/// Instead of an op.
const NEVER: u32 = u32::MAX;

/// A block that the step makes for the next one, and the one whose place it takes.
struct Carried {
    old: Option<BlockIndex>,
    new: Option<BlockIndex>,
    size_bytes: u64,
    /// The ops after which the new one is made and the old one is freed, or [`NEVER`].
    made_after: u32,
    freed_after: u32,
}

/// A random well-formed trace of a steady step: what it makes is freed by its end, but for blocks
/// that take the places of some that lived at the start.
pub fn random_trace(seed: u64, shape: &RandomShape) -> Trace {
    let mut writer = Writer {
        numbers: Numbers::new(seed),
        shape: *shape,
        builder: TraceBuilder::new(),
        live: Vec::new(),
        persistent: Vec::new(),
        sizes: Vec::new(),
        segment_bytes: 0,
        carried: Vec::new(),
    };
    let persistent = writer.numbers.below(u64::from(shape.persistent) + 1);
    for index in 0..persistent {
        let size_bytes = writer.size_bytes();
        let block = writer.builder.persistent(&format!("state{index}"), size_bytes);
        writer.persistent.push(block);
        writer.sizes.push(size_bytes);
    }
    writer.expect_carried();
    if writer.numbers.chance(50) {
        writer.segment_bytes = shape.unit_bytes;
        writer.builder.segments(writer.segment_bytes);
    }
    for index in 0..shape.ops {
        if index == shape.ops / 2 && writer.numbers.chance(30) {
            writer.replace_persistent();
        }
        writer.outermost_op(index);
        writer.carry(index);
    }
    while let Some(block) = writer.live.pop() {
        writer.builder.free(block);
    }
    writer.builder.finish()
}

impl Writer {
    fn size_bytes(&mut self) -> u64 {
        self.shape.unit_bytes * (1 + self.numbers.below(self.shape.size_units))
    }

    /// Adds the blocks that the last step made for this one. They come last and are of one size, so
    /// that those made for the next step find their places in whatever order they come.
    fn expect_carried(&mut self) {
        if self.shape.carried == 0 || self.shape.ops == 0 {
            return;
        }
        let size_bytes = self.size_bytes();
        let count = self.numbers.below(u64::from(self.shape.carried) + 1);
        for index in 0..count {
            let old = Some(self.builder.persistent(&format!("ahead{index}"), size_bytes));
            // The last of several may wait for one more step.
            let waits = index > 0 && index + 1 == count && self.numbers.chance(30);
            let [made_after, freed_after] = [(); 2].map(|()| match waits {
                true => NEVER,
                false => self.numbers.below(u64::from(self.shape.ops)) as u32,
            });
            let new = None;
            self.carried.push(Carried { old, new, size_bytes, made_after, freed_after });
        }
    }

    /// Makes blocks for the next step and frees those of the last one, where their time has come.
    fn carry(&mut self, index: u32) {
        for place in 0..self.carried.len() {
            if self.carried[place].made_after == index {
                let size_bytes = self.carried[place].size_bytes;
                let new = self.builder.allocate("ahead", size_bytes);
                self.carried[place].new = Some(new);
                if self.numbers.chance(80) {
                    self.builder.compute("load", 5.0, &[], new);
                }
            }
            if self.carried[place].freed_after == index
                && let Some(old) = self.carried[place].old.take()
            {
                self.builder.free(old);
            }
        }
    }

    /// Frees the last of the blocks that lived at the start, and makes its like, which stays.
    fn replace_persistent(&mut self) {
        let Some(old) = self.persistent.pop() else { return };
        let size_bytes = self.sizes.pop().expect("one for each block");
        self.builder.free(old);
        let new = self.builder.allocate("replaced", size_bytes);
        self.persistent.push(new);
    }

    fn outermost_op(&mut self, index: u32) {
        while self.numbers.chance(35) {
            self.allocate();
        }
        let device_us = 1.0 + self.numbers.below(self.shape.op_us) as f64;
        if self.numbers.chance(50) {
            self.plain_op(index, device_us);
        } else {
            self.builder.begin(&format!("op{}", index % 7), device_us, false);
            self.body(2);
            self.builder.end();
        }
        while !self.live.is_empty() && self.numbers.chance(30) {
            let victim = self.numbers.below(self.live.len() as u64) as usize;
            let block = self.live.remove(victim);
            self.builder.free(block);
        }
    }

    /// An op with a recipe: it reads up to two blocks and makes a new one.
    fn plain_op(&mut self, index: u32, device_us: f64) {
        let reads: Vec<BlockIndex> = (0..2).filter_map(|_| self.any()).collect();
        let output = self.allocate();
        self.builder.compute(&format!("plain{}", index % 5), device_us, &reads, output);
    }

    fn body(&mut self, depth: u32) {
        for _ in 0..1 + self.numbers.below(3) {
            match self.numbers.below(10) {
                0..5 => {
                    if let Some(block) = self.any() {
                        match self.numbers.below(4) {
                            0 => self.builder.update(block),
                            _ => self.builder.read(block),
                        }
                    }
                }
                6 | 7 if depth > 0 && self.is_nested_recipe() => self.plain_op(depth, 0.0),
                5..7 => {
                    let block = self.allocate();
                    self.builder.write(block);
                }
                7 if depth > 0 => {
                    self.builder.begin("nested", 0.0, false);
                    self.body(depth - 1);
                    self.builder.end();
                }
                8 => {
                    if let Some(block) = self.live.pop() {
                        self.builder.free(block);
                    }
                }
                _ => {
                    if self.numbers.chance(10) {
                        self.segment_bytes += self.shape.unit_bytes;
                        self.builder.segments(self.segment_bytes);
                    }
                }
            }
        }
    }

    fn is_nested_recipe(&mut self) -> bool {
        self.shape.nested_recipes > 0 && self.numbers.chance(self.shape.nested_recipes)
    }

    fn allocate(&mut self) -> BlockIndex {
        let size_bytes = self.size_bytes();
        let block = self.builder.allocate("made", size_bytes);
        self.live.push(block);
        block
    }

    /// A live block; old ones and new ones are as likely.
    fn any(&mut self) -> Option<BlockIndex> {
        if !self.carried.is_empty() && self.numbers.chance(30) {
            let place = self.numbers.below(self.carried.len() as u64) as usize;
            let Carried { old, new, .. } = self.carried[place];
            if let Some(block) = old.or(new) {
                return Some(block);
            }
        }
        let count = self.persistent.len() + self.live.len();
        if count == 0 {
            return None;
        }
        let pick = self.numbers.below(count as u64) as usize;
        let made = pick.checked_sub(self.persistent.len());
        Some(made.map_or_else(|| self.persistent[pick], |index| self.live[index]))
    }
}
