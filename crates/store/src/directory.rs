//! Names in a directory: leaves of hashed entries, found through the directory's extent tree.

use std::hash::Hasher;

use siphasher::sip::SipHasher13;
use zerocopy::{FromBytes, FromZeros};

use crate::BLOCK;
use crate::allocator::Run;
use crate::attributes::FileKind;
use crate::change::Change;
use crate::error::{Error, Result};
use crate::image::{Block, Image};
use crate::layout::directory::*;
use crate::layout::inode::Inode;
use crate::tree::{Lookup, Tree};

const WHAT: &str = "a directory leaf";
/// Cookies of what comes before the first stored entry: after `.` and after `..`.
const COOKIE_DOT: u64 = 1;
const COOKIE_DOT_DOT: u64 = 2;

/// One name as it is read from a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name.
    pub name: Vec<u8>,
    /// Inode number.
    pub number: u64,
    /// Kind of the inode.
    pub kind: FileKind,
    /// Position behind this entry, for reading on. Positions stay valid whatever is added or removed.
    pub cookie: u64,
}

/// Where a name leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Inode number.
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

/// Hash of a name under the pool's key: [`HASH_BITS`] bits.
pub fn hash_name(key: &[u8; 16], name: &[u8]) -> u64 {
    let mut hasher = SipHasher13::new_with_key(key);
    hasher.write(name);
    hasher.finish() >> (64 - HASH_BITS)
}

fn prefix(hash: u64) -> u64 {
    hash >> (HASH_BITS - PREFIX_BITS)
}

fn tag(hash: u64) -> u16 {
    hash as u16
}

/// Whether a name may stand in a directory.
pub fn check_name(name: &[u8]) -> Result<()> {
    match name {
        b"" | b"." | b".." => Err(Error::InvalidArgument(
            "names must not be empty, `.` or `..`",
        )),
        _ if name.len() > crate::NAME_LENGTH_MAX => Err(Error::NameTooLong),
        _ if name.contains(&b'/') || name.contains(&0) => {
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
    /// The image.
    pub image: &'a Image,
    /// The directory's inode number.
    pub number: u64,
    /// Its inode.
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
        self.verify(block, logical)?;
        Ok(Some((block, logical)))
    }

    fn verify(&self, block: u64, logical: u64) -> Result<()> {
        if !self.image.is_verified(block) {
            let mut contents = [0; BLOCK];
            self.image.metadata(block, WHAT, MAGIC, &mut contents)?;
            parse_leaf(&contents).ok_or(Error::Corrupt { what: WHAT, block })?;
            self.image.set_verified(block);
        }
        let base = block * BLOCK as u64;
        let [owner, own_logical] = [8, 24].map(|at| self.image.load(base + at));
        let right = owner == self.number && own_logical == logical;
        if right {
            Ok(())
        } else {
            Err(Error::Corrupt { what: WHAT, block })
        }
    }

    /// Looks a name up.
    pub fn find(&self, hash: u64, name: &[u8]) -> Result<Option<Target>> {
        let Some((block, _)) = self.leaf(prefix(hash))? else {
            return Ok(None);
        };
        let found = find_in_leaf(
            &ImageLeaf {
                image: self.image,
                base: block * BLOCK as u64,
            },
            hash,
            name,
        );
        found.map(|found| target(&found.entry, block)).transpose()
    }

    /// Visits the entries behind `cookie` in the order of their keys, `.` and `..` first, until `visit` says no.
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
            let next = next.logical.max(logical + 1);
            from = next << (HASH_BITS - PREFIX_BITS + DISCRIMINATOR_BITS);
        }
        Ok(())
    }
}

/// What an entry leads to; media could say anything.
fn target(entry: &EntryHeader, block: u64) -> Result<Target> {
    let kind = FileKind::from_bits(u32::from(entry.kind) << 12)
        .ok_or(Error::Corrupt { what: WHAT, block })?;
    Ok(Target {
        number: entry.number,
        generation: entry.generation,
        kind,
    })
}

/// Access to a leaf that is in the image or being edited.
trait Leaf {
    fn word(&self, at: usize) -> u64;
    fn copy(&self, at: usize, into: &mut [u8]);
}

struct ImageLeaf<'a> {
    image: &'a Image,
    base: u64,
}

impl Leaf for ImageLeaf<'_> {
    #[inline]
    fn word(&self, at: usize) -> u64 {
        self.image.load(self.base + at as u64)
    }

    fn copy(&self, at: usize, into: &mut [u8]) {
        self.image.read(self.base + at as u64, into);
    }
}

impl Leaf for Block {
    #[inline]
    fn word(&self, at: usize) -> u64 {
        u64::from_le_bytes(self[at..at + 8].try_into().expect("eight bytes"))
    }

    fn copy(&self, at: usize, into: &mut [u8]) {
        into.copy_from_slice(&self[at..at + into.len()]);
    }
}

/// Most slots in a leaf: each has an entry with a name of at least one byte.
const SLOTS_MAX: usize = (BLOCK - SLOTS) / (SLOT + entry_size(1));

/// The slots of a leaf whose tags are those of the hash, with their entries.
fn candidates<'l>(
    leaf: &'l impl Leaf,
    hash: u64,
    slots: &'l mut [u8; SLOTS_MAX * SLOT],
) -> impl Iterator<Item = Found> + 'l {
    let count = ((leaf.word(32) >> 16) as u16 as usize).min(SLOTS_MAX);
    let slots = &mut slots[..count * SLOT];
    leaf.copy(SLOTS, slots);
    let wanted = tag(hash).to_le_bytes();
    slots
        .chunks_exact(SLOT)
        .enumerate()
        .filter(move |(_, slot)| slot[..2] == wanted)
        .filter_map(move |(slot, bytes)| {
            let offset = u16::from_le_bytes([bytes[2], bytes[3]]) as usize;
            let mut bytes = [0; ENTRY];
            leaf.copy(offset, &mut bytes);
            let entry: EntryHeader = zerocopy::transmute!(bytes);
            (entry.key >> DISCRIMINATOR_BITS == hash).then_some(Found {
                slot,
                offset,
                entry,
            })
        })
}

/// Finds a name in its leaf.
fn find_in_leaf(leaf: &impl Leaf, hash: u64, name: &[u8]) -> Option<Found> {
    let mut stored = [0; crate::NAME_LENGTH_MAX];
    candidates(leaf, hash, &mut [0; SLOTS_MAX * SLOT]).find(|found| {
        let stored = &mut stored[..found.entry.name_length as usize];
        stored.len() == name.len() && {
            leaf.copy(found.offset + ENTRY, stored);
            stored == name
        }
    })
}

/// A directory being changed. The caller holds its lock and puts the inode into the change.
pub struct Writer<'a, 's> {
    /// The change that carries it.
    pub change: &'a mut Change<'s>,
    /// The directory's inode number.
    pub number: u64,
    /// Its inode.
    pub inode: &'a mut Inode,
}

impl<'s> Writer<'_, 's> {
    fn tree(&mut self) -> Tree<'_, 's> {
        Tree {
            change: self.change,
            number: self.number,
            inode: self.inode,
        }
    }

    /// The leaf for a hash, verified, as block and logical block. Sees leaves that this change made.
    fn leaf(&mut self, hash: u64) -> Result<Option<(u64, u64)>> {
        let Some(extent) = self.tree().lookup().floor(prefix(hash))? else {
            return Ok(None);
        };
        let logical = prefix(hash).min(extent.end() - 1);
        let block = extent.physical + (logical - extent.logical);
        if self.change.edited(block).is_none() {
            Reader {
                image: self.change.image(),
                number: self.number,
                inode: self.inode,
            }
            .verify(block, logical)?;
        }
        Ok(Some((block, logical)))
    }

    fn header(&mut self, block: u64) -> LeafHeader {
        self.change.value(block, 0)
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
            if find_in_leaf(self.change.view(block), hash, name).is_some() {
                return Err(Error::Exists);
            }
            let header = self.header(block);
            let (need, slots_end) = (entry_size(name.len()), SLOTS + header.count as usize * SLOT);
            let gap = header.heap as usize - slots_end;
            if gap >= need + SLOT {
                self.inode.entries = self.inode.entries.saturating_add(1);
                return self.append(block, header, hash, name, target);
            }
            if gap + header.dead as usize >= need + SLOT {
                self.compact(block);
            } else {
                self.split(block, logical, header)?;
            }
        }
    }

    /// Puts an entry into a leaf that has room for it.
    fn append(
        &mut self,
        block: u64,
        header: LeafHeader,
        hash: u64,
        name: &[u8],
        target: Target,
    ) -> Result<()> {
        let key = hash << DISCRIMINATOR_BITS | self.free_discriminator(block, hash);
        let offset = header.heap - entry_size(name.len()) as u16;
        let entry = EntryHeader {
            key,
            number: target.number,
            generation: target.generation,
            unit: 0,
            kind: (target.kind.bits() >> 12) as u8,
            name_length: name.len() as u8,
            reserved: [0; 6],
        };
        let mut bytes = [0; entry_size(crate::NAME_LENGTH_MAX)];
        bytes[..ENTRY].copy_from_slice(zerocopy::IntoBytes::as_bytes(&entry));
        bytes[ENTRY..ENTRY + name.len()].copy_from_slice(name);
        self.change
            .put(block, offset as usize, &bytes[..entry_size(name.len())]);
        let slot = Slot {
            tag: tag(hash),
            offset,
        };
        self.change
            .put_value(block, SLOTS + header.count as usize * SLOT, &slot);
        let header = LeafHeader {
            count: header.count + 1,
            heap: offset,
            ..header
        };
        self.change.put_value(block, 0, &header);
        Ok(())
    }

    /// A number that no other name of the same hash has.
    fn free_discriminator(&mut self, block: u64, hash: u64) -> u64 {
        let mut taken: Vec<u64> =
            candidates(self.change.view(block), hash, &mut [0; SLOTS_MAX * SLOT])
                .map(|found| found.entry.key & ((1 << DISCRIMINATOR_BITS) - 1))
                .collect();
        taken.sort_unstable();
        let gap = (0..).zip(&taken).find(|(free, taken)| free != *taken);
        gap.map_or(taken.len() as u64, |(free, _)| free)
    }

    /// Removes a name; what it led to, if it was there.
    pub fn remove(&mut self, hash: u64, name: &[u8]) -> Result<Option<Target>> {
        let Some((block, logical)) = self.leaf(hash)? else {
            return Ok(None);
        };
        let Some(found) = find_in_leaf(self.change.view(block), hash, name) else {
            return Ok(None);
        };
        let target = target(&found.entry, block)?;
        let mut header = self.header(block);
        header.count -= 1;
        let last: Slot = self
            .change
            .value(block, SLOTS + header.count as usize * SLOT);
        if found.slot < header.count as usize {
            self.change
                .put_value(block, SLOTS + found.slot * SLOT, &last);
        }
        let size = entry_size(name.len()) as u16;
        if found.offset == header.heap as usize {
            header.heap += size;
        } else {
            header.dead += size;
        }
        if header.count == 0 {
            (header.heap, header.dead) = (BLOCK as u16, 0);
        }
        self.change.put_value(block, 0, &header);
        self.inode.entries = self.inode.entries.saturating_sub(1);
        if header.count == 0 {
            self.merge(block, logical, header)?;
        }
        Ok(Some(target))
    }

    /// Makes a name lead elsewhere. It must be there.
    pub fn redirect(&mut self, hash: u64, name: &[u8], to: Target) -> Result<()> {
        let (block, _) = self.leaf(hash)?.ok_or(Error::NotFound)?;
        let found = find_in_leaf(self.change.view(block), hash, name).ok_or(Error::NotFound)?;
        let kind = (to.kind.bits() >> 12) as u8;
        let entry = EntryHeader {
            number: to.number,
            generation: to.generation,
            kind,
            ..found.entry
        };
        self.change.put_value(block, found.offset, &entry);
        Ok(())
    }

    /// Writes the live entries of a leaf anew, without the gaps.
    fn compact(&mut self, block: u64) {
        let old = *self.change.view(block);
        self.rewrite(block, &old, |_| true);
    }

    /// Fills a leaf with those entries of `from` that `keep` wants.
    fn rewrite(&mut self, block: u64, from: &Block, keep: impl Fn(&EntryHeader) -> bool) {
        let mut header = LeafHeader {
            count: 0,
            heap: BLOCK as u16,
            dead: 0,
            ..self.header(block)
        };
        let mut contents = [0; BLOCK];
        for (entry, name) in leaf_entries(from).filter(|(entry, _)| keep(entry)) {
            header.heap -= entry_size(name.len()) as u16;
            let offset = header.heap as usize;
            contents[offset..offset + ENTRY].copy_from_slice(zerocopy::IntoBytes::as_bytes(&entry));
            contents[offset + ENTRY..offset + ENTRY + name.len()].copy_from_slice(name);
            let slot = Slot {
                tag: tag(entry.key >> DISCRIMINATOR_BITS),
                offset: header.heap,
            };
            let at = SLOTS + header.count as usize * SLOT;
            contents[at..at + SLOT].copy_from_slice(zerocopy::IntoBytes::as_bytes(&slot));
            header.count += 1;
        }
        self.change.put(block, SLOTS, &contents[SLOTS..]);
        self.change.put_value(block, 0, &header);
    }

    /// Divides a leaf by the next bit of the hashes.
    fn split(&mut self, block: u64, logical: u64, header: LeafHeader) -> Result<()> {
        if u32::from(header.depth) == PREFIX_BITS {
            // More names of one 32-bit prefix than a leaf holds: with a keyed hash this does not happen.
            return Err(Error::NoSpace);
        }
        let depth = header.depth + 1;
        let bit = 1 << (PREFIX_BITS - u32::from(depth));
        let old = *self.change.view(block);
        let upper = self.new_leaf(logical | bit, depth)?;
        let is_upper = |entry: &EntryHeader| prefix(entry.key >> DISCRIMINATOR_BITS) & bit != 0;
        self.change
            .put_value(block, 0, &LeafHeader { depth, ..header });
        self.rewrite(upper, &old, is_upper);
        self.rewrite(block, &old, |entry| !is_upper(entry));
        Ok(())
    }

    /// Lets the neighbour of the same depth, if there is one, take over the range of an empty leaf.
    fn merge(&mut self, block: u64, logical: u64, header: LeafHeader) -> Result<()> {
        if header.depth == 0 {
            return self.drop_leaf(block, logical);
        }
        let bit = 1 << (PREFIX_BITS - u32::from(header.depth));
        let buddy_logical = logical ^ bit;
        let Some((buddy, _)) = self.leaf(buddy_logical << (HASH_BITS - PREFIX_BITS))? else {
            return Ok(());
        };
        let buddy_header = self.header(buddy);
        if buddy_header.logical != buddy_logical || buddy_header.depth != header.depth {
            return Ok(());
        }
        let depth = header.depth - 1;
        if logical & bit == 0 {
            // The lower place stays: the upper one's entries move into it.
            let entries = *self.change.view(buddy);
            self.change
                .put_value(block, 0, &LeafHeader { depth, ..header });
            self.rewrite(block, &entries, |_| true);
            self.drop_leaf(buddy, buddy_logical)
        } else {
            self.change.put_value(
                buddy,
                0,
                &LeafHeader {
                    depth,
                    ..buddy_header
                },
            );
            self.drop_leaf(block, logical)
        }
    }

    fn drop_leaf(&mut self, block: u64, logical: u64) -> Result<()> {
        debug_assert_eq!(
            self.tree().lookup().find(logical)?.map(|(block, _)| block),
            Some(block)
        );
        self.tree().remove(logical, logical + 1, 1)?;
        self.inode.size = self.inode.size.saturating_sub(BLOCK as u64);
        Ok(())
    }
}
