//! One transformer block, forward and backward.

use adaptive::Error;

use super::call::{Ops, Tensor};
use super::gradients;
use super::operators;
use super::parameters::{ParameterId, Parameters, Part};
use super::shape::Shape;

/// What a block's forward pass keeps for its backward pass.
#[derive(Debug)]
pub(crate) struct Saved {
    /// The residual stream as it came in.
    input: Tensor,
    attention_stats: Tensor,
    attention_normed: Tensor,
    qkv: Tensor,
    probabilities: Tensor,
    mixed: Tensor,
    /// The residual stream between attention and MLP.
    middle: Tensor,
    mlp_stats: Tensor,
    mlp_normed: Tensor,
    /// The MLP's hidden layer before GELU.
    up: Tensor,
    /// And behind it.
    active: Tensor,
}

/// Runs block `layer` on the residual stream `input` and returns the new residual stream. The old
/// one is in what is kept.
pub(crate) fn forward(
    ops: &mut Ops,
    shape: &Shape,
    parameters: &Parameters,
    layer: usize,
    input: Tensor,
) -> Result<(Tensor, Saved), Error> {
    let value = |part| parameters.value(ParameterId::of_layer(layer, part));
    let name = |what: &str| format!("layer{layer}.{what}");
    let (hidden, attention) = (shape.hidden, shape.attention());

    let norm = [value(Part::AttentionNormGain), value(Part::AttentionNormShift)];
    let names = [&*name("attention.norm"), &*name("attention.norm.stats")];
    let [attention_normed, attention_stats] = operators::layer_norm(ops, names, input, norm)?;
    let (weight, bias) = (value(Part::QkvWeight), Some(value(Part::QkvBias)));
    let qkv_name = name("attention.qkv");
    let qkv = operators::linear(ops, &qkv_name, attention_normed, weight, bias, hidden)?;
    let probabilities_name = name("attention.probabilities");
    let probabilities =
        operators::attention_probabilities(ops, &probabilities_name, qkv, attention)?;
    let mixed_name = name("attention.mixed");
    let mixed = operators::attention_apply(ops, &mixed_name, probabilities, qkv, attention)?;
    let (weight, bias) = (value(Part::MixWeight), Some(value(Part::MixBias)));
    let out_name = name("attention.out");
    let attention_out = operators::linear(ops, &out_name, mixed, weight, bias, hidden)?;
    let middle = operators::add(ops, &name("middle"), input, attention_out)?;
    ops.free(attention_out.block)?;

    let norm = [value(Part::MlpNormGain), value(Part::MlpNormShift)];
    let names = [&*name("mlp.norm"), &*name("mlp.norm.stats")];
    let [mlp_normed, mlp_stats] = operators::layer_norm(ops, names, middle, norm)?;
    let (weight, bias) = (value(Part::UpWeight), Some(value(Part::UpBias)));
    let up = operators::linear(ops, &name("mlp.up"), mlp_normed, weight, bias, hidden)?;
    let active = operators::gelu(ops, &name("mlp.active"), up)?;
    let (weight, bias) = (value(Part::DownWeight), Some(value(Part::DownBias)));
    let mlp_out = operators::linear(ops, &name("mlp.out"), active, weight, bias, shape.mlp())?;
    let out = operators::add(ops, &name("out"), middle, mlp_out)?;
    ops.free(mlp_out.block)?;

    let saved = Saved {
        input,
        attention_stats,
        attention_normed,
        qkv,
        probabilities,
        mixed,
        middle,
        mlp_stats,
        mlp_normed,
        up,
        active,
    };
    Ok((out, saved))
}

/// Turns `d_stream` from the gradient of the block's output into that of its input, leaves the
/// gradients of its parameters, and frees all that was kept.
pub(crate) fn backward(
    ops: &mut Ops,
    shape: &Shape,
    parameters: &mut Parameters,
    layer: usize,
    d_stream: Tensor,
    saved: Saved,
) -> Result<(), Error> {
    mlp_backward(ops, shape, parameters, layer, d_stream, &saved)?;
    attention_backward(ops, shape, parameters, layer, d_stream, &saved)
}

fn mlp_backward(
    ops: &mut Ops,
    shape: &Shape,
    parameters: &mut Parameters,
    layer: usize,
    d_stream: Tensor,
    saved: &Saved,
) -> Result<(), Error> {
    let id = |part| ParameterId::of_layer(layer, part);
    let name = |what: &str| format!("layer{layer}.d_{what}");

    let down = [id(Part::DownWeight), id(Part::DownBias)];
    linear_backward(ops, parameters, down, d_stream, saved.active)?;
    ops.free(saved.active.block)?;
    let weight = parameters.value(down[0]);
    let d_active =
        gradients::linear_input(ops, &name("mlp.active"), d_stream, weight, shape.mlp())?;
    let d_up = gradients::gelu(ops, &name("mlp.up"), d_active, saved.up)?;
    ops.free(d_active.block)?;
    ops.free(saved.up.block)?;

    let up = [id(Part::UpWeight), id(Part::UpBias)];
    linear_backward(ops, parameters, up, d_up, saved.mlp_normed)?;
    ops.free(saved.mlp_normed.block)?;
    let weight = parameters.value(up[0]);
    let d_normed = gradients::linear_input(ops, &name("mlp.norm"), d_up, weight, shape.hidden)?;
    ops.free(d_up.block)?;

    let norm = [id(Part::MlpNormGain), id(Part::MlpNormShift)];
    let input = [saved.middle, saved.mlp_stats];
    let d_middle = norm_backward(ops, parameters, norm, d_normed, input)?;
    ops.free(saved.middle.block)?;
    gradients::accumulate(ops, d_stream, d_middle)?;
    ops.free(d_middle.block)
}

fn attention_backward(
    ops: &mut Ops,
    shape: &Shape,
    parameters: &mut Parameters,
    layer: usize,
    d_stream: Tensor,
    saved: &Saved,
) -> Result<(), Error> {
    let id = |part| ParameterId::of_layer(layer, part);
    let name = |what: &str| format!("layer{layer}.d_{what}");

    let mix = [id(Part::MixWeight), id(Part::MixBias)];
    linear_backward(ops, parameters, mix, d_stream, saved.mixed)?;
    ops.free(saved.mixed.block)?;
    let weight = parameters.value(mix[0]);
    let mixed_name = name("attention.mixed");
    let d_mixed = gradients::linear_input(ops, &mixed_name, d_stream, weight, shape.hidden)?;

    let forward = [saved.probabilities, saved.qkv];
    let scores_name = name("attention.scores");
    let attention = shape.attention();
    let d_scores = gradients::attention_scores(ops, &scores_name, d_mixed, forward, attention)?;
    let backward = [d_scores, d_mixed];
    let d_qkv =
        gradients::attention_qkv(ops, &name("attention.qkv"), backward, forward, attention)?;
    for tensor in [d_scores, d_mixed, saved.probabilities, saved.qkv] {
        ops.free(tensor.block)?;
    }

    let qkv = [id(Part::QkvWeight), id(Part::QkvBias)];
    linear_backward(ops, parameters, qkv, d_qkv, saved.attention_normed)?;
    ops.free(saved.attention_normed.block)?;
    let weight = parameters.value(qkv[0]);
    let norm_name = name("attention.norm");
    let d_normed = gradients::linear_input(ops, &norm_name, d_qkv, weight, shape.hidden)?;
    ops.free(d_qkv.block)?;

    let norm = [id(Part::AttentionNormGain), id(Part::AttentionNormShift)];
    let input = [saved.input, saved.attention_stats];
    let d_input = norm_backward(ops, parameters, norm, d_normed, input)?;
    ops.free(saved.input.block)?;
    gradients::accumulate(ops, d_stream, d_input)?;
    ops.free(d_input.block)
}

/// Leaves the gradients of a linear layer's weight and bias.
fn linear_backward(
    ops: &mut Ops,
    parameters: &mut Parameters,
    [weight, bias]: [ParameterId; 2],
    d_out: Tensor,
    x: Tensor,
) -> Result<(), Error> {
    let outputs = parameters.value(bias).elements;
    let name = parameters.gradient_name(weight);
    let d_weight = gradients::linear_weight(ops, &name, d_out, x, outputs)?;
    parameters.set_gradient(weight, d_weight);
    let name = parameters.gradient_name(bias);
    let d_bias = gradients::linear_bias(ops, &name, d_out, outputs)?;
    parameters.set_gradient(bias, d_bias);
    Ok(())
}

/// Leaves the gradients of a norm's gain and shift, returns that of its input, and frees `d_out`
/// and the statistics.
pub(crate) fn norm_backward(
    ops: &mut Ops,
    parameters: &mut Parameters,
    [gain, shift]: [ParameterId; 2],
    d_out: Tensor,
    [x, stats]: [Tensor; 2],
) -> Result<Tensor, Error> {
    let hidden = parameters.value(gain).elements;
    let names = [gain, shift].map(|id| parameters.gradient_name(id));
    let names = [&*names[0], &*names[1]];
    let [d_gain, d_shift] =
        gradients::layer_norm_parameters(ops, names, d_out, [x, stats], hidden)?;
    parameters.set_gradient(gain, d_gain);
    parameters.set_gradient(shift, d_shift);
    let gain = parameters.value(gain);
    let d_x = gradients::layer_norm_input(ops, "d_norm.input", d_out, [x, stats], gain)?;
    ops.free(d_out.block)?;
    ops.free(stats.block)?;
    Ok(d_x)
}
