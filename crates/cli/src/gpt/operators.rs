//! The forward operators, and those that move numbers between host and device. Each is one call
//! over tensors, its work one kernel.
//!
//! An op that only makes new tensors from old ones may be replayed. One that changes a tensor in
//! place, or hands a number to the host, may not.

use std::sync::{Arc, Mutex};

use adaptive::{Error, OpName};
use kernels::attention::Shape as AttentionShape;
use kernels::{attention, elementwise, embedding, layer_norm, linear, loss};

use super::call::{Call, Ops, Replay, Tensor};
use super::random::Random;

/// Floating-point operations that an exponential counts for.
pub(super) const EXP_FLOPS: u64 = 20;

/// A tensor to be made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct New<'a> {
    /// What reports call it.
    pub(crate) name: &'a str,
    /// How many elements it has.
    pub(crate) elements: usize,
}

/// What an op fills a new tensor with.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Start {
    /// All the same.
    Constant(f32),
    /// Random numbers of this deviation about 0.
    Normal(f32),
}

/// A place on the host for what ops hand over, in the order in which they ran.
#[derive(Debug)]
pub(crate) struct Outbox<T>(Arc<Mutex<Vec<T>>>);

impl<T> Outbox<T> {
    /// An empty one.
    pub(crate) fn new() -> Outbox<T> {
        Outbox(Arc::new(Mutex::new(Vec::new())))
    }

    /// Takes all that has arrived. Wait for the ops first to have all of it.
    pub(crate) fn take(&self) -> Vec<T> {
        std::mem::take(&mut *self.lock())
    }

    pub(super) fn post(&self, value: T) {
        self.lock().push(value);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<T>> {
        self.0.lock().expect("nothing panics while it holds the lock")
    }
}

impl<T> Clone for Outbox<T> {
    fn clone(&self) -> Outbox<T> {
        Outbox(Arc::clone(&self.0))
    }
}

/// One replayable call that makes one tensor from others; `kernel` gets the output and the inputs.
pub(super) fn make<const N: usize>(
    ops: &mut Ops,
    op: OpName,
    inputs: [Tensor; N],
    new: New<'_>,
    flops: u64,
    kernel: impl Fn(&mut [f32], [&[f32]; N]) + Send + Sync + 'static,
) -> Result<Tensor, Error> {
    let mut call = Call::begin(ops, op)?;
    for input in inputs {
        call.read(input)?;
    }
    let out = call.output(new.elements, new.name)?;
    call.launch(flops, Replay::Allowed, move |operands| {
        kernel(operands.write(N), std::array::from_fn(|index| operands.read(index)));
    })?;
    Ok(out)
}

/// A new tensor of start values; random ones are made when the op runs.
pub(crate) fn start(
    ops: &mut Ops,
    new: New<'_>,
    values: Start,
    random: Random,
) -> Result<Tensor, Error> {
    const OP: OpName = OpName::new("start_values");
    let mut call = Call::begin(ops, OP)?;
    let out = call.output(new.elements, new.name)?;
    call.launch(0, Replay::Never, move |operands| {
        let out = operands.write::<f32>(0);
        match values {
            Start::Constant(value) => out.fill(value),
            Start::Normal(deviation) => {
                let mut random = random.clone();
                out.fill_with(|| deviation * random.normal());
            }
        }
    })?;
    Ok(out)
}

/// Copies tokens to the device.
pub(crate) fn load_tokens(ops: &mut Ops, name: &str, tokens: Vec<u32>) -> Result<Tensor, Error> {
    const OP: OpName = OpName::new("load_tokens");
    let mut call = Call::begin(ops, OP)?;
    let out = call.output(tokens.len(), name)?;
    call.launch(0, Replay::Never, move |operands| {
        operands.write::<u32>(0).copy_from_slice(&tokens);
    })?;
    Ok(out)
}

/// Hands a copy of a tensor's bits to the host.
pub(crate) fn fetch(ops: &mut Ops, x: Tensor, outbox: &Outbox<Vec<u32>>) -> Result<(), Error> {
    const OP: OpName = OpName::new("fetch");
    let outbox = outbox.clone();
    let mut call = Call::begin(ops, OP)?;
    call.read(x)?;
    call.launch(0, Replay::Never, move |operands| outbox.post(operands.read(0).to_vec()))
}

/// Hands the mean cross entropy to the host.
pub(crate) fn cross_entropy(
    ops: &mut Ops,
    logits: Tensor,
    targets: Tensor,
    outbox: &Outbox<f32>,
) -> Result<(), Error> {
    const OP: OpName = OpName::new("cross_entropy");
    let outbox = outbox.clone();
    let vocab = logits.elements / targets.elements;
    let flops = EXP_FLOPS * logits.elements as u64;
    let mut call = Call::begin(ops, OP)?;
    call.read(logits)?;
    call.read(targets)?;
    call.launch(flops, Replay::Never, move |operands| {
        outbox.post(loss::cross_entropy(operands.read(0), operands.read(1), vocab));
    })
}

/// The sum of each token's row and its position's row.
pub(crate) fn embed(
    ops: &mut Ops,
    name: &str,
    tokens: Tensor,
    [token_table, position_table]: [Tensor; 2],
    hidden: usize,
) -> Result<Tensor, Error> {
    const OP: OpName = OpName::new("embedding");
    let mut call = Call::begin(ops, OP)?;
    call.read(tokens)?;
    call.read(token_table)?;
    call.read(position_table)?;
    let out = call.output(tokens.elements * hidden, name)?;
    call.launch(out.elements as u64, Replay::Allowed, move |operands| {
        let (token_table, position_table) = (operands.read(1), operands.read(2));
        let (tokens, out) = (operands.read(0), operands.write(3));
        embedding::forward(out, tokens, token_table, position_table, hidden);
    })?;
    Ok(out)
}

/// The normalised tensor, and the statistics that its gradient needs.
pub(crate) fn layer_norm(
    ops: &mut Ops,
    [name, stats_name]: [&str; 2],
    x: Tensor,
    [gain, shift]: [Tensor; 2],
) -> Result<[Tensor; 2], Error> {
    const OP: OpName = OpName::new("layer_norm");
    let rows = x.elements / gain.elements;
    let mut call = Call::begin(ops, OP)?;
    call.read(x)?;
    call.read(gain)?;
    call.read(shift)?;
    let out = call.output(x.elements, name)?;
    let stats = call.output(2 * rows, stats_name)?;
    call.launch(8 * x.elements as u64, Replay::Allowed, move |operands| {
        let (x, gain, shift) = (operands.read(0), operands.read(1), operands.read(2));
        layer_norm::forward(operands.write(3), operands.write(4), x, gain, shift);
    })?;
    Ok([out, stats])
}

/// `x * weight^T + bias`; the weight has rows of `inputs`.
pub(crate) fn linear(
    ops: &mut Ops,
    name: &str,
    x: Tensor,
    weight: Tensor,
    bias: Option<Tensor>,
    inputs: usize,
) -> Result<Tensor, Error> {
    const OP: OpName = OpName::new("linear");
    let new = New { name, elements: x.elements / inputs * (weight.elements / inputs) };
    let flops = 2 * x.elements as u64 * (weight.elements / inputs) as u64;
    match bias {
        Some(bias) => {
            make(ops, OP, [x, weight, bias], new, flops, move |out, [x, weight, bias]| {
                linear::forward(out, x, weight, Some(bias), inputs);
            })
        }
        None => make(ops, OP, [x, weight], new, flops, move |out, [x, weight]| {
            linear::forward(out, x, weight, None, inputs);
        }),
    }
}

/// The causal attention probabilities.
pub(crate) fn attention_probabilities(
    ops: &mut Ops,
    name: &str,
    qkv: Tensor,
    shape: AttentionShape,
) -> Result<Tensor, Error> {
    const OP: OpName = OpName::new("attention_probabilities");
    let new = New { name, elements: shape.probability_elements() };
    let flops = (2 * shape.head_size as u64 + EXP_FLOPS) * new.elements as u64;
    make(ops, OP, [qkv], new, flops, move |out, [qkv]| {
        attention::probabilities(out, qkv, shape);
    })
}

/// The values, mixed by the probabilities.
pub(crate) fn attention_apply(
    ops: &mut Ops,
    name: &str,
    probabilities: Tensor,
    qkv: Tensor,
    shape: AttentionShape,
) -> Result<Tensor, Error> {
    const OP: OpName = OpName::new("attention_apply");
    let new = New { name, elements: shape.output_elements() };
    let flops = 2 * shape.head_size as u64 * probabilities.elements as u64;
    make(ops, OP, [probabilities, qkv], new, flops, move |out, [probabilities, qkv]| {
        attention::apply(out, probabilities, qkv, shape);
    })
}

/// The GELU of `x`.
pub(crate) fn gelu(ops: &mut Ops, name: &str, x: Tensor) -> Result<Tensor, Error> {
    const OP: OpName = OpName::new("gelu");
    let new = New { name, elements: x.elements };
    let flops = (EXP_FLOPS + 10) * x.elements as u64;
    make(ops, OP, [x], new, flops, |out, [x]| elementwise::gelu(out, x))
}

/// `a + b`.
pub(crate) fn add(ops: &mut Ops, name: &str, a: Tensor, b: Tensor) -> Result<Tensor, Error> {
    const OP: OpName = OpName::new("add");
    let new = New { name, elements: a.elements };
    make(ops, OP, [a, b], new, a.elements as u64, |out, [a, b]| elementwise::add(out, a, b))
}
