//! The workload of `train`: a decoder-only GPT, written as operator calls over engine blocks.
//!
//! The model knows nothing of swapping. It allocates, touches, launches and frees; whatever the
//! engine moves in between is invisible here, which is the point.

pub(crate) mod call;
pub(crate) mod gradients;
pub(crate) mod layers;
pub(crate) mod model;
pub(crate) mod operators;
pub(crate) mod parameters;
pub(crate) mod random;
pub(crate) mod shape;
