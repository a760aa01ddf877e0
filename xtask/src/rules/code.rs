//! Forbidden code.

use super::Violation;
use crate::code::has_word;
use crate::tree::Tree;

/// The crates that may do without the compiler's proof: they reach memory and the kernel for all others.
const UNSAFE_HOMES: &[&str] = &[
    "crates/pmem",
    "crates/fuse-device",
    "crates/verbs",
    "crates/xdp",
    "crates/e1000e",
];

/// Files that may sleep, because no event signals the awaited condition.
const SLEEP_ALLOWED: &[&str] = &[
    // It lets forgets accumulate: waiting for one would wake the thread up for each.
    "crates/fuse/src/session/classic.rs",
    // The kernel frees a queue of an interface some time after the process has ended, and reports it to no one.
    "crates/xdp/src/freed.rs",
    // The adapter signals neither the end of a reset nor that its transfers have ended.
    "crates/e1000e/src/settled.rs",
];
const SLEEP: &str = "thread::sleep";

/// Files that several test programs include, each of which uses a part of them.
const PARTS_ALLOWED: &[&str] = &[
    "crates/cli/tests/backing/mod.rs",
    "crates/cli/tests/common/mod.rs",
    "crates/cli/tests/hosts/mod.rs",
    "crates/cli/tests/mounted/mod.rs",
    "crates/cli/tests/nodes/mod.rs",
    "crates/cli/tests/random_work/mod.rs",
    "crates/cli/tests/suite/mod.rs",
    "crates/client/tests/common/loopback.rs",
    "crates/client/tests/common/mod.rs",
    "crates/fuse/tests/common/mod.rs",
    "crates/fuse/tests/mounted/mod.rs",
];
const UNUSED: &str = "dead_code";

const BANNED: &[(&str, &str)] = &[
    (UNUSED, "unused code is kept; remove it"),
    ("allow(unused)", "unused code is kept; remove it"),
    (
        "todo!",
        "something is left to do; do it, or return an error that says so",
    ),
    ("#[ignore", "a test is ignored; make it pass or remove it"),
    (SLEEP, "a thread sleeps; wait for the event itself"),
];

pub fn unsafe_has_its_homes(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for file in tree
        .rust_files()
        .filter(|file| !UNSAFE_HOMES.iter().any(|home| is_inside(&file.path, home)))
    {
        for (number, line) in file.code_lines() {
            if has_word(line, "unsafe") {
                let homes = UNSAFE_HOMES.join(", ");
                let message = format!("unsafe outside {homes}; move it there");
                found.push(Violation::new(&file.path, number, message));
            }
        }
    }
    found
}

pub fn roots_forbid_unsafe(tree: &Tree) -> Vec<Violation> {
    const ATTRIBUTE: &str = "#![forbid(unsafe_code)]";
    let members = tree
        .crates
        .iter()
        .filter(|member| !UNSAFE_HOMES.contains(&member.directory.as_str()));
    let roots = members.flat_map(|member| &member.roots);
    let forbids = |root: &str| {
        tree.file(root)
            .is_some_and(|file| file.code.contains(ATTRIBUTE))
    };
    let allowing = roots.filter(|root| !forbids(root));
    allowing
        .map(|root| Violation::new(root, 1, format!("unsafe is not forbidden; add {ATTRIBUTE}")))
        .collect()
}

pub fn nothing_is_banned(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for file in tree.rust_files() {
        let may_sleep = SLEEP_ALLOWED.contains(&file.path.as_str());
        for (number, line) in file.code_lines() {
            for (pattern, message) in BANNED {
                let is_allowed = match *pattern {
                    SLEEP => may_sleep,
                    UNUSED => PARTS_ALLOWED.contains(&file.path.as_str()),
                    _ => false,
                };
                if line.contains(pattern) && !is_allowed {
                    found.push(Violation::new(&file.path, number, *message));
                }
            }
        }
    }
    found
}

fn is_inside(path: &str, directory: &str) -> bool {
    path.strip_prefix(directory)
        .is_some_and(|rest| rest.starts_with('/'))
}
