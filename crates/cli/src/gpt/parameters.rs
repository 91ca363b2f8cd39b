//! The model's parameters: which there are, how they start, and where they are.

use adaptive::Error;
use kernels::adamw::AdamW;

use super::call::{Ops, Tensor};
use super::gradients;
use super::operators::{self, New, Outbox, Start};
use super::random::Random;
use super::shape::{Head, Shape};

/// Names a parameter of the model.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct ParameterId(usize);

/// A parameter of one transformer block, in the order in which they lie in the model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Part {
    AttentionNormGain,
    AttentionNormShift,
    QkvWeight,
    QkvBias,
    MixWeight,
    MixBias,
    MlpNormGain,
    MlpNormShift,
    UpWeight,
    UpBias,
    DownWeight,
    DownBias,
}

const PARTS: [(Part, &str); 12] = [
    (Part::AttentionNormGain, "attention.norm.gain"),
    (Part::AttentionNormShift, "attention.norm.shift"),
    (Part::QkvWeight, "attention.qkv.weight"),
    (Part::QkvBias, "attention.qkv.bias"),
    (Part::MixWeight, "attention.mix.weight"),
    (Part::MixBias, "attention.mix.bias"),
    (Part::MlpNormGain, "mlp.norm.gain"),
    (Part::MlpNormShift, "mlp.norm.shift"),
    (Part::UpWeight, "mlp.up.weight"),
    (Part::UpBias, "mlp.up.bias"),
    (Part::DownWeight, "mlp.down.weight"),
    (Part::DownBias, "mlp.down.bias"),
];

impl ParameterId {
    /// The token table.
    pub(crate) const TOKENS: ParameterId = ParameterId(0);
    /// The position table.
    pub(crate) const POSITIONS: ParameterId = ParameterId(1);
    /// The gain of the norm before the head.
    pub(crate) const NORM_GAIN: ParameterId = ParameterId(2);
    /// Its shift.
    pub(crate) const NORM_SHIFT: ParameterId = ParameterId(3);

    /// A parameter of a transformer block.
    pub(crate) fn of_layer(layer: usize, part: Part) -> ParameterId {
        ParameterId(4 + layer * PARTS.len() + part as usize)
    }

    /// The head's weight.
    pub(crate) fn head(shape: &Shape) -> ParameterId {
        match shape.head {
            Head::Tied => ParameterId::TOKENS,
            Head::Untied => ParameterId(4 + shape.layers * PARTS.len()),
        }
    }
}

/// What a parameter is before it has memory.
#[derive(Clone, PartialEq, Debug)]
struct Description {
    name: String,
    elements: usize,
    start: Start,
    /// Weight matrices decay; tables of embeddings are such, biases and norms are not.
    is_matrix: bool,
}

/// Deviation of weights at the start.
const DEVIATION: f32 = 0.02;

fn matrix(name: String, elements: usize, deviation: f32) -> Description {
    Description { name, elements, start: Start::Normal(deviation), is_matrix: true }
}

fn vector(name: String, elements: usize, value: f32) -> Description {
    Description { name, elements, start: Start::Constant(value), is_matrix: false }
}

/// All parameters, in the order of their ids.
fn descriptions(shape: &Shape) -> Vec<Description> {
    let hidden = shape.hidden;
    let mut all = vec![
        matrix("tokens.weight".to_owned(), shape.vocab * hidden, DEVIATION),
        matrix("positions.weight".to_owned(), shape.seq * hidden, DEVIATION),
        vector("norm.gain".to_owned(), hidden, 1.0),
        vector("norm.shift".to_owned(), hidden, 0.0),
    ];
    for layer in 0..shape.layers {
        all.extend(PARTS.map(|(part, name)| describe_part(shape, layer, part, name)));
    }
    if shape.head == Head::Untied {
        all.push(matrix("head.weight".to_owned(), shape.vocab * hidden, DEVIATION));
    }
    all
}

fn describe_part(shape: &Shape, layer: usize, part: Part, name: &str) -> Description {
    let (hidden, mlp) = (shape.hidden, shape.mlp());
    let name = format!("layer{layer}.{name}");
    // Each layer adds twice to the residual stream; its size at the end should not depend on
    // their number.
    let onto_residual = DEVIATION / (2.0 * shape.layers as f32).sqrt();
    match part {
        Part::AttentionNormGain | Part::MlpNormGain => vector(name, hidden, 1.0),
        Part::AttentionNormShift | Part::MlpNormShift => vector(name, hidden, 0.0),
        Part::QkvWeight => matrix(name, 3 * hidden * hidden, DEVIATION),
        Part::QkvBias => vector(name, 3 * hidden, 0.0),
        Part::MixWeight => matrix(name, hidden * hidden, onto_residual),
        Part::MixBias | Part::DownBias => vector(name, hidden, 0.0),
        Part::UpWeight => matrix(name, mlp * hidden, DEVIATION),
        Part::UpBias => vector(name, mlp, 0.0),
        Part::DownWeight => matrix(name, hidden * mlp, onto_residual),
    }
}

#[derive(Debug)]
pub(super) struct Parameter {
    pub(super) name: String,
    pub(super) value: Tensor,
    moments: [Tensor; 2],
    is_matrix: bool,
}

/// All parameters on the device, with their moments and, between backward and optimizer, their
/// gradients.
#[derive(Debug)]
pub(crate) struct Parameters {
    pub(super) all: Vec<Parameter>,
    pub(super) gradients: Vec<Option<Tensor>>,
}

/// What names of the optimizer's blocks begin with.
pub(crate) const MOMENT_PREFIX: &str = "adamw.";

impl Parameters {
    /// Allocates and fills all parameters and moments. The same seed gives the same values.
    pub(crate) fn start(ops: &mut Ops, shape: &Shape, seed: u64) -> Result<Parameters, Error> {
        let mut all = Vec::new();
        for (stream, description) in (0..).zip(descriptions(shape)) {
            let Description { name, elements, start, is_matrix } = description;
            let random = Random::new(seed, stream);
            let value =
                operators::start(ops, New { name: &name, elements }, start, random.clone())?;
            let mut moment = |kind: &str| {
                let name = format!("{MOMENT_PREFIX}{kind}.{name}");
                let new = New { name: &name, elements };
                operators::start(ops, new, Start::Constant(0.0), random.clone())
            };
            let moments = [moment("first")?, moment("second")?];
            all.push(Parameter { name, value, moments, is_matrix });
        }
        let gradients = vec![None; all.len()];
        Ok(Parameters { all, gradients })
    }

    /// Where a parameter is.
    pub(crate) fn value(&self, id: ParameterId) -> Tensor {
        self.all[id.0].value
    }

    /// What to call a parameter's gradient, and how large it is.
    pub(crate) fn gradient_name(&self, id: ParameterId) -> String {
        format!("gradient.{}", self.all[id.0].name)
    }

    /// Where a parameter's gradient is, if there is one.
    pub(crate) fn gradient(&self, id: ParameterId) -> Option<Tensor> {
        self.gradients[id.0]
    }

    /// Keeps a gradient until the optimizer takes it.
    ///
    /// # Panics
    /// If there is one already, or it is not as large as the parameter.
    pub(crate) fn set_gradient(&mut self, id: ParameterId, gradient: Tensor) {
        assert_eq!(gradient.elements, self.all[id.0].value.elements, "{}", self.all[id.0].name);
        let old = self.gradients[id.0].replace(gradient);
        assert_eq!(old, None, "{} has a gradient already", self.all[id.0].name);
    }

    /// Updates every parameter and frees every gradient. `step` counts from 1.
    ///
    /// # Panics
    /// If a gradient is missing.
    pub(crate) fn update(&mut self, ops: &mut Ops, rule: AdamW, step: u64) -> Result<(), Error> {
        for (parameter, gradient) in self.all.iter().zip(&mut self.gradients) {
            let gradient = gradient.take().expect("backward makes every gradient");
            let weight_decay = if parameter.is_matrix { rule.weight_decay } else { 0.0 };
            let rule = AdamW { weight_decay, ..rule };
            let Parameter { value, moments, .. } = *parameter;
            gradients::adamw(ops, rule, value, moments, gradient, step)?;
            ops.free(gradient.block)?;
        }
        Ok(())
    }

    /// Hands the bits of all parameters to the host, in order of their ids.
    pub(crate) fn fetch(&self, ops: &mut Ops, outbox: &Outbox<Vec<u32>>) -> Result<(), Error> {
        self.all.iter().try_for_each(|parameter| operators::fetch(ops, parameter.value, outbox))
    }

    /// Frees everything.
    pub(crate) fn free(self, ops: &mut Ops) -> Result<(), Error> {
        let gradients = self.gradients.into_iter().flatten();
        let persistent = self.all.into_iter().flat_map(|p| [p.value, p.moments[0], p.moments[1]]);
        persistent.chain(gradients).try_for_each(|tensor| ops.free(tensor.block))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpt::shape::BYTE_VOCAB;

    #[test]
    fn ids_and_counts_agree_with_the_descriptions() {
        for head in [Head::Tied, Head::Untied] {
            let shape =
                Shape { layers: 3, hidden: 8, heads: 2, seq: 5, batch: 2, vocab: BYTE_VOCAB, head };
            let all = descriptions(&shape);
            let elements: usize = all.iter().map(|description| description.elements).sum();
            assert_eq!(elements as u64, shape.parameter_count());
            for layer in 0..shape.layers {
                for (part, name) in PARTS {
                    let id = ParameterId::of_layer(layer, part);
                    assert_eq!(all[id.0].name, format!("layer{layer}.{name}"));
                }
            }
            assert_eq!(all[ParameterId::NORM_SHIFT.0].name, "norm.shift");
            let head_name = if head == Head::Tied { "tokens.weight" } else { "head.weight" };
            assert_eq!(all[ParameterId::head(&shape).0].name, head_name);
            assert!(ParameterId::head(&shape).0 < all.len());
        }
    }
}
