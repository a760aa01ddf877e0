//! What comes on a control connection.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| connections::fuzzing::control(input));
