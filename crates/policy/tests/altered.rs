//! Promise: a step that is made to accumulate, or whose updates are made to wait, is the one that a
//! training records which does so.

use std::collections::BTreeSet;

use policy::synthetic::{Numbers, RandomShape, TraceBuilder, random_trace};
use policy::{
    AccessMode, BlockIndex, Link, Machine, OpIndex, Origin, Plan, Trace, TraceEvent, accumulated,
    check_trace, deferred, simulate,
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
    /// Each layer has an update of its own.
    by_layer: bool,
    /// An average of each weight follows it, which the next step takes in first.
    averages: bool,
    /// The update of a weight waits until it is used.
    defers: bool,
}

/// The blocks of a layer that stay.
struct Layer {
    weight: BlockIndex,
    moment: BlockIndex,
    average: Option<BlockIndex>,
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
            by_layer: is() || defers,
            averages: is(),
            defers,
        }
    }

    fn step(&self, micro_batches: u32) -> Trace {
        let mut b = TraceBuilder::new();
        let mut layers: Vec<Layer> = Vec::new();
        for &(bytes, _) in &self.layers {
            let [weight, moment] = ["weight", "moment"].map(|name| b.persistent(name, bytes));
            let average = self.averages.then(|| b.persistent("average", bytes));
            let last = self.frees_late.then(|| b.persistent("gradient", bytes));
            let waiting = last.filter(|_| self.defers);
            layers.push(Layer { weight, moment, average, gradient: last, waiting });
        }
        let mut held = Held {
            batch: self.prefetches.then(|| b.persistent("batch", MIB)),
            loss: self.keeps_loss.then(|| b.persistent("loss", MIB)),
        };
        for layer in &mut layers {
            let last = layer.gradient.take().filter(|_| !self.defers);
            last.into_iter().for_each(|gradient| b.free(gradient));
        }
        if self.averages && !self.defers {
            let bytes = self.layers.iter().map(|&(bytes, _)| bytes).sum();
            Training::average(&mut b, &layers, bytes);
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
                self.update_by_itself(b, layer, gradient, bytes);
                b.free(gradient);
                if self.averages {
                    Training::average(b, std::slice::from_ref(layer), bytes);
                }
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

    fn average(b: &mut TraceBuilder, layers: &[Layer], bytes: u64) {
        b.begin("aten::_foreach_lerp_", 3.0 * bytes as f64 / BYTES_PER_US, false);
        layers.iter().filter_map(|layer| layer.average).for_each(|average| b.update(average));
        layers.iter().for_each(|layer| b.read(layer.weight));
        b.end();
    }

    fn update(&self, b: &mut TraceBuilder, layers: &[Layer]) {
        let gradients = || layers.iter().filter_map(|layer| layer.gradient);
        if self.by_layer {
            for ((layer, gradient), &(bytes, _)) in layers.iter().zip(gradients()).zip(&self.layers)
            {
                self.update_by_itself(b, layer, gradient, bytes);
            }
            return;
        }
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
    fn update_by_itself(
        &self,
        b: &mut TraceBuilder,
        layer: &Layer,
        gradient: BlockIndex,
        bytes: u64,
    ) {
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

/// The last op changes something small that many read.
fn outdated(mut trace: Trace) -> Trace {
    let last = OpIndex(trace.ops.len() as u32 - 1);
    trace.ops.iter_mut().step_by(3).for_each(|op| op.outdated_by = Some(last));
    trace
}

#[test]
fn a_step_made_to_accumulate_is_the_one_that_accumulates() {
    let (mut same, mut deferred, mut held) = (0, 0, 0);
    for seed in 0..CASES {
        let training = Training::random(seed);
        let recorded = 1 + (seed % 3) as u32;
        let made = accumulated(&outdated(training.step(recorded)), 3).expect("a training");
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
fn a_step_whose_updates_are_made_to_wait_is_the_one_in_which_they_do() {
    let (mut same, mut averaged, mut temporary) = (0, 0, 0);
    for seed in 0..CASES {
        let defers = Training { by_layer: true, defers: false, ..Training::random(seed) };
        let waits = Training { frees_late: true, defers: true, ..Training::random(seed) };
        let micro_batches = 1 + (seed % 3) as u32;
        let recorded = outdated(defers.step(micro_batches));
        let made = deferred(&recorded, 0).expect("a training");
        let expected = waits.step(micro_batches);
        assert_eq!(check_trace(&made), Ok(()), "{seed}");
        assert_eq!(ops(&made), ops(&expected), "{seed} {defers:?}");
        assert_eq!(peak_bytes(&made), peak_bytes(&expected), "{seed} {defers:?}");
        assert_ne!(made.signature, recorded.signature, "{seed}");
        // Gradients of a size stand for each other.
        let sizes: BTreeSet<u64> = defers.layers.iter().map(|&(bytes, _)| bytes).collect();
        if defers.frees_late && sizes.len() == defers.layers.len() {
            assert_eq!(made.events, expected.events, "{seed}");
            same += 1;
        }
        averaged += u32::from(defers.averages);
        temporary += u32::from(defers.has_temporaries);
    }
    assert!(same > 100 && averaged > 100 && temporary > 100, "{same} {averaged} {temporary}");
}

#[test]
fn an_update_waits_for_whoever_uses_what_it_changes_and_no_longer() {
    let mut b = TraceBuilder::new();
    let [weight, tied, unused] = ["weight", "tied", "unused"].map(|name| b.persistent(name, MIB));
    let zeroed = b.persistent("zeroed", MIB);
    b.begin("zero", 1.0, false);
    b.write(zeroed);
    b.end();
    for weight in [weight, tied] {
        let output = b.allocate("output", MIB);
        b.compute("forward", 10.0, &[weight], output);
        b.free(output);
    }
    let gradients = [zeroed, b.allocate("gradient", MIB), b.allocate("gradient", MIB)];
    gradients.into_iter().for_each(|gradient| b.compute("backward", 20.0, &[weight], gradient));
    for (updated, gradient) in [weight, tied, unused].into_iter().zip(gradients) {
        b.begin("update", 1.0, false);
        b.read(gradient);
        b.update(updated);
        b.end();
    }
    let made = deferred(&b.finish(), 0).expect("two updates can wait");
    assert_eq!(check_trace(&made), Ok(()));
    let names: Vec<&str> = made.ops.iter().map(|op| op.name.as_str()).collect();
    // The first one's gradient is zeroed, and what nobody uses is updated when it was.
    let expected = ["update", "zero", "forward", "update", "forward", "backward", "backward"];
    assert_eq!(names, [&expected[..], &["backward", "update"]].concat());
}

#[test]
fn steps_of_any_kind_stay_well_formed_and_keep_their_ops_where_updates_wait() {
    let mut altered = 0;
    for seed in 0..CASES {
        let trace = outdated(random_trace(seed, &RandomShape::small()));
        let sorted = |trace: &Trace| {
            let mut ops = ops(trace);
            ops.sort_unstable();
            ops
        };
        if let Some(made) = deferred(&trace, 0) {
            assert_eq!(check_trace(&made), Ok(()), "{seed}");
            assert_eq!(sorted(&made), sorted(&trace), "{seed}");
            altered += 1;
        }
    }
    assert!(altered > 100, "{altered}");
}

#[test]
fn updates_wait_for_no_step_that_looks_at_what_they_leave() {
    let step = |looks: bool| {
        let mut b = TraceBuilder::new();
        let weight = b.persistent("weight", MIB);
        let output = b.allocate("output", MIB);
        b.compute("forward", 10.0, &[weight], output);
        let gradient = b.allocate("gradient", MIB);
        b.compute("backward", 20.0, &[output, weight], gradient);
        b.free(output);
        b.begin("update", 1.0, false);
        b.read(gradient);
        b.update(weight);
        b.end();
        if looks {
            let copy = b.allocate("copy", MIB);
            b.compute("copy", 1.0, &[weight], copy);
        }
        b.finish()
    };
    assert!(deferred(&step(false), 0).is_some());
    assert_eq!(deferred(&step(true), 0), None);
    // It began with the update that waited.
    let waited = deferred(&step(false), 0).expect("an update");
    assert_eq!(deferred(&waited, 0), None);
    assert_eq!(deferred(&Trace::default(), 0), None);
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
