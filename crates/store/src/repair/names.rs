//! Names: where each leads, one for each directory, a way from the root to all, and `/lost+found` for the rest.

use std::collections::HashSet;

use zerocopy::{FromBytes, IntoBytes};

use super::inodes::directory;
use super::{Leaf, NONE, Name, Repairer};
use crate::FileKind;
use crate::format::directory::{
    DISCRIMINATOR_BITS, ENTRY, EntryHeader, LeafHeader, MAGIC, SLOT, SLOTS, Slot, entry_size,
};
use crate::format::inode::Inode;
use crate::image::Block;
use crate::names::directory::{hash_name, leaf_entries, parse_leaf};
use crate::{BLOCK, ROOT, SYSTEM, is_root};

const LOST_AND_FOUND: &str = "lost+found";

impl Repairer<'_> {
    /// Reads the leaves of all directories.
    pub(super) fn read_leaves(&mut self) {
        for index in 0..self.files.len() {
            if self.files[index].kind != FileKind::Directory {
                continue;
            }
            let extents = std::mem::take(&mut self.files[index].extents);
            for extent in &extents {
                for block in 0..u64::from(extent.length) {
                    self.read_leaf(index, extent.physical + block, extent.logical + block);
                }
            }
            self.files[index].extents = extents;
        }
    }

    fn read_leaf(&mut self, index: usize, block: u64, logical: u64) {
        let (number, generation) = (self.files[index].number, self.files[index].inode.generation);
        let own = (number, generation, logical);
        let read = |contents: &Block| {
            let header = parse_leaf(contents)?;
            let is_own = (header.owner, header.generation, header.logical) == own;
            is_own.then_some((header, *contents))
        };
        let leaf = match self.claimed.get(block) {
            true => None,
            false => self.read_mended(number, block, MAGIC, read),
        };
        let Some((header, contents)) = leaf else {
            let what = "a directory leaf cannot be read: the names in it are lost";
            self.note_block(number, block, what);
            self.files[index].keeps_leaves = false;
            return;
        };
        self.claimed.claim(block, 1);
        let file = &mut self.files[index];
        let end = file.leaves.last().map_or(0, Leaf::end);
        let mut leaf = Leaf {
            block,
            logical,
            depth: u32::from(header.depth),
            stays: header.reserved == 0
                && header.padding == [0; 2]
                && logical >= end
                && !shares_bytes(&contents, &header),
        };
        let leaf_index = file.leaves.len() as u32;
        leaf.stays &= self.read_names(index, leaf_index, &contents);
        if !leaf.stays {
            self.note_block(number, block, "a directory leaf was put in order");
        }
        self.files[index].leaves.push(leaf);
    }

    /// Takes the names of a leaf. False: they cannot all stay as they are.
    fn read_names(&mut self, index: usize, leaf: u32, contents: &Block) -> bool {
        let (mut seen, mut keys, mut is_right) = (HashSet::new(), HashSet::new(), true);
        for (entry, name) in leaf_entries(contents) {
            if !seen.insert(name) {
                is_right = false;
                continue;
            }
            let hash = hash_name(&self.superblock.hash_key, name);
            is_right &= entry.key >> DISCRIMINATOR_BITS == hash
                && keys.insert(entry.key)
                && entry.reserved == [0; 6]
                && entry.unit == 0;
            self.names.push(Name {
                directory: index as u32,
                leaf,
                key: hash << DISCRIMINATOR_BITS | entry.key & 0xffff,
                number: if entry.unit == 0 { entry.number } else { 0 },
                generation: entry.generation,
                kind: entry.kind,
                name: name.into(),
                is_moved: entry.key >> DISCRIMINATOR_BITS != hash,
                is_dropped: false,
            });
        }
        is_right
    }

    /// Decides about all names.
    pub(super) fn settle_names(&mut self) {
        self.drop_twins();
        for index in 0..self.names.len() {
            if !self.names[index].is_dropped {
                self.settle_name(index);
            }
        }
        self.break_circles();
        self.attach_unnamed();
        self.count_names();
    }

    /// Drops names that were in the wrong leaf and are in the right one, too.
    fn drop_twins(&mut self) {
        let is_moved = |index: &usize| self.names[*index].is_moved;
        let moved: Vec<usize> = (0..self.names.len()).filter(is_moved).collect();
        if moved.is_empty() {
            return;
        }
        let all = self.names.iter().filter(|name| !name.is_moved);
        let mut seen: HashSet<(u32, Box<[u8]>)> =
            all.map(|it| (it.directory, it.name.clone())).collect();
        for index in moved {
            let name = &self.names[index];
            if !seen.insert((name.directory, name.name.clone())) {
                self.drop_name(index, "it is there twice");
            }
        }
    }

    fn settle_name(&mut self, index: usize) {
        let name = &self.names[index];
        let target = self.file_index(name.number);
        let target = target.filter(|target| {
            let file = &self.files[*target];
            file.inode.generation == name.generation && !is_root(file.number)
        });
        let Some(target) = target else {
            let what = format!("it led to inode {}, which is not there", name.number);
            return self.drop_name(index, &what);
        };
        let (directory, kind) = (name.directory, (self.files[target].kind.bits() >> 12) as u8);
        if name.kind != kind {
            self.names[index].kind = kind;
            self.dissolve(index);
            self.note_name(index, "it says now what kind of file it leads to");
        }
        let before = self.files[target].named_by;
        if self.files[target].kind == FileKind::Directory && before != NONE {
            // The directory tells in which one it is.
            let parent = self.files[target].inode.parent;
            let what = "the directory it led to has another name";
            if self.files[directory as usize].number != parent
                || self.files[self.names[before as usize].directory as usize].number == parent
            {
                return self.drop_name(index, what);
            }
            self.drop_name(before as usize, what);
        }
        self.files[target].named_by = index as u32;
        self.files[target].names = self.files[target].names.saturating_add(1);
    }

    fn note_name(&mut self, index: usize, what: &str) {
        let name = &self.names[index];
        let number = self.files[name.directory as usize].number;
        let what = format!("name `{}`: {what}", name.name.escape_ascii());
        self.note(number, what);
    }

    fn drop_name(&mut self, index: usize, why: &str) {
        self.note_name(index, &format!("removed, since {why}"));
        self.dissolve(index);
        self.names[index].is_dropped = true;
        if let Some(target) = self.file_index(self.names[index].number)
            && self.files[target].named_by == index as u32
        {
            self.files[target].named_by = NONE;
            self.files[target].names -= 1;
        }
    }

    /// A name changes, so its leaf cannot stay.
    fn dissolve(&mut self, index: usize) {
        let Name {
            directory, leaf, ..
        } = self.names[index];
        if leaf != NONE {
            self.files[directory as usize].leaves[leaf as usize].stays = false;
        }
    }

    /// Index of the directory with the name of a directory; none for a root, or a directory without a name.
    fn above(&self, index: usize) -> Option<usize> {
        let named_by = self.files[index].named_by;
        (named_by != NONE).then(|| self.names[named_by as usize].directory as usize)
    }

    /// Takes one name out of each circle of directories.
    fn break_circles(&mut self) {
        // The round in which a directory was passed.
        let mut passed = vec![NONE; self.files.len()];
        for index in 0..self.files.len() {
            let (mut at, round) = (index, index as u32);
            while passed[at] == NONE {
                passed[at] = round;
                let Some(above) = self.above(at) else { break };
                at = above;
                if passed[at] == round {
                    // It was passed in this very round: all between here and there are a circle.
                    let name = self.files[at].named_by as usize;
                    self.drop_name(name, "no way from the root led to it");
                    break;
                }
            }
        }
    }

    /// Gives each inode without a name one in `/lost+found`.
    fn attach_unnamed(&mut self) {
        let mut has_names = vec![false; self.files.len()];
        for name in self.names.iter().filter(|name| !name.is_dropped) {
            has_names[name.directory as usize] = true;
        }
        let mut lost_and_found = None;
        for (index, has_names) in has_names.into_iter().enumerate() {
            let file = &self.files[index];
            if file.is_gone || file.names > 0 || is_root(file.number) {
                continue;
            }
            // A removed and held inode is an orphan.
            if file.inode.links == 0 && !has_names {
                continue;
            }
            if file.is_grant() {
                let why = "the grant was freed: no name leads to it, and its data is unused";
                self.give_up(index, why);
                continue;
            }
            if lost_and_found.is_none() {
                lost_and_found = self.lost_and_found();
            }
            match &mut lost_and_found {
                Some((directory, names)) => self.attach(index, *directory, names),
                None => self.note(
                    self.files[index].number,
                    "the inode has no name, and there is no inode left for /lost+found",
                ),
            }
        }
    }

    fn attach(&mut self, index: usize, directory: usize, names: &mut HashSet<Vec<u8>>) {
        let number = self.files[index].number;
        let mut name = format!("#{number}").into_bytes();
        while !names.insert(name.clone()) {
            name.push(b'+');
        }
        let path = name.escape_ascii();
        let what = format!("no name led here: it is now /{LOST_AND_FOUND}/{path}");
        self.note(number, what);
        self.add_name(directory, &name, index);
    }

    /// The directory for inodes without a name; it is made if it is missing.
    fn lost_and_found(&mut self) -> Option<(usize, HashSet<Vec<u8>>)> {
        let root = self.file_index(ROOT)?;
        let mut name = LOST_AND_FOUND.to_string();
        let is_taken = |repairer: &Self, name: &str| {
            let mut own = repairer.names.iter().filter(|it| {
                it.directory == root as u32 && !it.is_dropped && *it.name == *name.as_bytes()
            });
            own.next().map(|name| name.number)
        };
        while let Some(number) = is_taken(self, &name) {
            let index = self.file_index(number)?;
            if self.files[index].kind == FileKind::Directory {
                let names = self.names.iter().filter(|it| it.directory == index as u32);
                return Some((index, names.map(|it| it.name.to_vec()).collect()));
            }
            name.push('+');
        }
        let free = || (3..self.image.layout.inodes()).filter(|number| !self.is_live(*number));
        // Avoid the number of an inode that was just given up.
        let number = free()
            .find(|number| !self.cleared.contains_key(number))
            .or_else(|| free().next())?;
        let mut found = Inode::FREE;
        let offset = self.image.layout.inode(number);
        self.image.read(offset, found.as_mut_bytes());
        let free = self.cleared.remove(&number).unwrap_or(found);
        let made = directory(free.next_generation(), self.now_ns);
        let index = self.files.len();
        self.add_file(number, found, made, FileKind::Directory);
        self.note(number, format!("/{name} was made"));
        self.add_name(root, name.as_bytes(), index);
        Some((index, HashSet::new()))
    }

    fn add_name(&mut self, directory: usize, name: &[u8], target: usize) {
        let hash = hash_name(&self.superblock.hash_key, name);
        let file = &mut self.files[target];
        (file.named_by, file.names) = (self.names.len() as u32, file.names + 1);
        self.names.push(Name {
            directory: directory as u32,
            leaf: NONE,
            key: hash << DISCRIMINATOR_BITS,
            number: file.number,
            generation: file.inode.generation,
            kind: (file.kind.bits() >> 12) as u8,
            name: name.into(),
            is_moved: false,
            is_dropped: false,
        });
    }

    /// Sets links, parents and numbers of entries from the names.
    fn count_names(&mut self) {
        for index in 0..self.names.len() {
            let name = &self.names[index];
            let directory = name.directory as usize;
            if name.is_dropped {
                continue;
            }
            let target = self.file_index(name.number);
            let is_directory =
                target.is_some_and(|target| self.files[target].kind == FileKind::Directory);
            self.files[directory].entries += 1;
            self.files[directory].subdirectories += u32::from(is_directory);
        }
        for index in 0..self.files.len() {
            let parent = self.above(index).map(|above| self.files[above].number);
            self.settle_grant(index, parent);
            let file = &mut self.files[index];
            let old = file.inode;
            let is_directory = file.kind == FileKind::Directory;
            let is_unnamed = file.names == 0 && !is_root(file.number);
            file.inode.links = match is_directory {
                // It was removed, or there is no place for it.
                _ if is_unnamed && (file.inode.links == 0 || !is_directory) => file.inode.links,
                true => 2 + file.subdirectories,
                false => file.names,
            };
            if is_directory {
                file.inode.entries = file.entries;
                file.inode.parent = parent.unwrap_or(file.inode.parent);
            }
            let new = file.inode;
            let counts = |inode: &Inode| (inode.links, inode.entries, inode.parent);
            if !file.is_gone && counts(&old) != counts(&new) && file.found.mode != 0 {
                let number = file.number;
                self.note(
                    number,
                    "the numbers of links and entries, or the parent, were repaired",
                );
            }
        }
    }
}

impl Repairer<'_> {
    /// Only a file in the system directory can be a grant.
    fn settle_grant(&mut self, index: usize, parent: Option<u64>) {
        let file = &mut self.files[index];
        let is_held = file.names == 0 && file.inode.links == 0;
        if file.is_grant() && !file.is_gone && !is_held && parent != Some(SYSTEM) {
            file.inode.flags = 0;
            let number = file.number;
            self.note(
                number,
                "the file is no grant: it is not in the system directory",
            );
        }
    }
}

impl Leaf {
    /// The logical block behind the range of names that belong here.
    pub(super) fn end(&self) -> u64 {
        self.logical + (1 << (32 - self.depth))
    }
}

/// Whether entries of a leaf share bytes.
fn shares_bytes(contents: &Block, header: &LeafHeader) -> bool {
    let mut places: Vec<(usize, usize)> = (0..header.count as usize)
        .map(|slot| {
            let at = SLOTS + slot * SLOT;
            let slot = Slot::read_from_bytes(&contents[at..at + SLOT]).expect("a slot's bytes");
            let at = slot.offset as usize;
            let entry =
                EntryHeader::read_from_bytes(&contents[at..at + ENTRY]).expect("an entry's bytes");
            (at, at + entry_size(entry.name_length as usize))
        })
        .collect();
    places.sort_unstable();
    places.windows(2).any(|pair| pair[0].1 > pair[1].0)
        || places.last().is_some_and(|(_, end)| *end > BLOCK)
}
