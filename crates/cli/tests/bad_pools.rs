//! Unusable pools: a clear error, and no byte of them is changed.

mod common;

use std::fs;
use std::path::Path;

use common::{Scratch, tako};
use store::format::superblock::{SUPERBLOCKS, Superblock};
use zerocopy::{FromBytes, IntoBytes};

/// Expects every command to refuse a pool with this text in its sentence, and to leave the pool as it is.
fn expect_refusal(scratch: &Scratch, pool: &str, text: &str) {
    let before = fs::read(pool).unwrap();
    let directory = scratch.path("directory");
    fs::create_dir_all(&directory).unwrap();
    let inside = format!("{pool}:/x");
    for arguments in [
        &["check", pool][..],
        &["check", "--repair", pool],
        &["grow", pool, "--size", "9M"],
        &["info", pool],
        &["mount", pool, &directory],
        &["mount", "--foreground", pool, &directory],
        &["ls", &inside],
        &["cat", &inside],
        &["df", &inside],
        &["mkdir", &inside],
        &["rm", "-r", &inside],
        &["cp", "/dev/null", &inside],
    ] {
        let sentence = tako(arguments).ended(1);
        assert!(
            sentence.contains(text) && sentence.contains(pool),
            "{arguments:?}: {sentence}"
        );
    }
    assert!(
        fs::read(pool).unwrap() == before,
        "a pool that cannot be used was written to"
    );
    assert_eq!(fs::read_dir(directory).unwrap().count(), 0);
}

/// Makes a pool, changes all its superblocks so, and gives them the right checksum.
fn pool_with(scratch: &Scratch, change: impl Fn(&mut Superblock)) -> String {
    let pool = scratch.pool("a.pool", "8M");
    let mut bytes = fs::read(&pool).unwrap();
    for offset in SUPERBLOCKS.map(|offset| offset as usize) {
        let (mut superblock, _) = Superblock::read_from_prefix(&bytes[offset..]).unwrap();
        change(&mut superblock);
        superblock.crc = superblock.checksum();
        bytes[offset..][..size_of::<Superblock>()].copy_from_slice(superblock.as_bytes());
    }
    fs::write(&pool, bytes).unwrap();
    pool
}

#[test]
fn another_version_is_refused() {
    let scratch = Scratch::new();
    let pool = pool_with(&scratch, |superblock| superblock.version = 99);
    expect_refusal(&scratch, &pool, "format version 99");
    assert!(
        tako(&["mkfs", &pool, "--size", "8M"])
            .ended(1)
            .contains("--force")
    );
}

#[test]
fn unknown_features_are_refused() {
    let scratch = Scratch::new();
    let pool = pool_with(&scratch, |superblock| superblock.incompatible |= 1 << 40);
    expect_refusal(&scratch, &pool, "features 0x10000000000");
}

#[test]
fn features_that_may_be_ignored_are() {
    let scratch = Scratch::new();
    let pool = pool_with(&scratch, |superblock| superblock.compatible |= 1 << 40);
    tako(&["mkdir", &format!("{pool}:/d")]).ended(0);
    tako(&["check", &pool]).ended(0);
}

#[test]
fn a_pool_of_a_unit_is_neither_opened_nor_repaired_nor_grown() {
    let scratch = Scratch::new();
    let pool = pool_with(&scratch, |superblock| superblock.cluster = [7; 16]);
    tako(&["check", &pool]).ended(0);
    // One with a damaged second superblock.
    let mut bytes = fs::read(&pool).unwrap();
    bytes[SUPERBLOCKS[1] as usize + 60] ^= 1;
    fs::write(&pool, &bytes).unwrap();
    let place = scratch.path("mounted");
    fs::create_dir(&place).unwrap();
    for arguments in [
        &["check", "--repair", &pool][..],
        &["grow", &pool, "--size", "9M"],
        &["mkdir", &format!("{pool}:/d")],
        &["ls", &format!("{pool}:/")],
        &["mount", &pool, &place],
    ] {
        let sentence = tako(arguments).ended(1);
        assert!(
            sentence.contains("belongs to a storage unit") && sentence.contains(&pool),
            "{sentence}"
        );
        assert!(fs::read(&pool).unwrap() == bytes, "{arguments:?}");
    }
}

#[test]
fn a_truncated_pool_is_refused() {
    let scratch = Scratch::new();
    let pool = scratch.pool("a.pool", "8M");
    let file = fs::File::options().write(true).open(&pool).unwrap();
    for (length, text) in [
        ((8 << 20) - 1, "truncated"),
        (1 << 20, "truncated"),
        (5000, "not a Tako pool"),
    ] {
        file.set_len(length).unwrap();
        expect_refusal(&scratch, &pool, text);
    }
}

#[test]
fn foreign_files_are_refused() {
    let scratch = Scratch::new();
    let file = scratch.path("a.pool");
    let noise: Vec<u8> = (0..1u32 << 18)
        .flat_map(|word| word.wrapping_mul(0x9E37_79B9).to_le_bytes())
        .collect();
    for bytes in [&noise[..], &vec![0; 1 << 20], b"short"] {
        fs::write(&file, bytes).unwrap();
        expect_refusal(&scratch, &file, "not a Tako pool");
    }
    fs::write(&file, "").unwrap();
    expect_refusal(&scratch, &file, "an empty file");
}

#[test]
fn damaged_superblocks_are_refused_when_both_are() {
    let scratch = Scratch::new();
    let pool = scratch.pool("a.pool", "8M");
    let good = fs::read(&pool).unwrap();
    let damage = |bytes: &mut Vec<u8>, copy: usize| bytes[SUPERBLOCKS[copy] as usize + 60] ^= 0x4e;
    for copy in [0, 1] {
        let mut bytes = good.clone();
        damage(&mut bytes, copy);
        fs::write(&pool, &bytes).unwrap();
        assert_eq!(tako(&["ls", &format!("{pool}:/")]).ended(0), "");
        let run = tako(&["check", &pool]);
        assert_eq!(
            run.code,
            Some(1),
            "damage in copy {copy} was not found: {}",
            run.out
        );
        assert!(fs::read(&pool).unwrap() == bytes);
    }
    let mut bytes = good;
    damage(&mut bytes, 0);
    damage(&mut bytes, 1);
    fs::write(&pool, bytes).unwrap();
    expect_refusal(&scratch, &pool, "superblocks are damaged");
}

/// A pool, a file in it, and what that holds.
fn pool_with_a_file(scratch: &Scratch) -> (String, String, Vec<u8>) {
    let pool = scratch.pool("a.pool", "8M");
    let file = format!("{pool}:/file");
    let data = b"what is written here stands nowhere else in the pool ".repeat(200);
    fs::write(scratch.path("file"), &data).unwrap();
    tako(&["cp", &scratch.path("file"), &file]).ended(0);
    (pool, file, data)
}

#[test]
fn the_damage_of_a_file_is_found_and_named() {
    let scratch = Scratch::new();
    let (pool, file, data) = pool_with_a_file(&scratch);
    let clean: serde_json::Value =
        serde_json::from_str(&tako(&["check", "--json", &pool]).ended(0)).unwrap();
    assert_eq!(
        (&clean["clean"], &clean["inodes"]),
        (&true.into(), &2.into())
    );

    let mut bytes = fs::read(&pool).unwrap();
    // The last copy is the file's: one in the ring, if there is any, lies before the image.
    let at = bytes
        .windows(60)
        .rposition(|window| *window == data[..60])
        .unwrap();
    bytes[at + 7] ^= 1;
    fs::write(&pool, &bytes).unwrap();
    assert!(tako(&["cat", &file]).ended(1).contains("damaged"));
    let run = tako(&["check", &pool]);
    assert_eq!(run.code, Some(1));
    assert!(
        run.err.starts_with("tako: ") && run.err.contains("1 inconsistency remains"),
        "{}",
        run.err
    );
    let run = tako(&["check", "--json", &pool]);
    let report: serde_json::Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!(
        (run.code, run.err.as_str(), &report["clean"]),
        (Some(1), "", &false.into())
    );
    assert_eq!(report["findings"].as_array().unwrap().len(), 1);
    assert!(
        fs::read(&pool).unwrap() == bytes,
        "checking changed the pool"
    );
}

#[test]
fn repair_mends_what_it_can_and_says_the_rest() {
    let scratch = Scratch::new();
    let (pool, file, data) = pool_with_a_file(&scratch);
    let whole = fs::read(&pool).unwrap();
    assert!(
        tako(&["check", "--repair", &pool])
            .ended(0)
            .contains("0 repairs")
    );
    assert!(
        fs::read(&pool).unwrap() == whole,
        "a whole pool was changed"
    );

    let mut bytes = whole.clone();
    for offset in SUPERBLOCKS {
        bytes[offset as usize + 60] ^= 4;
    }
    fs::write(&pool, &bytes).unwrap();
    let held = pmem::Region::open(Path::new(&pool), pmem::Access::ReadWrite).unwrap();
    assert!(
        tako(&["check", "--repair", &pool])
            .ended(1)
            .contains("in use")
    );
    drop(held);
    let run = tako(&["check", "--repair", "--json", &pool]).ended(0);
    let report: serde_json::Value = serde_json::from_str(&run).unwrap();
    assert_eq!(report["clean"], true);
    assert!(report["repaired"].as_array().unwrap().len() >= 2);
    assert_eq!(tako(&["cat", &file]).ended(0).as_bytes(), data);

    // Data is not made up.
    let at = bytes
        .windows(60)
        .rposition(|window| *window == data[..60])
        .unwrap();
    bytes[at + 7] ^= 1;
    fs::write(&pool, &bytes).unwrap();
    let run = tako(&["check", "--repair", &pool]);
    assert_eq!(run.code, Some(1));
    assert!(run.out.contains("repaired: ") && run.out.contains("the data does not match"));
    assert!(
        run.err.contains("1 inconsistency remains") && run.err.contains("restore the lost files")
    );
    assert!(tako(&["cat", &file]).ended(1).contains("damaged"));
}

#[test]
fn pools_that_are_no_files_are_refused() {
    let scratch = Scratch::new();
    for path in [scratch.path(""), "/dev/null".into(), "/dev/zero".into()] {
        for arguments in [
            &["info", &path][..],
            &["check", &path],
            &["ls", &format!("{path}:/")],
        ] {
            assert!(tako(arguments).ended(1).contains("not a pool"), "{path}");
        }
    }
}
