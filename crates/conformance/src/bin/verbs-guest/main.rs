//! The lab's tests in its guests: the crate against software RDMA. It prints `passed` or `failed` and a name for each
//! case.

#![forbid(unsafe_code)]

mod alone;
mod endpoint;
mod faults;
mod joined;
mod memory;

use std::net::Ipv4Addr;
use std::panic::{self, AssertUnwindSafe};
use std::process::ExitCode;

use verbs::{Device, Domain, Error, Group, Wanted};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut cases = Cases { failed: 0 };
    match arguments[..] {
        // C code that the headers of libibverbs must agree with.
        ["assertions"] => print!("{}", verbs::assertions()),
        // The error that opening a device gives must begin like this.
        ["refuses", beginning] => cases.run(&format!("no device: {beginning}"), || {
            expect(Device::open(&Wanted::default()).map(drop), beginning);
        }),
        // The same, for joining a multicast group.
        ["joins-not", beginning] => cases.run(&format!("no group: {beginning}"), || {
            let domain = Domain::new(&Device::open(&Wanted::default()).unwrap()).unwrap();
            let group = Group::join(&domain, Ipv4Addr::new(239, 1, 2, 6), 1000);
            expect(group.map(drop), beginning);
        }),
        ["alone"] => {
            alone::run(&mut cases);
            faults::run(&mut cases);
        }
        ["memory"] => memory::run(&mut cases),
        ["limit"] => memory::run_limited(&mut cases),
        ["joined", number] => joined::run(&mut cases, number.parse().unwrap_or(0)),
        _ => {
            eprintln!(
                "give `alone`, `memory`, `limit`, `joined NUMBER`, `refuses TEXT`, `joins-not TEXT` or `assertions`"
            );
            return ExitCode::FAILURE;
        }
    }
    match cases.failed {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

fn expect(result: Result<(), Error>, beginning: &str) {
    let text = result.expect_err("it succeeds").to_string();
    assert!(text.starts_with(beginning), "{text}");
}

/// Runs cases and counts those that fail.
pub struct Cases {
    failed: usize,
}

impl Cases {
    /// A case fails by panicking.
    pub fn run(&mut self, name: &str, case: impl FnOnce()) {
        // State that a case leaves incomplete is not used by another one.
        match panic::catch_unwind(AssertUnwindSafe(case)) {
            Ok(()) => println!("passed {name}"),
            Err(reason) => {
                let text = reason.downcast_ref::<String>().map(String::as_str);
                let text = text.or(reason.downcast_ref::<&str>().copied());
                println!("failed {name}: {}", text.unwrap_or("panic"));
                self.failed += 1;
            }
        }
    }
}
