//! The inode table: which inodes are in use, and what each must be by itself.

use zerocopy::IntoBytes;

use super::bit_flips::repair_inode;
use super::{File, NONE, Repairer};
use crate::FileKind;
use crate::format::group::Map;
use crate::format::inode::{CHANGING, Inode, KIND_MASK};
use crate::inode::flags::possible;
use crate::inode::reclaim::SIZE_MAX;
use crate::{ROOT, SYSTEM, is_root};

impl Repairer<'_> {
    /// Reads the whole inode table.
    pub(super) fn scan_inodes(&mut self) {
        for number in 0..self.image.layout.inodes() {
            let mut found = Inode::FREE;
            let offset = self.image.layout.inode(number);
            self.image.read(offset, found.as_mut_bytes());
            let inode = self.readable(number, &found);
            self.sort_in(number, found, inode);
        }
        for number in [ROOT, SYSTEM] {
            if !self.is_live(number) {
                self.note(number, "the directory was recreated: it could not be read");
                let found = self.cleared.remove(&number).unwrap_or(Inode::FREE);
                let root = root(number, found.next_generation(), self.now_ns);
                self.add_file(number, found, root, FileKind::Directory);
            }
        }
        self.files.sort_by_key(|file| file.number);
        for (index, file) in self.files.iter().enumerate() {
            self.index[file.number as usize] = index as u32;
        }
    }

    /// An inode as far as it can be read; what cannot is free.
    fn readable(&mut self, number: u64, found: &Inode) -> Inode {
        if found.is_intact() {
            return *found;
        }
        // One that was never used has no checksums.
        let bits: u32 = found.as_bytes().iter().map(|byte| byte.count_ones()).sum();
        if bits <= 1 {
            self.note(
                number,
                "a flipped bit of an inode that was never used was repaired",
            );
            return Inode::FREE;
        }
        let mut inode = *found;
        let parts = repair_inode(&mut inode);
        match (parts.rest, parts.stamp) {
            (true, true) => self.note(number, "a flipped bit of the inode was repaired"),
            (true, false) => {
                (inode.modified_ns, inode.changed_ns) = (self.now_ns, self.now_ns);
                inode.version = 0;
                self.note(
                    number,
                    "the times of change were lost, and are those of the repair",
                );
                if inode.mode == 0 {
                    inode.free();
                }
            }
            (false, _) => {
                let what = if self.bit(Map::Inodes, number) {
                    "the inode cannot be read and was freed: what it held is lost"
                } else {
                    "an inode that is not in use could not be read and was cleared"
                };
                self.note(number, what);
                inode = freed(found);
            }
        }
        inode
    }

    /// A bit as stored in a bitmap, right or wrong.
    fn bit(&self, map: Map, number: u64) -> bool {
        let layout = &self.image.layout;
        let (group, bit) = (
            number / layout.inodes_per_group,
            number % layout.inodes_per_group,
        );
        let word = self.image.load(layout.line(group, map, 0) + bit / 64 * 8);
        word >> (bit % 64) & 1 != 0
    }

    /// Puts an inode where it belongs: to those in use, or to those that must become free.
    fn sort_in(&mut self, number: u64, found: Inode, mut inode: Inode) {
        if inode.version & CHANGING != 0 || inode.version >= self.end && inode.version > 0 {
            self.note(
                number,
                "the inode said that it is newer than the last record",
            );
            inode.version = 0;
        }
        let kind = FileKind::from_bits(inode.mode).filter(|_| number != 0);
        if let Some(kind) = kind {
            self.normalise(number, &mut inode, kind);
            if !is_root(number) || kind == FileKind::Directory {
                return self.add_file(number, found, inode, kind);
            }
        }
        if inode.mode != 0 {
            self.note(number, "the inode was freed: it can be of no file");
            inode = freed(&inode);
        }
        let mut free = inode;
        free.free();
        if free != inode {
            self.note(number, "the free inode was cleared");
        }
        if free != found {
            self.cleared.insert(number, free);
        }
    }

    /// Takes from an inode what no file of its kind has.
    fn normalise(&mut self, number: u64, inode: &mut Inode, kind: FileKind) {
        let old = *inode;
        inode.mode &= KIND_MASK | 0o7777;
        inode.flags &= possible(kind);
        inode.size = inode.size.min(SIZE_MAX);
        if kind != FileKind::Directory {
            (inode.parent, inode.entries) = (0, 0);
        } else if is_root(number) {
            inode.parent = number;
        }
        if *inode != old {
            self.note(
                number,
                "fields of the inode that were invalid were repaired",
            );
        }
    }

    pub(super) fn add_file(&mut self, number: u64, found: Inode, inode: Inode, kind: FileKind) {
        self.index[number as usize] = self.files.len() as u32;
        let was_orphan = self.bit(Map::Orphans, number);
        self.files.push(File {
            number,
            kind,
            found,
            inode,
            was_orphan,
            nodes: Vec::new(),
            extents: Vec::new(),
            lost: Vec::new(),
            keeps_tree: true,
            leaves: Vec::new(),
            keeps_leaves: true,
            names: 0,
            named_by: NONE,
            subdirectories: 0,
            entries: 0,
            is_gone: false,
        });
    }

    /// Frees an inode that is in use.
    pub(super) fn give_up(&mut self, index: usize, why: &str) {
        let file = &mut self.files[index];
        file.is_gone = true;
        let (number, inode) = (file.number, freed(&file.inode));
        self.cleared.insert(number, inode);
        self.note(number, why);
    }
}

/// A free inode: only the generation of the old one remains, so that old handles are detected.
fn freed(inode: &Inode) -> Inode {
    let mut free = Inode {
        generation: inode.generation,
        ..Inode::FREE
    };
    free.seal();
    free
}

/// An empty directory that is its own parent.
fn root(number: u64, generation: u32, now_ns: i64) -> Inode {
    Inode {
        mode: if number == ROOT { 0o040_755 } else { 0o040_700 },
        parent: number,
        ..directory(generation, now_ns)
    }
}

/// An empty directory for root only.
pub fn directory(generation: u32, now_ns: i64) -> Inode {
    Inode {
        generation,
        mode: 0o040_700,
        links: 2,
        modified_ns: now_ns,
        changed_ns: now_ns,
        accessed_ns: now_ns,
        created_ns: now_ns,
        ..Inode::FREE
    }
}
