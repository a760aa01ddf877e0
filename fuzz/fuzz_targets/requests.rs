//! Requests of the kernel, one after the other, to a file system of their own.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| fuse::fuzzing::requests(input));
