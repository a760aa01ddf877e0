//! Required contents of the documents.

use super::Violation;
use crate::tree::Tree;

const ARCHITECTURE: &str = "docs/ARCHITECTURE.md";
const DECISIONS: &str = "docs/decisions/";
const INDEX: &str = "docs/decisions/README.md";

pub fn crates_are_described(tree: &Tree) -> Vec<Violation> {
    let text = tree
        .file(ARCHITECTURE)
        .map_or("", |file| file.text.as_str());
    let is_described = |directory: &str, name: &str| {
        text.contains(&format!("`{name}`")) || has_path(text, directory)
    };
    let members = tree
        .crates
        .iter()
        .filter(|member| member.directory.starts_with("crates/"));
    let silent = members.filter(|member| !is_described(&member.directory, member.name()));
    silent
        .map(|member| {
            let message = format!("crate {} is not described; give it a line", member.name());
            Violation::new(ARCHITECTURE, 1, message)
        })
        .collect()
}

/// Whether the path occurs in the text and does not continue into a longer name.
fn has_path(text: &str, path: &str) -> bool {
    let goes_on = |rest: &str| rest.starts_with(|c: char| c.is_alphanumeric() || "-_".contains(c));
    text.match_indices(path)
        .any(|(start, _)| !goes_on(&text[start + path.len()..]))
}

/// The index of decisions links every decision, and nothing that is not there.
pub fn decisions_are_linked(tree: &Tree) -> Vec<Violation> {
    let index = tree.file(INDEX).map_or("", |file| file.text.as_str());
    let mut found = Vec::new();
    for file in tree
        .files
        .iter()
        .filter(|file| file.ends_with(&["md"]) && file.path != INDEX)
    {
        let Some(name) = file.path.strip_prefix(DECISIONS) else {
            continue;
        };
        if !index.contains(&format!("]({name})")) {
            let message = format!("decision {name} is not linked; add it to the index");
            found.push(Violation::new(INDEX, 1, message));
        }
    }
    for (number, line) in index.lines().enumerate() {
        let links = line
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next());
        for name in links.filter(|link| link.ends_with(".md") && !link.contains('/')) {
            if tree.file(&format!("{DECISIONS}{name}")).is_none() {
                let message = format!("{name} is not there; write it or drop the link");
                found.push(Violation::new(INDEX, number + 1, message));
            }
        }
    }
    found
}
