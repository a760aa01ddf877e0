mod damage;
mod random;

use std::collections::BTreeMap;
use std::sync::Arc;

use super::*;
use crate::format::record::{HEADER, MAGIC};
use crate::fuzzing::{Edit, PoolBytes, SAMPLE_LENGTH, Sample, exercise, mend, region_with, sample};
use crate::{FileKind, Geometry, LiveInode, PoolOptions, Store};

/// For [`PoolBytes::seal`]: all kinds of checksums.
const ALL: u8 = u8::MAX;

fn check_bytes(bytes: &[u8]) -> Report {
    check(&region_with(bytes), &CheckOptions::default()).unwrap()
}

/// Report of a check of a sample after some edits, with the checksums of `seals` corrected. Repair must fix that.
fn report_after(which: Sample, edits: &[Edit], seals: u8) -> Report {
    let mut pool = PoolBytes::new(sample(which));
    edits.iter().for_each(|edit| pool.apply(edit));
    pool.seal(seals);
    mend(&pool.bytes);
    check_bytes(&pool.bytes)
}

#[track_caller]
fn assert_finds(which: Sample, edits: &[Edit], seals: u8, words: &str) {
    let report = report_after(which, edits, seals);
    let found: Vec<String> = report.findings.iter().map(Finding::to_string).collect();
    let is_found = found.iter().any(|finding| finding.contains(words));
    assert!(is_found, "no {words:?} after {edits:?} in {found:#?}");
}

/// A random number below `bound` (xorshift, so that failures can be repeated with their seed).
fn random(state: &mut u64, bound: u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state >> 11) % bound
}

/// All that a user can see of a pool.
fn tree(bytes: &[u8]) -> Result<BTreeMap<Vec<u8>, String>> {
    let store = Store::open(region_with(bytes), PoolOptions::default())?;
    let mut found = BTreeMap::new();
    let mut left = vec![(Vec::new(), store.root())];
    while let Some((path, node)) = left.pop() {
        for (name, child) in children(&store, &node)? {
            left.push(([&path[..], b"/", &name].concat(), child));
        }
        found.insert(path, look(&store, &node)?);
    }
    Ok(found)
}

fn children(store: &Store, node: &LiveInode) -> Result<Vec<(Vec<u8>, Arc<LiveInode>)>> {
    let mut found = Vec::new();
    if store.inodes().attributes(node).kind == FileKind::Directory {
        store.names().read_directory(node, 2, &mut |entry| {
            found.push((entry.name.clone(), entry.number));
            true
        })?;
    }
    let with_node = |(name, number)| Ok((name, store.inodes().node(number)?));
    found.into_iter().map(with_node).collect()
}

fn look(store: &Store, node: &LiveInode) -> Result<String> {
    let attributes = store.inodes().attributes(node);
    let mut data = vec![0; attributes.size.min(100_000) as usize];
    match attributes.kind {
        FileKind::Regular => assert_eq!(store.files().read(node, 0, &mut data)?, data.len()),
        FileKind::Symlink => data = store.names().read_link(node)?,
        _ => {}
    }
    Ok(format!(
        "{attributes:?} {:x}",
        crate::format::checksum::crc32c(&data)
    ))
}

#[test]
fn samples_are_clean_and_stay_so() {
    for which in Sample::ALL {
        let bytes = sample(which);
        assert_eq!(bytes, sample(which), "samples are always the same");
        let report = check_bytes(&bytes);
        assert_eq!(report.findings, []);
        let orphans = if which == Sample::Orphans { 2 } else { 0 };
        assert_eq!((report.inodes - orphans, report.orphans), (15, orphans));
        let has_records = matches!(which, Sample::Crashed | Sample::Orphans);
        assert_eq!(report.records_replayed > 0, has_records);
        exercise(&bytes).unwrap();
    }
    let sealed = report_after(Sample::Closed, &[], ALL);
    assert_eq!(sealed.findings, [], "sealing changes nothing");
}

#[test]
fn a_new_pool_is_clean() {
    for (length, geometry) in [
        (512 << 10, Geometry::small()),
        (5 << 20, Geometry::small()),
        (40 << 20, Geometry::for_length(40 << 20)),
    ] {
        let region = Region::memory(length, false).unwrap();
        Store::format(&region, &geometry).unwrap();
        let report = check(&region, &CheckOptions::default()).unwrap();
        assert_eq!(report.findings, []);
        assert_eq!((report.inodes, report.blocks_used), (1, 0));
    }
}

#[test]
fn a_file_that_is_no_pool_is_an_error() {
    let options = CheckOptions::default();
    let zeros = region_with(&[0; 4096]);
    assert_eq!(check(&zeros, &options), Err(Error::NotAPool));
    let half = &sample(Sample::Closed)[..SAMPLE_LENGTH as usize / 2];
    let result = check(&region_with(half), &options);
    assert!(matches!(result, Err(Error::Truncated { .. })));
}

#[test]
fn a_flipped_byte_is_found_or_changes_nothing() {
    for which in [Sample::Closed, Sample::Orphans] {
        let whole = sample(which);
        let expected = tree(&whole).unwrap();
        let superblock = PoolBytes::new(whole.clone()).superblock().unwrap();
        let ring = superblock.ring_offset as usize..superblock.image_offset as usize;
        // A record that does not match its checksum is where a crash cut the ring off.
        let is_silent = |at: &usize| which == Sample::Orphans && ring.contains(at);
        let mut bytes = whole.clone();
        for at in (0..bytes.len()).step_by(47).filter(|at| !is_silent(at)) {
            bytes[at] ^= 0x41;
            let report = check(&region_with(&bytes), &CheckOptions::default());
            if report.is_ok_and(|report| report.is_clean()) {
                let is_same = tree(&bytes).as_ref() == Ok(&expected);
                assert!(is_same, "a byte at {at} of {which:?} is not found");
            }
            bytes[at] = whole[at];
        }
    }
}

#[test]
fn records_are_counted() {
    let bytes = sample(Sample::Crashed);
    let ring = &bytes[crate::format::superblock::RING_OFFSET as usize..];
    let begins = |bytes: &&[u8]| bytes[..4] == MAGIC.to_le_bytes() && bytes.len() > HEADER;
    let most = ring.chunks(64).filter(begins).count() as u64;
    let replayed = check_bytes(&bytes).records_replayed;
    assert!((1..=most).contains(&replayed), "{replayed} of {most}");
}
