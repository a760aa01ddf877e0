//! Contents of each inode in use: its tree, and the blocks that the tree refers to.

use zerocopy::IntoBytes;

use super::Checker;
use crate::BLOCK;
use crate::FileKind;
use crate::format::extent::Extent;
use crate::format::inode::{INLINE_TARGET_MAX, Inode};
use crate::format::xattr::MAGIC;
use crate::inode::acl::settle;
use crate::inode::xattr::parse;

impl Checker<'_> {
    /// Goes through the trees of all inodes in use.
    pub(super) fn check_contents(&mut self) {
        for index in 0..self.live.len() {
            let (number, kind) = (self.live[index].number, self.live[index].kind);
            // The scan found the inode whole.
            let Ok(inode) = self.image.inode(number) else {
                continue;
            };
            self.check_xattrs(number, &inode);
            if !self.live[index].is_sound {
                continue;
            }
            match kind {
                FileKind::Regular => self.check_file(index, &inode),
                FileKind::Directory => {
                    let extents = self.check_tree(number, &inode);
                    self.check_plain(number, &extents);
                    self.check_directory(index, &inode, &extents);
                }
                FileKind::Symlink => self.check_symlink(number, &inode),
                _ => {}
            }
        }
    }

    fn check_file(&mut self, index: usize, inode: &Inode) {
        let number = self.live[index].number;
        let extents = self.check_tree(number, inode);
        let end = inode.size.div_ceil(BLOCK as u64);
        let is_behind = |extent: &Extent| extent.end() > end;
        self.live[index].is_cut = extents.last().is_some_and(is_behind);
        // Blocks may be allocated there. They hold nothing.
        let last = extents.iter().rfind(|extent| extent.is_written());
        if last.is_some_and(is_behind) && !self.live[index].is_orphan {
            self.inode_finding(number, "there are blocks behind the end of the file");
        }
        if self.live[index].is_grant {
            if extents.iter().any(Extent::is_shared) {
                self.inode_finding(number, "a grant's blocks cannot be shared");
            }
        } else {
            self.check_data(number, &extents);
            self.check_tail(number, inode.size, &extents);
        }
    }

    fn check_symlink(&mut self, number: u64, inode: &Inode) {
        if inode.size == 0 || inode.size >= BLOCK as u64 {
            self.inode_finding(
                number,
                format!("a link's target cannot have {} bytes", inode.size),
            );
            return;
        }
        let length = inode.size as usize;
        if length <= INLINE_TARGET_MAX {
            let (target, rest) = inode.root.as_bytes().split_at(length);
            self.check_target(number, target, rest);
            return;
        }
        let extents = self.check_tree(number, inode);
        self.check_plain(number, &extents);
        let [
            Extent {
                logical: 0,
                physical,
                length: 1,
                ..
            },
        ] = extents[..]
        else {
            self.inode_finding(number, "a link's target must be in one block");
            return;
        };
        if !self.options.data {
            return;
        }
        self.check_data(number, &extents);
        let mut block = [0; BLOCK];
        self.image.read_block(physical, &mut block);
        if self.is_lost(physical, &block) {
            return;
        }
        let (target, rest) = block.split_at(length);
        self.check_target(number, target, rest);
    }

    /// Checks the block of extended attributes, if there is one.
    fn check_xattrs(&mut self, number: u64, inode: &Inode) {
        let block = inode.attributes;
        if block == 0 {
            return;
        }
        let is_free = self.image.layout.is_data_run(block, 1) && self.claimed.claim(block, 1);
        if !is_free {
            self.inode_finding(
                number,
                "the block of extended attributes is in use elsewhere",
            );
            return;
        }
        self.report.blocks_used += 1;
        let mut contents = [0; BLOCK];
        let what = "the block of extended attributes is damaged";
        let read = self.image.metadata(block, what, MAGIC, &mut contents);
        match parse(&contents).filter(|_| read.is_ok()) {
            None => self.block_finding(number, block, what),
            Some((header, mut all)) => {
                if let (_, Some(wrong)) = settle(&mut all, inode.mode) {
                    self.block_finding(number, block, wrong);
                }
                if (header.owner, header.generation) != (number, inode.generation) {
                    let what = "the block of extended attributes belongs to another file";
                    self.block_finding(number, block, what);
                }
            }
        }
    }

    /// Only files have blocks without data, or share some.
    fn check_plain(&mut self, number: u64, extents: &[Extent]) {
        if !extents.iter().all(Extent::is_written) {
            self.inode_finding(number, "only a file's blocks can be unwritten");
        }
        if extents.iter().any(Extent::is_shared) {
            self.inode_finding(number, "only a file's blocks can be shared");
        }
    }

    fn check_target(&mut self, number: u64, target: &[u8], rest: &[u8]) {
        if target.contains(&0) {
            self.inode_finding(number, "the link's target has a NUL in it");
        }
        if rest.iter().any(|byte| *byte != 0) {
            self.inode_finding(number, "there are bytes behind the link's target");
        }
    }
}
