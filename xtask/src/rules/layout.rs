//! Length and location of files, and cleanliness of their text.

use super::Violation;
use crate::code::has_word;
use crate::tree::{File, Tree};

const LINES_MAX: usize = 800;

pub fn files_fit(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for file in tree.rust_files() {
        let count = file.text.lines().count();
        if count > LINES_MAX {
            let message = format!("{count} lines, at most {LINES_MAX} are allowed; split the file");
            found.push(Violation::new(&file.path, LINES_MAX + 1, message));
        }
    }
    found
}

pub fn tests_are_not_longer_than_code(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for file in tree.rust_files() {
        let modules = test_modules(file);
        let tests: usize = modules.iter().map(|module| module.count).sum();
        let code = file.text.lines().count() - tests;
        if let Some(first) = modules.first().filter(|_| tests > code) {
            let message = format!("{tests} lines test {code}; move the tests to their own file");
            found.push(Violation::new(&file.path, first.line, message));
        }
    }
    found
}

struct TestModule {
    line: usize,
    count: usize,
}

/// The modules that are compiled for tests only and are in the file itself.
fn test_modules(file: &File) -> Vec<TestModule> {
    let lines: Vec<(usize, &str)> = file.code_lines().collect();
    let mut modules = Vec::new();
    for (index, &(line, text)) in lines.iter().enumerate() {
        let is_test = text.trim_start().starts_with("#[cfg(") && has_word(text, "test");
        let mut after = lines[index + 1..].iter().map(|(_, text)| *text);
        let item = after.find(|text| !text.trim_start().starts_with("#["));
        if is_test && item.is_some_and(|item| has_word(item, "mod") && item.contains('{')) {
            modules.push(TestModule {
                line,
                count: block_length(&lines[index..]),
            });
        }
    }
    modules
}

/// Number of lines until the first brace is closed.
fn block_length(lines: &[(usize, &str)]) -> usize {
    let mut depth = 0;
    for (index, (_, text)) in lines.iter().enumerate() {
        for character in text.chars() {
            match character {
                '{' => depth += 1,
                '}' if depth == 1 => return index + 1,
                '}' => depth -= 1,
                _ => {}
            }
        }
    }
    lines.len()
}

/// Every file under a crate's `src` is a root or is declared by the module above it.
pub fn files_are_reachable(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for member in &tree.crates {
        let sources = format!("{}/src/", member.directory);
        for file in tree
            .rust_files()
            .filter(|file| file.path.starts_with(&sources))
        {
            if member.roots.contains(&file.path) {
                continue;
            }
            let (directory, module) = module_of(&file.path);
            let mut parents = vec![format!("{directory}.rs"), format!("{directory}/mod.rs")];
            parents.extend(
                member
                    .roots
                    .iter()
                    .filter(|r| lies_in(r, directory))
                    .cloned(),
            );
            let declares = |path: &String| tree.file(path).is_some_and(|f| declares(f, module));
            if !parents.iter().any(declares) {
                let message =
                    format!("nothing declares module {module}; use the file or remove it");
                found.push(Violation::new(&file.path, 1, message));
            }
        }
    }
    found
}

/// The directory of the module above a file, and the name it has there.
fn module_of(path: &str) -> (&str, &str) {
    let stem = path.strip_suffix("/mod.rs").or(path.strip_suffix(".rs"));
    stem.unwrap_or(path).rsplit_once('/').unwrap_or(("", path))
}

fn lies_in(path: &str, directory: &str) -> bool {
    path.rsplit_once('/')
        .is_some_and(|(parent, _)| parent == directory)
}

fn declares(file: &File, module: &str) -> bool {
    let declaration = format!("mod {module};");
    file.code_lines().any(|(_, line)| {
        line.trim_end()
            .strip_suffix(&declaration)
            .is_some_and(|before| before.is_empty() || before.ends_with(' '))
    })
}

pub fn text_is_clean(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for file in tree
        .files
        .iter()
        .filter(|file| file.ends_with(&["rs", "md", "sh"]))
    {
        for (index, line) in file.text.lines().enumerate() {
            if line.contains('\t') {
                found.push(Violation::new(&file.path, index + 1, "a tab; use spaces"));
            }
            if line != line.trim_end() {
                found.push(Violation::new(
                    &file.path,
                    index + 1,
                    "spaces end the line; remove them",
                ));
            }
        }
        if !file.text.ends_with('\n') {
            let last = file.text.lines().count().max(1);
            let message = "no newline ends the file; add one, or remove the file";
            found.push(Violation::new(&file.path, last, message));
        }
    }
    found
}
