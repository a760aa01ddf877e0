//! A message between members and clients.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| protocol::fuzzing::message(input));
