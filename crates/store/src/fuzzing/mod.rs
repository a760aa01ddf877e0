//! Entry points for fuzzing, and for the fixed corpus that runs in the tests. Nothing else calls them.
//!
//! For any bytes, none of them may panic or run for long. And a pool that `check` finds clean must work: it opens, all
//! of it can be read, and it is still clean after changes. Any other pool is clean after a repair.

mod edit;
mod sample;
mod work;

use std::cell::RefCell;

use pmem::Region;
use zerocopy::IntoBytes;

pub use edit::{Edit, PoolBytes, PoolPart};
pub use sample::{SAMPLE_LENGTH, Sample, sample};

use crate::check::{CheckOptions, Report, check};
use crate::format::placement::ImageLayout;
use crate::format::record::{Operations, RecordOperation, encode};
use crate::image::Block;
use crate::image::recovery::recover;
use crate::image::volume::Volume;
use crate::inode::tree::parse_node;
use crate::names::directory::{check_name, leaf_entries, parse_leaf};
use crate::ring::CachedLines;
use crate::{BLOCK, Clock, Error, PoolOptions, Store, Transaction, repair};

/// The context of a change in a pool that this process alone uses.
fn embedded() -> Transaction<'static> {
    Transaction::embedded()
}

thread_local! {
    /// One mapping for all runs of a thread: making one takes longer than a run.
    static REGION: RefCell<Option<Region>> = const { RefCell::new(None) };
    static SAMPLES: [std::cell::OnceCell<Vec<u8>>; 4] = const { [const { std::cell::OnceCell::new() }; 4] };
}

/// The thread's region with `bytes` in it. One pool at a time.
pub fn region_with(bytes: &[u8]) -> Region {
    let region = REGION.with_borrow_mut(|region| match region.as_ref() {
        Some(region) if region.length() == bytes.len() as u64 => region.clone(),
        _ => region
            .insert(Region::memory(bytes.len() as u64, false).expect("memory for a pool"))
            .clone(),
    });
    region.write(0, bytes);
    region
}

/// A small pool with a script of edits: its first byte chooses the sample, the second which checksums are made right
/// afterwards, and every 14 after them are one [`Edit`].
pub fn pool(input: &[u8]) {
    let [chosen, seals, edits @ ..] = input else {
        return;
    };
    let chosen = Sample::ALL[*chosen as usize % Sample::ALL.len()];
    let mut bytes = SAMPLES.with(|samples| {
        PoolBytes::new(
            samples[chosen as usize]
                .get_or_init(|| sample(chosen))
                .clone(),
        )
    });
    for edit in edits.chunks_exact(Edit::LENGTH) {
        bytes.apply(&Edit::decode(
            edit.try_into().expect("the chunk has an edit's length"),
        ));
    }
    bytes.seal(*seals);
    // An error in the pool is no failure.
    let _ = exercise(&bytes.bytes);
    mend(&bytes.bytes);
}

/// Repairs a pool of any bytes. That leaves nothing but data that is lost, and nothing for a second time to do.
pub fn mend(bytes: &[u8]) {
    let region = region_with(bytes);
    let Ok(first) = repair(&region) else {
        return;
    };
    let is_lost = |what: &str| what == "the data does not match its checksum";
    let left = first.left.findings.iter().find(|it| !is_lost(&it.what));
    assert_eq!(left, None, "left after {:?}", first.done);
    let second = repair(&region).expect("the superblock stays");
    assert_eq!(second.done, [], "done again after {:?}", first.done);
}

/// Checks, opens, reads and changes a pool of any bytes, and returns the report of the first check.
pub fn exercise(bytes: &[u8]) -> Result<Report, Error> {
    let region = region_with(bytes);
    let report = check(&region, &CheckOptions::default());
    let is_clean = report.as_ref().is_ok_and(Report::is_clean);
    region.write(0, bytes);
    let options = || PoolOptions {
        clock: Clock::Manual(Default::default()),
        ..PoolOptions::default()
    };
    match Store::open(region.clone(), options()) {
        Ok(store) => work::use_store(&store, is_clean),
        Err(error) => assert!(
            !is_clean,
            "check finds nothing, but the pool does not open: {error}"
        ),
    }
    let after = check(&region, &CheckOptions::default());
    if is_clean {
        let after = after.expect("a pool that was used has a superblock");
        assert!(
            after.is_clean(),
            "clean before it was used, but then: {:?}",
            after.findings
        );
    }
    report
}

/// The body of a record: operations are decoded, encoded again, and applied where an image accepts them.
pub fn record(body: &[u8]) {
    let region =
        SAMPLES.with(|samples| region_with(samples[0].get_or_init(|| sample(Sample::Closed))));
    let Ok((Volume { image, .. }, _)) = recover(region, &PoolOptions::default(), None) else {
        return;
    };
    /// Contents of the whole blocks behind the operations that name them.
    static BLOCKS: [u8; 4 * crate::BLOCK] = [0xa5; 4 * crate::BLOCK];
    for operation in Operations::of(body, &BLOCKS, image.length()).flatten() {
        let again = encoded(&operation);
        let decoded = Operations::of(&again, operation.payload, image.length()).next();
        assert_eq!(
            decoded,
            Some(Some(operation)),
            "an operation changes when it is encoded again"
        );
        if image.accepts(&operation) {
            image.apply(&operation, 1 << 40);
            image.cached_ranges(&operation, |at, length| image.flush(at, length));
        }
    }
}

/// An operation as the writers of records encode it.
fn encoded(operation: &RecordOperation<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(&mut bytes, operation);
    bytes
}

/// A block that may be a node of an extent tree, or a directory leaf.
pub fn node_and_leaf(input: &[u8]) {
    let mut contents: Block = [0; BLOCK];
    let length = input.len().min(BLOCK);
    contents[..length].copy_from_slice(&input[..length]);
    let layout = ImageLayout::new(1024, 512, 64).expect("a layout of two groups");
    if let Some((header, entries)) = parse_node(&contents, &layout) {
        assert_eq!(entries.len(), header.count as usize);
        assert!(
            entries
                .iter()
                .all(|entry| layout.is_data_run(entry.physical, 1)),
            "an entry outside the data blocks"
        );
        assert!(
            entries
                .windows(2)
                .all(|pair| pair[0].logical < pair[1].logical),
            "entries out of order"
        );
        let encoded = entries.as_bytes();
        assert_eq!(
            encoded,
            &contents[crate::format::extent::ENTRIES..][..encoded.len()]
        );
    }
    if let Some(header) = parse_leaf(&contents) {
        let entries: Vec<_> = leaf_entries(&contents).collect();
        assert_eq!(
            entries.len(),
            header.count as usize,
            "an entry of a valid leaf cannot be read"
        );
        assert!(
            entries.iter().all(|(_, name)| check_name(name).is_ok()),
            "a name that may not be"
        );
    }
}
