//! `docs/LAYOUT.md` against the code: every offset, size and constant in its tables.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::mem::offset_of;

use store::format::record::{Kind, Operations, RecordOperation, encode};
use store::format::{directory, extent, group, inode, record, superblock, xattr};
use zerocopy::IntoBytes;

const DOCUMENT: &str = include_str!("../../../docs/LAYOUT.md");

/// A structure of the code: its size, and its fields as (name, offset, size).
struct Structure {
    size: usize,
    fields: Vec<(&'static str, usize, usize)>,
}

/// The size of the field that `field` reads.
fn size_of_field<T, F>(_: fn(&T) -> &F) -> usize {
    size_of::<F>()
}

/// All fields of a structure. It does not compile with one missing: the pattern names them all.
macro_rules! structure {
    ($module:ident :: $type:ident { $($field:ident),+ $(,)? }) => {{
        fn _complete(value: $module::$type) {
            let $module::$type { $($field: _),+ } = value;
        }
        let structure = Structure {
            size: size_of::<$module::$type>(),
            fields: vec![$((
                stringify!($field),
                offset_of!($module::$type, $field),
                size_of_field(|value: &$module::$type| &value.$field),
            )),+],
        };
        (concat!(stringify!($module), "::", stringify!($type)), structure)
    }};
}

fn structures() -> BTreeMap<&'static str, Structure> {
    pool_structures()
        .into_iter()
        .chain(file_structures())
        .collect()
}

/// Structures of the pool and its changes.
fn pool_structures() -> Vec<(&'static str, Structure)> {
    vec![
        structure!(superblock::Superblock {
            magic,
            crc,
            version,
            compatible,
            read_only_compatible,
            incompatible,
            pool,
            unit,
            cluster,
            pool_length,
            ring_offset,
            ring_length,
            image_offset,
            image_length,
            blocks_per_group,
            inodes_per_group,
            reserved_blocks,
            created_ns,
            hash_key,
        }),
        structure!(superblock::RingState {
            crc,
            epoch,
            start,
            reserved
        }),
        structure!(record::RecordHeader {
            magic,
            crc,
            number,
            epoch,
            length,
            checked,
            reserved
        }),
        structure!(record::Touch { inode, time_ns }),
        structure!(group::GroupHeader {
            magic,
            crc,
            group,
            reserved,
            line_crcs
        }),
    ]
}

fn inode_structure() -> (&'static str, Structure) {
    structure!(inode::Inode {
        crc,
        stamp_crc,
        version,
        modified_ns,
        changed_ns,
        size,
        blocks,
        entries,
        links,
        mode,
        rest_crc,
        uid,
        gid,
        project,
        created_ns,
        flags,
        depth,
        count,
        device,
        generation,
        parent,
        attributes,
        accessed_ns,
        root,
    })
}

/// Structures of files and names.
fn file_structures() -> Vec<(&'static str, Structure)> {
    vec![
        inode_structure(),
        structure!(extent::Extent {
            logical,
            physical,
            length,
            class,
            encoding,
            flags,
            birth
        }),
        structure!(extent::NodeHeader {
            magic,
            crc,
            owner,
            block,
            level,
            count,
            generation,
            reserved
        }),
        structure!(directory::LeafHeader {
            magic,
            crc,
            owner,
            block,
            logical,
            depth,
            count,
            heap,
            dead,
            generation,
            reserved,
            padding,
        }),
        structure!(xattr::XattrHeader {
            magic,
            crc,
            owner,
            block,
            count,
            end,
            generation,
            reserved
        }),
        structure!(xattr::XattrEntry {
            name_length,
            reserved,
            value_length
        }),
        structure!(directory::Slot { tag, offset }),
        structure!(directory::EntryHeader {
            key,
            number,
            generation,
            unit,
            kind,
            name_length,
            reserved
        }),
    ]
}

fn constants() -> BTreeMap<&'static str, String> {
    pool_constants()
        .into_iter()
        .chain(image_constants())
        .collect()
}

fn pool_constants() -> Vec<(&'static str, String)> {
    let number = |value: u64| value.to_string();
    let size = |value: usize| value.to_string();
    let pair = |values: [u64; 2]| format!("{}, {}", values[0], values[1]);
    vec![
        ("superblock::VERSION", number(superblock::VERSION.into())),
        ("superblock::MAGIC", letters(&superblock::MAGIC)),
        ("superblock::SUPERBLOCKS", pair(superblock::SUPERBLOCKS)),
        ("superblock::RING_STATES", pair(superblock::RING_STATES)),
        ("superblock::RING_OFFSET", number(superblock::RING_OFFSET)),
        (
            "superblock::FEATURE_DATA_CHECKSUMS",
            number(superblock::FEATURE_DATA_CHECKSUMS),
        ),
        (
            "superblock::FEATURE_METADATA_ONLY",
            number(superblock::FEATURE_METADATA_ONLY),
        ),
        (
            "superblock::COMPATIBLE_KNOWN",
            number(superblock::COMPATIBLE_KNOWN),
        ),
        (
            "superblock::READ_ONLY_COMPATIBLE_KNOWN",
            number(superblock::READ_ONLY_COMPATIBLE_KNOWN),
        ),
        (
            "superblock::INCOMPATIBLE_KNOWN",
            number(superblock::INCOMPATIBLE_KNOWN),
        ),
        ("BLOCK", size(store::BLOCK)),
        ("ROOT", number(store::ROOT)),
        ("SYSTEM", number(store::SYSTEM)),
    ]
}

fn image_constants() -> Vec<(&'static str, String)> {
    let number = |value: u64| value.to_string();
    let size = |value: usize| value.to_string();
    let magic = |value: u32| letters(&value.to_le_bytes());
    vec![
        ("record::MAGIC", magic(record::MAGIC)),
        ("record::ALIGN", size(record::ALIGN)),
        ("record::HEADER", size(record::HEADER)),
        ("record::TOUCH", size(record::TOUCH)),
        ("record::OPERATION", size(record::OPERATION)),
        ("record::PAYLOAD_MAX", size(record::PAYLOAD_MAX)),
        ("record::PARTS_MAX", size(record::PARTS_MAX)),
        ("record::EDIT_MAX", size(record::EDIT_MAX)),
        ("group::MAGIC", magic(group::MAGIC)),
        ("group::LINE_BITS", number(group::LINE_BITS.into())),
        ("group::LINES_MAX", size(group::LINES_MAX)),
        ("group::LINE_CRCS", number(group::LINE_CRCS)),
        ("group::OWNERS_MAX", number(group::OWNERS_MAX.into())),
        ("group::Map::Blocks", number(group::Map::Blocks as u64)),
        ("group::Map::Inodes", number(group::Map::Inodes as u64)),
        ("group::Map::Orphans", number(group::Map::Orphans as u64)),
        ("inode::INODE", size(inode::INODE)),
        ("inode::FIRST_LINE", size(inode::FIRST_LINE)),
        ("inode::STAMP_END", size(inode::STAMP_END)),
        ("inode::ROOT_ENTRIES", size(inode::ROOT_ENTRIES)),
        ("inode::FLAG_GRANT", number(inode::FLAG_GRANT.into())),
        (
            "inode::FLAG_IMMUTABLE",
            number(inode::FLAG_IMMUTABLE.into()),
        ),
        (
            "inode::FLAG_APPEND_ONLY",
            number(inode::FLAG_APPEND_ONLY.into()),
        ),
        ("inode::INLINE_TARGET_MAX", size(inode::INLINE_TARGET_MAX)),
        ("extent::MAGIC", magic(extent::MAGIC)),
        ("extent::ENTRIES", size(extent::ENTRIES)),
        ("extent::NODE_ENTRIES", size(extent::NODE_ENTRIES)),
        ("extent::UNWRITTEN", number(extent::UNWRITTEN.into())),
        ("extent::SHARED", number(extent::SHARED.into())),
        ("extent::DEPTH_MAX", number(extent::DEPTH_MAX.into())),
        ("xattr::MAGIC", magic(xattr::MAGIC)),
        ("xattr::ENTRIES", size(xattr::ENTRIES)),
        ("xattr::ENTRY", size(xattr::ENTRY)),
        ("directory::MAGIC", magic(directory::MAGIC)),
        ("directory::SLOTS", size(directory::SLOTS)),
        ("directory::SLOT", size(directory::SLOT)),
        ("directory::ENTRY", size(directory::ENTRY)),
        (
            "directory::DISCRIMINATOR_BITS",
            number(directory::DISCRIMINATOR_BITS.into()),
        ),
        ("directory::HASH_BITS", number(directory::HASH_BITS.into())),
        (
            "directory::PREFIX_BITS",
            number(directory::PREFIX_BITS.into()),
        ),
    ]
}

fn letters(bytes: &[u8]) -> String {
    format!("`{}`", String::from_utf8_lossy(bytes))
}

/// The cells of a line that is a row of a table.
fn cells(line: &str) -> Option<Vec<&str>> {
    let row = line.strip_prefix('|')?.strip_suffix('|')?;
    Some(row.split('|').map(str::trim).collect())
}

fn name(cell: &str) -> Option<&str> {
    cell.strip_prefix('`')?.strip_suffix('`')
}

#[test]
fn structures_are_as_drawn() {
    let mut drawn = BTreeSet::new();
    let structures = structures();
    let mut lines = DOCUMENT.lines();
    while let Some(line) = lines.next() {
        let Some(title) = line
            .strip_prefix("<!-- table: ")
            .and_then(|rest| rest.strip_suffix(" -->"))
        else {
            continue;
        };
        let structure = structures
            .get(title)
            .unwrap_or_else(|| panic!("the document draws {title}, which the code has not"));
        let (mut fields, mut end) = (Vec::new(), 0);
        let size = loop {
            let line = lines.next().expect("each table has an end");
            let size = line
                .strip_prefix("<!-- end: ")
                .and_then(|rest| rest.strip_suffix(" -->"));
            if let Some(size) = size {
                break size.parse::<usize>().expect("the size is a number");
            }
            let row = cells(line).unwrap_or_else(|| panic!("{line:?} is no row of {title}"));
            let Some(field) = row.get(2).and_then(|cell| name(cell)) else {
                continue;
            };
            let [offset, size] =
                [row[0], row[1]].map(|cell| cell.parse::<usize>().expect("a number"));
            assert_eq!(offset, end, "there is a gap before {title}.{field}");
            end = offset + size;
            fields.push((field, offset, size));
        };
        assert_eq!(fields, structure.fields, "the fields of {title}");
        assert_eq!((size, end), (structure.size, size), "the size of {title}");
        assert!(drawn.insert(title), "{title} is drawn twice");
    }
    let known: BTreeSet<_> = structures.into_keys().collect();
    assert_eq!(drawn, known, "the document draws every structure");
}

#[test]
fn constants_are_as_listed() {
    let constants = constants();
    let mut listed = BTreeMap::new();
    let mut is_list = false;
    for line in DOCUMENT.lines() {
        match cells(line) {
            Some(row) if row[0] == "constant" => is_list = true,
            Some(row) if is_list => {
                if let Some(constant) = name(row[0]) {
                    let before = listed.insert(constant, row[1].to_string());
                    assert_eq!(before, None, "{constant} is listed twice");
                }
            }
            Some(_) => {}
            None => is_list = false,
        }
    }
    assert_eq!(listed, constants);
}

/// The header of an operation is private to its module: the encoding is compared.
#[test]
fn operations_are_encoded_as_listed() {
    let kinds = [
        Kind::Bytes,
        Kind::Zero,
        Kind::Inode,
        Kind::Data,
        Kind::Extent,
        Kind::Line,
        Kind::Block,
        Kind::Edit,
    ];
    let table = DOCUMENT
        .split_once("<!-- kinds -->")
        .and_then(|(_, rest)| rest.split_once("<!-- end -->"))
        .expect("the table of kinds")
        .0;
    let listed: Vec<(String, String)> = table
        .lines()
        .filter_map(cells)
        .filter_map(|row| Some((name(row[0])?.to_string(), row[1].to_string())))
        .collect();
    let known: Vec<_> = kinds
        .iter()
        .map(|kind| (format!("{kind:?}"), (*kind as u8).to_string()))
        .collect();
    assert_eq!(listed, known);
    for number in 0..=127 {
        let kind = kinds.iter().find(|kind| **kind as u8 == number);
        let is_known = kind.is_some();
        assert_eq!(known_number(number), is_known, "kind {number}");
        let may_touch = matches!(kind, Some(Kind::Bytes | Kind::Data | Kind::Block));
        assert_eq!(
            known_number(number | 128),
            may_touch,
            "{number} with a touch"
        );
    }

    let mut body = Vec::new();
    let payload = [7, 8, 9];
    let operation = RecordOperation {
        kind: Kind::Data,
        target: 0x1122_3344_5566_0000,
        length: 3,
        crc: 0xaabb_ccdd,
        touch: None,
        payload: &payload,
    };
    encode(&mut body, &operation);
    assert_eq!(
        body.len(),
        record::OPERATION + 8,
        "payloads are padded to 8"
    );
    assert_eq!(body[0], Kind::Data as u8);
    assert_eq!(body[1..4], [3, 0, 0]);
    assert_eq!(body[4..8], 0xaabb_ccddu32.to_le_bytes());
    assert_eq!(body[8..16], 0x1122_3344_5566_0000u64.to_le_bytes());
    assert_eq!(body[16..24], [7, 8, 9, 0, 0, 0, 0, 0]);
    let operations: Vec<Option<RecordOperation<'_>>> =
        Operations::of(&body, &[], u64::MAX).collect();
    assert!(matches!(&operations[..], [Some(only)] if only.payload == payload));
}

/// A record of one operation that touches an inode is its first line and the data.
#[test]
fn a_touch_is_between_the_operation_and_its_payload() {
    let touch = record::Touch {
        inode: 0x0102_0304_0506_0708,
        time_ns: -2,
    };
    let operation = RecordOperation {
        kind: Kind::Data,
        target: 4000,
        length: 64,
        crc: 5,
        touch: Some(touch),
        payload: &[9; 64],
    };
    let header = record::RecordHeader {
        magic: record::MAGIC,
        crc: 1,
        number: 64,
        epoch: 2,
        length: 128,
        checked: 128,
        reserved: 0,
    };
    let mut bytes = header.as_bytes().to_vec();
    encode(&mut bytes, &operation);
    assert_eq!(bytes[record::HEADER], Kind::Data as u8 | 128);
    assert_eq!(bytes[48..56], touch.inode.to_le_bytes());
    assert_eq!(bytes[56..64], touch.time_ns.to_le_bytes());
    assert_eq!(bytes[64..], [9; 64]);
    let operations: Vec<_> = Operations::new(&bytes, u64::MAX).collect();
    assert_eq!(operations, [Some(operation)]);
}

fn known_number(kind: u8) -> bool {
    // One byte, a line, a block: each kind takes one of these lengths.
    [[1, 0], [64, 0], [0, 16]].into_iter().any(|length| {
        let mut head = [0; record::OPERATION + record::TOUCH];
        head[0] = kind;
        head[1..3].copy_from_slice(&length);
        record::parse_head(&head, u64::MAX).is_some()
    })
}

/// Coverage of each checksum, compared with the document.
#[test]
fn checksums_cover_what_is_said() {
    use store::format::{BLOCK_CRC, BLOCK_CRC_FROM};
    let header = "`crc` | covers the bytes 8..4096 of the block |";
    assert_eq!(
        DOCUMENT.matches(header).count(),
        3,
        "nodes, leaves, attributes"
    );
    let places = [
        offset_of!(extent::NodeHeader, crc),
        offset_of!(directory::LeafHeader, crc),
        offset_of!(xattr::XattrHeader, crc),
    ];
    assert_eq!((places, BLOCK_CRC_FROM), ([BLOCK_CRC; 3], 8));

    let mut inode = inode::Inode::FREE;
    inode.seal();
    assert!(inode.is_intact());
    let unchanged = inode;
    inode.version = 1;
    assert!(!inode.is_intact(), "the bytes 8..32");
    inode.seal();
    let stamp_crc = inode.stamp_crc;
    assert_ne!(stamp_crc, unchanged.stamp_crc);
    assert_eq!(
        (inode.crc, inode.rest_crc),
        (unchanged.crc, unchanged.rest_crc),
        "a write changes no more"
    );
    inode.size = 1;
    assert!(!inode.is_intact(), "the bytes 32..64");
    inode.seal();
    assert_eq!(
        (inode.stamp_crc, inode.rest_crc),
        (stamp_crc, unchanged.rest_crc)
    );
    inode.uid = 1;
    assert!(!inode.is_intact(), "the bytes 68..256");
    inode.rest_crc = inode.rest_checksum();
    assert!(!inode.is_intact(), "both in one");
    inode.seal();
    assert!(inode.is_intact());

    let record = [7; 64];
    let contents = record::contents_checksum(&record);
    assert_eq!(
        contents,
        record::contents_checksum(&[&[8; 16][..], &record[16..]].concat())
    );
    assert_eq!(record::with_number(contents, 3 << 6), contents ^ 3);

    let mut state = superblock::RingState::new(1, 64);
    assert!(state.is_valid());
    state.reserved[5] = 1;
    assert!(!state.is_valid(), "the bytes 4..64");
}
