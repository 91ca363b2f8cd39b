//! Bytes as a trace of our own form: refused, or a well-formed trace, the same one when compressed.
//! Other words and another corpus than `recorded`, for one reader each.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| smartswap_fuzz::check_trace_file(bytes));
