//! Promises of the planner. One program, so that its long tests run side by side.

mod any_step;
mod front_ends;
mod strategies;
