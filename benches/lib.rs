//! Criterion benchmarks of the hot paths.
