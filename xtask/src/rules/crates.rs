//! Allowed dependencies of the crates.

use super::Violation;
use crate::code::has_word;
use crate::tree::{Crate, Dependency, Tree};

/// The arrows of docs/ARCHITECTURE.md: each crate and those of ours that it may use, in its tests
/// too. They point down only, and none points at `cli` or `xtask`; at `lab` only the tests of `cli` do.
const ARROWS: &[(&str, &[&str])] = &[
    ("operations", &[]),
    ("pmem", &[]),
    ("fabric", &["pmem", "verbs", "xdp"]),
    ("fabric-simulation", &["fabric", "pmem"]),
    ("connections", &["fabric", "pmem"]),
    (
        "conformance",
        &[
            "connections",
            "e1000e",
            "fabric",
            "fabric-simulation",
            "pmem",
            "verbs",
            "xdp",
        ],
    ),
    ("store", &["operations", "pmem"]),
    ("protocol", &["operations", "pmem"]),
    (
        "server",
        &[
            "operations",
            "pmem",
            "connections",
            "fabric",
            "protocol",
            "store",
        ],
    ),
    (
        "client",
        &[
            "operations",
            "pmem",
            "connections",
            "fabric",
            "store",
            "protocol",
            "server",
        ],
    ),
    ("fuse-device", &[]),
    ("verbs", &["pmem"]),
    ("xdp", &["pmem"]),
    ("e1000e", &["pmem"]),
    (
        "fuse",
        &[
            "client",
            "fuse-device",
            "operations",
            "protocol",
            "server",
            "store",
        ],
    ),
    ("bench", &["pmem", "fabric", "store", "client", "xdp"]),
    (
        "cli",
        &[
            "pmem",
            "connections",
            "fabric",
            "store",
            "protocol",
            "server",
            "client",
            "fuse",
            "bench",
            "lab",
        ],
    ),
    (
        "lab",
        &[
            "operations",
            "pmem",
            "connections",
            "fabric",
            "fabric-simulation",
            "store",
            "protocol",
            "server",
            "client",
            "fuse",
            "bench",
        ],
    ),
    ("xtask", &[]),
];

/// The modules of a crate, lowest first: each may use those before it. Modules that are not named are not checked.
const LAYERS: &[(&str, &[&str])] = &[
    (
        "crates/store/src",
        &[
            "format", "ring", "image", "inode", "data", "names", "replica", "check", "repair",
        ],
    ),
    (
        "crates/fabric/src",
        &[
            "time",
            "error",
            "capabilities",
            "credits",
            "outstanding",
            "registration",
            "work",
            "transport",
            "queue",
            "shm",
            "tcp",
            "verbs",
            "ethernet",
            "buffers",
        ],
    ),
    (
        "crates/connections/src",
        &["keys", "choice", "transports", "control", "messenger"],
    ),
    (
        "crates/protocol/src",
        &[
            "defects", "map", "parity", "group", "leases", "wire", "member", "client", "answered",
        ],
    ),
    (
        "crates/server/src",
        &[
            "table",
            "holds",
            "executor",
            "execute",
            "pool",
            "grants",
            "core",
            "membership",
            "node",
        ],
    ),
    (
        "crates/client/src",
        &[
            "leases",
            "backend",
            "network",
            "source",
            "locks",
            "file",
            "file_system",
            "path",
        ],
    ),
];

const REASONS: &str = "docs/decisions/README.md";

pub fn arrows_point_down(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for member in &tree.crates {
        let name = member.name();
        let Some((_, allowed)) = ARROWS.iter().find(|(from, _)| *from == name) else {
            let message = format!("crate {name} has no arrows; add it to ARROWS in xtask");
            found.push(Violation::new(&member.manifest(), 1, message));
            continue;
        };
        for dependency in &member.dependencies {
            let Some(target) = tree.member(dependency).map(Crate::name) else {
                continue;
            };
            // A crate that names itself enables a feature for its own tests.
            if target != name && !allowed.contains(&target) {
                let message =
                    format!("{name} must not use {target}; turn the arrow round or drop it");
                found.push(at(tree, member, dependency, message));
            }
        }
    }
    found
}

pub fn layers_point_down(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for (directory, layers) in LAYERS {
        for file in tree.rust_files() {
            let Some(inside) = file.path.strip_prefix(directory) else {
                continue;
            };
            let first = inside.split('/').nth(1).unwrap_or_default();
            let own = first.strip_suffix(".rs").unwrap_or(first);
            let Some(level) = layers.iter().position(|layer| *layer == own) else {
                continue;
            };
            for (number, line) in file.code_lines() {
                let above = layers[level + 1..].iter();
                for layer in above.filter(|layer| has_word(line, &format!("crate::{layer}"))) {
                    let message = format!(
                        "layer {own} must not use {layer}; turn the arrow round or drop it"
                    );
                    found.push(Violation::new(&file.path, number, message));
                }
            }
        }
    }
    found
}

/// Every dependency that is not ours has a row, with its reason, in the table of decisions.
pub fn dependencies_have_reasons(tree: &Tree) -> Vec<Violation> {
    let table = tree.file(REASONS).map_or("", |file| file.text.as_str());
    let has_row = |package: &str| {
        let cell = format!("`{package}`");
        table
            .lines()
            .any(|line| line.starts_with('|') && line.contains(&cell))
    };
    let mut found = Vec::new();
    for member in &tree.crates {
        for dependency in &member.dependencies {
            let package = &dependency.package;
            if tree.member(dependency).is_none() && !has_row(package) {
                let message =
                    format!("dependency {package} has no reason; give it a row in {REASONS}");
                found.push(at(tree, member, dependency, message));
            }
        }
    }
    found
}

/// A violation at the line of the manifest that names the dependency.
fn at(tree: &Tree, member: &Crate, dependency: &Dependency, message: String) -> Violation {
    let manifest = tree
        .file(&member.manifest())
        .map_or("", |file| file.text.as_str());
    let names_it = |line: &str| {
        let rest = line.strip_prefix(dependency.key());
        rest.is_some_and(|rest| rest.starts_with([' ', '.', '=']))
    };
    let index = manifest.lines().position(names_it).unwrap_or(0);
    Violation::new(&member.manifest(), index + 1, message)
}
