//! What peers store into memory that they share with the transport between processes of one host.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| fabric::fuzzing::shm(input));
