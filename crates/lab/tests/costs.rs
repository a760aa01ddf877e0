//! The table of costs in `docs/PROTOCOL.md`, counted anew.
#![forbid(unsafe_code)]

const DOCUMENT: &str = include_str!("../../../docs/PROTOCOL.md");

#[test]
fn costs_are_as_listed() {
    let (_, rest) = DOCUMENT.split_once("<!-- costs -->\n").expect("a table");
    let (listed, _) = rest.split_once("<!-- end -->").expect("its end");
    let counted = lab::cluster::costs::table().expect("a unit without faults works");
    assert!(
        listed == counted,
        "docs/PROTOCOL.md is stale; the table between its marks must be\n{counted}"
    );
}
