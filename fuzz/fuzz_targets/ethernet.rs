//! Frames of peers for the transport over Ethernet.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| fabric::fuzzing::ethernet(input));
