//! Recorded steps as they would be if the training did something else.
//!
//! | training | file |
//! |---|---|
//! | more micro-batches before the update | `accumulate.rs` |
//! | updates wait until their weights are used | `defer.rs` |

mod accumulate;
mod defer;
mod lives;
mod rewritten;
mod updates;

pub use accumulate::accumulated;
pub use defer::deferred;
