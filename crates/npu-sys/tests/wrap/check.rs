//! The checker: each case with its twin, so that one that always passes, or never, is caught.

mod accesses;
mod failures;
mod foreign;
mod host;
mod memory;
mod order;
mod pinned;
mod report;
