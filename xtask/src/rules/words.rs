//! Plain words: comments and messages name the component, and a docstring is a sentence.

use super::Violation;
use crate::code::has_word;
use crate::tree::{File, Tree};

/// Words for people, which comments used for components.
const OF_PEOPLE: [&str; 5] = ["who", "whoever", "whose", "whom", "nobody"];

/// The system's user, as which some tests run.
const USER: &str = "nobody";

/// Beginnings of names that hide what a test asserts.
const RIDDLES: [&str; 4] = ["who_", "whoever_", "nobody_", "what_"];

/// A sentence on a line with one of these is about people.
const PEOPLE: [&str; 8] = [
    "user", "users", "people", "person", "reader", "author", "authors", "owner",
];

/// No component is called by a word for people, in comments, strings and documents.
pub fn components_are_named(tree: &Tree) -> Vec<Violation> {
    let mut all = Vec::new();
    for file in tree.files.iter().filter(|file| !is_list_of_words(file)) {
        for (index, line) in prose(file).enumerate() {
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

/// The lines of a file without its code.
fn prose(file: &File) -> impl Iterator<Item = String> {
    let mut code = file.code.lines();
    file.text.lines().map(move |line| {
        let code = code.next().unwrap_or_default().chars();
        let blank = code.chain(std::iter::repeat(' '));
        let text = line.chars().zip(blank);
        text.map(|(text, code)| if code == ' ' { text } else { ' ' })
            .collect()
    })
}

/// A test's name states a property, not a riddle.
pub fn tests_state_properties(tree: &Tree) -> Vec<Violation> {
    let mut all = Vec::new();
    for file in tree.rust_files() {
        for (number, line) in file.code_lines() {
            let name = line.split_once("fn ").map_or("", |(_, name)| name);
            if let Some(start) = RIDDLES.iter().find(|start| name.starts_with(**start)) {
                let message = format!("a function named \"{start}…\"; name the property");
                all.push(Violation::new(&file.path, number, message));
            }
            let name = name.split(['(', '<']).next().unwrap_or_default();
            let is_of_people = |part: &str| part != USER && OF_PEOPLE.contains(&part);
            if let Some(part) = name.split('_').skip(1).find(|part| is_of_people(part)) {
                let message = format!("a function named \"…_{part}…\"; name the component");
                all.push(Violation::new(&file.path, number, message));
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

/// A docstring that ends like a sentence has at least this many words. Help texts of the program have no full stop.
const WORDS_LEAST: usize = 3;

/// A docstring says what an item is or returns: it has three words, or a link to the text that says it.
pub fn docstrings_are_sentences(tree: &Tree) -> Vec<Violation> {
    let mut all = Vec::new();
    for file in tree.rust_files() {
        let lines: Vec<&str> = file.text.lines().map(str::trim).collect();
        let text = |index: usize| lines.get(index).and_then(|line| line.strip_prefix("///"));
        for index in 0..lines.len() {
            let is_alone = text(index.wrapping_sub(1)).is_none() && text(index + 1).is_none();
            let Some(words) = text(index).filter(|_| is_alone) else {
                continue;
            };
            let count = words.split_whitespace().count();
            let is_short = count < WORDS_LEAST && words.ends_with('.') && !words.contains("[`");
            if count == 1 || is_short {
                let message = "a docstring of one or two words; write what the item is or returns";
                all.push(Violation::new(&file.path, index + 1, message));
            }
        }
    }
    all
}
