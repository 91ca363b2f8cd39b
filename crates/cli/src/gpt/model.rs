//! One training step: forward, backward, optimizer.

use adaptive::Error;
use kernels::adamw::AdamW;

use super::call::{Ops, Tensor};
use super::gradients;
use super::layers::{self, Saved};
use super::operators::{self, New, Outbox};
use super::parameters::{ParameterId, Parameters};
use super::shape::{Head, Shape};
use crate::text::Batch;

/// How the optimizer steps.
pub(crate) const RULE: AdamW =
    AdamW { learning_rate: 1e-3, beta_1: 0.9, beta_2: 0.95, epsilon: 1e-8, weight_decay: 0.1 };

/// A GPT on the device.
#[derive(Debug)]
pub(crate) struct Model {
    shape: Shape,
    parameters: Parameters,
    losses: Outbox<f32>,
    steps: u64,
}

/// What the forward pass keeps for the backward pass.
#[derive(Debug)]
struct Forward {
    tokens: Tensor,
    targets: Tensor,
    layers: Vec<Saved>,
    /// The residual stream behind the last layer.
    stream: Tensor,
    stats: Tensor,
    normed: Tensor,
    logits: Tensor,
}

impl Model {
    /// Allocates a model and fills it with start values. `shape` is valid.
    pub(crate) fn start(ops: &mut Ops, shape: Shape, seed: u64) -> Result<Model, Error> {
        let parameters = Parameters::start(ops, &shape, seed)?;
        Ok(Model { shape, parameters, losses: Outbox::new(), steps: 0 })
    }

    /// Submits one training step. Its loss arrives in [`losses`](Model::losses) when it has run.
    pub(crate) fn step(&mut self, ops: &mut Ops, batch: Batch) -> Result<(), Error> {
        self.gradients(ops, batch)?;
        self.steps += 1;
        self.parameters.update(ops, RULE, self.steps)
    }

    /// The losses of the steps that have run since the last call, oldest first.
    pub(crate) fn losses(&self) -> Vec<f32> {
        self.losses.take()
    }

    /// Hands the bits of all weights to the host.
    pub(crate) fn fetch_weights(
        &self,
        ops: &mut Ops,
        outbox: &Outbox<Vec<u32>>,
    ) -> Result<(), Error> {
        self.parameters.fetch(ops, outbox)
    }

    /// What the weights are called, in the order in which they are fetched.
    pub(crate) fn weight_names(&self) -> Vec<String> {
        self.parameters.all.iter().map(|parameter| parameter.name.clone()).collect()
    }

    /// Frees all of the model's memory.
    pub(crate) fn free(self, ops: &mut Ops) -> Result<(), Error> {
        self.parameters.free(ops)
    }

    /// Forward and backward: leaves a gradient for each parameter.
    fn gradients(&mut self, ops: &mut Ops, batch: Batch) -> Result<(), Error> {
        let forward = self.forward(ops, batch)?;
        operators::cross_entropy(ops, forward.logits, forward.targets, &self.losses)?;
        self.backward(ops, forward)
    }

    fn forward(&self, ops: &mut Ops, batch: Batch) -> Result<Forward, Error> {
        let value = |id| self.parameters.value(id);
        let hidden = self.shape.hidden;
        let tokens = operators::load_tokens(ops, "tokens", batch.tokens)?;
        let targets = operators::load_tokens(ops, "targets", batch.targets)?;
        let tables = [value(ParameterId::TOKENS), value(ParameterId::POSITIONS)];
        let mut stream = operators::embed(ops, "embedded", tokens, tables, hidden)?;
        let mut saved = Vec::with_capacity(self.shape.layers);
        for layer in 0..self.shape.layers {
            let (out, kept) = layers::forward(ops, &self.shape, &self.parameters, layer, stream)?;
            saved.push(kept);
            stream = out;
        }
        let norm = [value(ParameterId::NORM_GAIN), value(ParameterId::NORM_SHIFT)];
        let [normed, stats] = operators::layer_norm(ops, ["norm", "norm.stats"], stream, norm)?;
        let head = value(ParameterId::head(&self.shape));
        let logits = operators::linear(ops, "logits", normed, head, None, hidden)?;
        Ok(Forward { tokens, targets, layers: saved, stream, stats, normed, logits })
    }

    fn backward(&mut self, ops: &mut Ops, forward: Forward) -> Result<(), Error> {
        let Forward { tokens, targets, layers: saved, stream, stats, normed, logits } = forward;
        let Shape { hidden, vocab, .. } = self.shape;
        let d_logits = gradients::cross_entropy(ops, "d_logits", logits, targets)?;
        ops.free(logits.block)?;
        ops.free(targets.block)?;

        let head = ParameterId::head(&self.shape);
        let name = self.parameters.gradient_name(head);
        let d_head = gradients::linear_weight(ops, &name, d_logits, normed, vocab)?;
        self.parameters.set_gradient(head, d_head);
        ops.free(normed.block)?;
        let weight = self.parameters.value(head);
        let d_normed = gradients::linear_input(ops, "d_norm", d_logits, weight, hidden)?;
        ops.free(d_logits.block)?;

        let norm = [ParameterId::NORM_GAIN, ParameterId::NORM_SHIFT];
        let d_stream =
            layers::norm_backward(ops, &mut self.parameters, norm, d_normed, [stream, stats])?;
        ops.free(stream.block)?;
        for (layer, kept) in saved.into_iter().enumerate().rev() {
            layers::backward(ops, &self.shape, &mut self.parameters, layer, d_stream, kept)?;
        }
        self.embedding_backward(ops, d_stream, tokens)?;
        ops.free(tokens.block)?;
        ops.free(d_stream.block)
    }

    fn embedding_backward(
        &mut self,
        ops: &mut Ops,
        d_stream: Tensor,
        tokens: Tensor,
    ) -> Result<(), Error> {
        let positions = ParameterId::POSITIONS;
        let name = self.parameters.gradient_name(positions);
        let new = New { name: &name, elements: self.parameters.value(positions).elements };
        let d_positions = gradients::position_table(ops, new, d_stream)?;
        self.parameters.set_gradient(positions, d_positions);

        let table = ParameterId::TOKENS;
        match self.shape.head {
            Head::Tied => {
                let sum = self.parameters.gradient(table).expect("the head made it");
                gradients::token_table_onto(ops, sum, d_stream, tokens)
            }
            Head::Untied => {
                let name = self.parameters.gradient_name(table);
                let new = New { name: &name, elements: self.parameters.value(table).elements };
                let d_table = gradients::token_table(ops, new, d_stream, tokens)?;
                self.parameters.set_gradient(table, d_table);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests;
