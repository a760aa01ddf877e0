//! Files that are read in order, past the page cache: few messages, and never stale.

use std::os::unix::fs::OpenOptionsExt;

use rustix::fs::OFlags;

use super::*;

const PART: usize = 4096;
const LENGTH: usize = 2 << 20;

fn contents(seed: usize) -> Vec<u8> {
    let byte = |at: usize| ((at / 7 + seed) % 251) as u8;
    (0..LENGTH).map(byte).collect()
}

/// Reads parts of a file in order.
fn read(file: &File, parts: std::ops::Range<usize>, expected: &[u8]) {
    let mut memory = vec![0; 2 * PART];
    let start = memory.as_ptr().align_offset(PART);
    let bytes = &mut memory[start..][..PART];
    for offset in parts.map(|part| part * PART) {
        file.read_exact_at(bytes, offset as u64).expect("a part");
        assert!(bytes == &expected[offset..][..PART], "at {offset}");
    }
}

#[test]
fn reads_in_order_need_few_messages_and_are_never_stale() {
    let cluster = cluster();
    for transport in ["tcp", "shm"] {
        let writer = Mount::new(&cluster, &format!("writer-{transport}"));
        let options = format!("transport={transport}");
        let reader = Mount::with(&cluster, &format!("reader-{transport}"), &options);
        fs::write(writer.directory.join(transport), contents(0)).expect("it is written");
        let open = || {
            let mut options = OpenOptions::new();
            options
                .read(true)
                .custom_flags(OFlags::DIRECT.bits() as i32);
            let path = reader.directory.join(transport);
            options.open(path).expect("it is there")
        };
        let (file, parts) = (open(), LENGTH / PART);
        read(&file, 0..parts, &contents(0));
        // A busy machine may take longer than a lease for some reads: one of several attempts shows the number.
        let start = Instant::now();
        loop {
            let before = messages(&cluster);
            read(&file, 0..parts, &contents(0));
            let sent = messages(&cluster) - before;
            if sent < parts as u64 / 2 {
                break;
            }
            assert!(start.elapsed() < PATIENCE, "{transport}: {sent} messages");
        }
        for round in 0..5 {
            read(&file, 0..parts / 2 + round, &contents(round));
            let changed = contents(round + 1);
            fs::write(writer.directory.join(transport), &changed).expect("it is written");
            read(&file, parts / 2 + round..parts, &changed);
        }
    }
}
