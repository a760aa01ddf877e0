//! The operations of a record.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| store::fuzzing::record(input));
