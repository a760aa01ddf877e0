//! Damage of every kind: reads are right or an error, and repair restores everything that was not hit.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use client::FileKind;
use lab::salvage::{Salvage, SalvagedFile};
use pmem::{Random, Region, Simulation};
use store::format::superblock::RING_OFFSET;
use store::fuzzing::{PoolBytes, PoolPart, SAMPLE_LENGTH, Sample, sample};
use store::{CheckOptions, Repair, Report, check, repair};

/// For [`PoolBytes::seal`]: all kinds of checksums.
const ALL: u8 = u8::MAX;

/// A sample, and its contents.
struct Whole {
    bytes: Vec<u8>,
    salvage: Salvage,
}

thread_local! {
    static SCRATCH: RefCell<Option<Region>> = const { RefCell::new(None) };
}

/// The thread's region with these bytes.
fn region(bytes: &[u8]) -> Region {
    let region = SCRATCH.with_borrow_mut(|region| {
        region
            .get_or_insert_with(|| Region::memory(SAMPLE_LENGTH, false).unwrap())
            .clone()
    });
    region.write(0, bytes);
    region
}

fn bytes_of(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; region.length() as usize];
    region.read(0, &mut bytes);
    bytes
}

impl Whole {
    fn new(which: Sample) -> Whole {
        let bytes = sample(which);
        let salvage = Salvage::read(&region(&bytes)).unwrap();
        Whole { bytes, salvage }
    }

    /// Repairs a damaged copy, expects a pool without remaining findings, and compares its contents.
    fn repaired(&self, bytes: &[u8], lied: &BTreeSet<u64>) -> Result<Repair, String> {
        let region = region(bytes);
        let done = repair(&region).map_err(|error| error.to_string())?;
        is_consistent(&done.left)?;
        let again = repair(&region).map_err(|error| error.to_string())?;
        if !again.done.is_empty() {
            return Err(format!("a second repair does {:?}", again.done));
        }
        let salvage = Salvage::read(&region)?;
        salvage.is_kept(&self.salvage, &done, lied)?;
        Ok(done)
    }
}

/// Nothing is left but data that is lost.
fn is_consistent(left: &Report) -> Result<(), String> {
    let is_lost = |what: &str| what == "the data does not match its checksum";
    match left.findings.iter().find(|it| !is_lost(&it.what)) {
        Some(finding) => Err(format!("repair leaves {finding}")),
        None => Ok(()),
    }
}

fn checked(bytes: &[u8]) -> Option<Report> {
    check(&region(bytes), &CheckOptions::default()).ok()
}

/// A field of a structure: its name, offset and length.
struct Field {
    name: String,
    at: usize,
    length: usize,
}

/// The fields of a structure as docs/LAYOUT.md has them.
fn fields(structure: &str) -> Vec<Field> {
    let document = include_str!("../../../docs/LAYOUT.md");
    let begin = format!("<!-- table: {structure} -->");
    let (_, rest) = document.split_once(&begin).expect(structure);
    let (table, _) = rest.split_once("<!-- end").unwrap();
    let rows = table.lines().filter_map(|line| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        Some(Field {
            at: cells.get(1)?.parse().ok()?,
            length: cells.get(2)?.parse().ok()?,
            name: cells.get(3)?.to_string(),
        })
    });
    rows.collect()
}

/// Location of a structure in the closed sample, and the inodes that it describes.
struct Target {
    structure: &'static str,
    at: usize,
    tells_of: BTreeSet<u64>,
}

fn targets(pool: &PoolBytes, expected: &Salvage) -> Vec<Target> {
    let mut targets = Vec::new();
    let mut add = |structure, at, tells_of: &[u64]| {
        let tells_of = tells_of.iter().copied().collect();
        targets.push(Target {
            structure,
            at,
            tells_of,
        });
    };
    let start = |place, index| pool.locate(place, index).map(|(at, _)| at);
    let word = |at: usize| u64::from_le_bytes(pool.bytes[at..at + 8].try_into().unwrap());
    for copy in [0, 1] {
        add(
            "superblock::Superblock",
            start(PoolPart::Superblock, copy).unwrap(),
            &[],
        );
        add(
            "superblock::RingState",
            start(PoolPart::RingState, copy).unwrap(),
            &[],
        );
    }
    add(
        "group::GroupHeader",
        start(PoolPart::Header, 0).unwrap(),
        &[],
    );
    for number in [1, 2, 4, 6, 8, 11, 15, 40] {
        let at = start(PoolPart::Inode, number).unwrap();
        add("inode::Inode", at, &[number.into()]);
        if [6, 8].contains(&number) {
            add("extent::Extent", at + 128, &[number.into()]);
        }
    }
    let node = start(PoolPart::TreeNode, 0).unwrap();
    add("extent::NodeHeader", node, &[word(node + 8)]);
    add("extent::Extent", node + 64 + 32, &[word(node + 8)]);
    let xattrs = start(PoolPart::Xattrs, 0).unwrap();
    add("xattr::XattrHeader", xattrs, &[word(xattrs + 8)]);
    add("xattr::XattrEntry", xattrs + 64, &[word(xattrs + 8)]);
    let shared = start(PoolPart::Inode, 16).unwrap();
    add("extent::Extent", shared + 128, &[7, 16]);
    for index in 0..5 {
        let leaf = start(PoolPart::Leaf, index).unwrap();
        let entry = leaf + (word(leaf + 64) >> 16) as u16 as usize;
        let directory = &expected.inodes[&word(leaf + 8)];
        let mut tells_of = vec![word(leaf + 8)];
        tells_of.extend(directory.names.iter().flatten().map(|(_, number)| *number));
        add("directory::LeafHeader", leaf, &[word(leaf + 8)]);
        add("directory::Slot", leaf + 64, &tells_of);
        add("directory::EntryHeader", entry, &tells_of);
    }
    targets
}

/// One of the ways to change a field.
fn change(bytes: &mut [u8], way: usize) {
    let last = bytes.len() - 1;
    match way % 3 {
        0 => bytes[0] ^= 1,
        1 => bytes[last] ^= 0x80,
        _ => bytes.iter_mut().for_each(|byte| *byte = !*byte),
    }
}

#[test]
fn every_field_of_every_structure_is_found_and_repaired() {
    let whole = Whole::new(Sample::Closed);
    let pool = PoolBytes::new(whole.bytes.clone());
    let mut cases = 0;
    for target in targets(&pool, &whole.salvage) {
        for field in fields(target.structure) {
            for way in 0..6 {
                let mut damaged = PoolBytes::new(whole.bytes.clone());
                let at = target.at + field.at;
                change(&mut damaged.bytes[at..at + field.length], way);
                let lies = way >= 3;
                if lies {
                    damaged.seal(ALL);
                }
                let what = || format!("{} of {} at {at}, way {way}", field.name, target.structure);
                let report = checked(&damaged.bytes).expect("one superblock is whole");
                if report.is_clean() {
                    let salvage = Salvage::read(&region(&damaged.bytes)).unwrap();
                    let is_told = lies && is_only_told(&field.name);
                    assert!(
                        is_told || salvage == whole.salvage,
                        "{} is not found",
                        what()
                    );
                }
                // With a right checksum, any identity and geometry is one.
                if lies && target.structure == "superblock::Superblock" {
                    continue;
                }
                let none = BTreeSet::new();
                let lied = if lies { &target.tells_of } else { &none };
                let done = whole.repaired(&damaged.bytes, lied);
                let done = done.unwrap_or_else(|error| panic!("{}: {error}", what()));
                assert!(report.is_clean() || !done.done.is_empty(), "{}", what());
                cases += 1;
            }
        }
    }
    assert!(cases > 1000, "{cases}");
}

#[test]
fn counts_of_owners_are_put_right() {
    let whole = Whole::new(Sample::Closed);
    let pool = PoolBytes::new(whole.bytes.clone());
    let (start, length) = pool.locate(PoolPart::Owners, 0).unwrap();
    let mut random = Random::new(1);
    for way in 0..200 {
        let mut damaged = whole.bytes.clone();
        let block = random.below(length / 4);
        let count = &mut damaged[start + block * 4..][..4];
        match way % 2 {
            0 => change(count, way / 2),
            // A count that could be right.
            _ => {
                let lie = (random.below(4) as u32 + 1) * 0x1_0001;
                let old = u32::from_le_bytes(count.try_into().unwrap());
                count.copy_from_slice(&(old ^ lie).to_le_bytes());
            }
        }
        let report = checked(&damaged).expect("the superblock is whole");
        assert_eq!(report.findings.len(), 1, "block {block}, way {way}");
        assert_eq!(report.findings[0].block, Some(block as u64));
        let done = whole.repaired(&damaged, &BTreeSet::new());
        let done = done.unwrap_or_else(|error| panic!("block {block}, way {way}: {error}"));
        assert_eq!(done.done.len(), 1);
    }
}

/// Fields without redundancy: under a right checksum any value is valid.
fn is_only_told(field: &str) -> bool {
    let fields = [
        "version",
        "modified_ns",
        "changed_ns",
        "created_ns",
        "accessed_ns",
        "uid",
        "gid",
        "mode",
        "project",
        "device",
        "generation",
        "size",
        "epoch",
        "start",
        "pool",
        "unit",
        "cluster",
        "hash_key",
        "reserved_blocks",
        "root",
        "logical",
        "physical",
        "flags",
        "name_length",
        "value_length",
        "key",
        "tag",
        "compatible",
        "crc",
        "line_crcs",
        "stamp_crc",
        "rest_crc",
    ];
    fields.contains(&field.trim_matches('`'))
}

/// A copy of the sample in which `change` was made and all checksums are right. Returns a check's report, and the
/// contents after a repair.
fn told_and_repaired(
    whole: &Whole,
    number: u64,
    change: impl Fn(&mut PoolBytes),
) -> (Report, Salvage) {
    let mut damaged = PoolBytes::new(whole.bytes.clone());
    change(&mut damaged);
    damaged.seal(ALL);
    let report = checked(&damaged.bytes).unwrap();
    let done = whole.repaired(&damaged.bytes, &BTreeSet::from([number]));
    let done = done.unwrap_or_else(|error| panic!("inode {number}: {error}"));
    assert_eq!(
        report.is_clean(),
        done.done.is_empty(),
        "{report:?} {done:?}"
    );
    // The region of this thread is the repaired pool.
    let region = SCRATCH.with_borrow(|region| region.clone().unwrap());
    (report, Salvage::read(&region).unwrap())
}

#[test]
fn flags_that_cannot_be_are_found_and_taken() {
    let whole = Whole::new(Sample::Closed);
    let pool = PoolBytes::new(whole.bytes.clone());
    let flags = fields("inode::Inode")
        .into_iter()
        .find(|it| it.name == "`flags`");
    let (mut possible, mut impossible) = (0, 0);
    for (number, file) in &whole.salvage.inodes {
        let at =
            pool.locate(PoolPart::Inode, *number as u16).unwrap().0 + flags.as_ref().unwrap().at;
        for bit in 0..32 {
            let (report, salvage) = told_and_repaired(&whole, *number, |damaged| {
                damaged.bytes[at + bit / 8] |= 1 << (bit % 8);
            });
            let is_possible = matches!(
                file.attributes.kind,
                FileKind::Regular | FileKind::Directory
            ) && matches!(bit, 1 | 2);
            assert_eq!(
                report.is_clean(),
                is_possible,
                "bit {bit} of inode {number}"
            );
            let flags = salvage.inodes[number].attributes.flags;
            assert_eq!(flags.immutable, is_possible && bit == 1);
            assert_eq!(flags.append_only, is_possible && bit == 2);
            *(if is_possible {
                &mut possible
            } else {
                &mut impossible
            }) += 1;
        }
    }
    assert!(
        possible >= 20 && impossible >= 300,
        "{possible} {impossible}"
    );
}

#[test]
fn lists_that_do_not_go_with_the_mode_are_found_and_settled() {
    const LIST: &[u8] = b"system.posix_acl_access";
    let whole = Whole::new(Sample::Closed);
    let has_list = |file: &SalvagedFile| {
        file.xattrs
            .as_ref()
            .is_some_and(|all| all.contains_key(LIST))
    };
    let (number, file) = whole
        .salvage
        .inodes
        .iter()
        .find(|(_, it)| has_list(it))
        .unwrap();
    let list = &file.xattrs.as_ref().unwrap()[LIST];
    let mut at = whole
        .bytes
        .windows(LIST.len())
        .rposition(|it| it == LIST)
        .unwrap()
        + LIST.len();
    assert!(whole.bytes[at..].starts_with(list));
    // Behind the version: owner, a user, group, mask and others, of eight bytes each.
    at += 4;
    let mode = file.attributes.permissions;
    assert_eq!(mode, 0o650);
    for (entry, place) in [(0, 6), (3, 3), (4, 0)] {
        for permissions in 0..=7u32 {
            let (report, salvage) = told_and_repaired(&whole, *number, |damaged| {
                damaged.bytes[at + entry * 8 + 2] = permissions as u8;
            });
            let is_same = permissions == mode >> place & 7;
            assert_eq!(report.is_clean(), is_same, "entry {entry}, {permissions}");
            // Permissions that both allowed.
            let least = mode & !(7 << place) | mode & permissions << place;
            let found = &salvage.inodes[number];
            assert_eq!(found.attributes.permissions, least);
            let list = &found.xattrs.as_ref().unwrap()[LIST];
            assert_eq!(u32::from(list[4 + entry * 8 + 2]), least >> place & 7);
        }
    }
    // Invalid lists: an unknown tag, an unknown version.
    for (what, value) in [(at, 0x40), (at - 4, 3), (at + 2, 8), (at + 24, 4)] {
        let (report, salvage) =
            told_and_repaired(&whole, *number, |damaged| damaged.bytes[what] = value);
        assert!(!report.is_clean());
        let found = &salvage.inodes[number];
        assert_eq!(found.attributes.permissions, mode);
        assert_eq!(found.xattrs, Some(Default::default()));
    }
}

/// Flips bits, and returns which.
fn flip(bytes: &mut [u8], random: &mut Random, from: usize) -> Vec<String> {
    let count = [1, 1, 2, 9][random.below(4)];
    let near = from + random.below(bytes.len() - from);
    let flips = (0..count).map(|index| {
        // Nine in one line are more than any checksum puts right.
        let at = match index {
            0 => near,
            _ if count > 2 => near & !63 | random.below(64),
            _ => from + random.below(bytes.len() - from),
        };
        let bit = random.below(8);
        bytes[at] ^= 1 << bit;
        format!("bit {bit} of byte {at}")
    });
    flips.collect()
}

#[test]
fn flipped_bits_lose_no_more_than_they_hit() {
    let whole = Whole::new(Sample::Closed);
    let count = match std::env::var_os("TAKO_SOAK") {
        Some(_) => 200_000,
        None => 3000,
    };
    for seed in 1..=count {
        let mut random = Random::new(seed);
        let mut bytes = whole.bytes.clone();
        // Half of them where the metadata is: most of the rest is empty.
        let from = [0, RING_OFFSET as usize + (64 << 10)][random.below(2)];
        let end = [bytes.len(), bytes.len() / 2][random.below(2)];
        let what = flip(&mut bytes[..end], &mut random, from);
        let result = read_flipped(&whole, &bytes).and_then(|()| match seed % 2 {
            0 => whole.repaired(&bytes, &BTreeSet::new()).map(drop),
            _ => Ok(()),
        });
        result.unwrap_or_else(|error| panic!("seed {seed}, {what:?}: {error}"));
    }
}

/// Report of a damaged pool before repair.
fn read_flipped(whole: &Whole, bytes: &[u8]) -> Result<(), String> {
    let salvage = Salvage::read(&region(bytes));
    let report = checked(bytes).ok_or("both superblocks are damaged")?;
    match salvage {
        Ok(salvage) => salvage.is_right(&whole.salvage, &report.findings),
        Err(error) if report.is_clean() => Err(format!("nothing is found, but {error}")),
        Err(_) => Ok(()),
    }
}

/// In a ring with records damage looks like a crash: later records are lost. But nothing breaks.
#[test]
fn flipped_bits_of_a_crashed_pool_break_nothing() {
    for which in [Sample::Crashed, Sample::Orphans] {
        let whole = Whole::new(which);
        for seed in 1..=300 {
            let mut random = Random::new(seed);
            let mut bytes = whole.bytes.clone();
            let what = flip(&mut bytes, &mut random, 0);
            let _ = Salvage::read(&region(&bytes));
            let region = region(&bytes);
            let done = repair(&region).unwrap();
            is_consistent(&done.left).unwrap_or_else(|error| panic!("{seed} {what:?}: {error}"));
            Salvage::read(&region).unwrap();
        }
    }
}

/// A repair that was interrupted anywhere, and is run again, keeps the same contents as an uninterrupted one.
#[test]
fn an_interrupted_repair_is_run_again() {
    let whole = Whole::new(Sample::Closed);
    let pool = PoolBytes::new(whole.bytes.clone());
    let at = |place, index| pool.locate(place, index).unwrap().0;
    let noise = |bytes: &mut Vec<u8>, at: usize| bytes[at..at + 64].fill(0xa5);
    let places = [
        at(PoolPart::TreeNode, 0) + 128,
        at(PoolPart::Leaf, 0) + 128,
        at(PoolPart::Leaf, 2) + 128,
        at(PoolPart::Inode, 1),
        at(PoolPart::Inode, 4) + 128,
        at(PoolPart::Bitmap, 0),
        at(PoolPart::Header, 0),
    ];
    for (index, place) in places.into_iter().enumerate() {
        let mut damaged = whole.bytes.clone();
        noise(&mut damaged, place);
        noise(&mut damaged, places[(index + 3) % places.len()]);
        let (moments, kept) = repair_in_simulation(&damaged);
        for (moment, images) in moments.iter().enumerate() {
            for bytes in images {
                let region = region(bytes);
                let done = repair(&region).unwrap();
                is_consistent(&done.left).unwrap();
                let salvage = Salvage::read(&region).unwrap();
                assert_eq!(salvage.paths, kept.paths, "at {moment} of {place}");
                for (number, file) in &kept.inodes {
                    let is_same = salvage.inodes[number].blocks == file.blocks;
                    assert!(is_same, "inode {number} at {moment} of {place}");
                }
            }
        }
    }
}

/// Images that a crash at each fence of a repair may leave, and the final contents.
fn repair_in_simulation(bytes: &[u8]) -> (Vec<Vec<Vec<u8>>>, Salvage) {
    let simulation = Simulation::from_image(bytes.to_vec());
    let moments = Arc::new(Mutex::new(Vec::new()));
    let keep = moments.clone();
    simulation.observe_fences(Some(Box::new(move |moment: &pmem::Moment| {
        let images = moment.images(4, 1).collect();
        keep.lock().unwrap().push(images);
    })));
    let done = repair(&simulation.region()).unwrap();
    simulation.observe_fences(None);
    is_consistent(&done.left).unwrap();
    let moments = std::mem::take(&mut *moments.lock().unwrap());
    assert!(moments.len() > 3, "a repair has fences");
    (
        moments,
        Salvage::read(&region(&bytes_of(&simulation.region()))).unwrap(),
    )
}
