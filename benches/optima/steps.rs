//! The steps of the suite: nine kinds that are hard in different ways.

use adaptive::synthetic::{Numbers, TraceBuilder};
use adaptive::{BlockIndex, Trace};

/// The smallest block.
const UNIT_BYTES: u64 = 4 << 20;

/// A kind of training step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Layers forward and backward; each keeps one activation.
    Chain,
    /// Two networks in turn, with state that both use.
    TwoPeaks,
    /// Weights are gathered before each layer, forward and backward, and released behind it.
    Fsdp,
    /// An optimizer whose state is used once a step.
    AdamW,
    /// Experts of uneven sizes, each used forward and backward.
    Experts,
    /// Skip connections: what goes down is used on the way up, and again backward.
    UNet,
    /// Micro-batches in flight: one forward, one backward.
    Pipeline,
    /// Cheap operators between dear ones, each with an input that may be away itself.
    Replays,
    /// State that two far parts of the step use, so that it may pass the link twice.
    TwiceUsed,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 9] = [
        Kind::Chain,
        Kind::TwoPeaks,
        Kind::Fsdp,
        Kind::AdamW,
        Kind::Experts,
        Kind::UNet,
        Kind::Pipeline,
        Kind::Replays,
        Kind::TwiceUsed,
    ];

    /// Its name in files.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Chain => "chain",
            Kind::TwoPeaks => "two-peaks",
            Kind::Fsdp => "fsdp",
            Kind::AdamW => "adamw",
            Kind::Experts => "experts",
            Kind::UNet => "unet",
            Kind::Pipeline => "pipeline",
            Kind::Replays => "replays",
            Kind::TwiceUsed => "twice-used",
        }
    }
}

/// The step of a kind with this number.
pub fn step(kind: Kind, number: u64) -> Trace {
    let mut writer = Writer {
        numbers: Numbers::new(1_000 * kind as u64 + number),
        builder: TraceBuilder::new(),
        us_per_unit: 0.0,
    };
    // From a link that is twice as fast as needed to one that is three times too slow.
    writer.us_per_unit = UNIT_BYTES as f64 / 25_000.0 * writer.within(5, 40) as f64 / 10.0;
    match kind {
        Kind::Chain => writer.chain(),
        Kind::TwoPeaks => writer.two_peaks(),
        Kind::Fsdp => writer.fsdp(),
        Kind::AdamW => writer.adamw(),
        Kind::Experts => writer.experts(),
        Kind::UNet => writer.unet(),
        Kind::Pipeline => writer.pipeline(),
        Kind::Replays => writer.replays(),
        Kind::TwiceUsed => writer.twice_used(),
    }
    writer.builder.finish()
}

struct Writer {
    numbers: Numbers,
    builder: TraceBuilder,
    /// What an operator takes for each unit that it makes, about.
    us_per_unit: f64,
}

impl Writer {
    fn within(&mut self, least: u64, most: u64) -> u64 {
        least + self.numbers.below(most - least + 1)
    }

    fn size(&mut self) -> u64 {
        UNIT_BYTES * self.within(1, 6)
    }

    /// The time of an operator over so many bytes, from a half to twice as long as others.
    fn us(&mut self, size_bytes: u64) -> f64 {
        let factor = self.within(50, 200) as f64 / 100.0;
        (size_bytes as f64 / UNIT_BYTES as f64 * self.us_per_unit * factor).round()
    }

    fn state(&mut self, count: u64) -> Vec<BlockIndex> {
        let sizes: Vec<u64> = (0..count).map(|_| self.size()).collect();
        let builder = &mut self.builder;
        sizes.into_iter().map(|size| builder.persistent("state", size)).collect()
    }

    /// An operator that makes a block.
    fn make(&mut self, name: &str, reads: &[BlockIndex], again: bool) -> BlockIndex {
        let size_bytes = self.size();
        let device_us = self.us(size_bytes);
        self.builder.begin(name, device_us, again);
        for &block in reads {
            self.builder.read(block);
        }
        let made = self.builder.allocate(name, size_bytes);
        self.builder.write(made);
        self.builder.end();
        made
    }

    /// An operator that reads some blocks, changes others, and frees what nobody needs any more.
    fn work(
        &mut self,
        name: &str,
        reads: &[BlockIndex],
        changes: &[BlockIndex],
        frees: &[BlockIndex],
    ) {
        let device_us = self.us(4 * UNIT_BYTES);
        self.builder.begin(name, device_us, false);
        for &block in reads {
            self.builder.read(block);
        }
        for &block in changes {
            self.builder.update(block);
        }
        self.builder.end();
        for &block in frees {
            self.builder.free(block);
        }
    }

    fn chain(&mut self) {
        let layers = self.within(4, 7);
        let again = self.numbers.chance(50);
        let mut kept: Vec<BlockIndex> = Vec::new();
        for _ in 0..layers {
            let input: Vec<BlockIndex> = kept.last().copied().into_iter().collect();
            kept.push(self.make("forward", &input, again));
        }
        while let Some(block) = kept.pop() {
            self.work("backward", &[block], &[], &[block]);
        }
    }

    fn two_peaks(&mut self) {
        let state = self.state(1);
        for layers in [self.within(2, 3), self.within(2, 4)] {
            let again = self.numbers.chance(30);
            let mut kept = vec![self.make("forward", &state, again)];
            for _ in 1..layers {
                let input = kept[kept.len() - 1];
                kept.push(self.make("forward", &[input], again));
            }
            while let Some(block) = kept.pop() {
                self.work("backward", &[block], &[], &[block]);
            }
        }
    }

    fn fsdp(&mut self) {
        let layers = self.within(2, 4) as usize;
        let mut kept: Vec<BlockIndex> = Vec::new();
        for _ in 0..layers {
            let weight = self.make("gather", &[], false);
            let reads: Vec<BlockIndex> = kept.last().copied().into_iter().chain([weight]).collect();
            kept.push(self.make("forward", &reads, false));
            self.builder.free(weight);
        }
        while let Some(block) = kept.pop() {
            let weight = self.make("gather", &[], false);
            let gradient = self.make("backward", &[weight, block], false);
            self.builder.free(block);
            self.builder.free(weight);
            self.work("scatter", &[gradient], &[], &[gradient]);
        }
    }

    fn adamw(&mut self) {
        let state = self.state(3);
        let layers = state.len();
        let mut kept: Vec<BlockIndex> = Vec::new();
        for _ in 0..layers {
            let input: Vec<BlockIndex> = kept.last().copied().into_iter().collect();
            kept.push(self.make("forward", &input, false));
        }
        while let Some(block) = kept.pop() {
            self.work("backward", &[block], &[], &[block]);
        }
        for &block in &state {
            self.work("adam", &[], &[block], &[]);
        }
    }

    fn experts(&mut self) {
        let experts = self.state(2);
        let mut kept: Vec<(BlockIndex, BlockIndex)> = Vec::new();
        for _ in 0..self.within(2, 3) {
            let expert = experts[self.numbers.below(2) as usize];
            let again = self.numbers.chance(40);
            kept.push((expert, self.make("expert", &[expert], again)));
        }
        while let Some((expert, block)) = kept.pop() {
            self.work("backward", &[expert, block], &[], &[block]);
        }
    }

    fn unet(&mut self) {
        let depth = self.within(2, 3) as usize;
        let mut down: Vec<BlockIndex> = Vec::new();
        for _ in 0..depth {
            let input: Vec<BlockIndex> = down.last().copied().into_iter().collect();
            down.push(self.make("down", &input, false));
        }
        let mut up: Vec<BlockIndex> = Vec::new();
        for &skip in down.iter().rev() {
            let input: Vec<BlockIndex> = up.last().copied().into_iter().chain([skip]).collect();
            up.push(self.make("up", &input, true));
        }
        for (&skip, &block) in down.iter().zip(up.iter().rev()) {
            self.work("up backward", &[block, skip], &[], &[block]);
        }
        for &skip in down.iter().rev() {
            self.work("down backward", &[skip], &[], &[skip]);
        }
    }

    fn pipeline(&mut self) {
        let micro_batches = self.within(4, 6) as usize;
        let in_flight = self.within(2, 3) as usize;
        let mut kept: Vec<BlockIndex> = Vec::new();
        for number in 0..micro_batches + in_flight {
            if number < micro_batches {
                kept.push(self.make("forward", &[], false));
            }
            if number >= in_flight {
                let block = kept.remove(0);
                self.work("backward", &[block], &[], &[block]);
            }
        }
    }

    fn replays(&mut self) {
        let mut kept: Vec<[BlockIndex; 2]> = Vec::new();
        for _ in 0..self.within(2, 4) {
            let input: Vec<BlockIndex> = kept.last().map(|pair| pair[1]).into_iter().collect();
            let dear = self.make("matmul", &input, true);
            let slow_us = self.us_per_unit;
            self.us_per_unit = slow_us / 8.0;
            let cheap = self.make("gelu", &[dear], true);
            self.us_per_unit = slow_us;
            kept.push([dear, cheap]);
        }
        while let Some([dear, cheap]) = kept.pop() {
            self.work("backward", &[cheap, dear], &[], &[cheap, dear]);
        }
    }

    fn twice_used(&mut self) {
        let state = self.state(3);
        let mut kept: Vec<BlockIndex> = Vec::new();
        for &block in &state {
            let input: Vec<BlockIndex> = kept.last().copied().into_iter().chain([block]).collect();
            kept.push(self.make("forward", &input, false));
        }
        while let Some(block) = kept.pop() {
            self.work("backward", &[block], &[], &[block]);
        }
        for &block in &state {
            self.work("average", &[], &[block], &[]);
        }
    }
}
