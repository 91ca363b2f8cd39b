//! Finds the layers of a step from the names of its ops alone.
//!
//! Forward is what runs before the first op of autograd, the optimizer what runs after the last.
//! A layer is one turn of the longest repeating run of names that has attention in it, or a matrix
//! product where no name speaks of attention. What runs between layers belongs to the one before.

use swap_core::Trace;

use crate::usage::Usage;

/// What part of the step a slot belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Part {
    Forward,
    Backward,
    Optimizer,
}

/// Repeats longer than this many ops are not looked for.
const PERIOD_MAX: usize = 4096;

/// The stages of a step, by slot.
#[derive(Clone, Debug)]
pub(super) struct Stages {
    pub(super) part: Vec<Part>,
    /// The stage of each slot, counted over the whole step.
    pub(super) stage: Vec<u32>,
    /// The first slot of each stage, and the number of slots.
    pub(super) start: Vec<u32>,
    /// Slots of the forward layers, each as its first one and the one behind its last.
    pub(super) layers: Vec<(usize, usize)>,
}

/// A stretch of slots of one part.
#[derive(Clone, Copy, Debug)]
struct Run {
    part: Part,
    from: usize,
    to: usize,
}

impl Stages {
    /// One stage for each layer; one for each op where no layers can be seen.
    pub(super) fn by_layer(trace: &Trace, usage: &Usage) -> Stages {
        Stages::by_layers(trace, usage, 1)
    }

    /// One stage for so many layers in a row, and what is left over with the last of them; one for
    /// each op where no layers can be seen.
    pub(super) fn by_layers(trace: &Trace, usage: &Usage, layers_per_stage: usize) -> Stages {
        let names = Names::new(trace, usage);
        let mut stages = Stages::of_parts(names.parts());
        for run in runs(&stages.part.clone()) {
            if run.part == Part::Optimizer {
                stages.cut(&[run.from]);
                continue;
            }
            let repeat = names.repeat(run);
            let whole = (repeat.len() / layers_per_stage).max(1);
            let firsts = repeat.iter().step_by(layers_per_stage).take(whole);
            let starts: Vec<usize> = firsts.map(|&(from, _)| from).collect();
            if starts.is_empty() {
                stages.cut(&(run.from..run.to).collect::<Vec<_>>());
                continue;
            }
            // What comes before the first layer belongs to it.
            stages.cut(&[&[run.from], &starts[1..]].concat());
            if run.part == Part::Forward {
                stages.layers.extend(repeat);
            }
        }
        stages.finish();
        stages
    }

    /// Forward and backward cut into so many stages with equal numbers of ops.
    pub(super) fn even(&self, count: usize) -> Stages {
        let mut stages = Stages::of_parts(self.part.clone());
        for run in runs(&self.part) {
            let length = run.to - run.from;
            let pieces = if run.part == Part::Optimizer { 1 } else { count.clamp(1, length) };
            let starts: Vec<usize> =
                (0..pieces).map(|piece| run.from + piece * length / pieces).collect();
            stages.cut(&starts);
        }
        stages.layers.clone_from(&self.layers);
        stages.finish();
        stages
    }

    fn of_parts(part: Vec<Part>) -> Stages {
        Stages { part, stage: Vec::new(), start: Vec::new(), layers: Vec::new() }
    }

    fn cut(&mut self, starts: &[usize]) {
        self.start.extend(starts.iter().map(|&slot| slot as u32));
    }

    fn finish(&mut self) {
        self.start.push(self.part.len() as u32);
        for (stage, ends) in (0..).zip(self.start.windows(2)) {
            self.stage.extend((ends[0]..ends[1]).map(|_| stage));
        }
    }

    pub(super) fn count(&self) -> usize {
        self.start.len() - 1
    }
}

fn runs(part: &[Part]) -> Vec<Run> {
    let mut runs = Vec::new();
    let mut from = 0;
    for piece in part.chunk_by(|one, other| one == other) {
        runs.push(Run { part: piece[0], from, to: from + piece.len() });
        from += piece.len();
    }
    runs
}

/// What the names of ops tell, by slot.
struct Names<'a> {
    names: Vec<&'a str>,
    /// Whether the slot marks a layer.
    marks: Vec<bool>,
}

impl<'a> Names<'a> {
    fn new(trace: &'a Trace, usage: &Usage) -> Names<'a> {
        let mut names: Vec<&str> = Vec::with_capacity(usage.slots.len());
        let (mut attention, mut product) = (Vec::new(), Vec::new());
        for op in &trace.ops {
            if op.depth == 0 {
                names.push(&op.name);
                attention.push(false);
                product.push(false);
            }
            // What an op calls tells as much as its own name.
            let name = op.name.to_ascii_lowercase();
            if let (Some(attention), Some(product)) = (attention.last_mut(), product.last_mut()) {
                *attention |= name.contains("attention");
                *product |= ["mm", "linear"].iter().any(|word| name.contains(word))
                    || name.contains("matmul");
            }
        }
        let any = attention.contains(&true);
        Names { names, marks: if any { attention } else { product } }
    }

    /// Ops of autograd are backward. Others among them are too, unless they mark a layer: then a
    /// further micro-batch runs forward.
    fn parts(&self) -> Vec<Part> {
        let backward = |name: &&str| {
            let name = name.to_ascii_lowercase();
            name.contains("autograd") || name.contains("backward")
        };
        let is_backward: Vec<bool> = self.names.iter().map(backward).collect();
        let first = is_backward.iter().position(|&is| is);
        let last = is_backward.iter().rposition(|&is| is);
        let (Some(first), Some(last)) = (first, last) else {
            return vec![Part::Forward; self.names.len()];
        };
        let mut parts = vec![Part::Forward; first];
        let mut slot = first;
        for piece in is_backward[first..=last].chunk_by(|one, other| one == other) {
            let marked = self.marks[slot..slot + piece.len()].contains(&true);
            let forward = !piece[0] && marked;
            let part = if forward { Part::Forward } else { Part::Backward };
            parts.extend(piece.iter().map(|_| part));
            slot += piece.len();
        }
        parts.resize(self.names.len(), Part::Optimizer);
        parts
    }

    /// The turns of the longest repeating stretch of a run that has a mark in each turn. The
    /// shortest period wins among equals; `None` if nothing repeats.
    fn repeat(&self, run: Run) -> Vec<(usize, usize)> {
        let names = &self.names[run.from..run.to];
        let mut best = (0, 0, 1);
        for period in 1..=(names.len() / 2).min(PERIOD_MAX) {
            let mut start = 0;
            for index in 0..=names.len() - period {
                let same = index + period < names.len() && names[index] == names[index + period];
                if same {
                    continue;
                }
                let covered = index - start + period;
                if covered >= 2 * period && covered > best.1 {
                    let turn = run.from + start..run.from + start + period;
                    if self.marks[turn].contains(&true) {
                        best = (start, covered, period);
                    }
                }
                start = index + 1;
            }
        }
        let (start, covered, period) = best;
        let turn = |turn: usize| run.from + start + turn * period;
        (0..covered / period).map(|index| (turn(index), turn(index + 1))).collect()
    }
}
