//! What a unit of several pools needs of a store.
#![forbid(unsafe_code)]

mod common;
mod grants;
mod replica;
mod system;
