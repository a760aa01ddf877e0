//! Chores of the project. `tidy` checks the sources and documents against the rules that neither the compiler nor
//! clippy can check; CONTRIBUTING.md gives their reasons.

#![forbid(unsafe_code)]

mod code;
mod rules;
mod tree;

use std::process::ExitCode;
use tree::Tree;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["tidy"] => tidy(),
        _ => {
            eprintln!("usage: cargo run -q -p xtask -- tidy");
            ExitCode::from(2)
        }
    }
}

fn tidy() -> ExitCode {
    let tree = match Tree::load() {
        Ok(tree) => tree,
        Err(error) => {
            eprintln!("tidy: {error}");
            return ExitCode::FAILURE;
        }
    };
    let violations = rules::violations(&tree);
    for violation in &violations {
        println!("{violation}");
    }
    if violations.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
