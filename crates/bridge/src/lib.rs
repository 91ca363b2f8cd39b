//! The engine behind a C interface, for front ends that are not Rust: PyTorch, C++ operators,
//! pluggable allocators.
//!
//! `include/smartswap.h` is the interface and its documentation; `include/NPUSwapManager.h` is the
//! hook class for C++ operators on top of it. A process has one engine, on one device. Each thread
//! has its own op stack; ops inside an op are part of the outermost one, so that whatever an
//! operator's inner calls allocate stays until the operator ends.
//!
//! | module | what |
//! |---|---|
//! | `exports` | the C functions: they check pointers, call `context`, and turn errors into codes |
//! | `context` | the engine of the process, its loop and its blocks by address |
//! | `local` | what belongs to one thread: its open op |
//! | `graphs` | what captured work uses when it is run |
//! | `settings` | what `smartswap_open` was given, and the defaults |

mod advice;
mod blocks;
mod context;
mod device;
mod explain;
mod exports;
mod failure;
mod graphs;
mod local;
mod names;
mod order;
mod settings;
mod shown;
mod sleep;
mod starts;
mod totals;

pub use exports::*;
