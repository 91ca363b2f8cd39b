//! The stand-in keeps what the library's documentation promises, and refuses all else.

// A test that meets an error it did not ask for should stop there.
#![allow(clippy::unwrap_used)]

mod collectives;
mod copies;
mod events;
mod memory;
mod operators;
mod rig;
mod settings;
mod streams;
