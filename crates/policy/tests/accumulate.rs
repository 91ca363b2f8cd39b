//! Promise: a step that is made to accumulate is the one that a training records which does.

use policy::synthetic::{Numbers, TraceBuilder};
use policy::{
    AccessMode, BlockIndex, Link, Machine, Origin, Plan, Trace, TraceEvent, accumulated,
    check_trace, simulate,
};

const CASES: u64 = 1_000;
const MIB: u64 = 1 << 20;
/// What the update goes through in a microsecond.
const BYTES_PER_US: f64 = 1e6;

/// A training whose steps are alike, and have as many micro-batches as one likes.
#[derive(Debug)]
struct Training {
    /// Bytes of each layer's weight, and of what it keeps for its backward pass.
    layers: Vec<(u64, u64)>,
    /// Gradients are freed at the next step's start, and not behind the update.
    frees_late: bool,
    /// The next batch is fetched while the model works on this one.
    prefetches: bool,
    /// The loss stays until there is another one.
    keeps_loss: bool,
    /// Gradients are clipped before the update.
    clips: bool,
    /// The update has memory of its own.
    has_temporaries: bool,
    /// The update of a weight waits until it is used.
    defers: bool,
}

/// The blocks of a layer that stay.
struct Layer {
    weight: BlockIndex,
    moment: BlockIndex,
    gradient: Option<BlockIndex>,
    /// The gradient that its update waits with.
    waiting: Option<BlockIndex>,
}

/// What a loop's variables hold.
struct Held {
    batch: Option<BlockIndex>,
    loss: Option<BlockIndex>,
}

impl Training {
    fn random(seed: u64) -> Training {
        let mut numbers = Numbers::new(seed);
        let layers = (0..1 + numbers.below(5))
            .map(|_| (MIB * (1 + numbers.below(20)), MIB * (1 + numbers.below(40))));
        let layers = layers.collect();
        let mut is = || numbers.below(2) == 1;
        let defers = is();
        Training {
            layers,
            frees_late: is() || defers,
            prefetches: is(),
            keeps_loss: is(),
            clips: is(),
            has_temporaries: is(),
            defers,
        }
    }

    fn step(&self, micro_batches: u32) -> Trace {
        let mut b = TraceBuilder::new();
        let mut layers: Vec<Layer> = Vec::new();
        for &(bytes, _) in &self.layers {
            let [weight, moment] = ["weight", "moment"].map(|name| b.persistent(name, bytes));
            let last = self.frees_late.then(|| b.persistent("gradient", bytes));
            let waiting = last.filter(|_| self.defers);
            layers.push(Layer { weight, moment, gradient: last, waiting });
        }
        let mut held = Held {
            batch: self.prefetches.then(|| b.persistent("batch", MIB)),
            loss: self.keeps_loss.then(|| b.persistent("loss", MIB)),
        };
        for layer in &mut layers {
            let last = layer.gradient.take().filter(|_| !self.defers);
            last.into_iter().for_each(|gradient| b.free(gradient));
        }
        for _ in 0..micro_batches {
            self.pass(&mut b, &mut layers, &mut held);
        }
        if self.clips {
            self.clip(&mut b, &layers);
        }
        if !self.defers {
            self.update(&mut b, &layers);
        }
        if !self.frees_late {
            layers.iter().flat_map(|layer| layer.gradient).for_each(|gradient| b.free(gradient));
        }
        b.finish()
    }

    fn pass(&self, b: &mut TraceBuilder, layers: &mut [Layer], held: &mut Held) {
        let batch = *held.batch.get_or_insert_with(|| b.allocate("batch", MIB));
        let mut kept = Vec::new();
        for (layer, &(bytes, kept_bytes)) in layers.iter_mut().zip(&self.layers) {
            if let Some(gradient) = layer.waiting.take() {
                self.update_late(b, layer, gradient, bytes);
            }
            b.begin("forward", 100.0, false);
            let output = b.allocate("kept", kept_bytes);
            b.begin("product", 0.0, true);
            b.read(*kept.last().unwrap_or(&batch));
            b.read(layer.weight);
            b.write(output);
            b.end();
            b.end();
            kept.push(output);
        }
        if self.prefetches {
            held.batch = Some(b.allocate("batch", MIB));
            b.free(batch);
        }
        let loss = b.allocate("loss", MIB);
        b.compute("loss", 10.0, &kept[kept.len() - 1..], loss);
        let last = if self.keeps_loss { held.loss.replace(loss) } else { None };
        last.into_iter().for_each(|loss| b.free(loss));
        for ((layer, &(bytes, _)), kept) in layers.iter_mut().zip(&self.layers).zip(kept).rev() {
            b.begin("backward", 200.0, false);
            let gradient = b.allocate("gradient", bytes);
            b.read(loss);
            b.read(kept);
            b.read(layer.weight);
            b.write(gradient);
            b.end();
            match layer.gradient {
                None => layer.gradient = Some(gradient),
                Some(sum) => {
                    b.begin("aten::add_", 3.0 * bytes as f64 / BYTES_PER_US, false);
                    b.update(sum);
                    b.read(gradient);
                    b.end();
                    b.free(gradient);
                }
            }
            b.free(kept);
        }
        if !self.keeps_loss {
            b.free(loss);
        }
        if !self.prefetches {
            held.batch.take().into_iter().for_each(|batch| b.free(batch));
        }
    }

    fn clip(&self, b: &mut TraceBuilder, layers: &[Layer]) {
        let gradients = || layers.iter().filter_map(|layer| layer.gradient);
        let bytes: u64 = self.layers.iter().map(|&(bytes, _)| bytes).sum();
        b.begin("norm", bytes as f64 / BYTES_PER_US, false);
        gradients().for_each(|gradient| b.read(gradient));
        b.end();
        b.begin("clip", 2.0 * bytes as f64 / BYTES_PER_US, false);
        gradients().for_each(|gradient| b.update(gradient));
        b.end();
    }

    fn update(&self, b: &mut TraceBuilder, layers: &[Layer]) {
        let gradients = || layers.iter().filter_map(|layer| layer.gradient);
        let bytes: u64 = self.layers.iter().map(|&(bytes, _)| bytes).sum();
        let temporaries: Vec<BlockIndex> = match self.has_temporaries {
            true => self.layers.iter().map(|&(bytes, _)| b.allocate("decay", bytes)).collect(),
            false => Vec::new(),
        };
        if self.has_temporaries {
            b.begin("decay", 3.0 * bytes as f64 / BYTES_PER_US, false);
            for ((layer, gradient), &temporary) in layers.iter().zip(gradients()).zip(&temporaries)
            {
                b.read(layer.weight);
                b.read(gradient);
                b.write(temporary);
            }
            b.end();
        }
        b.begin("update", 5.0 * bytes as f64 / BYTES_PER_US, false);
        for (layer, gradient) in layers.iter().zip(gradients()) {
            Training::update_layer(b, layer, gradient);
        }
        b.end();
        temporaries.into_iter().for_each(|temporary| b.free(temporary));
    }

    /// The update of one layer, in one op or in several.
    fn update_late(&self, b: &mut TraceBuilder, layer: &Layer, gradient: BlockIndex, bytes: u64) {
        let us = bytes as f64 / BYTES_PER_US;
        if self.has_temporaries {
            b.begin("lerp", 3.0 * us, false);
            b.read(gradient);
            b.update(layer.moment);
            b.end();
            b.begin("sqrt", 2.0 * us, false);
            let root = b.allocate("root", bytes);
            b.read(layer.moment);
            b.write(root);
            b.end();
            b.begin("addcdiv", 4.0 * us, false);
            b.read(layer.moment);
            b.read(root);
            b.update(layer.weight);
            b.end();
            b.free(root);
        } else {
            b.begin("update", 5.0 * us, false);
            Training::update_layer(b, layer, gradient);
            b.end();
        }
        b.free(gradient);
    }

    fn update_layer(b: &mut TraceBuilder, layer: &Layer, gradient: BlockIndex) {
        b.read(gradient);
        b.update(layer.moment);
        b.update(layer.weight);
    }
}

/// An op's name, depth, time in nanoseconds, and the sizes that it uses, in order.
type Op = (String, u32, i64, Vec<(u64, AccessMode)>);

fn ops(trace: &Trace) -> Vec<Op> {
    let ops = trace.ops.iter();
    let ops =
        ops.map(|op| (op.name.clone(), op.depth, (op.device_us * 1e3).round() as i64, vec![]));
    let (mut ops, mut open): (Vec<_>, Vec<usize>) = (ops.collect(), Vec::new());
    for event in &trace.events {
        match *event {
            TraceEvent::Begin(op) => open.push(op.0 as usize),
            TraceEvent::End(_) => drop(open.pop()),
            TraceEvent::Touch(block, mode) => {
                let size_bytes = trace.blocks[block.0 as usize].size_bytes;
                ops[open[open.len() - 1]].3.push((size_bytes, mode));
            }
            _ => {}
        }
    }
    ops
}

fn peak_bytes(trace: &Trace) -> u64 {
    let link = Link { out_bytes_per_us: 1e4, in_bytes_per_us: 1e4, both_bytes_per_us: 1e4 };
    let (limit_bytes, host_limit_bytes) = (u64::MAX / 8, u64::MAX / 8);
    let machine = Machine { limit_bytes, host_limit_bytes, link, copy_submit_us: 0.0 };
    simulate(trace, &Plan::default(), &machine).resident_bytes_peak
}

#[test]
fn a_step_made_to_accumulate_is_the_one_that_accumulates() {
    let (mut same, mut deferred, mut held) = (0, 0, 0);
    for seed in 0..CASES {
        let training = Training::random(seed);
        let recorded = 1 + (seed % 3) as u32;
        let made = accumulated(&training.step(recorded), 3).expect("a training");
        let expected = training.step(3 * recorded);
        assert_eq!(check_trace(&made), Ok(()), "{seed}");
        assert_eq!(ops(&made), ops(&expected), "{seed}");
        // A variable's last value goes when there is another, which here is when the passes end.
        let has_variables = training.prefetches || training.keeps_loss;
        let slack_bytes = if has_variables { 2 * MIB } else { 0 };
        let (bytes, expected_bytes) = (peak_bytes(&made), peak_bytes(&expected));
        assert!(
            bytes.abs_diff(expected_bytes) <= slack_bytes,
            "{seed}: {bytes} {expected_bytes} {training:?}"
        );
        if !has_variables {
            assert_eq!(made.events, expected.events, "{seed}");
            let origins = |trace: &Trace| -> Vec<(u64, Origin)> {
                trace.blocks.iter().map(|block| (block.size_bytes, block.origin)).collect()
            };
            assert_eq!(origins(&made), origins(&expected), "{seed}");
            same += 1;
        }
        deferred += u32::from(training.defers);
        held += u32::from(has_variables);
    }
    assert!(same > 100 && deferred > 100 && held > 100, "{same} {deferred} {held}");
}

#[test]
fn a_step_without_one_update_at_its_end_is_not_made_to_accumulate() {
    // Models that are trained in turns: the gradients of the second come after the update of the
    // first.
    let models = |count: usize, has_update: bool| {
        let mut b = TraceBuilder::new();
        let weights: Vec<BlockIndex> = (0..count).map(|_| b.persistent("weight", MIB)).collect();
        for weight in weights {
            let output = b.allocate("output", MIB);
            b.compute("forward", 10.0, &[weight], output);
            let gradient = b.allocate("gradient", MIB);
            b.compute("backward", 20.0, &[output, weight], gradient);
            b.free(output);
            if has_update {
                b.begin("update", 1.0, false);
                b.read(gradient);
                b.update(weight);
                b.end();
            }
        }
        b.finish()
    };
    assert!(accumulated(&models(1, true), 2).is_some());
    assert_eq!(accumulated(&models(1, false), 2), None);
    assert_eq!(accumulated(&models(2, true), 2), None);
    assert_eq!(accumulated(&Trace::default(), 2), None);
}
