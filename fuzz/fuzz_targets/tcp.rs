//! What comes over a connection of the transport tcp.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| fabric::fuzzing::tcp(input));
