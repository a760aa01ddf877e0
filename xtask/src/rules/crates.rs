//! Allowed dependencies of the crates.

use super::Violation;
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
        "crates/operations/src",
        &[
            "code",
            "file",
            "lock",
            "modes",
            "operation",
            "outcome",
            "properties",
            "encoding",
        ],
    ),
    (
        "crates/pmem/src",
        &[
            "barrier",
            "checksum",
            "copies",
            "error",
            "kind",
            "marks",
            "persist",
            "random",
            "space",
            "threads",
            "watched",
            "mapping",
            "lines",
            "pool",
            "simulated",
            "region",
            "demand",
            "socket",
        ],
    ),
    (
        "crates/verbs/src",
        &[
            "error",
            "ffi",
            "port",
            "choice",
            "device",
            "memory",
            "address",
            "completion",
            "work",
            "shared",
            "queue_pair",
            "list",
            "multicast",
        ],
    ),
    (
        "crates/conformance/src/bin/fabric-guest",
        &[
            "raw",
            "faults",
            "again",
            "joined",
            "liar",
            "compare",
            "requests",
            "messengers",
            "measure",
        ],
    ),
    (
        "crates/conformance/src/bin/verbs-guest",
        &["endpoint", "faults", "alone", "joined", "memory"],
    ),
    ("crates/conformance/src/bin/card-guest", &["peer", "card"]),
    (
        "crates/xdp/src",
        &[
            "error",
            "bpf",
            "freed",
            "interface",
            "membership",
            "ring",
            "lane",
            "socket",
            "program",
            "port",
        ],
    ),
    (
        "crates/e1000e/src",
        &["error", "registers", "ring", "settled", "vfio", "card"],
    ),
    ("crates/fuse-device/src", &["memory", "priority", "queue"]),
    (
        "crates/fuse/src",
        &[
            "access_times",
            "flags",
            "options",
            "translate",
            "wire",
            "request",
            "answer",
            "notify",
            "mountinfo",
            "kernel",
            "remount",
            "error",
            "adapter",
            "session",
            "mount",
        ],
    ),
    (
        "crates/lab/src",
        &[
            "call",
            "embedded",
            "model",
            "random",
            "runner",
            "pool",
            "mounted",
            "reachable",
            "salvage",
            "explorer",
            "damage",
            "cluster",
            "workloads",
        ],
    ),
    (
        "crates/store/src",
        &[
            "format", "ring", "image", "inode", "data", "names", "store", "replica", "check",
            "repair",
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
            "defects",
            "malformed",
            "map",
            "parity",
            "group",
            "leases",
            "cluster",
            "wire",
            "member",
            "client",
            "answered",
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
            "map",
            "open_flags",
            "backend",
            "local_clusters",
            "network",
            "source",
            "locks",
            "file",
            "file_system",
            "path",
        ],
    ),
    (
        "crates/bench/src",
        &[
            "report",
            "error",
            "harness",
            "scratch",
            "mounts",
            "places",
            "setup",
            "fabric",
            "data",
            "sizes",
            "names",
            "unit",
            "threads",
            "mount",
            "mounted",
            "cluster",
            "pauses",
            "primitives",
        ],
    ),
    (
        "crates/cli/src",
        &[
            "failure",
            "sizes",
            "location",
            "log",
            "progress",
            "signature",
            "modes",
            "users",
            "ready",
            "arguments",
            "state_directory",
            "channel",
            "remote",
            "tree",
            "walk",
            "pools",
            "info",
            "check",
            "service",
            "mkfs",
            "mount",
            "cluster",
            "benchmark",
            "change",
            "completions",
            "copy",
            "grow",
            "keys",
            "list",
            "ls",
            "metadata",
            "mounts",
            "usage",
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
            let above = &layers[level + 1..];
            for (number, used) in used_modules(&file.code, "crate::") {
                if above.contains(&used) {
                    let message =
                        format!("layer {own} must not use {used}; turn the arrow round or drop it");
                    found.push(Violation::new(&file.path, number, message));
                }
            }
        }
    }
    found
}

/// The bytes of a pool are known to the store, and to the laboratory, which damages and compares them.
pub fn layouts_stay_in_the_store(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    let is_outside = |path: &str| {
        let knows = ["crates/store/", "crates/lab/"];
        path.contains("/src/") && !knows.iter().any(|it| path.starts_with(it))
    };
    for file in tree.rust_files().filter(|file| is_outside(&file.path)) {
        for (number, used) in used_modules(&file.code, "store::") {
            if used == "format" {
                let message = "only the store reads layouts of pools; add a function there";
                found.push(Violation::new(&file.path, number, message));
            }
        }
    }
    found
}

/// The modules of a crate's root that code names, alone or in a group, with their lines. `root` is the crate with `::`.
fn used_modules<'a>(code: &'a str, root: &str) -> Vec<(usize, &'a str)> {
    let mut used = Vec::new();
    let is_whole =
        |start: usize| !code[..start].ends_with(|it: char| it.is_alphanumeric() || it == '_');
    for (start, path) in code
        .match_indices(root)
        .filter(|(start, _)| is_whole(*start))
    {
        let (at, rest) = (start + path.len(), &code[start + path.len()..]);
        let items = match rest.starts_with('{') {
            true => group_items(&rest[1..], at + 1),
            false => vec![(at, rest)],
        };
        for (at, item) in items {
            let end = item.find(|it: char| !it.is_alphanumeric() && it != '_');
            let line = code[..at].lines().count().max(1);
            used.push((line, &item[..end.unwrap_or(item.len())]));
        }
    }
    used
}

/// The items of a group of imports, each from its first character on, with its position.
fn group_items(group: &str, at: usize) -> Vec<(usize, &str)> {
    let (mut items, mut depth, mut begins) = (Vec::new(), 0, true);
    for (index, character) in group.char_indices() {
        match character {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => begins = true,
            _ if begins && !character.is_whitespace() => {
                // With the character itself, the line is the item's.
                items.push((at + index + 1, &group[index..]));
                begins = false;
            }
            _ => {}
        }
    }
    items
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
