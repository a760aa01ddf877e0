//! Uses a store with arbitrary bytes.

use std::collections::HashSet;
use std::sync::Arc;

use super::embedded;
use crate::error::{Error, Result};
use crate::{
    BLOCK, Fallocate, FileKind, LiveInode, NewInode, RenameMode, SetAttributes, Store, WriteAt,
    XattrMode,
};

/// Inodes that a walk visits at most.
const VISITS_MAX: usize = 200;
/// Names that are read of a directory, and steps that are made over a file's holes, at most.
const STEPS_MAX: usize = 500;
/// Bytes that are read of a file's beginning and of its end.
const PART: usize = 32 << 10;

/// Reads everything, changes something everywhere, reads again. In a clean pool nothing is found damaged.
pub fn use_store(store: &Store, is_clean: bool) {
    let mut work = Work { store, is_clean };
    work.statistics();
    let nodes = work.walk();
    for node in &nodes {
        work.change(node, &nodes);
    }
    work.walk();
    work.statistics();
    // Half of the time the ring is left full, for the check that follows.
    if nodes.len().is_multiple_of(2) {
        work.note(store.close());
    }
}

struct Work<'a> {
    store: &'a Store,
    is_clean: bool,
}

impl Work<'_> {
    /// Any error is fine in a damaged pool.
    fn note<T>(&mut self, result: Result<T>) -> Option<T> {
        if let Err(Error::Corrupt { what, block }) = &result {
            assert!(
                !self.is_clean,
                "check finds nothing, but {what} in block {block} is damaged"
            );
        }
        result.ok()
    }

    fn statistics(&mut self) {
        let statistics = self.store.volume().statistics();
        assert!(!self.is_clean || statistics.blocks_free <= statistics.blocks);
        assert!(!self.is_clean || statistics.inodes_free <= statistics.inodes);
    }

    /// Reads all that can be reached.
    fn walk(&mut self) -> Vec<Arc<LiveInode>> {
        let mut nodes = vec![self.store.root()];
        let mut seen: HashSet<u64> = nodes.iter().map(|node| node.number()).collect();
        let mut next = 0;
        while let Some(node) = nodes.get(next).cloned() {
            next += 1;
            for (name, number) in self.read(&node) {
                let by_name = self.store.names().lookup(&node, &name);
                if let Some(child) = self.note(by_name)
                    && nodes.len() < VISITS_MAX
                    && seen.insert(child.number())
                {
                    nodes.push(child);
                }
                let by_number = self.store.inodes().node(number);
                self.note(by_number);
            }
        }
        nodes
    }

    /// Reads one inode in every way, and returns the names in it.
    fn read(&mut self, node: &Arc<LiveInode>) -> Vec<(Vec<u8>, u64)> {
        let attributes = self.store.inodes().attributes(node);
        let mut names = Vec::new();
        let listed = self.store.names().read_directory(node, 0, &mut |entry| {
            names.push((entry.name.clone(), entry.number));
            names.len() < STEPS_MAX
        });
        if attributes.kind == FileKind::Directory {
            self.note(listed);
        }
        for name in self
            .note(self.store.inodes().xattr_names(node))
            .unwrap_or_default()
        {
            self.note(self.store.inodes().xattr(node, &name));
        }
        if attributes.kind == FileKind::Symlink {
            self.note(self.store.names().read_link(node));
        }
        if attributes.kind == FileKind::Regular {
            let mut buffer = vec![0; PART];
            for offset in [
                0,
                100,
                attributes.size.saturating_sub(PART as u64),
                u64::MAX - 1,
            ] {
                self.note(self.store.files().read(node, offset, &mut buffer));
            }
            self.seek(node);
        }
        names
    }

    fn seek(&mut self, node: &LiveInode) {
        let mut offset = 0;
        for _ in 0..STEPS_MAX {
            let data = self.store.files().next_data(node, offset);
            let Some(data) = self.note(data).flatten() else {
                return;
            };
            let hole = self.store.files().next_hole(node, data);
            let Some(hole) = self.note(hole) else { return };
            assert!(!self.is_clean || hole > data, "data without a byte");
            if hole <= offset {
                return;
            }
            offset = hole;
        }
    }

    /// Changes one inode in every way.
    fn change(&mut self, node: &Arc<LiveInode>, all: &[Arc<LiveInode>]) {
        let store = self.store;
        let size = store.inodes().attributes(node).size;
        let mut write = |at, length| {
            self.note(
                store
                    .files()
                    .write(&mut embedded(), node, at, &vec![0x5a; length]),
            )
        };
        write(WriteAt::End, 10);
        write(WriteAt::Offset(BLOCK as u64 * 3 + 7), 100);
        write(WriteAt::Offset(BLOCK as u64), 3 * BLOCK);
        write(WriteAt::Offset(size / 2), 1);
        for size in [size / 2, size, 5000, 0] {
            let set = SetAttributes {
                size: Some(size),
                permissions: Some(0o600),
                ..SetAttributes::default()
            };
            self.note(store.inodes().set_attributes(&mut embedded(), node, &set));
        }
        for mode in [
            Fallocate::Allocate { keep_size: true },
            Fallocate::PunchHole,
            Fallocate::ZeroRange { keep_size: false },
            Fallocate::InsertRange,
            Fallocate::CollapseRange,
        ] {
            self.note(
                store
                    .files()
                    .fallocate(&mut embedded(), node, mode, 0, 3 * BLOCK as u64),
            );
        }
        self.share(node, all);
        for (name, length) in [(&b"user.a"[..], 100), (b"user.b", 3000), (b"user.a", 500)] {
            self.note(store.inodes().set_xattr(
                &mut embedded(),
                node,
                name,
                &vec![7; length],
                XattrMode::Set,
            ));
        }
        self.note(
            store
                .inodes()
                .remove_xattr(&mut embedded(), node, b"user.b"),
        );
        self.change_names(node, all);
        self.remove_some(node);
    }

    /// Makes and moves names in an inode, if it is a directory.
    fn change_names(&mut self, node: &Arc<LiveInode>, all: &[Arc<LiveInode>]) {
        let store = self.store;
        let new = |kind| NewInode {
            kind,
            permissions: 0o700,
            uid: 1,
            gid: 1,
            device: 0,
            target: b"target",
            umask: 0,
        };
        if let Some(made) = self.note(store.names().create(
            &mut embedded(),
            node,
            b"made",
            &new(FileKind::Regular),
        )) {
            self.note(
                store
                    .files()
                    .write(&mut embedded(), &made, WriteAt::End, &[1; 20_000]),
            );
            self.note(store.names().link(&mut embedded(), &made, node, b"linked"));
            self.note(store.names().rename(
                &mut embedded(),
                node,
                b"linked",
                node,
                b"made",
                RenameMode::Exchange,
            ));
            self.note(store.names().unlink(&mut embedded(), node, b"made"));
        }
        if let Some(made) = self.note(store.names().create(
            &mut embedded(),
            node,
            b"a directory",
            &new(FileKind::Directory),
        )) {
            for other in all.iter().take(3) {
                self.note(store.names().rename(
                    &mut embedded(),
                    node,
                    b"a directory",
                    other,
                    b"renamed",
                    RenameMode::NoReplace,
                ));
                self.note(store.names().rename(
                    &mut embedded(),
                    other,
                    b"renamed",
                    node,
                    b"a directory",
                    RenameMode::Replace,
                ));
            }
            self.note(store.names().rename(
                &mut embedded(),
                node,
                b"linked",
                &made,
                b"below",
                RenameMode::NoReplace,
            ));
        }
        self.note(
            store
                .names()
                .create(&mut embedded(), node, b"a link", &new(FileKind::Symlink)),
        );
    }

    /// Shares blocks with another inode, and changes them.
    fn share(&mut self, node: &Arc<LiveInode>, all: &[Arc<LiveInode>]) {
        let store = self.store;
        if let Some(other) = all.iter().find(|it| it.number() > node.number()) {
            for (from, to) in [(node, other), (other, node), (node, node)] {
                let shared = store.files().share(
                    &mut embedded(),
                    (from, 0),
                    (to, 9 * BLOCK as u64),
                    5 * BLOCK as u64,
                );
                self.note(shared);
                self.note(store.files().write(
                    &mut embedded(),
                    to,
                    WriteAt::Offset(9 * BLOCK as u64 + 1),
                    &[1; 5000],
                ));
            }
        }
    }

    fn remove_some(&mut self, node: &Arc<LiveInode>) {
        let mut names = Vec::new();
        let _ = self.store.names().read_directory(node, 1, &mut |entry| {
            names.push(entry.name.clone());
            names.len() < 20
        });
        for (index, name) in names.iter().enumerate() {
            if index % 2 == 0 {
                let held = self.note(self.store.names().lookup(node, name));
                let held = held.filter(|held| self.store.inodes().hold(held).is_ok());
                self.note(self.store.names().unlink(&mut embedded(), node, name));
                if let Some(held) = held {
                    self.note(self.store.inodes().release(&held, 1));
                }
            }
            self.note(
                self.store
                    .names()
                    .remove_directory(&mut embedded(), node, name),
            );
        }
    }
}
