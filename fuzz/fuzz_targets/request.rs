//! A request of the kernel.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| fuse::fuzzing::request(input));
