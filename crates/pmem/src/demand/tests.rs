use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::fs::{FallocateFlags, fallocate};

use super::*;

const PAGES: usize = 600;
/// Marks a process as the child of a test.
const OTHER: &str = "TAKO_PMEM_DEMAND";

/// Each page contains its number; one fails.
#[derive(Default)]
struct Numbers {
    calls: AtomicUsize,
    bytes: AtomicUsize,
    fails_at: Option<usize>,
}

impl Fill for Arc<Numbers> {
    type Error = &'static str;

    fn fill(&self, offset: u64, bytes: &mut [u8]) -> Result<(), &'static str> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes.len(), Ordering::Relaxed);
        let first = offset as usize / PAGE;
        for (index, page) in bytes.chunks_mut(PAGE).enumerate() {
            if self.fails_at == Some(first + index) {
                return Err("damaged");
            }
            page.fill(number(first + index));
        }
        Ok(())
    }
}

fn number(page: usize) -> u8 {
    (page % 251) as u8 + 1
}

fn pages(length: usize, numbers: &Arc<Numbers>) -> DemandPages<Arc<Numbers>> {
    DemandPages::new(length as u64, numbers.clone(), "a page is damaged\n").unwrap()
}

#[test]
fn each_page_is_filled_once_at_its_first_access() {
    let numbers = Arc::<Numbers>::default();
    let length = PAGES * PAGE - 100;
    let memory = pages(length, &numbers);
    assert_eq!(memory.bytes().len(), length);
    assert_eq!(numbers.calls.load(Ordering::Relaxed), 0);
    thread::scope(|scope| {
        for first in [0, 1, 300, 599] {
            let bytes = memory.bytes();
            scope.spawn(move || {
                for page in (first..PAGES).chain(0..first) {
                    let end = (page * PAGE + PAGE).min(bytes.len());
                    let found = &bytes[page * PAGE..end];
                    assert!(found.iter().all(|it| *it == number(page)), "page {page}");
                }
            });
        }
    });
    assert_eq!(numbers.bytes.load(Ordering::Relaxed), length);
}

#[test]
fn accesses_in_order_are_filled_in_growing_windows() {
    let numbers = Arc::<Numbers>::default();
    let memory = pages(1008 * PAGE, &numbers);
    // The first window begins where the last one, of no pages, has ended: 32, 64, 128, 256, 256, 256, 16.
    assert!((0..1008).all(|page| memory.bytes()[page * PAGE] == number(page)));
    assert_eq!(numbers.calls.load(Ordering::Relaxed), 7);
    let numbers = Arc::<Numbers>::default();
    let memory = pages(1008 * PAGE, &numbers);
    assert!((1..10).all(|place| memory.bytes()[place * 100 * PAGE] > 0));
    let bytes = numbers.bytes.load(Ordering::Relaxed);
    assert_eq!(bytes, 9 * WINDOW_FIRST * PAGE, "accesses out of order");
}

#[test]
fn loaded_pages_need_no_fault_and_errors_are_reported() {
    let numbers = Arc::new(Numbers {
        fails_at: Some(500),
        ..Numbers::default()
    });
    let memory = pages(PAGES * PAGE, &numbers);
    assert_eq!(memory.load(0..500 * PAGE as u64), Ok(()));
    let calls = numbers.calls.load(Ordering::Relaxed);
    assert!((0..500).all(|page| memory.bytes()[page * PAGE] == number(page)));
    assert_eq!(numbers.calls.load(Ordering::Relaxed), calls);
    assert_eq!(memory.load(0..u64::MAX), Err("damaged"));
    let behind = 501 * PAGE as u64;
    assert_eq!(memory.load(behind..u64::MAX), Ok(()));
    assert_eq!(memory.load(behind..0), Ok(()));
    // A fault fills at least its own page.
    let numbers = Arc::new(Numbers {
        fails_at: Some(3),
        ..Numbers::default()
    });
    let memory = pages(PAGES * PAGE, &numbers);
    assert_eq!(memory.bytes()[0], number(0));
    assert_eq!(memory.bytes()[2 * PAGE], number(2));
}

#[test]
fn only_bytes_of_these_pages_are_copied() {
    let numbers = Arc::<Numbers>::default();
    let memory = pages(PAGES * PAGE, &numbers);
    let copied = |bytes: &[u8]| match private(bytes) {
        Cow::Owned(copy) => copy == bytes,
        Cow::Borrowed(_) => false,
    };
    assert!(copied(memory.bytes()) && copied(&memory.bytes()[PAGES * PAGE - 1..]));
    assert!(!copied(&[1; 100]) && !copied(&[]));
}

/// The kernel accesses the page in write(2).
#[test]
fn system_calls_fault_too() {
    let numbers = Arc::<Numbers>::default();
    let memory = pages(PAGES * PAGE, &numbers);
    memory.load(0..PAGE as u64).unwrap();
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    // Without CAP_SYS_PTRACE only loaded pages can be used so.
    let page = match rustix::io::write(&writer, &memory.bytes()[7 * PAGE..][..10]) {
        Ok(10) => 7,
        Err(Errno::FAULT) => {
            let sent = rustix::io::write(&writer, &memory.bytes()[..10]);
            assert_eq!(sent, Ok(10));
            0
        }
        other => panic!("{other:?}"),
    };
    let mut found = [0; 10];
    assert_eq!(rustix::io::read(&reader, &mut found), Ok(10));
    assert_eq!(found, [number(page); 10]);
}

#[test]
fn an_access_that_cannot_be_filled_ends_the_process_with_a_message() {
    const NAME: &str = "an_access_that_cannot_be_filled_ends_the_process_with_a_message";
    ends_with_a_message(NAME, || {
        let numbers = Arc::new(Numbers {
            fails_at: Some(20),
            ..Numbers::default()
        });
        let memory = pages(PAGES * PAGE, &numbers);
        assert_eq!(memory.bytes()[19 * PAGE], number(19));
        println!("{}", memory.bytes()[20 * PAGE]);
    });
}

/// The kernel refuses to enter a page that was filled and has gone.
#[test]
fn an_access_of_a_page_that_has_gone_does_not_wait() {
    ends_with_a_message("an_access_of_a_page_that_has_gone_does_not_wait", || {
        let memory = pages(PAGES * PAGE, &Arc::default());
        memory.load(0..u64::MAX).unwrap();
        let Shared { faults, region, .. } = &*memory.shared;
        faults.wake(memory.shared.address(20), PAGE).unwrap();
        let file = region.share(true).unwrap();
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&file, flags, (20 * PAGE) as u64, PAGE as u64).unwrap();
        assert_eq!(memory.bytes()[19 * PAGE], number(19));
        println!("{}", memory.bytes()[20 * PAGE]);
    });
}

/// Does `work` in a process of its own, which must end by SIGBUS. `test` is the caller's name.
fn ends_with_a_message(test: &str, work: impl FnOnce() + Send + 'static) {
    if std::env::var_os(OTHER).is_some() {
        let (done, is_done) = mpsc::channel();
        thread::spawn(move || {
            work();
            let _ = done.send(());
        });
        // The time only guards against hanging.
        let _ = is_done.recv_timeout(Duration::from_secs(100));
        return;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("demand::tests::{test}")]);
    let output = command.env(OTHER, "1").output().unwrap();
    assert_eq!(output.status.signal(), Some(libc::SIGBUS), "{output:?}");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("a page is damaged\n"), "{told}");
}
