//! Tests of mounts, for each backing.
#![allow(dead_code, reason = "each test program uses a part of it")]

pub mod programs;
pub mod tools;
