//! The inode table: each inode by itself, and against the inode bitmaps.

use zerocopy::FromBytes;

use super::Checker;
use crate::FileKind;
use crate::format::extent::{DEPTH_MAX, Extent};
use crate::format::inode::{
    FLAG_GRANT, FLAGS_KNOWN, INLINE_TARGET_MAX, INODE, Inode, KIND_MASK, ROOT_ENTRIES,
};
use crate::inode::flags::possible;
use crate::inode::reclaim::SIZE_MAX;
use crate::inode::tree::entries_are_valid;
use crate::{BLOCK, ROOT, SYSTEM};

/// In place of an index: the inode is not in use.
pub const NONE: u32 = u32::MAX;

/// State of an inode in use that later passes need.
pub struct Live {
    pub number: u64,
    pub generation: u32,
    pub kind: FileKind,
    pub links: u32,
    pub parent: u64,
    pub is_orphan: bool,
    /// Its references can be followed.
    pub is_sound: bool,
    /// The contents of its blocks are undefined.
    pub is_grant: bool,
    /// It has extents behind its end.
    pub is_cut: bool,
    /// Names that were found to lead here.
    pub names: u32,
    /// Names of directories that were found in it.
    pub subdirectories: u32,
    /// Index of a directory with a name of it.
    pub named_in: u32,
}

impl Checker<'_> {
    /// Reads and checks the inode tables of all groups.
    pub(super) fn scan_inodes(&mut self) {
        let layout = &self.image.layout;
        for block in 0..layout.inodes() / (BLOCK / INODE) as u64 {
            let first = block * (BLOCK / INODE) as u64;
            let mut table = [0; BLOCK];
            self.image.read(layout.inode(first), &mut table);
            for (number, bytes) in (first..).zip(table.chunks_exact(INODE)) {
                let inode = Inode::read_from_bytes(bytes).expect("the chunk has an inode's size");
                self.check_inode(number, &inode);
            }
        }
        self.check_root(ROOT, "the root");
        self.check_root(SYSTEM, "the system directory");
    }

    /// A directory that others are reached from.
    fn check_root(&mut self, number: u64, name: &str) {
        let root = self
            .index
            .get(number as usize)
            .and_then(|index| self.live.get(*index as usize));
        let (is_right, parent) = root.map_or((false, number), |root| {
            (root.kind == FileKind::Directory, root.parent)
        });
        if !is_right {
            self.inode_finding(number, format!("{name} is not a directory"));
        } else if parent != number {
            self.inode_finding(number, format!("{name} is not its own parent"));
        }
    }

    fn check_inode(&mut self, number: u64, inode: &Inode) {
        let (is_used, is_orphan) = (self.used_inodes.get(number), self.orphans.get(number));
        if !inode.is_intact() {
            self.inode_finding(number, "the inode does not match its checksum");
            return;
        }
        if inode.version >= self.end && inode.version > 0 {
            self.inode_finding(number, "the inode is newer than the last record");
        }
        if inode.mode == 0 {
            // Number 0 means no inode, and is never allocated.
            if is_used != (number == 0) {
                let state = if is_used { "used" } else { "free" };
                self.inode_finding(
                    number,
                    format!("the inode is free, but the bitmap has it as {state}"),
                );
            }
            if is_orphan {
                self.inode_finding(number, "the inode is free, but noted as an orphan");
            }
            let mut cleared = *inode;
            cleared.free();
            if *inode != cleared {
                self.inode_finding(number, "the inode is free, but not cleared");
            }
            return;
        }
        if number == 0 {
            self.inode_finding(number, "number 0 must not be an inode");
            return;
        }
        if !is_used {
            self.inode_finding(number, "the inode is in use, but the bitmap has it as free");
        }
        self.check_live(number, inode, is_orphan);
    }

    fn check_live(&mut self, number: u64, inode: &Inode, is_orphan: bool) {
        let Some(kind) = FileKind::from_bits(inode.mode) else {
            self.inode_finding(
                number,
                format!("mode {:o} is of no kind of file", inode.mode),
            );
            return;
        };
        for (is_wrong, what) in [
            (
                inode.mode & !(KIND_MASK | 0o7777) != 0,
                "the mode has unknown bits",
            ),
            (
                inode.flags & !FLAGS_KNOWN != 0,
                "the inode has unknown flags",
            ),
            (
                inode.flags & FLAGS_KNOWN & !possible(kind) != 0,
                "the inode has a flag that none of its kind has",
            ),
            (
                inode.size > SIZE_MAX,
                "the file is larger than a file can be",
            ),
            (
                kind != FileKind::Directory && inode.parent != 0,
                "only directories have a parent",
            ),
            (
                kind != FileKind::Directory && inode.entries != 0,
                "only directories have entries",
            ),
        ] {
            if is_wrong {
                self.inode_finding(number, what);
            }
        }
        let is_sound = is_sound(inode, kind, self);
        if !is_sound {
            self.inode_finding(number, "the root of the extent tree is damaged");
        }
        self.index[number as usize] = self.live.len() as u32;
        self.live.push(Live {
            number,
            generation: inode.generation,
            kind,
            links: inode.links,
            parent: inode.parent,
            is_orphan,
            is_sound,
            is_grant: inode.flags & FLAG_GRANT != 0,
            is_cut: false,
            names: 0,
            subdirectories: 0,
            named_in: NONE,
        });
        // Inodes that no path reaches are not counted.
        let is_counted = number != SYSTEM;
        self.report.inodes += u64::from(is_counted);
        self.report.directories += u64::from(is_counted && kind == FileKind::Directory);
        self.report.orphans += u64::from(is_orphan);
    }
}

/// Whether the root of the inode's tree has the form that its kind needs.
fn is_sound(inode: &Inode, kind: FileKind, checker: &Checker<'_>) -> bool {
    let (count, depth) = (inode.count as usize, inode.depth);
    let is_tree = count <= ROOT_ENTRIES
        && depth <= DEPTH_MAX
        && (depth == 0 || count > 0)
        && entries_are_valid(&inode.root[..count], depth, &checker.image.layout)
        && inode.root[count..]
            .iter()
            .all(|entry| *entry == Extent::default());
    let own_blocks = inode.blocks.checked_sub(u64::from(inode.attributes != 0));
    let is_bare = (count, depth, own_blocks) == (0, 0, Some(0));
    match kind {
        FileKind::Regular | FileKind::Directory => is_tree,
        FileKind::Symlink if inode.size <= INLINE_TARGET_MAX as u64 => is_bare,
        FileKind::Symlink => is_tree && (count, depth) == (1, 0),
        _ => is_bare && inode.size == 0 && inode.root == [Extent::default(); ROOT_ENTRIES],
    }
}
