//! One training step of a transformer: forward, backward, optimizer.

use swap_core::{BlockIndex, Trace};

use super::TraceBuilder;

const MIB: u64 = 1 << 20;

/// Sizes of a made-up transformer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TransformerShape {
    /// Number of layers; each is some twenty ops.
    pub layers: u32,
    /// Bytes of one layer's weights, in MiB. Its gradient is as large, each moment twice that.
    pub weight_mib: u64,
    /// Bytes of one activation of the model's width, in MiB; the wide ones are four times that.
    pub activation_mib: u64,
    /// Time of one layer's forward pass, in microseconds; backward takes twice that.
    pub forward_us: f64,
}

struct Layer {
    weights: BlockIndex,
    moments: [BlockIndex; 2],
}

struct Kept {
    input: BlockIndex,
    norm: BlockIndex,
    attention: BlockIndex,
    wide: BlockIndex,
    active: BlockIndex,
}

/// The trace of one steady training step.
pub fn transformer_trace(shape: &TransformerShape) -> Trace {
    let mut b = TraceBuilder::new();
    let layers: Vec<Layer> = (0..shape.layers)
        .map(|layer| Layer {
            weights: b.persistent(&format!("layer{layer}.weight"), shape.weight_mib * MIB),
            moments: [0, 1].map(|moment| {
                let name = format!("layer{layer}.moment{moment}");
                b.persistent(&name, 2 * shape.weight_mib * MIB)
            }),
        })
        .collect();
    b.segments(4 * MIB);
    let mut stream = b.allocate("embedding", shape.activation_mib * MIB);
    b.begin("embed", shape.forward_us / 20.0, false);
    b.write(stream);
    b.end();
    let mut kept = Vec::new();
    for (index, layer) in layers.iter().enumerate() {
        let (saved, next) = forward(&mut b, shape, index, layer, stream);
        kept.push(saved);
        stream = next;
    }
    let mut gradient = b.allocate("loss.grad", shape.activation_mib * MIB);
    b.compute("loss", shape.forward_us / 10.0, &[stream], gradient);
    b.free(stream);
    let mut gradients = Vec::new();
    for (index, (layer, saved)) in layers.iter().zip(kept).enumerate().rev() {
        let (weight_gradient, next) = backward(&mut b, shape, index, layer, saved, gradient);
        gradients.push(weight_gradient);
        gradient = next;
    }
    b.free(gradient);
    gradients.reverse();
    for (layer, weight_gradient) in layers.iter().zip(&gradients) {
        b.begin("adamw", shape.forward_us / 20.0, false);
        b.read(*weight_gradient);
        b.update(layer.weights);
        b.update(layer.moments[0]);
        b.update(layer.moments[1]);
        b.end();
    }
    for weight_gradient in gradients {
        b.free(weight_gradient);
    }
    b.finish()
}

fn forward(
    b: &mut TraceBuilder,
    shape: &TransformerShape,
    index: usize,
    layer: &Layer,
    input: BlockIndex,
) -> (Kept, BlockIndex) {
    let narrow = shape.activation_mib * MIB;
    let us = shape.forward_us;
    let norm = b.allocate(&format!("layer{index}.norm"), narrow);
    b.compute("layer_norm", 0.03 * us, &[input], norm);
    // Attention allocates inside nested ops and drops a temporary.
    b.begin("attention", 0.4 * us, false);
    let attention = b.allocate(&format!("layer{index}.attention"), narrow);
    b.begin("matmul", 0.0, false);
    let scratch = b.allocate("scratch", narrow);
    b.read(norm);
    b.read(layer.weights);
    b.write(scratch);
    b.end();
    b.read(scratch);
    b.write(attention);
    b.free(scratch);
    b.end();
    let wide = b.allocate(&format!("layer{index}.wide"), 4 * narrow);
    b.compute("linear_up", 0.25 * us, &[attention, layer.weights], wide);
    let active = b.allocate(&format!("layer{index}.gelu"), 4 * narrow);
    b.compute("gelu", 0.05 * us, &[wide], active);
    let output = b.allocate(&format!("layer{index}.out"), narrow);
    b.compute("linear_down", 0.25 * us, &[active, layer.weights], output);
    b.begin("add", 0.02 * us, false);
    b.read(input);
    b.update(output);
    b.end();
    (Kept { input, norm, attention, wide, active }, output)
}

fn backward(
    b: &mut TraceBuilder,
    shape: &TransformerShape,
    index: usize,
    layer: &Layer,
    saved: Kept,
    gradient: BlockIndex,
) -> (BlockIndex, BlockIndex) {
    let narrow = shape.activation_mib * MIB;
    let us = 2.0 * shape.forward_us;
    let weight_gradient = b.allocate(&format!("layer{index}.grad"), shape.weight_mib * MIB);
    let wide_gradient = b.allocate("wide.grad", 4 * narrow);
    b.begin("linear_down_backward", 0.25 * us, false);
    b.read(gradient);
    b.read(saved.active);
    b.read(layer.weights);
    b.write(wide_gradient);
    b.write(weight_gradient);
    b.end();
    b.free(saved.active);
    b.begin("gelu_backward", 0.05 * us, false);
    b.read(saved.wide);
    b.update(wide_gradient);
    b.end();
    b.free(saved.wide);
    let narrow_gradient = b.allocate("attention.grad", narrow);
    b.begin("linear_up_backward", 0.25 * us, false);
    b.read(wide_gradient);
    b.read(saved.attention);
    b.read(layer.weights);
    b.write(narrow_gradient);
    b.update(weight_gradient);
    b.end();
    b.free(wide_gradient);
    b.begin("attention_backward", 0.4 * us, false);
    b.read(saved.attention);
    b.read(saved.norm);
    b.read(layer.weights);
    b.update(narrow_gradient);
    b.update(weight_gradient);
    b.end();
    b.free(saved.attention);
    b.begin("layer_norm_backward", 0.05 * us, false);
    b.read(saved.norm);
    b.read(saved.input);
    b.read(gradient);
    b.update(narrow_gradient);
    b.end();
    b.free(saved.norm);
    b.free(saved.input);
    b.free(gradient);
    (weight_gradient, narrow_gradient)
}
