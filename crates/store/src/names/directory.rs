//! Names in a directory: leaves of hashed entries, found through the directory's extent tree.

use std::hash::Hasher;

use siphasher::sip::SipHasher13;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::BLOCK;
use crate::error::{Error, Result};
use crate::format::directory::*;
use crate::format::inode::Inode;
use crate::image::allocator::Run;
use crate::image::change::Change;
use crate::image::edit::Contents;
use crate::image::{Block, Image};
use crate::inode::tree::{Lookup, Tree};
use crate::{Entry, FileKind};

const WHAT: &str = "a directory leaf";
/// Cookies of what comes before the first stored entry: after `.` and after `..`.
const COOKIE_DOT: u64 = 1;
const COOKIE_DOT_DOT: u64 = 2;

/// Bytes of a leaf that are fetched at once: the header, and most slots of one that is half full.
const FETCHED: usize = 256;

/// Where a name leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Number of the inode.
    pub number: u64,
    /// Generation of the inode.
    pub generation: u32,
    /// Kind of the inode.
    pub kind: FileKind,
}

/// A stored entry: its slot, its place in the leaf, and itself.
#[derive(Clone, Copy, Debug)]
struct Found {
    slot: usize,
    offset: usize,
    entry: EntryHeader,
}

/// Where a name is stored, and where it leads. Right as long as nothing changes the directory.
#[derive(Clone, Copy, Debug)]
pub struct Stored {
    /// Inode that the name refers to.
    pub target: Target,
    block: u64,
    logical: u64,
    found: Found,
}

/// Hash of a name under the pool's key: [`HASH_BITS`] bits.
pub fn hash_name(key: &[u8; 16], name: &[u8]) -> u64 {
    let mut hasher = SipHasher13::new_with_key(key);
    hasher.write(name);
    hasher.finish() >> (64 - HASH_BITS)
}

/// The bits of a hash that choose the leaf.
pub fn prefix(hash: u64) -> u64 {
    hash >> (HASH_BITS - PREFIX_BITS)
}

fn tag(hash: u64) -> u16 {
    hash as u16
}

/// Whether a name is valid in a directory.
pub fn check_name(name: &[u8]) -> Result<()> {
    match name {
        b"" | b"." | b".." => Err(Error::InvalidArgument(
            "names must not be empty, `.` or `..`",
        )),
        _ if name.len() > crate::NAME_LENGTH_MAX => Err(Error::NameTooLong),
        _ if name
            .iter()
            .fold(false, |bad, byte| bad | (*byte == b'/') | (*byte == 0)) =>
        {
            Err(Error::InvalidArgument("names have no `/` and no NUL"))
        }
        _ => Ok(()),
    }
}

/// The leaf's header if the whole leaf can be right.
pub fn parse_leaf(contents: &Block) -> Option<LeafHeader> {
    let (header, _) = LeafHeader::read_from_prefix(contents).ok()?;
    let slots_end = SLOTS + header.count as usize * SLOT;
    let span = 1u64.checked_shl(PREFIX_BITS.checked_sub(u32::from(header.depth))?)?;
    let plausible = header.logical < 1 << PREFIX_BITS
        && header.logical.is_multiple_of(span)
        && slots_end <= header.heap as usize
        && header.heap as usize <= BLOCK;
    let live: usize = (0..header.count as usize)
        .map(|slot| {
            let slot: Slot = read_at(contents, SLOTS + slot * SLOT)?;
            let offset = slot.offset as usize;
            let entry: EntryHeader = read_at(contents, offset)?;
            let length = entry.name_length as usize;
            let name = contents.get(offset + ENTRY..offset + ENTRY + length)?;
            let hash = entry.key >> DISCRIMINATOR_BITS;
            let right = offset >= header.heap as usize
                && offset.is_multiple_of(8)
                && check_name(name).is_ok()
                && FileKind::from_bits(u32::from(entry.kind) << 12).is_some()
                && hash < 1 << HASH_BITS
                && slot.tag == tag(hash)
                && prefix(hash) & !(span - 1) == header.logical;
            right.then(|| entry_size(length))
        })
        .sum::<Option<usize>>()
        .filter(|_| plausible)?;
    (header.heap as usize + live + header.dead as usize == BLOCK).then_some(header)
}

fn read_at<T: FromBytes>(contents: &Block, offset: usize) -> Option<T> {
    T::read_from_bytes(contents.get(offset..offset + size_of::<T>())?).ok()
}

/// Entries of a (valid) leaf, in the order of their slots.
pub fn leaf_entries(contents: &Block) -> impl Iterator<Item = (EntryHeader, &[u8])> {
    let count = u16::from_le_bytes([contents[34], contents[35]]) as usize;
    (0..count).filter_map(|slot| {
        let slot: Slot = read_at(contents, SLOTS + slot * SLOT)?;
        let entry: EntryHeader = read_at(contents, slot.offset as usize)?;
        let name = slot.offset as usize + ENTRY;
        Some((
            entry,
            contents.get(name..name + entry.name_length as usize)?,
        ))
    })
}

/// A directory for reading.
pub struct Reader<'a> {
    /// Image that holds the directory.
    pub image: &'a Image,
    /// The directory's inode number.
    pub number: u64,
    /// Inode of the directory.
    pub inode: &'a Inode,
}

impl<'a> Reader<'a> {
    fn tree(&self) -> Lookup<'a> {
        Lookup::new(self.image, self.number, self.inode)
    }

    /// The verified leaf for a hash prefix, and its logical block.
    fn leaf(&self, prefix: u64) -> Result<Option<(u64, u64)>> {
        let Some(extent) = self.tree().floor(prefix)? else {
            return Ok(None);
        };
        // Neighbouring leaves can share an extent when their blocks are neighbours too.
        let logical = prefix.min(extent.end() - 1);
        let block = extent.physical + (logical - extent.logical);
        self.image.prefetch(block * BLOCK as u64, FETCHED);
        verify(self.image, self.number, block, logical)?;
        Ok(Some((block, logical)))
    }

    /// Looks a name up.
    pub fn find(&self, hash: u64, name: &[u8]) -> Result<Option<Stored>> {
        let Some((block, logical)) = self.leaf(prefix(hash))? else {
            return Ok(None);
        };
        let leaf = Contents::new(self.image, block, None);
        let Some(found) = Search::new(leaf, shape(leaf), hash, name).found else {
            return Ok(None);
        };
        Ok(Some(Stored {
            target: target(&found.entry, block)?,
            block,
            logical,
            found,
        }))
    }

    /// Room for a name in the leaf where it belongs, `None` when there is none; [`Error::Exists`] when it is there.
    pub fn room(&self, hash: u64, name: &[u8]) -> Result<Option<Room>> {
        match self.leaf(prefix(hash))? {
            Some((block, _)) => {
                Room::find(Contents::new(self.image, block, None), block, hash, name)
            }
            None => Ok(None),
        }
    }

    /// Visits the entries after `cookie` in the order of their keys, `.` and `..` first, until `visit` returns false.
    pub fn read(&self, cookie: u64, visit: &mut dyn FnMut(&Entry) -> bool) -> Result<()> {
        let dots = [
            (COOKIE_DOT, &b"."[..], self.number),
            (COOKIE_DOT_DOT, b"..", self.inode.parent),
        ];
        for (position, name, number) in dots {
            let entry = Entry {
                name: name.to_vec(),
                number,
                kind: FileKind::Directory,
                cookie: position,
            };
            if cookie < position && !visit(&entry) {
                return Ok(());
            }
        }
        // Keys above this one; the cookie of an entry is its key + 3.
        let mut from = cookie.saturating_sub(COOKIE_DOT_DOT);
        let mut contents = [0; BLOCK];
        while let Some((block, logical)) = self.leaf(prefix(from >> DISCRIMINATOR_BITS))? {
            self.image.read_block(block, &mut contents);
            let mut entries: Vec<_> = leaf_entries(&contents)
                .filter(|(entry, _)| entry.key >= from)
                .collect();
            entries.sort_unstable_by_key(|(entry, _)| entry.key);
            for (entry, name) in entries {
                let target = target(&entry, block)?;
                let cookie = entry.key + COOKIE_DOT_DOT + 1;
                if !visit(&Entry {
                    name: name.to_vec(),
                    number: target.number,
                    kind: target.kind,
                    cookie,
                }) {
                    return Ok(());
                }
            }
            let Some(next) = self.tree().holding_or_after(logical + 1)? else {
                return Ok(());
            };
            let block = next.physical;
            let next = next.logical.max(logical + 1);
            // Keys have no more bits: it would restart, and never end.
            if next >= 1 << PREFIX_BITS {
                return Err(Error::Corrupt { what: WHAT, block });
            }
            from = next << (HASH_BITS - PREFIX_BITS + DISCRIMINATOR_BITS);
        }
        Ok(())
    }
}

/// Whether a block is the directory's leaf at a logical block.
fn verify(image: &Image, directory: u64, block: u64, logical: u64) -> Result<()> {
    if !image.is_verified(block) {
        let mut contents = [0; BLOCK];
        image.metadata(block, WHAT, MAGIC, &mut contents)?;
        parse_leaf(&contents).ok_or(Error::Corrupt { what: WHAT, block })?;
        image.set_verified(block);
    }
    let leaf = Contents::new(image, block, None);
    if [leaf.word(OWNER), leaf.word(LOGICAL)] == [directory, logical] {
        Ok(())
    } else {
        Err(Error::Corrupt { what: WHAT, block })
    }
}

/// Target of an entry; media may contain any value.
fn target(entry: &EntryHeader, block: u64) -> Result<Target> {
    let kind = FileKind::from_bits(u32::from(entry.kind) << 12)
        .ok_or(Error::Corrupt { what: WHAT, block })?;
    Ok(Target {
        number: entry.number,
        generation: entry.generation,
        kind,
    })
}

/// Fields of a leaf's header that change with its names.
fn shape(leaf: Contents<'_>) -> Shape {
    zerocopy::transmute!(leaf.word(SHAPE))
}

/// Most slots in a leaf: each has an entry with a name of at least one byte.
const SLOTS_MAX: usize = (BLOCK - SLOTS) / (SLOT + entry_size(1));
/// Slots that are compared at once.
const SLOTS_AT_ONCE: usize = 16;
/// Puts a value into both halves of a word.
const TWICE: u64 = 1 << 32 | 1;

/// Entry of a leaf for a name and its hash.
struct Search {
    /// Entry with the name, if the leaf has one.
    found: Option<Found>,
    /// One bit for each discriminator that a name of the hash has.
    taken: u128,
}

impl Search {
    fn new(leaf: Contents<'_>, shape: Shape, hash: u64, name: &[u8]) -> Search {
        let mut search = Search {
            found: None,
            taken: 0,
        };
        let count = (shape.count as usize).min(SLOTS_MAX);
        let mut words = [0u64; SLOTS_MAX.next_multiple_of(SLOTS_AT_ONCE) / 2];
        leaf.copy(SLOTS, &mut words.as_mut_bytes()[..count * SLOT]);
        let wanted = u64::from(tag(hash)) * TWICE;
        // Almost always no: this checks some of them, two in a word, without a branch. Only from a difference of zero,
        // or after one, does the subtraction borrow.
        let borrows =
            |word: &u64| ((word ^ wanted) & (0xffff * TWICE)).wrapping_sub(TWICE) & (TWICE << 31);
        for (index, some) in words[..count.div_ceil(2)]
            .chunks(SLOTS_AT_ONCE / 2)
            .enumerate()
        {
            if some.iter().fold(0, |all, word| all | borrows(word)) == 0 {
                continue;
            }
            let first = index * SLOTS_AT_ONCE;
            for slot in first..count.min(first + SLOTS_AT_ONCE) {
                let word = words[slot / 2] >> (slot % 2 * 32);
                if word as u16 == tag(hash) {
                    search.look_at(leaf, slot, (word >> 16) as u16 as usize, hash, name);
                }
            }
            if search.found.is_some() {
                break;
            }
        }
        search
    }

    fn look_at(&mut self, leaf: Contents<'_>, slot: usize, offset: usize, hash: u64, name: &[u8]) {
        let mut bytes = [0; ENTRY];
        leaf.copy(offset, &mut bytes);
        let entry: EntryHeader = zerocopy::transmute!(bytes);
        if entry.key >> DISCRIMINATOR_BITS != hash {
            return;
        }
        let discriminator = entry.key as u16;
        self.taken |= 1u128.checked_shl(discriminator.into()).unwrap_or(0);
        if entry.name_length as usize == name.len() && is_stored(leaf, offset + ENTRY, name) {
            self.found = Some(Found {
                slot,
                offset,
                entry,
            });
        }
    }

    /// A number that no other name of the hash has. There are more bits than slots.
    fn free_discriminator(&self) -> u64 {
        self.taken.trailing_ones().into()
    }
}

/// The word that a slot is in, and its lowest bit there.
fn slot_place(index: usize) -> (usize, usize) {
    (SLOTS + index / 2 * 2 * SLOT, index % 2 * 8 * SLOT)
}

/// Whether the bytes at a multiple of 8 are those of the name.
fn is_stored(leaf: Contents<'_>, at: usize, name: &[u8]) -> bool {
    let (words, rest) = name.as_chunks::<8>();
    let stored = |index: usize| leaf.word(at + 8 * index).to_le_bytes();
    words
        .iter()
        .enumerate()
        .all(|(index, word)| stored(index) == *word)
        && (rest.is_empty() || stored(words.len())[..rest.len()] == *rest)
}

/// Room for a name that is not there yet.
pub struct Room {
    block: u64,
    shape: Shape,
    key: u64,
}

impl Room {
    /// The room in this leaf, `None` when it is too full; [`Error::Exists`] when the name is there already.
    fn find(leaf: Contents<'_>, block: u64, hash: u64, name: &[u8]) -> Result<Option<Room>> {
        let shape = shape(leaf);
        // The lines where the entry will begin and end, which are to be checksummed as they are.
        for from_heap in [entry_size(name.len()), 1] {
            leaf.prefetch((shape.heap as usize).saturating_sub(from_heap));
        }
        let search = Search::new(leaf, shape, hash, name);
        if search.found.is_some() {
            return Err(Error::Exists);
        }
        let has_room = shape.gap() >= entry_size(name.len()) + SLOT;
        Ok(has_room.then(|| Room {
            block,
            shape,
            key: hash << DISCRIMINATOR_BITS | search.free_discriminator(),
        }))
    }
}

/// A directory being changed. The caller holds its lock and puts the inode into the change.
pub struct Writer<'a, 's> {
    /// The change that carries it.
    pub change: &'a mut Change<'s>,
    /// The directory's inode number.
    pub number: u64,
    /// Inode of the directory.
    pub inode: &'a mut Inode,
}

impl<'s> Writer<'_, 's> {
    fn tree(&mut self) -> Tree<'_, 's> {
        Tree::new(self.change, self.number, self.inode)
    }

    /// The leaf for a hash, verified, as block and logical block. Sees leaves that this change made.
    fn leaf(&mut self, hash: u64) -> Result<Option<(u64, u64)>> {
        let prefix = prefix(hash);
        let Some(extent) = self.tree().lookup().floor(prefix)? else {
            return Ok(None);
        };
        let logical = prefix.min(extent.end() - 1);
        let block = extent.physical + (logical - extent.logical);
        if !self.change.is_edited(block) {
            verify(self.change.image(), self.number, block, logical)?;
        }
        Ok(Some((block, logical)))
    }

    fn shape(&self, block: u64) -> Shape {
        shape(self.change.contents(block))
    }

    fn put_shape(&mut self, block: u64, shape: Shape) {
        self.change.put_value(block, SHAPE, &shape);
    }

    fn new_leaf(&mut self, logical: u64, depth: u16) -> Result<u64> {
        let block = self.change.allocate_metadata()?;
        let header = LeafHeader {
            magic: MAGIC,
            owner: self.number,
            block,
            logical,
            depth,
            heap: BLOCK as u16,
            generation: self.inode.generation,
            ..LeafHeader::new_zeroed()
        };
        self.change.put_value(block, 0, &header);
        self.tree().add(logical, Run { block, length: 1 })?;
        self.inode.size = self.inode.size.saturating_add(BLOCK as u64);
        Ok(block)
    }

    /// Adds a name; [`Error::Exists`] when it is there already.
    pub fn insert(&mut self, hash: u64, name: &[u8], target: Target) -> Result<()> {
        loop {
            let (block, logical) = match self.leaf(hash)? {
                Some(leaf) => leaf,
                None => (self.new_leaf(0, 0)?, 0),
            };
            let leaf = self.change.contents(block);
            let shape = shape(leaf);
            if let Some(room) = Room::find(leaf, block, hash, name)? {
                self.insert_into(&room, name, target);
                return Ok(());
            }
            let need = entry_size(name.len()) + SLOT;
            let gap = shape.gap();
            if gap + shape.dead as usize >= need {
                self.compact(block, shape.depth);
            } else {
                self.split(block, logical, shape.depth)?;
            }
        }
    }

    /// Adds a name that has room in its leaf, which the change has not edited since that was found.
    pub fn insert_into(&mut self, room: &Room, name: &[u8], target: Target) {
        let Room { block, shape, key } = *room;
        let size = entry_size(name.len());
        let offset = shape.heap - size as u16;
        let entry = EntryHeader {
            key,
            number: target.number,
            generation: target.generation,
            unit: 0,
            kind: (target.kind.bits() >> 12) as u8,
            name_length: name.len() as u8,
            reserved: [0; 6],
        };
        let slot = Slot {
            tag: tag(key >> DISCRIMINATOR_BITS),
            offset,
        };
        let new_shape = Shape {
            count: shape.count + 1,
            heap: offset,
            ..shape
        };
        self.put_shape(block, new_shape);
        self.put_slot(block, shape.count as usize, slot);
        let bytes = self
            .change
            .edit(block, offset as usize..offset as usize + size);
        let (header, rest) = bytes.split_at_mut(ENTRY);
        header.copy_from_slice(entry.as_bytes());
        let (stored, padding) = rest.split_at_mut(name.len());
        stored.copy_from_slice(name);
        padding.fill(0);
        self.inode.entries = self.inode.entries.saturating_add(1);
    }

    fn put_slot(&mut self, block: u64, index: usize, slot: Slot) {
        self.change.put_value(block, SLOTS + index * SLOT, &slot);
    }

    /// Removes a name from a directory.
    pub fn remove(&mut self, stored: &Stored) -> Result<()> {
        let Stored {
            block,
            logical,
            found,
            ..
        } = stored;
        self.inode.entries = self.inode.entries.saturating_sub(1);
        let leaf = self.change.contents(*block);
        let mut shape = shape(leaf);
        shape.count = shape.count.saturating_sub(1);
        let last = shape.count as usize;
        let size = entry_size(found.entry.name_length as usize) as u16;
        if shape.count == 0 {
            (shape.heap, shape.dead) = (BLOCK as u16, 0);
        } else if found.offset == shape.heap as usize {
            shape.heap += size;
        } else {
            shape.dead += size;
        }
        if found.slot < last {
            let (at, shift) = slot_place(last);
            let slot = zerocopy::transmute!((leaf.word(at) >> shift) as u32);
            self.put_slot(*block, found.slot, slot);
        }
        self.put_shape(*block, shape);
        match shape.count {
            0 => self.merge(*block, *logical, shape),
            _ => Ok(()),
        }
    }

    /// Makes a name lead elsewhere.
    pub fn redirect(&mut self, stored: &Stored, to: Target) {
        let entry = EntryHeader {
            number: to.number,
            generation: to.generation,
            kind: (to.kind.bits() >> 12) as u8,
            ..stored.found.entry
        };
        self.change
            .put_value(stored.block, stored.found.offset, &entry);
    }

    /// Rewrites the live entries of a leaf without the gaps.
    fn compact(&mut self, block: u64, depth: u16) {
        let old = self.change.contents(block).whole();
        self.rewrite(block, depth, &old, |_| true);
    }

    /// Fills a leaf with those entries of `from` that `keep` wants.
    fn rewrite(
        &mut self,
        block: u64,
        depth: u16,
        from: &Block,
        keep: impl Fn(&EntryHeader) -> bool,
    ) {
        let mut shape = Shape {
            depth,
            count: 0,
            heap: BLOCK as u16,
            dead: 0,
        };
        let mut contents = [0; BLOCK];
        for (entry, name) in leaf_entries(from).filter(|(entry, _)| keep(entry)) {
            shape.heap -= entry_size(name.len()) as u16;
            let offset = shape.heap as usize;
            contents[offset..offset + ENTRY].copy_from_slice(entry.as_bytes());
            contents[offset + ENTRY..offset + ENTRY + name.len()].copy_from_slice(name);
            let slot = Slot {
                tag: tag(entry.key >> DISCRIMINATOR_BITS),
                offset: shape.heap,
            };
            let at = SLOTS + shape.count as usize * SLOT;
            contents[at..at + SLOT].copy_from_slice(slot.as_bytes());
            shape.count += 1;
        }
        let slots = SLOTS..SLOTS + shape.count as usize * SLOT;
        self.change.put(block, SLOTS, &contents[slots]);
        let heap = shape.heap as usize;
        self.change.put(block, heap, &contents[heap..]);
        self.put_shape(block, shape);
    }

    /// Divides a leaf by the next bit of the hashes.
    fn split(&mut self, block: u64, logical: u64, depth: u16) -> Result<()> {
        if u32::from(depth) == PREFIX_BITS {
            // More names of one 32-bit prefix than a leaf holds: with a keyed hash this does not happen.
            return Err(Error::NoSpace);
        }
        let depth = depth + 1;
        let bit = 1 << (PREFIX_BITS - u32::from(depth));
        let old = self.change.contents(block).whole();
        let upper = self.new_leaf(logical | bit, depth)?;
        let is_upper = |entry: &EntryHeader| prefix(entry.key >> DISCRIMINATOR_BITS) & bit != 0;
        self.rewrite(upper, depth, &old, is_upper);
        self.rewrite(block, depth, &old, |entry| !is_upper(entry));
        Ok(())
    }

    /// Lets the neighbour of the same depth, if there is one, take over the range of an empty leaf.
    fn merge(&mut self, block: u64, logical: u64, shape: Shape) -> Result<()> {
        if shape.depth == 0 {
            return self.drop_leaf(block, logical);
        }
        let bit = 1 << (PREFIX_BITS - u32::from(shape.depth));
        let wanted = logical ^ bit;
        let Some((buddy, buddy_logical)) = self.leaf(wanted << (HASH_BITS - PREFIX_BITS))? else {
            return Ok(());
        };
        let buddy_shape = self.shape(buddy);
        if buddy_logical != wanted || buddy_shape.depth != shape.depth {
            return Ok(());
        }
        let depth = shape.depth - 1;
        if logical & bit == 0 {
            // The lower place stays: the upper one's entries move into it.
            let entries = self.change.contents(buddy).whole();
            self.rewrite(block, depth, &entries, |_| true);
            self.drop_leaf(buddy, buddy_logical)
        } else {
            let shape = Shape {
                depth,
                ..buddy_shape
            };
            self.put_shape(buddy, shape);
            self.drop_leaf(block, logical)
        }
    }

    fn drop_leaf(&mut self, block: u64, logical: u64) -> Result<()> {
        debug_assert_eq!(
            self.tree().lookup().find(logical)?.map(|(block, _)| block),
            Some(block)
        );
        self.tree().remove(logical, logical + 1)?;
        self.inode.size = self.inode.size.saturating_sub(BLOCK as u64);
        Ok(())
    }
}
