//! The sizes of a model: what is allowed, and what they cost in memory.

/// Number of different bytes: the smallest vocabulary that byte-level text can have.
pub(crate) const BYTE_VOCAB: usize = 256;

/// The most elements that all tensors of a model may have together (16 TiB of `f32`). Every size
/// of an accepted model is far below the limits of its integer types.
const ELEMENTS_MAX: u128 = 1 << 42;

/// Whether the head has a weight of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Head {
    /// It uses the token table.
    Tied,
    /// It has its own weight.
    Untied,
}

/// The sizes of a model and its batches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Shape {
    /// Number of transformer blocks.
    pub(crate) layers: usize,
    /// Elements of a row of the residual stream.
    pub(crate) hidden: usize,
    /// Attention heads.
    pub(crate) heads: usize,
    /// Positions of a sequence.
    pub(crate) seq: usize,
    /// Sequences of a step.
    pub(crate) batch: usize,
    /// Number of different tokens.
    pub(crate) vocab: usize,
    /// Whether the head has a weight of its own.
    pub(crate) head: Head,
}

/// A model that cannot be built, and how to fix it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum ShapeError {
    /// A size is 0.
    #[error("{what} is 0; it must be at least 1")]
    Zero {
        /// The flag.
        what: &'static str,
    },
    /// Heads do not divide the hidden size.
    #[error(
        "{heads} heads do not divide a hidden size of {hidden}; the nearest hidden size that \
         works is {nearest}"
    )]
    Heads {
        /// Number of heads.
        heads: usize,
        /// The hidden size.
        hidden: usize,
        /// A multiple of `heads`.
        nearest: usize,
    },
    /// The vocabulary has no room for every byte.
    #[error("a vocabulary of {vocab} cannot hold all bytes; it must be at least {BYTE_VOCAB}")]
    Vocab {
        /// The vocabulary's size.
        vocab: usize,
    },
    /// No machine could hold it.
    #[error(
        "the model's tensors would have {elements} elements, {ELEMENTS_MAX} are the limit; make \
         --layers, --hidden, --seq or --batch smaller"
    )]
    TooLarge {
        /// Elements of all tensors together.
        elements: u128,
    },
}

impl Shape {
    /// Checks that a model of these sizes can be built.
    pub(crate) fn validate(&self) -> Result<(), ShapeError> {
        let sizes = [
            ("--layers", self.layers),
            ("--hidden", self.hidden),
            ("--heads", self.heads),
            ("--seq", self.seq),
            ("--batch", self.batch),
        ];
        if let Some(&(what, _)) = sizes.iter().find(|(_, size)| *size == 0) {
            return Err(ShapeError::Zero { what });
        }
        if !self.hidden.is_multiple_of(self.heads) {
            let (heads, hidden) = (self.heads, self.hidden);
            let below = hidden / heads * heads;
            let above = below.saturating_add(heads);
            let nearest = if below > 0 && hidden - below <= above - hidden { below } else { above };
            return Err(ShapeError::Heads { heads, hidden, nearest });
        }
        if self.vocab < BYTE_VOCAB {
            return Err(ShapeError::Vocab { vocab: self.vocab });
        }
        let elements = self.elements_wide();
        if elements > ELEMENTS_MAX {
            return Err(ShapeError::TooLarge { elements });
        }
        Ok(())
    }

    /// Elements of the hidden layer of the MLP.
    pub(crate) fn mlp(&self) -> usize {
        4 * self.hidden
    }

    /// The sizes of one attention layer.
    pub(crate) fn attention(&self) -> kernels::attention::Shape {
        kernels::attention::Shape {
            batch: self.batch,
            seq: self.seq,
            heads: self.heads,
            head_size: self.hidden / self.heads,
        }
    }

    /// Number of trained numbers.
    pub(crate) fn parameter_count(&self) -> u64 {
        u64::try_from(self.parameters_wide()).expect("a validated shape is far smaller")
    }

    /// Bytes that live from step to step: each parameter and its two moments.
    pub(crate) fn persistent_bytes(&self) -> u64 {
        self.parameter_count() * 3 * 4
    }

    /// Bytes that a step takes at its peak, more or less.
    pub(crate) fn estimated_bytes(&self) -> u64 {
        u64::try_from(self.elements_wide() * 4).expect("a validated shape is far smaller")
    }

    /// Without overflow even for a shape that was not validated; saturates at an absurd size.
    fn parameters_wide(&self) -> u128 {
        let [hidden, layers, seq, vocab] =
            [self.hidden, self.layers, self.seq, self.vocab].map(|size| size as u128);
        // Weights of attention (3 + 1) and MLP (4 + 4), their biases, and two norms.
        let layer = (12 * hidden).saturating_mul(hidden).saturating_add(13 * hidden);
        let tables = match self.head {
            Head::Tied => vocab,
            Head::Untied => 2 * vocab,
        };
        layers
            .saturating_mul(layer)
            .saturating_add((tables + seq).saturating_mul(hidden))
            .saturating_add(2 * hidden)
    }

    /// Elements of parameters, gradients, moments and activations, more or less.
    fn elements_wide(&self) -> u128 {
        let [hidden, layers, seq, vocab, batch, heads] =
            [self.hidden, self.layers, self.seq, self.vocab, self.batch, self.heads]
                .map(|size| size as u128);
        let rows = batch.saturating_mul(seq);
        let layer = (16 * hidden).saturating_add(heads.saturating_mul(seq));
        let row = layers.saturating_mul(layer).saturating_add(2 * vocab);
        let activations = rows.saturating_mul(row);
        self.parameters_wide().saturating_mul(4).saturating_add(activations)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Shape = Shape {
        layers: 2,
        hidden: 12,
        heads: 3,
        seq: 8,
        batch: 2,
        vocab: BYTE_VOCAB,
        head: Head::Tied,
    };

    #[test]
    fn shapes_that_work_are_accepted() {
        assert_eq!(SMALL.validate(), Ok(()));
        assert_eq!(Shape { head: Head::Untied, ..SMALL }.validate(), Ok(()));
        let large = Shape { layers: 96, hidden: 12_288, heads: 96, seq: 2_048, ..SMALL };
        assert_eq!(large.validate(), Ok(()));
        assert_eq!(
            large.parameter_count(),
            96 * (12 * 12_288 * 12_288 + 13 * 12_288) + 2_306 * 12_288
        );
    }

    #[test]
    fn shapes_that_cannot_work_are_refused_with_a_way_out() {
        let check = |shape: Shape, expect: &str| {
            let error = shape.validate().expect_err("the shape is wrong").to_string();
            assert!(error.contains(expect), "{error}");
        };
        check(Shape { layers: 0, ..SMALL }, "--layers is 0");
        check(Shape { batch: 0, ..SMALL }, "--batch is 0");
        check(Shape { heads: 0, ..SMALL }, "--heads is 0");
        check(Shape { heads: 5, ..SMALL }, "hidden size that works is 10");
        check(Shape { heads: 7, ..SMALL }, "hidden size that works is 14");
        check(Shape { heads: 100, ..SMALL }, "hidden size that works is 100");
        check(Shape { heads: usize::MAX, ..SMALL }, "nearest");
        check(Shape { vocab: 255, ..SMALL }, "at least 256");
        check(Shape { layers: usize::MAX, ..SMALL }, "smaller");
        check(Shape { seq: usize::MAX, batch: usize::MAX, ..SMALL }, "smaller");
        check(Shape { hidden: usize::MAX, heads: 1, layers: usize::MAX, ..SMALL }, "smaller");
    }
}
