//! Changing the bytes of a pool by structure, and making checksums right afterwards.

use zerocopy::{FromBytes, IntoBytes};

use crate::BLOCK;
use crate::format::checksum::crc32c;
use crate::format::group::{LINE_BITS, LINE_CRCS, Map};
use crate::format::inode::{INODE, Inode};
use crate::format::placement::ImageLayout;
use crate::format::record::{HEADER, RecordHeader, record_checksum};
use crate::format::superblock::{RING_STATES, RingState, SUPERBLOCKS, Superblock};
use crate::format::{BLOCK_CRC, BLOCK_CRC_FROM, directory, extent, record, xattr};

/// Which structure of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PoolPart {
    /// 64 KiB of the pool by number.
    Pool = 0,
    /// A copy of the superblock.
    Superblock,
    /// A copy of the ring's state.
    RingState,
    /// The nth record in the ring.
    Record,
    /// The header of a group.
    Header,
    /// A bitmap of the first group.
    Bitmap,
    /// An inode of any kind.
    Inode,
    /// A block of the image.
    Block,
    /// The nth node of an extent tree.
    TreeNode,
    /// The nth directory leaf.
    Leaf,
    /// The nth block of extended attributes.
    Xattrs,
    /// The counts of owners of the first group.
    Owners,
}

impl PoolPart {
    const ALL: [PoolPart; 12] = {
        use PoolPart::*;
        [
            Pool, Superblock, RingState, Record, Header, Bitmap, Inode, Block, TreeNode, Leaf,
            Xattrs, Owners,
        ]
    };
}

/// Number of actions on the bytes.
const ACTIONS: u8 = 5;

/// One edit of a structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edit {
    /// Kind of the edited structure.
    pub place: PoolPart,
    /// Which one of its kind.
    pub index: u16,
    /// Offset in it, in bytes.
    pub offset: u16,
    /// Low 2 bits: log2 of the width in bytes. The others: set, xor, add, zeros (as many as the value), or copy (as
    /// many bytes as the upper half of the value, from the offset in the lower half).
    pub action: u8,
    /// Value to set, xor or add; or number of bytes to clear.
    pub value: u64,
}

impl Edit {
    /// Bytes of an encoded edit.
    pub const LENGTH: usize = 14;

    /// An edit that makes `width` (1, 2, 4 or 8) bytes have a value.
    pub fn set(place: PoolPart, index: u16, offset: usize, width: u8, value: u64) -> Edit {
        Edit {
            place,
            index,
            offset: offset as u16,
            action: width.trailing_zeros() as u8,
            value,
        }
    }

    /// Any bytes are an edit.
    pub fn decode(bytes: &[u8; Edit::LENGTH]) -> Edit {
        let [place, action, index @ .., _, _, _, _, _, _, _, _, _, _] = *bytes;
        Edit {
            place: PoolPart::ALL[place as usize % PoolPart::ALL.len()],
            index: u16::from_le_bytes(index),
            offset: u16::from_le_bytes([bytes[4], bytes[5]]),
            action,
            value: u64::from_le_bytes(bytes[6..].try_into().expect("eight bytes are left")),
        }
    }

    /// The bytes of an edit.
    pub fn encode(&self) -> [u8; Edit::LENGTH] {
        let mut bytes = [
            self.place as u8,
            self.action,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
        ];
        bytes[2..4].copy_from_slice(&self.index.to_le_bytes());
        bytes[4..6].copy_from_slice(&self.offset.to_le_bytes());
        bytes[6..].copy_from_slice(&self.value.to_le_bytes());
        bytes
    }
}

/// The bytes of a pool.
pub struct PoolBytes {
    /// All bytes of the pool.
    pub bytes: Vec<u8>,
}

impl PoolBytes {
    /// Structures with checksums that [`PoolBytes::seal`] corrects: superblocks.
    pub const SUPERBLOCKS: u8 = 1;
    /// Bit for states of the ring.
    pub const RING_STATES: u8 = 2;
    /// Records in the ring.
    pub const RECORDS: u8 = 4;
    /// Bit for headers of groups.
    pub const HEADERS: u8 = 8;
    /// Bit for lines of bitmaps.
    pub const BITMAPS: u8 = 16;
    /// Bit for the inodes.
    pub const INODES: u8 = 32;
    /// Nodes, leaves and extended attributes.
    pub const BLOCKS: u8 = 64;
    /// Bit for the data of files.
    pub const DATA: u8 = 128;

    /// Takes the bytes of a pool.
    pub fn new(bytes: Vec<u8>) -> PoolBytes {
        PoolBytes { bytes }
    }

    fn read<T: FromBytes>(&self, offset: u64) -> Option<T> {
        let offset = usize::try_from(offset).ok()?;
        T::read_from_prefix(self.bytes.get(offset..)?)
            .ok()
            .map(|(value, _)| value)
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        self.bytes[offset as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    /// The first superblock, if its geometry is possible. Its checksum may be wrong.
    pub fn superblock(&self) -> Option<Superblock> {
        let superblock: Superblock = self.read(SUPERBLOCKS[0])?;
        let right = Superblock {
            crc: superblock.checksum(),
            ..superblock
        };
        right
            .validate(self.bytes.len() as u64)
            .ok()
            .map(|()| superblock)
    }

    /// The layout, and the image's offset in the pool.
    pub fn layout(&self) -> Option<(ImageLayout, u64)> {
        let superblock = self.superblock()?;
        ImageLayout::of(&superblock).map(|layout| (layout, superblock.image_offset))
    }

    /// An inode of a pool with an intact superblock.
    pub fn inode(&self, number: u64) -> Inode {
        let (layout, base) = self.layout().expect("the superblock is whole");
        self.read(base + layout.inode(number))
            .expect("the inode is inside the pool")
    }

    /// Puts an inode, with its checksum.
    pub fn put_inode(&mut self, number: u64, mut inode: Inode) {
        let (layout, base) = self.layout().expect("the superblock is whole");
        inode.seal();
        self.write(base + layout.inode(number), inode.as_bytes());
    }

    /// Offset in the pool of the nth block of the image that begins with `magic`.
    fn block_with(&self, magic: u32, index: u16) -> Option<usize> {
        let (layout, base) = self.layout()?;
        let mut blocks = (0..layout.groups()).flat_map(|group| layout.data_blocks(group));
        let is_right = |block: &u64| self.read::<u32>(base + block * BLOCK as u64) == Some(magic);
        blocks
            .by_ref()
            .filter(is_right)
            .nth(index as usize)
            .map(|block| (base + block * BLOCK as u64) as usize)
    }

    /// Offset of a structure in the pool, and its length.
    pub fn locate(&self, place: PoolPart, index: u16) -> Option<(usize, usize)> {
        let number = u64::from(index);
        let (layout, base) = self.layout()?;
        let start = |offset: u64| (base + offset) as usize;
        Some(match place {
            PoolPart::Pool => (number as usize * 65536, 65536),
            PoolPart::Superblock => (
                SUPERBLOCKS[index as usize % 2] as usize,
                size_of::<Superblock>(),
            ),
            PoolPart::RingState => (
                RING_STATES[index as usize % 2] as usize,
                size_of::<RingState>(),
            ),
            PoolPart::Record => self.records().nth(index as usize)?,
            PoolPart::Header => (
                start(layout.header(number % layout.groups())),
                LINE_CRCS as usize + 3 * 64 * 4,
            ),
            PoolPart::Bitmap => (
                start(layout.line(0, Map::ALL[index as usize % 3], 0)),
                BLOCK,
            ),
            PoolPart::Inode => (start(layout.inode(number % layout.inodes())), INODE),
            PoolPart::Block => (start(number % layout.blocks() * BLOCK as u64), BLOCK),
            PoolPart::TreeNode => (self.block_with(extent::MAGIC, index)?, BLOCK),
            PoolPart::Leaf => (self.block_with(directory::MAGIC, index)?, BLOCK),
            PoolPart::Xattrs => (self.block_with(xattr::MAGIC, index)?, BLOCK),
            PoolPart::Owners => (
                start(layout.owners(0)),
                layout.blocks_per_group as usize * 4,
            ),
        })
    }

    /// Offsets and lengths of the records in the ring that do not go around its end.
    fn records(&self) -> impl Iterator<Item = (usize, usize)> {
        let ring = self
            .superblock()
            .map(|superblock| (superblock.ring_offset, superblock.ring_length));
        let states = RING_STATES.map(|offset| {
            self.read::<RingState>(offset)
                .map_or(0, |state| state.start)
        });
        let mut position = states[0];
        std::iter::from_fn(move || {
            let (offset, length) = ring?;
            let at = offset + position % length;
            let header: RecordHeader = self.read(at)?;
            let end = at + u64::from(header.length);
            let is_whole = header.magic == record::MAGIC
                && header.number == position
                && header.length as usize >= HEADER
                && end <= offset + length;
            position = position.wrapping_add(u64::from(header.length));
            is_whole.then_some((at as usize, header.length as usize))
        })
    }

    /// Applies an edit; one that lies outside of the pool does nothing.
    pub fn apply(&mut self, edit: &Edit) {
        let Some((start, length)) = self.locate(edit.place, edit.index) else {
            return;
        };
        let (at, width) = (
            start + edit.offset as usize % length,
            1 << (edit.action & 3),
        );
        match (edit.action >> 2) % ACTIONS {
            3 => self
                .bytes
                .iter_mut()
                .skip(at)
                .take(edit.value as usize % (length + 1))
                .for_each(|byte| *byte = 0),
            4 => self.copy(at, edit.value),
            action => {
                let Some(bytes) = self.bytes.get_mut(at..at + width) else {
                    return;
                };
                let mut old = [0; 8];
                old[..width].copy_from_slice(bytes);
                let old = u64::from_le_bytes(old);
                let new =
                    [edit.value, old ^ edit.value, old.wrapping_add(edit.value)][action as usize];
                bytes.copy_from_slice(&new.to_le_bytes()[..width]);
            }
        }
    }

    fn copy(&mut self, to: usize, value: u64) {
        let (from, length) = (value as u32 as usize, (value >> 32) as usize % (BLOCK + 1));
        let end = from.saturating_add(length);
        if end <= self.bytes.len() && to + length <= self.bytes.len() {
            self.bytes.copy_within(from..end, to);
        }
    }

    /// Makes the checksums of the chosen kinds of structures right.
    pub fn seal(&mut self, kinds: u8) {
        if kinds & Self::SUPERBLOCKS != 0 {
            for offset in SUPERBLOCKS {
                let superblock: Option<Superblock> = self.read(offset);
                self.write_if(
                    offset,
                    superblock.map(|it| Superblock {
                        crc: it.checksum(),
                        ..it
                    }),
                );
            }
        }
        if kinds & Self::RING_STATES != 0 {
            for offset in RING_STATES {
                let state: Option<RingState> = self.read(offset);
                self.write_if(
                    offset,
                    state.map(|it| RingState {
                        crc: it.checksum(),
                        ..it
                    }),
                );
            }
        }
        if kinds & Self::RECORDS != 0 {
            for (offset, length) in self.records().collect::<Vec<_>>() {
                let Some(header) = self.read::<RecordHeader>(offset as u64) else {
                    continue;
                };
                let record = &self.bytes[offset..offset + length];
                let crc = record_checksum(&header, record);
                self.write_if(offset as u64, crc.map(|crc| RecordHeader { crc, ..header }));
            }
        }
        let Some((layout, base)) = self.layout() else {
            return;
        };
        for group in 0..layout.groups() {
            self.seal_group(&layout, base, group, kinds);
        }
    }

    fn write_if<T: IntoBytes + zerocopy::Immutable>(&mut self, offset: u64, value: Option<T>) {
        if let Some(value) = value {
            self.write(offset, value.as_bytes());
        }
    }

    fn seal_group(&mut self, layout: &ImageLayout, base: u64, group: u64, kinds: u8) {
        let header = base + layout.header(group);
        let crc = |pool: &PoolBytes, from: u64, length: usize| {
            crc32c(&pool.bytes[from as usize..][..length])
        };
        if kinds & Self::HEADERS != 0 {
            let crc = crc(
                self,
                header + BLOCK_CRC_FROM as u64,
                LINE_CRCS as usize - BLOCK_CRC_FROM,
            );
            self.write(header + BLOCK_CRC as u64, crc.as_bytes());
        }
        if kinds & Self::BITMAPS != 0 {
            for map in Map::ALL {
                for line in 0..BLOCK * 8 / LINE_BITS as usize {
                    let target = layout.line(group, map, line);
                    let crc = crc(self, base + target, LINE_BITS as usize / 8);
                    let to = layout
                        .line_crc(target)
                        .expect("a bitmap line has a checksum");
                    self.write(base + to, crc.as_bytes());
                }
            }
        }
        if kinds & Self::INODES != 0 {
            for number in group * layout.inodes_per_group..(group + 1) * layout.inodes_per_group {
                let inode: Option<Inode> = self.read(base + layout.inode(number));
                let used = inode.filter(|inode| *inode != Inode::FREE);
                let sealed = used.map(|mut inode| {
                    inode.seal();
                    inode
                });
                self.write_if(base + layout.inode(number), sealed);
            }
        }
        for block in layout.data_blocks(group) {
            let start = base + block * BLOCK as u64;
            let magic: Option<u32> = self.read(start);
            if kinds & Self::BLOCKS != 0
                && magic
                    .is_some_and(|it| [extent::MAGIC, directory::MAGIC, xattr::MAGIC].contains(&it))
            {
                let crc = crc(self, start + BLOCK_CRC_FROM as u64, BLOCK - BLOCK_CRC_FROM);
                self.write(start + BLOCK_CRC as u64, crc.as_bytes());
            }
            if kinds & Self::DATA != 0 {
                let crc = crc(self, start, BLOCK);
                self.write(base + layout.data_crc(block), crc.as_bytes());
            }
        }
    }
}
