//! The arithmetic of a small GPT on the CPU: pure functions on `f32` slices, forward and backward.
//!
//! The crate knows nothing of devices or swapping. It exists so that a real training workload
//! can run on the embedded host device, and it stands outside the engine's layers.
//!
//! Every kernel is **deterministic**: the result's bits depend on the input's bits and shapes
//! alone. They do not depend on addresses, threads, what ran before, or what the output held. So
//! an operator that runs again, after its output was dropped, makes the same bits again. (Between
//! machines, matrix products may differ by the vector instructions at hand.)
//!
//! | word | meaning |
//! |---|---|
//! | row | one position of one sequence; an activation has `batch * seq` rows |
//! | `d_x` | the loss's gradient with respect to `x` |
//! | overwrite | the output's old contents are never read; it may hold anything |
//! | accumulate | the result is added to what the output holds |
//!
//! All matrices are row-major. Every kernel panics when a slice's length does not fit the shapes.
//! Unsafe code is in `matmul.rs` only, which wraps the `gemm` crate.
//!
//! ```
//! use kernels::linear;
//!
//! let x = [1.0, 2.0, 3.0, 4.0]; // 2 rows of 2
//! let weight = [1.0, 0.0, 0.0, 1.0, 1.0, 1.0]; // 3 outputs of 2 inputs
//! let bias = [0.0, 0.0, 10.0];
//! let mut out = [0.0; 6];
//! linear::forward(&mut out, &x, &weight, Some(&bias), 2);
//! assert_eq!(out, [1.0, 2.0, 13.0, 3.0, 4.0, 17.0]);
//! ```

#![deny(unsafe_code)]

pub mod adamw;
pub mod attention;
pub mod elementwise;
pub mod embedding;
pub mod layer_norm;
pub mod linear;
pub mod loss;
mod math;
pub mod matmul;
