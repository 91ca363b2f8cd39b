//! The kernels against a slow reference in `f64`: values, gradients, and sameness of bits.

mod determinism;
mod gradients;
mod random;
mod reference;
