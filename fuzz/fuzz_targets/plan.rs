//! Bytes as a plan: refused, or a plan that is written as it was read.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| smartswap_fuzz::check_plan_file(bytes));
