//! A process that imports more memory than it may have descriptors. Alone in its program, since the limit is the process's.
#![forbid(unsafe_code)]

use fabric::shm::Shm;
use fabric::{Access, Device, Peer, Queue, QueueOptions, Role};
use pmem::Region;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The usual limit, and more than that.
const DESCRIPTORS: u64 = 1024;
const IMPORTS: u64 = 1500;

#[test]
fn imported_memory_takes_no_descriptors() {
    let limit = Rlimit {
        current: Some(DESCRIPTORS),
        maximum: getrlimit(Resource::Nofile).maximum,
    };
    setrlimit(Resource::Nofile, limit).unwrap();
    let device = Shm::new().unwrap();
    let [mut near, mut far] =
        [(), ()].map(|()| Queue::open(&device, QueueOptions::default()).unwrap());
    let (to_far, ours) = near.offer().unwrap();
    let (to_near, theirs) = far.offer().unwrap();
    let peer = |parameters| Peer {
        parameters,
        address: None,
        process: None,
    };
    far.accept(to_near, Role::Listener, peer(ours)).unwrap();
    near.accept(to_far, Role::Dialer, peer(theirs)).unwrap();

    let region = Region::memory(4096, false).unwrap();
    for number in 0..IMPORTS {
        let access = if number % 2 == 0 {
            Access::READ
        } else {
            Access::ALL
        };
        let memory = device.register(&region, access).unwrap();
        let export = near.export(to_far, &memory).unwrap();
        let imported = far.import(to_near, export);
        assert!(imported.is_ok(), "{number} are imported: {imported:?}");
    }
    // Others continue to get some.
    assert!(std::fs::File::open("/dev/null").is_ok());
}
