//! Each test takes a small project that obeys every rule, spoils one thing, and expects exactly the
//! one violation: a rule that stops working, or is no longer called, is noticed.

use super::violations;
use crate::tree::{Crate, Dependency, File, Tree};

fn clean() -> Tree {
    let tree = Tree {
        files: Vec::new(),
        crates: vec![
            member("crates/pmem", &["libc"]),
            member("crates/store", &["pmem"]),
            member("crates/lab", &["store"]),
        ],
    };
    tree.with(
        "crates/pmem/Cargo.toml",
        "[dependencies]\nlibc.workspace = true\n",
    )
    .with(
        "crates/pmem/src/lib.rs",
        "mod region; // memory\npub(crate) mod wide;\n",
    )
    .with(
        "crates/pmem/src/region.rs",
        "fn f() { unsafe { g() } }\n#[cfg(test)]\nmod tests;\n",
    )
    .with("crates/pmem/src/region/tests.rs", "use super::*;\n")
    .with("crates/pmem/src/wide/mod.rs", "mod deep;\n")
    .with(
        "crates/pmem/src/wide/deep.rs",
        "// unsafe todo! thread::sleep\n",
    )
    .with(
        "crates/store/Cargo.toml",
        "[dependencies]\npmem.workspace = true\n",
    )
    .with(
        "crates/store/src/lib.rs",
        "#![forbid(unsafe_code)]\nmod ring;\n",
    )
    .with(
        "crates/store/src/ring.rs",
        "const WORDS: &str = \"unsafe todo! #[ignore\";\n",
    )
    .with(
        "crates/lab/Cargo.toml",
        "[dependencies]\nstore.workspace = true\n",
    )
    .with("crates/lab/src/lib.rs", "#![forbid(unsafe_code)]\n")
    .with(
        "docs/ARCHITECTURE.md",
        "- `pmem`: memory\n- `crates/store`: bytes\n- `lab`\n",
    )
    .with(
        "docs/decisions/README.md",
        "[1](0001-ring.md)\n| `libc` | numbers |\n",
    )
    .with("docs/decisions/0001-ring.md", "# One ring\n")
}

fn member(directory: &str, dependencies: &[&str]) -> Crate {
    let package = format!("tako-{}", directory.trim_start_matches("crates/"));
    let roots = vec![format!("{directory}/src/lib.rs")];
    let dependencies = dependencies.iter().map(|key| dependency(key)).collect();
    Crate {
        package,
        directory: directory.into(),
        roots,
        dependencies,
    }
}

fn dependency(key: &str) -> Dependency {
    let is_ours = ["pmem", "store", "lab"].contains(&key);
    let package = if is_ours {
        format!("tako-{key}")
    } else {
        key.into()
    };
    Dependency {
        package,
        rename: is_ours.then(|| key.into()),
    }
}

impl Tree {
    /// The same project with one file replaced.
    fn with(mut self, path: &str, text: &str) -> Tree {
        self.files.retain(|file| file.path != path);
        self.files.push(File::new(path.into(), text.into()));
        self
    }

    fn with_dependency(mut self, index: usize, key: &str) -> Tree {
        self.crates[index].dependencies.push(dependency(key));
        self
    }
}

#[track_caller]
fn expect(tree: Tree, expected: &[&str]) {
    let found: Vec<String> = violations(&tree).iter().map(ToString::to_string).collect();
    assert_eq!(found, expected);
}

const RING: &str = "crates/store/src/ring.rs";

#[test]
fn a_clean_project_passes() {
    expect(clean(), &[]);
}

#[test]
fn an_arrow_that_points_up_is_found() {
    let manifest =
        "[dependencies]\nlibc.workspace = true\n[dev-dependencies]\nstore.workspace = true\n";
    expect(
        clean()
            .with_dependency(0, "store")
            .with("crates/pmem/Cargo.toml", manifest),
        &["crates/pmem/Cargo.toml:4: pmem must not use store; turn the arrow round or drop it"],
    );
}

#[test]
fn a_layer_that_uses_a_higher_one_is_found() {
    let layers = |lower: &str| {
        clean()
            .with(
                "crates/store/src/lib.rs",
                "#![forbid(unsafe_code)]\nmod format;\nmod names;\nmod ring;\n",
            )
            .with("crates/store/src/format/mod.rs", lower)
            .with("crates/store/src/names/mod.rs", "use crate::format::A;\n")
    };
    expect(layers("use crate::error::B;\n"), &[]);
    expect(
        layers("const A: u8 = 0;\nuse crate::names::B;\n"),
        &[
            "crates/store/src/format/mod.rs:2: layer format must not use names; turn the arrow round or drop it",
        ],
    );
    expect(
        layers("use crate::{\n    error::{names, ring},\n    names::B,\n};\n"),
        &[
            "crates/store/src/format/mod.rs:3: layer format must not use names; turn the arrow round or drop it",
        ],
    );
}

#[test]
fn a_layout_in_a_group_of_imports_is_found() {
    let layout = "#![forbid(unsafe_code)]\nuse store::{\n    Store,\n    format::inode,\n};\n";
    expect(
        clean().with("crates/pmem/src/wide/deep.rs", layout),
        &[
            "crates/pmem/src/wide/deep.rs:4: only the store reads layouts of pools; add a function there",
        ],
    );
}

#[test]
fn a_layout_that_is_read_outside_of_the_store_is_found() {
    let layout = "#![forbid(unsafe_code)]\nuse store::format::record;\n";
    expect(clean().with("crates/store/src/ring.rs", layout), &[]);
    expect(
        clean().with("crates/pmem/src/wide/deep.rs", layout),
        &[
            "crates/pmem/src/wide/deep.rs:2: only the store reads layouts of pools; add a function there",
        ],
    );
}

#[test]
fn nothing_points_at_the_lab() {
    expect(
        clean().with_dependency(1, "lab"),
        &["crates/store/Cargo.toml:1: store must not use lab; turn the arrow round or drop it"],
    );
}

#[test]
fn a_crate_without_arrows_is_found() {
    let mut tree = clean()
        .with("crates/extra/src/lib.rs", "#![forbid(unsafe_code)]\n")
        .with("docs/ARCHITECTURE.md", "`pmem` `store` `lab` `extra`\n");
    tree.crates.push(member("crates/extra", &[]));
    expect(
        tree,
        &["crates/extra/Cargo.toml:1: crate extra has no arrows; add it to ARROWS in xtask"],
    );
}

#[test]
fn a_dependency_without_reason_is_found() {
    let manifest = "[dependencies]\npmem.workspace = true\nrand = \"1\"\n";
    expect(
        clean()
            .with_dependency(1, "rand")
            .with("crates/store/Cargo.toml", manifest),
        &["crates/store/Cargo.toml:3: dependency rand has no reason; \
           give it a row in docs/decisions/README.md"],
    );
}

#[test]
fn unsafe_outside_its_homes_is_found() {
    expect(
        clean().with(RING, "fn f() {\n    unsafe { g() }\n}\n"),
        &[
            "crates/store/src/ring.rs:2: unsafe outside crates/pmem, crates/fuse-device, crates/verbs, crates/xdp, crates/e1000e; move it there",
        ],
    );
    expect(
        clean().with("fuzz/fuzz_targets/check.rs", "unsafe fn f() {}\n"),
        &[
            "fuzz/fuzz_targets/check.rs:1: unsafe outside crates/pmem, crates/fuse-device, crates/verbs, crates/xdp, crates/e1000e; move it there",
        ],
    );
}

#[test]
fn a_root_that_does_not_forbid_unsafe_is_found() {
    expect(
        clean().with(
            "crates/store/src/lib.rs",
            "// #![forbid(unsafe_code)]\nmod ring;\n",
        ),
        &["crates/store/src/lib.rs:1: unsafe is not forbidden; add #![forbid(unsafe_code)]"],
    );
}

#[test]
fn banned_code_is_found() {
    for (code, message) in [
        ("#[allow(dead_code)]", "unused code is kept; remove it"),
        ("#![allow(unused)]", "unused code is kept; remove it"),
        (
            "fn f() { todo!() }",
            "something is left to do; do it, or return an error that says so",
        ),
        (
            "#[ignore = \"slow\"]",
            "a test is ignored; make it pass or remove it",
        ),
        (
            "use std::thread::sleep;",
            "a thread sleeps; wait for the event itself",
        ),
    ] {
        let expected = format!("{RING}:2: {message}");
        expect(
            clean().with(RING, &format!("//! The ring.\n{code}\n")),
            &[&expected],
        );
    }
}

#[test]
fn a_file_too_long_is_found() {
    expect(clean().with(RING, &"\n".repeat(800)), &[]);
    expect(
        clean().with(RING, &"\n".repeat(801)),
        &["crates/store/src/ring.rs:801: 801 lines, at most 800 are allowed; split the file"],
    );
}

#[test]
fn tests_longer_than_the_code_are_found() {
    let module = "#[cfg(test)]\nmod tests {\n    fn f() {}\n}\n";
    expect(
        clean().with(RING, &format!("//! Four.\n\nfn f() {{\n}}\n{module}")),
        &[],
    );
    expect(
        clean().with(RING, &format!("//! Three.\nfn f() {{\n}}\n{module}")),
        &["crates/store/src/ring.rs:4: 4 lines test 3; move the tests to their own file"],
    );
}

#[test]
fn a_file_that_nothing_declares_is_found() {
    for path in [
        "crates/store/src/lost.rs",
        "crates/store/src/ring/lost.rs",
        "crates/store/src/lost/mod.rs",
    ] {
        let expected = format!("{path}:1: nothing declares module lost; use the file or remove it");
        expect(clean().with(path, "fn f() {}\n"), &[&expected]);
    }
    expect(
        clean().with(
            "crates/store/src/lib.rs",
            "#![forbid(unsafe_code)]\nmod string;\n// mod ring;\n",
        ),
        &["crates/store/src/ring.rs:1: nothing declares module ring; use the file or remove it"],
    );
}

#[test]
fn a_crate_without_description_is_found() {
    expect(
        clean().with(
            "docs/ARCHITECTURE.md",
            "- `pmem`\n- crates/stores\n- crates/lab: tests\n",
        ),
        &["docs/ARCHITECTURE.md:1: crate store is not described; give it a line"],
    );
}

#[test]
fn a_decision_without_link_is_found() {
    expect(
        clean().with("docs/decisions/0002-space.md", "# User space\n"),
        &["docs/decisions/README.md:1: decision 0002-space.md is not linked; add it to the index"],
    );
}

#[test]
fn a_link_to_no_decision_is_found() {
    let index =
        "[1](0001-ring.md)\n| `libc` | numbers |\n[3](0003-lost.md) [above](../LAYOUT.md)\n";
    expect(
        clean().with("docs/decisions/README.md", index),
        &["docs/decisions/README.md:3: 0003-lost.md is not there; write it or drop the link"],
    );
}

#[test]
fn components_called_by_words_for_people_are_found() {
    let text = "//! Waits.\n// Whoever waits is woken.\n// The user who waits.\n/// A file whose name ends.\nfn f() {}\n";
    let code = "fn f(who: &str) {\n    g(\"it waits for nobody\");\n    g(\"{who} waits\");\n}\n";
    expect(
        clean()
            .with("scripts/demo.sh", text)
            .with("crates/store/src/ring.rs", code),
        &[
            "scripts/demo.sh:2: \"whoever\" stands for a component; name it",
            "scripts/demo.sh:4: \"whose\" stands for a component; name it",
            "crates/store/src/ring.rs:2: \"nobody\" stands for a component; name it",
            "crates/store/src/ring.rs:3: \"who\" stands for a component; name it",
        ],
    );
}

#[test]
fn docstrings_of_one_or_two_words_are_found() {
    const PATH: &str = "crates/store/src/ring.rs";
    let text = "//! Words.\n\n/// Whole.\nstruct A;\n/// A long\n/// docstring.\nstruct B;\n/// The ring.\n\
                struct C;\n/// See [`A`].\nstruct D;\n/// Print JSON\nstruct E;\n";
    let message = "a docstring of one or two words; write what the item is or returns";
    expect(
        clean().with(PATH, text),
        &[
            &format!("{PATH}:3: {message}"),
            &format!("{PATH}:8: {message}"),
        ],
    );
}

#[test]
fn tests_named_by_riddles_are_found() {
    let text = "fn what_is_lost_is_found() {}\nfn lost_files_are_found() {}\nfn a_file_whose_name_is_lost() {}\nfn run_as_nobody() {}\n";
    expect(
        clean().with("crates/store/src/ring.rs", text),
        &[
            "crates/store/src/ring.rs:1: a function named \"what_…\"; name the property",
            "crates/store/src/ring.rs:3: a function named \"…_whose…\"; name the component",
        ],
    );
}

#[test]
fn unclean_text_is_found() {
    expect(
        clean().with("scripts/demo.sh", "if true\n\techo\nfi \ndone"),
        &[
            "scripts/demo.sh:2: a tab; use spaces",
            "scripts/demo.sh:3: spaces end the line; remove them",
            "scripts/demo.sh:4: no newline ends the file; add one, or remove the file",
        ],
    );
}
