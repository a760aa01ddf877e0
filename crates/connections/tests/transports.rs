//! Transports of a process, on whatever machine this runs.
#![forbid(unsafe_code)]

use std::process::Command;

use connections::choice::{Connectivity, Side, choose};
use connections::transports::{Transports, Wanted};
use fabric::verbs::VerbsOptions;
use fabric::{Error, Provider, QueueOptions};

/// Small enough for any limit of locked memory that lets adapters be used at all.
fn wanted(only: Option<Provider>) -> Wanted {
    Wanted {
        only,
        // None has this name, so that there is a reason on machines with RDMA, too.
        verbs: VerbsOptions {
            device: Some("tako-none".into()),
            ..VerbsOptions::default()
        },
        queues: QueueOptions {
            endpoints: 1,
            ..QueueOptions::default()
        },
        ..Wanted::default()
    }
}

/// Missing parts of verbs here, and what to do, as in the sentences of `verbs::Error`.
fn is_reason(text: &str) -> bool {
    let library = text.contains(".so.1 cannot be loaded (") && text.contains("; install rdma-core");
    let adapter = text.starts_with("there is no RDMA device; load its driver");
    let name = text.starts_with("there is no RDMA device tako-none; there are: ");
    library || adapter || name
}

#[test]
fn a_process_offers_what_it_has_and_says_why_it_lacks_the_rest() {
    let mut transports = Transports::open(&wanted(None)).unwrap();
    let entries: Vec<_> = transports.offers().entries().collect();
    let [
        (Provider::Shm, None),
        (Provider::Verbs, Some(reason)),
        (Provider::Ethernet, Some(no_interface)),
        (Provider::Tcp, None),
    ] = entries[..]
    else {
        panic!("{entries:?}");
    };
    assert!(is_reason(reason), "{reason}");
    assert!(no_interface.contains("no interface was chosen"));

    // A peer with all of them receives exactly that.
    let offers = transports.offers().clone();
    let [one, other] = ["a", "b"].map(|node| Side {
        node,
        offers: &offers,
    });
    let connectivity = Connectivity::Network("b is on another host".into());
    let choice = choose(&connectivity, one, other).unwrap().to_string();
    assert_eq!(
        choice,
        format!(
            "tcp (not shm: b is on another host; not verbs: a: {reason}; not ethernet: a: {no_interface})"
        )
    );

    for provider in [Provider::Shm, Provider::Tcp] {
        let queue = transports.queue(provider).unwrap();
        assert_eq!(queue.capabilities().provider, provider);
        let device = transports.device(provider).unwrap();
        assert_eq!(device.capabilities().provider, provider);
    }
    assert!(transports.queue(Provider::Verbs).is_none());
    assert_eq!(transports.queues().len(), 2);
}

/// Set for the process that has no library of RDMA.
const BARE: &str = "TAKO_TEST_BARE";

/// Hides the libraries, if there are some, from the program that it runs.
const HIDE: &str = r#"
for library in $(ldconfig -p | sed -n 's/.*lib\(ibverbs\|rdmacm\)\.so.* => //p'); do
    mount --bind /dev/null "$(readlink -f "$library")" || exit
done
exec "$@""#;

#[test]
fn without_libraries_of_rdma_all_else_is_there() {
    if std::env::var_os(BARE).is_some() {
        let error = Transports::open(&wanted(Some(Provider::Verbs))).map(drop);
        let text = error.unwrap_err().to_string();
        assert!(text.contains(".so.1 cannot be loaded ("), "{text}");
        return a_process_offers_what_it_has_and_says_why_it_lacks_the_rest();
    }
    let test = "without_libraries_of_rdma_all_else_is_there";
    let bare = Command::new("unshare")
        .args(["--mount", "sh", "-c", HIDE, "sh"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test])
        .env(BARE, "")
        .output()
        .expect("unshare(1)");
    assert!(bare.status.success(), "run the tests as root: {bare:?}");
}

#[test]
fn a_forced_transport_is_the_only_one_or_an_error() {
    for provider in [Provider::Shm, Provider::Tcp] {
        let mut transports = Transports::open(&wanted(Some(provider))).unwrap();
        assert_eq!(transports.offers().forced(), Some(provider));
        let entries: Vec<_> = transports.offers().entries().collect();
        assert_eq!(entries, [(provider, None)]);
        assert_eq!(transports.queues().len(), 1);
    }
    let error = Transports::open(&wanted(Some(Provider::Verbs))).map(drop);
    let error = error.unwrap_err();
    assert!(matches!(error, Error::Forced { .. }), "{error:?}");
    let text = error.to_string();
    let reason = text.strip_prefix("verbs was asked for and cannot be used: ");
    assert!(reason.is_some_and(is_reason), "{text}");
    let error = Transports::open(&wanted(Some(Provider::Simulated))).map(drop);
    let text = error.unwrap_err().to_string();
    assert!(text.starts_with("simulated was asked for and cannot be used: "));
}
