//! Plain words: comments and messages name the component, and a docstring is a sentence.

use super::Violation;
use crate::code::has_word;
use crate::tree::{File, Tree};

/// Crates and documents that keep these rules. A crate joins the list once its text is rewritten; the list only grows.
const PLAIN: [&str; 8] = [
    "README.md",
    "crates/bench/",
    "crates/cli/",
    "crates/fuse-device/",
    "crates/verbs/",
    "crates/xdp/",
    "scripts/",
    "xtask/",
];

/// Words for people, which comments used for components.
const OF_PEOPLE: [&str; 5] = ["who", "whoever", "whose", "whom", "nobody"];

/// A sentence on a line with one of these is about people.
const PEOPLE: [&str; 8] = [
    "user", "users", "people", "person", "reader", "author", "authors", "owner",
];

fn plain_files(tree: &Tree) -> impl Iterator<Item = &File> {
    tree.files
        .iter()
        .filter(|file| PLAIN.iter().any(|start| file.path.starts_with(start)))
}

/// No component is called by a word for people.
pub fn components_are_named(tree: &Tree) -> Vec<Violation> {
    let mut all = Vec::new();
    for file in plain_files(tree).filter(|file| !is_list_of_words(file)) {
        for (index, line) in file.text.lines().enumerate() {
            let line = line.to_lowercase();
            if PEOPLE.iter().any(|word| has_word(&line, word)) || names_group(&line) {
                continue;
            }
            if let Some(word) = OF_PEOPLE.iter().find(|word| has_word(&line, word)) {
                let message = format!("\"{word}\" stands for a component; name it");
                all.push(Violation::new(&file.path, index + 1, message));
            }
        }
    }
    all
}

/// The system's user and group of this name, as a literal.
fn names_group(line: &str) -> bool {
    line.contains("\"nobody\"")
}

/// These rules and their tests contain the words themselves.
fn is_list_of_words(file: &File) -> bool {
    file.path.starts_with("xtask/src/rules/")
}

/// A docstring has more than one word.
pub fn docstrings_are_sentences(tree: &Tree) -> Vec<Violation> {
    let mut all = Vec::new();
    for file in plain_files(tree).filter(|file| file.path.ends_with(".rs")) {
        let lines: Vec<&str> = file.text.lines().map(str::trim).collect();
        let text = |index: usize| lines.get(index).and_then(|line| line.strip_prefix("///"));
        for index in 0..lines.len() {
            let is_alone = text(index.wrapping_sub(1)).is_none() && text(index + 1).is_none();
            let Some(words) = text(index).filter(|_| is_alone) else {
                continue;
            };
            if words.split_whitespace().count() == 1 {
                let message = "a docstring of one word; write what the item is or returns";
                all.push(Violation::new(&file.path, index + 1, message));
            }
        }
    }
    all
}
