//! The exported C functions, by part of `include/smartswap.h`.

mod engine;
mod faults;
mod graphs;
mod memory;
mod ops;
mod ordering;
mod pluggable;
mod replaying;
mod results;
mod sharing;
mod sleeping;
mod visiting;

pub use engine::*;
pub use faults::*;
pub use graphs::*;
pub use memory::*;
pub use ops::*;
pub use ordering::*;
pub use pluggable::*;
pub use replaying::*;
pub use results::*;
pub use sharing::*;
pub use sleeping::*;
pub use visiting::*;
