//! The rules. Each reads the whole tree and returns violations: problem, location, and remedy.

mod code;
mod crates;
mod documents;
mod layout;
#[cfg(test)]
mod tests;
mod words;

use crate::tree::Tree;
use std::fmt;

/// A broken rule: the message contains the problem, then, after a semicolon, the remedy.
pub struct Violation {
    pub path: String,
    pub line: usize,
    pub message: String,
}

impl Violation {
    pub fn new(path: &str, line: usize, message: impl Into<String>) -> Violation {
        Violation {
            path: path.into(),
            line,
            message: message.into(),
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}: {}", self.path, self.line, self.message)
    }
}

type Rule = fn(&Tree) -> Vec<Violation>;

const RULES: [Rule; 16] = [
    crates::arrows_point_down,
    crates::layers_point_down,
    crates::layouts_stay_in_the_store,
    crates::dependencies_have_reasons,
    code::unsafe_has_its_homes,
    code::roots_forbid_unsafe,
    code::nothing_is_banned,
    layout::files_fit,
    layout::tests_are_not_longer_than_code,
    layout::files_are_reachable,
    layout::text_is_clean,
    documents::crates_are_described,
    documents::decisions_are_linked,
    words::components_are_named,
    words::docstrings_are_sentences,
    words::tests_state_properties,
];

/// All that is wrong with the tree, rule by rule.
pub fn violations(tree: &Tree) -> Vec<Violation> {
    RULES.iter().flat_map(|rule| rule(tree)).collect()
}
