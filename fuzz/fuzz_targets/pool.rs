//! A small pool with edited bytes: checked, opened, read, changed, checked again.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| store::fuzzing::pool(input));
