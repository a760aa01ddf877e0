//! What peers say to the transport over RDMA.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| fabric::fuzzing::verbs(input));
