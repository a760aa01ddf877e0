//! Extended attributes: names with values, all of an inode's in one separate block.

use zerocopy::{FromBytes, IntoBytes};

use crate::BLOCK;
use crate::error::{Error, Result};
use crate::format::inode::Inode;
use crate::format::xattr::{ENTRIES, ENTRY, MAGIC, XattrEntry, XattrHeader};
use crate::image::allocator::Run;
use crate::image::change::Change;
use crate::image::transaction::Transaction;
use crate::image::{Block, Image};
use crate::inode::Inodes;
use crate::inode::acl;
use crate::inode::flags::check_unguarded;
use crate::inode::live::LiveInode;
use crate::{FileKind, XattrMode};

const WHAT: &str = "a block of extended attributes";
/// Namespaces, as in xattr(7), besides the lists of `acl`. The kernel checks which users may use which.
const NAMESPACES: [&[u8]; 3] = [USER, b"trusted.", b"security."];
const USER: &[u8] = b"user.";

/// Attributes in the order of their block.
pub(crate) type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

impl Inodes {
    /// The value of an extended attribute.
    pub fn xattr(&self, node: &LiveInode, name: &[u8]) -> Result<Vec<u8>> {
        let state = node.state.read();
        let all = load(&self.volume.image, node.number(), &state)?;
        let found = all.into_iter().find(|(own, _)| own == name);
        found.map(|(_, value)| value).ok_or(Error::NoXattr)
    }

    /// The names of all extended attributes.
    pub fn xattr_names(&self, node: &LiveInode) -> Result<Vec<Vec<u8>>> {
        let state = node.state.read();
        let all = load(&self.volume.image, node.number(), &state)?;
        Ok(all.into_iter().map(|(name, _)| name).collect())
    }

    /// Gives an inode an extended attribute. All of an inode's must fit into one block. An access control list changes
    /// the mode, and is stored only if it is more than a mode.
    pub fn set_xattr(
        &self,
        transaction: &mut Transaction<'_>,
        node: &LiveInode,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        let mut state = node.state.write();
        check_name(&state, name)?;
        let mut all = load(&self.volume.image, node.number(), &state)?;
        let known = all.iter().position(|(own, _)| own == name);
        match (known, mode) {
            (Some(_), XattrMode::Create) => return Err(Error::Exists),
            (None, XattrMode::Replace) => return Err(Error::NoXattr),
            _ => {}
        }
        let mut new = *state;
        let kept = if acl::is_acl(name) {
            let (kept, mode) = acl::set(name, value, new.mode)?;
            new.mode = mode;
            kept
        } else {
            Some(value.to_vec())
        };
        match (known, kept) {
            (Some(at), Some(value)) => all[at].1 = value,
            (Some(at), None) => drop(all.remove(at)),
            (None, Some(value)) => all.push((name.to_vec(), value)),
            (None, None) => {}
        }
        self.put_xattrs(transaction, node.number(), &mut state, new, &all)
    }

    /// Removes an extended attribute. An access control list may be missing already: the mode is unchanged.
    pub fn remove_xattr(
        &self,
        transaction: &mut Transaction<'_>,
        node: &LiveInode,
        name: &[u8],
    ) -> Result<()> {
        let mut state = node.state.write();
        check_name(&state, name)?;
        let mut all = load(&self.volume.image, node.number(), &state)?;
        match all.iter().position(|(own, _)| own == name) {
            Some(at) => drop(all.remove(at)),
            None if acl::is_acl(name) => return Ok(()),
            None => return Err(Error::NoXattr),
        }
        let new = *state;
        self.put_xattrs(transaction, node.number(), &mut state, new, &all)
    }

    /// Makes these an inode's attributes, in one record with what else is new in it.
    fn put_xattrs(
        &self,
        transaction: &mut Transaction<'_>,
        number: u64,
        state: &mut Inode,
        mut new: Inode,
        all: &Xattrs,
    ) -> Result<()> {
        let mut change = if all.is_empty() {
            Change::with_reserve(&self.volume)
        } else {
            Change::new(&self.volume)
        };
        put(&mut change, number, &mut new, all)?;
        new.changed_ns = self.volume.now_ns();
        change.inode_from(number, state, &mut new);
        new.version = change.commit(transaction);
        *state = new;
        Ok(())
    }
}

/// Puts an inode's attributes into a change.
pub(crate) fn put(
    change: &mut Change<'_>,
    number: u64,
    inode: &mut Inode,
    all: &Xattrs,
) -> Result<()> {
    if all.is_empty() {
        free_xattrs(change, inode);
        return Ok(());
    }
    if inode.attributes == 0 {
        inode.attributes = change.allocate_metadata()?;
        inode.blocks = inode.blocks.saturating_add(1);
    }
    let block = inode.attributes;
    let contents = encode(number, inode, all)?;
    let old = change.contents(block).whole();
    if let Some(range) = difference(&old, &contents) {
        change.put(block, range.start, &contents[range]);
    }
    Ok(())
}

/// Frees the block of an inode's attributes, if it has one.
pub(crate) fn free_xattrs(change: &mut Change<'_>, inode: &mut Inode) {
    if inode.attributes != 0 {
        change.free(Run {
            block: inode.attributes,
            length: 1,
        });
        inode.attributes = 0;
        inode.blocks = inode.blocks.saturating_sub(1);
    }
}

/// The error for an invalid block.
pub(crate) fn damaged(block: u64) -> Error {
    Error::Corrupt { what: WHAT, block }
}

/// An inode's attributes, from its block.
pub(crate) fn load(image: &Image, number: u64, inode: &Inode) -> Result<Xattrs> {
    match (inode.mode, inode.attributes) {
        (0, _) => Err(Error::Stale),
        (_, 0) => Ok(Xattrs::new()),
        (_, block) => {
            let damaged = damaged(block);
            let mut contents = [0; BLOCK];
            if !image.layout.is_data_run(block, 1) {
                return Err(damaged);
            }
            image.metadata(block, WHAT, MAGIC, &mut contents)?;
            let (header, all) = parse(&contents).ok_or(damaged.clone())?;
            if header.owner != number || header.generation != inode.generation {
                return Err(damaged);
            }
            Ok(all)
        }
    }
}

/// Header and attributes of a block, if they can be right.
pub(crate) fn parse(contents: &Block) -> Option<(XattrHeader, Xattrs)> {
    let (header, _) = XattrHeader::read_from_prefix(contents).ok()?;
    let mut all = Xattrs::new();
    let mut rest = contents.get(ENTRIES..header.end as usize)?;
    while !rest.is_empty() {
        let (entry, behind) = XattrEntry::read_from_prefix(rest).ok()?;
        let (name, behind) = behind.split_at_checked(entry.name_length as usize)?;
        let value = behind.get(..entry.value_length as usize)?;
        let is_name = !name.is_empty() && !name.contains(&0);
        if !is_name || entry.reserved != 0 || all.iter().any(|(other, _)| other == name) {
            return None;
        }
        rest = rest.get(entry_size(name, value)..)?;
        all.push((name.to_vec(), value.to_vec()));
    }
    let is_right = all.len() == header.count as usize
        && !all.is_empty()
        && header.reserved == [0; 4]
        && contents[header.end as usize..]
            .iter()
            .all(|byte| *byte == 0);
    is_right.then_some((header, all))
}

fn entry_size(name: &[u8], value: &[u8]) -> usize {
    (ENTRY + name.len() + value.len()).next_multiple_of(ENTRY)
}

/// The block of these attributes but for its checksum.
pub(crate) fn encode(number: u64, inode: &Inode, all: &Xattrs) -> Result<Block> {
    let size = |(name, value): &(Vec<u8>, Vec<u8>)| entry_size(name, value);
    let end = ENTRIES + all.iter().map(size).sum::<usize>();
    if end > BLOCK {
        return Err(Error::NoSpace);
    }
    let header = XattrHeader {
        magic: MAGIC,
        crc: 0,
        owner: number,
        block: inode.attributes,
        count: all.len() as u16,
        end: end as u16,
        generation: inode.generation,
        reserved: [0; 4],
    };
    let mut contents = [0; BLOCK];
    contents[..ENTRIES].copy_from_slice(header.as_bytes());
    let mut at = ENTRIES;
    for (name, value) in all {
        let entry = XattrEntry {
            name_length: name.len() as u8,
            reserved: 0,
            value_length: value.len() as u16,
        };
        let parts = [entry.as_bytes(), name, value].concat();
        contents[at..at + parts.len()].copy_from_slice(&parts);
        at += entry_size(name, value);
    }
    Ok(contents)
}

/// Where two blocks differ, their checksums aside.
fn difference(old: &Block, new: &Block) -> Option<std::ops::Range<usize>> {
    let differs = |at: &usize| old[*at] != new[*at] && !(4..8).contains(at);
    let first = (0..BLOCK).find(differs)?;
    let last = (0..BLOCK).rfind(differs)?;
    Some(first..last + 1)
}

/// Whether an attribute of this name can be given to the inode or taken away.
fn check_name(inode: &Inode, name: &[u8]) -> Result<()> {
    check_unguarded(inode)?;
    if name.len() > crate::NAME_LENGTH_MAX {
        return Err(Error::NameTooLong);
    }
    if acl::is_acl(name) {
        return match FileKind::from_bits(inode.mode) {
            None => Err(Error::Stale),
            Some(FileKind::Symlink) => Err(Error::NoNamespace),
            Some(_) => Ok(()),
        };
    }
    let namespace = NAMESPACES.into_iter().find(|space| name.starts_with(space));
    let Some(namespace) = namespace else {
        return Err(Error::NoNamespace);
    };
    if namespace.len() == name.len() || name.contains(&0) {
        return Err(Error::InvalidArgument(
            "an attribute's name has something behind its namespace, and no NUL",
        ));
    }
    match FileKind::from_bits(inode.mode) {
        None => Err(Error::Stale),
        Some(FileKind::Regular | FileKind::Directory) => Ok(()),
        Some(_) if namespace == USER => Err(Error::NotForUsers),
        Some(_) => Ok(()),
    }
}
