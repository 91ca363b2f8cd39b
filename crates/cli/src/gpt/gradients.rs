//! The backward operators and the optimizer's.

use adaptive::{Error, OpName};
use kernels::adamw::AdamW;
use kernels::attention::Shape as AttentionShape;
use kernels::{attention, elementwise, embedding, layer_norm, linear, loss};

use super::call::{Call, Ops, Replay, Tensor};
use super::operators::{EXP_FLOPS, New, make};

/// The gradient of the logits.
pub(crate) fn cross_entropy(
    ops: &mut Ops,
    name: &str,
    logits: Tensor,
    targets: Tensor,
) -> Result<Tensor, Error> {
    const OP: OpName = OpName::new("cross_entropy_gradient");
    let vocab = logits.elements / targets.elements;
    let flops = 2 * EXP_FLOPS * logits.elements as u64;
    let mut call = Call::begin(ops, OP)?;
    call.read(logits)?;
    call.read(targets)?;
    let out = call.output(logits.elements, name)?;
    call.launch(flops, Replay::Allowed, move |operands| {
        let (logits, targets) = (operands.read(0), operands.read(1));
        loss::cross_entropy_gradient(operands.write(2), logits, targets, vocab);
    })?;
    Ok(out)
}

/// The gradient of a linear layer's input.
pub(crate) fn linear_input(
    ops: &mut Ops,
    name: &str,
    d_out: Tensor,
    weight: Tensor,
    inputs: usize,
) -> Result<Tensor, Error> {
    const OP: OpName = OpName::new("linear_input_gradient");
    let outputs = weight.elements / inputs;
    let new = New { name, elements: d_out.elements / outputs * inputs };
    let flops = 2 * d_out.elements as u64 * inputs as u64;
    make(ops, OP, [d_out, weight], new, flops, move |d_x, [d_out, weight]| {
        linear::input_gradient(d_x, d_out, weight, inputs);
    })
}

/// The gradient of a linear layer's weight, with one row for each of `outputs`.
pub(crate) fn linear_weight(
    ops: &mut Ops,
    name: &str,
    d_out: Tensor,
    x: Tensor,
    outputs: usize,
) -> Result<Tensor, Error> {
    const OP: OpName = OpName::new("linear_weight_gradient");
    let inputs = x.elements / (d_out.elements / outputs);
    let new = New { name, elements: outputs * inputs };
    let flops = 2 * d_out.elements as u64 * inputs as u64;
    make(ops, OP, [d_out, x], new, flops, move |d_weight, [d_out, x]| {
        linear::weight_gradient(d_weight, d_out, x, inputs);
    })
}

/// The gradient of a linear layer's bias.
pub(crate) fn linear_bias(
    ops: &mut Ops,
    name: &str,
    d_out: Tensor,
    outputs: usize,
) -> Result<Tensor, Error> {
    const OP: OpName = OpName::new("linear_bias_gradient");
    let new = New { name, elements: outputs };
    make(ops, OP, [d_out], new, d_out.elements as u64, |d_bias, [d_out]| {
        linear::bias_gradient(d_bias, d_out);
    })
}

/// The gradient of GELU's input.
pub(crate) fn gelu(ops: &mut Ops, name: &str, d_out: Tensor, x: Tensor) -> Result<Tensor, Error> {
    const OP: OpName = OpName::new("gelu_gradient");
    let new = New { name, elements: x.elements };
    let flops = (EXP_FLOPS + 15) * x.elements as u64;
    make(ops, OP, [d_out, x], new, flops, |d_x, [d_out, x]| {
        elementwise::gelu_gradient(d_x, d_out, x);
    })
}

/// The gradient of a layer norm's input.
pub(crate) fn layer_norm_input(
    ops: &mut Ops,
    name: &str,
    d_out: Tensor,
    [x, stats]: [Tensor; 2],
    gain: Tensor,
) -> Result<Tensor, Error> {
    const OP: OpName = OpName::new("layer_norm_input_gradient");
    let new = New { name, elements: x.elements };
    let flops = 12 * x.elements as u64;
    make(ops, OP, [d_out, x, stats, gain], new, flops, |d_x, [d_out, x, stats, gain]| {
        layer_norm::input_gradient(d_x, d_out, x, stats, gain);
    })
}

/// The gradients of a layer norm's gain and shift, each of `hidden` elements.
pub(crate) fn layer_norm_parameters(
    ops: &mut Ops,
    [gain_name, shift_name]: [&str; 2],
    d_out: Tensor,
    [x, stats]: [Tensor; 2],
    hidden: usize,
) -> Result<[Tensor; 2], Error> {
    const OP: OpName = OpName::new("layer_norm_parameter_gradient");
    let mut call = Call::begin(ops, OP)?;
    call.read(d_out)?;
    call.read(x)?;
    call.read(stats)?;
    let d_gain = call.output(hidden, gain_name)?;
    let d_shift = call.output(hidden, shift_name)?;
    call.launch(5 * x.elements as u64, Replay::Allowed, |operands| {
        let (d_out, x, stats) = (operands.read(0), operands.read(1), operands.read(2));
        let (d_gain, d_shift) = (operands.write(3), operands.write(4));
        layer_norm::parameter_gradient(d_gain, d_shift, d_out, x, stats);
    })?;
    Ok([d_gain, d_shift])
}

/// The gradient of the attention scores.
pub(crate) fn attention_scores(
    ops: &mut Ops,
    name: &str,
    d_out: Tensor,
    [probabilities, qkv]: [Tensor; 2],
    shape: AttentionShape,
) -> Result<Tensor, Error> {
    const OP: OpName = OpName::new("attention_score_gradient");
    let new = New { name, elements: probabilities.elements };
    let flops = (2 * shape.head_size as u64 + 5) * new.elements as u64;
    let inputs = [d_out, probabilities, qkv];
    make(ops, OP, inputs, new, flops, move |d_scores, [d_out, probabilities, qkv]| {
        attention::score_gradient(d_scores, d_out, probabilities, qkv, shape);
    })
}

/// The gradient of queries, keys and values.
pub(crate) fn attention_qkv(
    ops: &mut Ops,
    name: &str,
    [d_scores, d_out]: [Tensor; 2],
    [probabilities, qkv]: [Tensor; 2],
    shape: AttentionShape,
) -> Result<Tensor, Error> {
    const OP: OpName = OpName::new("attention_qkv_gradient");
    let new = New { name, elements: qkv.elements };
    let flops = 6 * shape.head_size as u64 * probabilities.elements as u64;
    let inputs = [d_scores, d_out, probabilities, qkv];
    make(ops, OP, inputs, new, flops, move |d_qkv, [d_scores, d_out, probabilities, qkv]| {
        attention::qkv_gradient(d_qkv, d_scores, d_out, probabilities, qkv, shape);
    })
}

/// Adds `x` to `sum`.
pub(crate) fn accumulate(ops: &mut Ops, sum: Tensor, x: Tensor) -> Result<(), Error> {
    const OP: OpName = OpName::new("accumulate");
    let mut call = Call::begin(ops, OP)?;
    call.change(sum)?;
    call.read(x)?;
    call.launch(x.elements as u64, Replay::Never, |operands| {
        elementwise::add_scaled(operands.write(0), operands.read(1), 1.0);
    })
}

/// The gradient of the token table.
pub(crate) fn token_table(
    ops: &mut Ops,
    new: New<'_>,
    d_out: Tensor,
    tokens: Tensor,
) -> Result<Tensor, Error> {
    const OP: OpName = OpName::new("token_table_gradient");
    let hidden = d_out.elements / tokens.elements;
    let mut call = Call::begin(ops, OP)?;
    call.read(d_out)?;
    call.read(tokens)?;
    let out = call.output(new.elements, new.name)?;
    call.launch(d_out.elements as u64, Replay::Allowed, move |operands| {
        let out: &mut [f32] = operands.write(2);
        out.fill(0.0);
        embedding::token_gradient(out, operands.read(0), operands.read(1), hidden);
    })?;
    Ok(out)
}

/// Adds the gradient of the token table to `sum`.
pub(crate) fn token_table_onto(
    ops: &mut Ops,
    sum: Tensor,
    d_out: Tensor,
    tokens: Tensor,
) -> Result<(), Error> {
    const OP: OpName = OpName::new("token_table_gradient_onto");
    let hidden = d_out.elements / tokens.elements;
    let mut call = Call::begin(ops, OP)?;
    call.read(d_out)?;
    call.read(tokens)?;
    call.change(sum)?;
    call.launch(d_out.elements as u64, Replay::Never, move |operands| {
        let (d_out, tokens) = (operands.read(0), operands.read(1));
        embedding::token_gradient(operands.write(2), d_out, tokens, hidden);
    })
}

/// The gradient of the position table.
pub(crate) fn position_table(ops: &mut Ops, new: New<'_>, d_out: Tensor) -> Result<Tensor, Error> {
    const OP: OpName = OpName::new("position_table_gradient");
    make(ops, OP, [d_out], new, d_out.elements as u64, |d_table, [d_out]| {
        embedding::position_gradient(d_table, d_out);
    })
}

/// One optimizer step of one parameter; `step` counts from 1.
pub(crate) fn adamw(
    ops: &mut Ops,
    rule: AdamW,
    parameter: Tensor,
    [first, second]: [Tensor; 2],
    gradient: Tensor,
    step: u64,
) -> Result<(), Error> {
    const OP: OpName = OpName::new("adamw");
    let mut call = Call::begin(ops, OP)?;
    call.change(parameter)?;
    call.change(first)?;
    call.change(second)?;
    call.read(gradient)?;
    call.launch(15 * parameter.elements as u64, Replay::Never, move |operands| {
        let (parameter, first) = (operands.write(0), operands.write(1));
        rule.update(parameter, first, operands.write(2), operands.read(3), step);
    })
}
