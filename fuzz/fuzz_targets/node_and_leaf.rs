//! A node of an extent tree, or a directory leaf.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| store::fuzzing::node_and_leaf(input));
