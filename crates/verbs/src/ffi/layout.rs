//! The structures and numbers of the parent, as assertions in C.

use std::fmt::Write;

use super::{NUMBERS, STRUCTURES};

/// Rust's layout of a structure.
pub struct Structure {
    pub name: &'static str,
    /// Nothing if only its first members are declared.
    pub size: Option<usize>,
    pub offsets: &'static [(&'static str, usize)],
}

pub(super) const fn size_if_whole(kind: &str, size: usize) -> Option<usize> {
    match kind.as_bytes() {
        b"whole" => Some(size),
        _ => None,
    }
}

/// A program in C that compiles, on a machine with the headers of libibverbs and librdmacm, if they have the structures and
/// the numbers that this crate believes in.
pub fn assertions() -> String {
    let mut text = String::from(
        "#include <stddef.h>\n#include <infiniband/verbs.h>\n#include <rdma/rdma_cma.h>\n",
    );
    let mut claim = |claim: String| {
        let _ = writeln!(text, "_Static_assert({claim}, \"{claim}\");");
    };
    for structure in STRUCTURES {
        let name = structure.name;
        if let Some(size) = structure.size {
            claim(format!("sizeof(struct {name}) == {size}"));
        }
        for (field, offset) in structure.offsets {
            claim(format!("offsetof(struct {name}, {field}) == {offset}"));
        }
    }
    for (name, value) in NUMBERS {
        claim(format!("{name} == {value}"));
    }
    for (field, offset) in [
        ("wr.rdma.rkey", 48),
        ("wr.atomic.swap", 56),
        ("wr.atomic.rkey", 64),
        ("wr.ud.remote_qpn", 48),
        ("wr.ud.remote_qkey", 52),
    ] {
        claim(format!("offsetof(struct ibv_send_wr, {field}) == {offset}"));
    }
    text
}
