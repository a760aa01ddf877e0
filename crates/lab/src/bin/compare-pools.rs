//! `compare-pools POOL POOL`: compares two pools of one unit in all reachable bytes. The nodes must have stopped.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

use lab::reachable;

fn main() -> ExitCode {
    let pools: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [first, second] = &pools[..] else {
        eprintln!("give two pools");
        return ExitCode::FAILURE;
    };
    match reachable::compare(first, second) {
        Ok(None) => ExitCode::SUCCESS,
        Ok(Some(difference)) => {
            eprintln!(
                "{} and {} differ: {difference}",
                first.display(),
                second.display()
            );
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
