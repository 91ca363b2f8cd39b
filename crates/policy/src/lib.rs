//! Placeholder.
#![forbid(unsafe_code)]

mod bound;
mod candidate;
mod check;
mod curve;
mod filter;
mod generate;
mod machine;
mod simulate;
pub mod synthetic;
mod usage;

pub use candidate::{Candidate, candidates};
pub use check::{TraceFault, check_trace};
pub use filter::Exclusion;
pub use generate::{
    Decision, GenerateConfig, Generated, Reason, RecomputeOption, Treatment, generate,
};
pub use machine::{Link, Machine};
pub use simulate::{
    CopySpan, Direction, ReplaySpan, Shortfall, Simulation, Simulator, Span, simulate,
};
