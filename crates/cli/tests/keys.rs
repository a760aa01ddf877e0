//! `tako keys`.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;

use common::{Scratch, tako};

#[test]
fn a_cluster_gets_an_authority_and_keys_for_its_nodes() {
    let scratch = Scratch::new();
    let directory = scratch.path("keys");
    let said = tako(&["keys", "init", &directory, "n1"]).ended(0);
    assert!(
        said.starts_with("cluster ") && said.contains("authority.key"),
        "{said}"
    );
    assert!(
        said.contains(&format!("node n1: give it the directory {directory}/n1")),
        "{said}"
    );
    let said = tako(&["keys", "issue", &directory, "n2"]).ended(0);
    assert!(
        said.contains("good for 729 days") || said.contains("good for 730 days"),
        "{said}"
    );
    for key in ["authority.key", "n1/node.key", "n2/node.key"] {
        let metadata = fs::metadata(format!("{directory}/{key}")).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o7777, 0o600, "{key}");
    }
    let said = tako(&["keys", "init", &directory, "n1"]).ended(1);
    assert!(said.contains("exists already"), "{said}");
    let said = tako(&["keys", "issue", &directory, "n2"]).ended(1);
    assert!(said.contains("exists already"), "{said}");
    let said = tako(&["keys", "issue", &directory, "No Name"]).ended(1);
    assert!(said.contains("cannot be a node's name"), "{said}");
    let said = tako(&["keys", "issue", &scratch.path("none"), "n3"]).ended(1);
    assert!(said.contains("is missing"), "{said}");
}

#[test]
fn the_first_node_is_called_as_its_host() {
    let scratch = Scratch::new();
    let directory = scratch.path("keys");
    let run = tako(&["keys", "init", &directory]);
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy().to_lowercase();
    let name = host.split('.').next().unwrap();
    match run.code {
        Some(0) => assert!(fs::metadata(format!("{directory}/{name}/node.pem")).is_ok()),
        code => assert!(
            code == Some(2) && run.err.contains("cannot be a node's"),
            "{}",
            run.err
        ),
    }
}
