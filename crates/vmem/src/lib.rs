//! Placeholder while the pool is written.

mod chunk_cache;

pub use npu_sys::AccessMode;

pub use chunk_cache::{ChunkCache, Room};
