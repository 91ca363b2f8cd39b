//! The model on a real engine: its gradients are those of its loss, it learns, and a cap changes
//! no bit.

use std::sync::Arc;

use adaptive::devices::{HostConfig, HostDriver};
use adaptive::{ArenaConfig, Compute, Config, Engine, OpName, PoolConfig, StepReport};

use super::Model;
use crate::gpt::call::{Call, Ops, Replay, Tensor, Work};
use crate::gpt::operators::{self, Outbox};
use crate::gpt::random::Random;
use crate::gpt::shape::{BYTE_VOCAB, Head, Shape};
use crate::text::{Batch, Text};

const SMALL: Shape = Shape {
    layers: 2,
    hidden: 16,
    heads: 2,
    seq: 12,
    batch: 2,
    vocab: BYTE_VOCAB,
    head: Head::Tied,
};

fn engine(limit_bytes: u64) -> (Arc<HostDriver>, Engine) {
    let device = HostDriver::new(HostConfig {
        granularity_bytes: 4096,
        poison: Some(u64::MAX), // NaN, if anybody reads what nobody wrote.
        ..HostConfig::threads(1 << 30)
    })
    .expect("the configuration is sound");
    let config = Config {
        pool: PoolConfig { limit_bytes, swap_threshold_bytes: 4096, segment_bytes: 64 << 10 },
        arena: ArenaConfig { region_bytes: 1 << 20, ..ArenaConfig::new(1 << 30) },
        compute: Compute::Own,
        record: false,
    };
    let engine = Engine::new(device.clone(), config).expect("the device is new");
    (device, engine)
}

fn batch(shape: &Shape, step: u64) -> Batch {
    let text = Text::open(None).expect("it needs no file");
    text.batch(shape.batch, shape.seq, 3, step)
}

/// Adds `scale * direction(index)` to a tensor.
fn nudge(ops: &mut Ops, x: Tensor, direction: Vec<f32>, scale: f32) {
    const NUDGE: OpName = OpName::new("nudge");
    let mut call = Call::begin(ops, NUDGE).unwrap();
    call.change(x).unwrap();
    call.launch(0, Replay::Never, move |operands| {
        kernels::elementwise::add_scaled(operands.write(0), &direction, scale);
    })
    .unwrap();
}

fn fetch(engine: &Engine, ops: &mut Ops, x: Tensor) -> Vec<f32> {
    let outbox = Outbox::new();
    operators::fetch(ops, x, &outbox).unwrap();
    engine.synchronize().unwrap();
    outbox.take()[0].iter().map(|&bits| f32::from_bits(bits)).collect()
}

/// The loss by its definition, from the model's logits, in double precision.
fn loss(engine: &Engine, ops: &mut Ops, model: &Model, batch: &Batch) -> f64 {
    let forward = model.forward(ops, batch.clone()).unwrap();
    let logits = fetch(engine, ops, forward.logits);
    let rows = logits.chunks(model.shape.vocab).zip(&batch.targets);
    let losses = rows.map(|(row, &target)| {
        let sum: f64 = row.iter().map(|&logit| f64::from(logit).exp()).sum();
        sum.ln() - f64::from(row[target as usize])
    });
    losses.sum::<f64>() / batch.targets.len() as f64
}

/// Each parameter's gradient against the change of the loss along it.
fn check_gradients(head: Head) {
    let shape = Shape { head, ..SMALL };
    let (_, engine) = engine(1 << 29);
    let mut ops = Ops::new(&engine, Work::Real);
    let mut model = Model::start(&mut ops, shape, 1).unwrap();
    // Far from the start values, where attention and norms have gradients worth comparing.
    let count = model.parameters.all.len();
    for index in 0..count {
        let value = model.parameters.all[index].value;
        let mut random = Random::new(17, index as u64);
        let direction = (0..value.elements).map(|_| random.normal()).collect();
        nudge(&mut ops, value, direction, 0.25);
    }
    let batch = batch(&shape, 0);
    model.gradients(&mut ops, batch.clone()).unwrap();
    engine.synchronize().unwrap();
    let reported = model.losses();
    let middle = loss(&engine, &mut ops, &model, &batch);
    assert!((f64::from(reported[0]) - middle).abs() < 1e-5, "{reported:?} is not {middle}");

    for index in 0..count {
        let parameter = &model.parameters.all[index];
        let name = parameter.name.clone();
        let gradient = model.parameters.gradients[index].expect("backward makes every gradient");
        let gradient = fetch(&engine, &mut ops, gradient);
        let norm = gradient.iter().map(|&g| f64::from(g).powi(2)).sum::<f64>().sqrt();
        assert!(norm > 1e-3, "{name} has no gradient to speak of: {norm}");
        let step = 4e-3 / norm as f32;
        let value = parameter.value;
        nudge(&mut ops, value, gradient.clone(), step);
        let above = loss(&engine, &mut ops, &model, &batch);
        nudge(&mut ops, value, gradient.clone(), -2.0 * step);
        let below = loss(&engine, &mut ops, &model, &batch);
        nudge(&mut ops, value, gradient, step);
        let slope = (above - below) / (2.0 * 4e-3);
        assert!((slope / norm - 1.0).abs() < 0.01, "{name}: the slope is {slope}, not {norm}");
    }
}

#[test]
fn gradients_are_those_of_the_loss() {
    check_gradients(Head::Tied);
    check_gradients(Head::Untied);
}

/// What a run leaves behind.
struct Run {
    losses: Vec<f32>,
    weights: Vec<Vec<u32>>,
    reports: Vec<StepReport>,
}

fn train(shape: Shape, limit_bytes: u64, steps: u64, work: Work) -> Run {
    let (device, engine) = engine(limit_bytes);
    let mut ops = Ops::new(&engine, work);
    let mut model = Model::start(&mut ops, shape, 1).unwrap();
    let mut reports = engine.end_step().unwrap();
    for step in 0..steps {
        model.step(&mut ops, batch(&shape, step)).unwrap();
        reports.extend(engine.end_step().unwrap());
    }
    reports.extend(engine.drain_reports().unwrap());
    let weights = Outbox::new();
    model.fetch_weights(&mut ops, &weights).unwrap();
    engine.synchronize().unwrap();
    let losses = model.losses();
    model.free(&mut ops).unwrap();
    assert_eq!(engine.memory_stats().unwrap().allocated_bytes.current, 0, "blocks were leaked");
    drop(ops);
    drop(engine);
    assert!(device.ledger().is_empty());
    Run { losses, weights: weights.take(), reports }
}

#[test]
fn it_learns() {
    let run = train(Shape { batch: 4, ..SMALL }, 1 << 29, 200, Work::Real);
    assert_eq!(run.losses.len(), 200);
    let uniform = (BYTE_VOCAB as f32).ln();
    assert!((run.losses[0] - uniform).abs() < 0.1, "the first loss is {}", run.losses[0]);
    let last = run.losses[180..].iter().sum::<f32>() / 20.0;
    assert!(last < uniform - 2.0, "the last losses average {last}");
}

#[test]
fn a_cap_changes_no_bit() {
    for head in [Head::Tied, Head::Untied] {
        let shape = Shape { layers: 4, hidden: 32, batch: 8, head, ..SMALL };
        let free = train(shape, 1 << 29, 4, Work::Real);
        let peak = free.reports.iter().map(|report| report.held_bytes_peak).max().unwrap();
        let capped = train(shape, peak / 2, 4, Work::Real);
        let moved: u64 = capped.reports.iter().map(|r| r.counters.swapped_out_bytes).sum();
        assert!(moved > 0, "nothing had to move under half of {peak} bytes");
        let bits = |run: &Run| run.losses.iter().map(|loss| loss.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&capped), bits(&free));
        assert!(capped.weights == free.weights, "the weights differ");
        assert_eq!(free.weights.len(), 4 + 4 * 12 + usize::from(head == Head::Untied));
    }
}

#[test]
fn pretended_work_takes_the_same_memory() {
    let shape = Shape { layers: 3, ..SMALL };
    let real = train(shape, 1 << 29, 2, Work::Real);
    let pretended = train(shape, 1 << 29, 2, Work::Pretended);
    assert!(pretended.losses.is_empty());
    assert_eq!(real.reports.len(), pretended.reports.len());
    for (real, pretended) in real.reports.iter().zip(&pretended.reports) {
        assert!(real.held_bytes_peak > shape.persistent_bytes());
        assert_eq!(real.held_bytes_peak, pretended.held_bytes_peak);
        assert_eq!(real.signature, pretended.signature);
        assert_eq!(real.op_count, pretended.op_count);
    }
}
