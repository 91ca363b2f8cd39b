//! Large made-up steps: many layers, many micro-batches, experts with ragged sizes.

use swap_core::{BlockIndex, Trace};

use super::{Numbers, TraceBuilder};

const MIB: u64 = 1 << 20;

/// Sizes of a made-up step with gradient accumulation and experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LargeShape {
    /// Number of layers.
    pub layers: u32,
    /// Number of micro-batches, each with its forward and backward pass.
    pub micro_batches: u32,
    /// Experts of each layer. How much each gets to do differs from one micro-batch to the next.
    pub experts: u32,
    /// Bytes of one expert's weights, in MiB.
    pub weight_mib: u64,
    /// Bytes of one activation of the model's width, in MiB.
    pub activation_mib: u64,
    /// Time of one layer's forward pass, in microseconds; backward takes twice that.
    pub forward_us: f64,
    /// What the experts' shares are drawn from.
    pub seed: u64,
}

impl LargeShape {
    /// A step of at least so many ops.
    pub fn with_ops(ops: u32) -> LargeShape {
        let shape = LargeShape {
            layers: 48,
            micro_batches: 1,
            experts: 8,
            weight_mib: 16,
            activation_mib: 24,
            forward_us: 2_000.0,
            seed: 1,
        };
        let each = shape.layers * shape.ops_per_layer();
        LargeShape { micro_batches: ops.div_ceil(each).max(1), ..shape }
    }

    /// Ops of a layer in one micro-batch, forward and backward.
    fn ops_per_layer(&self) -> u32 {
        2 * (3 + 2 * self.experts)
    }
}

struct Layer {
    experts: Vec<BlockIndex>,
    gradients: Vec<BlockIndex>,
    state: BlockIndex,
}

/// What a layer's forward pass keeps for its backward pass.
struct Kept {
    input: BlockIndex,
    mixed: BlockIndex,
    /// By expert: what went in and what its first half made.
    parts: Vec<[BlockIndex; 2]>,
}

struct Writer {
    shape: LargeShape,
    numbers: Numbers,
    builder: TraceBuilder,
}

/// The trace of one steady step: micro-batches one after the other, then the optimizer.
pub fn large_trace(shape: &LargeShape) -> Trace {
    let numbers = Numbers::new(shape.seed);
    let mut writer = Writer { shape: *shape, numbers, builder: TraceBuilder::new() };
    let layers: Vec<Layer> = (0..shape.layers).map(|index| writer.layer(index)).collect();
    for _ in 0..shape.micro_batches {
        writer.micro_batch(&layers);
    }
    for layer in &layers {
        writer.builder.begin("adamw", shape.forward_us / 4.0, false);
        for (&weights, &gradient) in layer.experts.iter().zip(&layer.gradients) {
            writer.builder.read(gradient);
            writer.builder.update(weights);
        }
        writer.builder.update(layer.state);
        writer.builder.end();
    }
    writer.builder.finish()
}

impl Writer {
    fn layer(&mut self, index: u32) -> Layer {
        let size_bytes = self.shape.weight_mib * MIB;
        let mut blocks = |what: &str| -> Vec<BlockIndex> {
            (0..self.shape.experts)
                .map(|expert| {
                    let name = format!("layer{index}.expert{expert}.{what}");
                    self.builder.persistent(&name, size_bytes)
                })
                .collect()
        };
        let (experts, gradients) = (blocks("weight"), blocks("grad"));
        let state_bytes = 2 * u64::from(self.shape.experts) * size_bytes;
        let state = self.builder.persistent(&format!("layer{index}.state"), state_bytes);
        Layer { experts, gradients, state }
    }

    fn micro_batch(&mut self, layers: &[Layer]) {
        let mut stream = self.activation("input", self.shape.activation_mib);
        let mut kept = Vec::with_capacity(layers.len());
        for layer in layers {
            let (saved, output) = self.forward(layer, stream);
            kept.push(saved);
            stream = output;
        }
        let mut gradient = self.activation("loss.grad", self.shape.activation_mib);
        self.builder.compute("loss", self.shape.forward_us / 10.0, &[stream], gradient);
        self.builder.free(stream);
        for (layer, saved) in layers.iter().zip(kept).rev() {
            gradient = self.backward(layer, saved, gradient);
        }
        self.builder.free(gradient);
    }

    fn activation(&mut self, name: &str, size_mib: u64) -> BlockIndex {
        self.builder.allocate(name, size_mib.max(2) * MIB)
    }

    fn forward(&mut self, layer: &Layer, input: BlockIndex) -> (Kept, BlockIndex) {
        let (us, width) = (self.shape.forward_us, self.shape.activation_mib);
        let mixed = self.activation("mixed", width);
        self.builder.compute("attention", 0.4 * us, &[input], mixed);
        let mut parts = Vec::with_capacity(layer.experts.len());
        for &weights in &layer.experts {
            // Some experts get next to nothing, others many times their share.
            let share_mib = 2 + self.numbers.below(2 * width);
            let expert_us =
                0.5 * us * share_mib as f64 / (width * layer.experts.len() as u64) as f64;
            let routed = self.activation("routed", share_mib);
            self.builder.compute("gather", 0.1 * expert_us, &[mixed], routed);
            let hidden = self.activation("hidden", 2 * share_mib);
            self.builder.compute("expert", expert_us, &[routed, weights], hidden);
            parts.push([routed, hidden]);
        }
        let output = self.activation("output", width);
        let mut reads: Vec<BlockIndex> = parts.iter().map(|part| part[1]).collect();
        reads.push(mixed);
        self.builder.compute("combine", 0.1 * us, &reads, output);
        self.builder.begin("count", 1.0, false);
        self.builder.read(output);
        self.builder.end();
        (Kept { input, mixed, parts }, output)
    }

    fn backward(&mut self, layer: &Layer, saved: Kept, gradient: BlockIndex) -> BlockIndex {
        let (us, width) = (2.0 * self.shape.forward_us, self.shape.activation_mib);
        let next = self.activation("grad", width);
        self.builder.compute("combine_backward", 0.1 * us, &[gradient], next);
        let weights = layer.experts.iter().zip(&layer.gradients);
        for (part, (&weights, &weight_gradient)) in saved.parts.into_iter().zip(weights).rev() {
            let expert_us = 0.25 * us / layer.experts.len() as f64;
            for (name, kept) in [("expert_backward", part[1]), ("gather_backward", part[0])] {
                self.builder.begin(name, expert_us, false);
                self.builder.read(gradient);
                self.builder.read(kept);
                self.builder.read(weights);
                self.builder.update(weight_gradient);
                self.builder.update(next);
                self.builder.end();
                self.builder.free(kept);
            }
        }
        for (name, kept) in [("attention_backward", saved.mixed), ("norm_backward", saved.input)] {
            self.builder.begin(name, 0.2 * us, false);
            self.builder.read(kept);
            self.builder.update(next);
            self.builder.end();
            self.builder.free(kept);
        }
        self.builder.free(gradient);
        next
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::{GenerateConfig, Generator, Link, Machine, check_trace, generate, simulate};

    #[test]
    fn a_large_step_has_its_ops_and_ragged_sizes_and_can_be_planned() {
        let trace = large_trace(&LargeShape::with_ops(10_000));
        assert_eq!(check_trace(&trace), Ok(()));
        assert!(trace.ops.len() >= 10_000 && trace.ops.len() < 12_000, "{}", trace.ops.len());
        let sizes: BTreeSet<u64> = trace.blocks.iter().map(|block| block.size_bytes).collect();
        assert!(sizes.len() > 40, "only {} sizes", sizes.len());

        let rate = 50_000.0;
        let link =
            Link { out_bytes_per_us: rate, in_bytes_per_us: rate, both_bytes_per_us: 0.8 * rate };
        let roomy =
            Machine { limit_bytes: 1 << 50, host_limit_bytes: 1 << 50, link, copy_submit_us: 8.0 };
        let need_bytes = simulate(&trace, &swap_core::Plan::default(), &roomy).resident_bytes_peak;
        let machine = roomy.with_limit(need_bytes / 2);
        let config = GenerateConfig { effort: 1, ..GenerateConfig::default() };
        let made = generate(&trace, &machine, &config, &[]);
        assert!(made.infeasible.is_none() && made.simulation.went_to_plan());
        assert!(made.plan.actions.len() > 1_000 && made.added_us() >= made.windows_us);
        let bound_us = Generator::new(&trace, &machine).bound_us(&[]);
        assert!(bound_us > 0.0 && made.added_us() >= bound_us, "{bound_us}");
    }
}
