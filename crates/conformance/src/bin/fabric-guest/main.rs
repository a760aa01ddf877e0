//! The lab's tests in its guests: the suite of transports, over two adapters in software. It prints `passed` or
//! `failed` and a name for each test.

#![forbid(unsafe_code)]

mod again;
mod compare;
mod faults;
mod joined;
mod liar;
mod measure;
mod messengers;
mod raw;
mod requests;

use std::net::Ipv4Addr;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use conformance::suite::{self, Setup};
use connections::choice::{Connectivity, Side, choose};
use connections::transports::{Transports, Wanted};
use fabric::verbs::{Verbs, VerbsOptions};
use fabric::{Access, Device, Provider, Transport};
use fabric_simulation::wrappers::{Delay, Trace};
use pmem::Region;

macro_rules! list {
    ([] $($group:ident: $($test:ident),+;)+) => {
        &[$($((stringify!($test), suite::$group::$test as fn(&dyn Setup)),)+)+]
    };
}

type Test = (&'static str, fn(&dyn Setup));

const ALL: &[Test] = conformance::all!(list []);

/// Sides use the two adapters alternately, so that the near one of a pair has another one than the far one.
struct Adapters {
    devices: [Arc<Verbs>; 2],
    sides: AtomicUsize,
}

impl Adapters {
    fn new() -> Adapters {
        Adapters {
            devices: ["rxe1", "rxe2"].map(|name| Arc::new(open(name))),
            sides: AtomicUsize::new(0),
        }
    }
}

fn open(name: &str) -> Verbs {
    let options = VerbsOptions {
        device: Some(name.to_owned()),
        ..VerbsOptions::default()
    };
    Verbs::open(&options).unwrap()
}

impl Setup for Adapters {
    fn device(&self) -> Arc<dyn Device> {
        let number = self.sides.fetch_add(1, Ordering::Relaxed);
        self.devices[number % 2].clone()
    }

    fn interface(&self) -> Ipv4Addr {
        Ipv4Addr::UNSPECIFIED
    }
}

/// Each report is delayed, and everything is recorded.
struct Wrapped(Adapters);

impl Setup for Wrapped {
    fn device(&self) -> Arc<dyn Device> {
        self.0.device()
    }

    fn interface(&self) -> Ipv4Addr {
        self.0.interface()
    }

    fn wrap(&self, inner: Box<dyn Transport>) -> Box<dyn Transport> {
        let delayed = Delay::new(inner, Duration::from_micros(3));
        Box::new(Trace::new(Box::new(delayed)).0)
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut cases = Cases::default();
    match arguments[..] {
        // Behaviour without an adapter, and the beginning of the reason.
        ["refuses", beginning] => {
            cases.run(&format!("fabric: no verbs: {beginning}"), || {
                refuses(beginning);
            });
        }
        ["faults"] => {
            liar::run(&mut cases);
            faults::run(&mut cases);
            again::run(&mut cases);
        }
        ["memory"] => cases.run("fabric: a DAX device, and a file that is refused", memory),
        ["shares"] => {
            for (length, window) in [(100, 32), (64 << 10, 4)] {
                let name = format!("fabric: 32 clients get like shares with {length} bytes");
                cases.run(&name, || {
                    messengers::clients_get_like_shares(length, window)
                });
            }
        }
        ["measure", ref names @ ..] => measure::run(&Adapters::new(), names),
        ["keys", directory] => joined::make_keys(Path::new(directory)),
        ["joined", number] => joined::run(&mut cases, number.parse().unwrap()),
        ["victim"] => faults::victim(),
        ["suite", ref names @ ..] => {
            println!("fabric: {}", open("rxe1").explanation());
            cases.run_suite("verbs", names, Adapters::new);
        }
        ["wrapped", ref names @ ..] => {
            cases.run_suite("verbs wrapped", names, || Wrapped(Adapters::new()));
        }
        _ => {
            eprintln!(
                "give `suite TEST...`, `wrapped TEST...`, `faults`, `shares`, `memory`, `measure NAME...`, \
                 `keys DIRECTORY`, `joined NUMBER` or `refuses TEXT`"
            );
            return ExitCode::FAILURE;
        }
    }
    match cases.failed {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

/// A process continues without an adapter, and reports why; one that must use it does not.
fn refuses(beginning: &str) {
    let wanted = |only| Wanted {
        only,
        ..Wanted::default()
    };
    let transports = Transports::open(&wanted(None)).unwrap();
    let side = Side {
        node: "a",
        offers: transports.offers(),
    };
    let away = Connectivity::Network("it is away".into());
    let choice = choose(&away, side, side).unwrap().to_string();
    let text = format!("tcp (not shm: it is away; not verbs: a: {beginning}");
    assert!(choice.starts_with(&text), "{choice}");
    let error = Transports::open(&wanted(Some(Provider::Verbs))).map(drop);
    let error = error.unwrap_err().to_string();
    let text = format!("verbs was asked for and cannot be used: {beginning}");
    assert!(error.starts_with(&text), "{error}");
}

/// Pages of a file may move, those of a DAX device never do.
fn memory() {
    let device = open("rxe1");
    let dax = Region::open(Path::new("/dev/dax0.0"), pmem::Access::ReadWrite).unwrap();
    let registration = device.register(&dax, Access::ALL).unwrap();
    let proof = device.revoke(&registration).unwrap();
    assert_eq!(proof.key(), registration.key());
    let file = Region::create(Path::new("/mnt/pool"), 4 << 20).unwrap();
    let refusal = device
        .register(&file, Access::READ)
        .unwrap_err()
        .to_string();
    let beginning =
        "a DAX file cannot be registered with rxe1: its pages may move; use a DAX device";
    assert!(refusal.starts_with(beginning), "{refusal}");
}

/// Runs cases and counts those that fail.
#[derive(Default)]
pub struct Cases {
    failed: usize,
}

impl Cases {
    /// These tests, or all.
    fn run_suite<S: Setup>(&mut self, prefix: &str, names: &[&str], setup: impl Fn() -> S) {
        let wanted = |name: &str| names.is_empty() || names.contains(&name);
        for (name, test) in ALL.iter().filter(|(name, _)| wanted(name)) {
            self.run(&format!("{prefix}: {name}"), || test(&setup()));
        }
    }

    /// A case fails by panicking.
    fn run(&mut self, name: &str, case: impl FnOnce()) {
        let start = Instant::now();
        // State that a case leaves incomplete is not used by another one.
        match panic::catch_unwind(AssertUnwindSafe(case)) {
            Ok(()) => println!("passed {name} ({} ms)", start.elapsed().as_millis()),
            Err(reason) => {
                let text = reason.downcast_ref::<String>().map(String::as_str);
                let text = text.or(reason.downcast_ref::<&str>().copied());
                println!("failed {name}: {}", text.unwrap_or("panic"));
                self.failed += 1;
            }
        }
    }
}
