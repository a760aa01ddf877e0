//! A member in any role: messages, maps, completions and time by a script.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| protocol::fuzzing::member(input));
