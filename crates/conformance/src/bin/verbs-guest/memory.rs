//! Which memory can be registered, and the errors for other memory.

use std::fs;
use std::path::Path;

use pmem::{Access, Kind, Region};
use verbs::{Error, Registration};

use crate::Cases;
use crate::endpoint::{Endpoint, all_rights, connected, pattern, write};

pub fn run(cases: &mut Cases) {
    cases.run("huge pages", || {
        fs::write("/proc/sys/vm/nr_hugepages", "8").unwrap();
        used(
            &Region::memory(4 << 20, true).unwrap(),
            Kind::HugePageMemory,
        );
    });
    cases.run("a DAX device", || {
        let region = Region::open(Path::new("/dev/dax0.0"), Access::ReadWrite).unwrap();
        used(&region, Kind::DeviceDax);
    });
    cases.run("a file of a DAX file system is refused", || {
        let region = Region::create(Path::new("/mnt/pool"), 4 << 20).unwrap();
        assert_eq!(region.kind(), Kind::FileDax);
        refused(
            &region,
            "a DAX file cannot be registered with rxe1: its pages may move; use a DAX device",
        );
    });
    cases.run("simulated memory is refused", || {
        let region = pmem::Simulation::new(4096).region();
        refused(
            &region,
            "a simulated memory cannot be registered with rxe1: ",
        );
    });
}

/// Run by a user with a low limit.
pub fn run_limited(cases: &mut Cases) {
    cases.run("the limit of locked memory", || {
        let endpoint = Endpoint::with("rxe1", &Region::memory(16 << 10, false).unwrap());
        let region = Region::memory(1 << 20, false).unwrap();
        let error = Registration::new(&endpoint.domain, &region, 0, 1 << 20, all_rights());
        let error = error.unwrap_err();
        assert!(
            matches!(error, Error::LockedMemory { limit: 65_536, .. }),
            "{error}"
        );
        let text = error.to_string();
        assert!(
            text.starts_with(
                "1048576 bytes cannot be registered: at most 65536 may be locked; raise"
            ),
            "{text}"
        );
    });
}

/// Others write the region and read it.
fn used(region: &Region, kind: Kind) {
    assert_eq!(region.kind(), kind);
    let (a, b) = (Endpoint::new("rxe1"), Endpoint::with("rxe2", region));
    let (near, _far) = connected(&a, &b);
    a.fill(0, &pattern(8, 10_000));
    let end = region.length() - 10_000;
    near.post(&[write(1, &[a.memory.piece(0, 10_000)], b.remote(end))])
        .unwrap();
    a.succeed(1);
    assert!(
        b.bytes(end, 10_000) == pattern(8, 10_000),
        "what was written is something else"
    );
}

fn refused(region: &Region, beginning: &str) {
    let endpoint = Endpoint::new("rxe1");
    let error = Registration::new(&endpoint.domain, region, 0, region.length(), all_rights());
    let error = error.unwrap_err();
    assert!(matches!(error, Error::NotRegistrable { .. }), "{error}");
    let text = error.to_string();
    assert!(text.starts_with(beginning), "{text}");
}
