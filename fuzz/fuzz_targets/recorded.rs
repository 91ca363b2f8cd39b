//! Bytes as a recorded step: refused, or a well-formed trace, the same one when compressed.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| smartswap_fuzz::check_trace_file(bytes));
