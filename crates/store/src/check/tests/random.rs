//! Random damage, and random work.

use super::*;
use crate::fuzzing::PoolPart;
use crate::{NewInode, RenameMode, SetAttributes, Transaction, WriteAt};

/// An edit of some structure.
fn random_edit(below: &mut impl FnMut(u64) -> u64) -> Edit {
    use PoolPart::*;
    let places = [
        Superblock, RingState, Record, Header, Bitmap, Inode, Inode, Block, TreeNode, Leaf, Xattrs,
    ];
    Edit {
        place: places[below(places.len() as u64) as usize],
        index: below(20) as u16,
        // Structures consist of words.
        offset: below(1024) as u16 * 4,
        action: below(4) as u8,
        value: [below(200), 1 << below(64), u64::MAX][below(3) as usize],
    }
}

#[test]
fn random_damage_breaks_nothing() {
    let samples = Sample::ALL.map(sample);
    for seed in 1..=4000u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut below = |bound| random(&mut state, bound);
        let mut pool = PoolBytes::new(samples[below(4) as usize].clone());
        for _ in 0..=below(3) {
            if below(2) == 0 {
                pool.bytes[below(SAMPLE_LENGTH) as usize] ^= 1 << below(8);
            } else {
                pool.apply(&random_edit(&mut below));
            }
        }
        pool.seal(if below(4) == 0 { 0 } else { ALL });
        println!("seed {seed}");
        // An error in the pool is no failure; a panic is.
        let _ = exercise(&pool.bytes);
        if seed.is_multiple_of(2) {
            mend(&pool.bytes);
        }
    }
}

fn new_inode(kind: FileKind) -> NewInode<'static> {
    NewInode {
        kind,
        permissions: 0o644,
        uid: 0,
        gid: 0,
        device: 0,
        target: b"somewhere",
        umask: 0,
    }
}

fn memory_pool(length: u64, geometry: &Geometry) -> (Region, Store) {
    let region = Region::memory(length, false).unwrap();
    Store::format(&region, geometry).unwrap();
    let store = Store::open(region.clone(), PoolOptions::default()).unwrap();
    (region, store)
}

/// Checks a copy: the pool is open, and stays so.
#[track_caller]
fn assert_clean(region: &Region, when: &str) {
    let mut copy = vec![0; region.length() as usize];
    region.read(0, &mut copy);
    assert_eq!(check_bytes(&copy).findings, [], "{when}");
}

#[test]
fn trees_stay_right_in_any_order_of_writes() {
    let geometry = Geometry {
        blocks_per_group: 2048,
        ..Geometry::small()
    };
    let (region, store) = memory_pool(8 << 20, &geometry);
    let root = store.root();
    let create = |name| {
        store
            .names()
            .create(
                &mut Transaction::embedded(),
                &root,
                name,
                &new_inode(FileKind::Regular),
            )
            .unwrap()
    };
    let write = |node, block: u64, blocks: u64| {
        let at = WriteAt::Offset(block * BLOCK as u64);
        store
            .files()
            .write(
                &mut Transaction::embedded(),
                node,
                at,
                &vec![1; blocks as usize * BLOCK],
            )
            .unwrap();
    };
    let descending = create(b"descending");
    for index in (0..300).rev() {
        write(&descending, index * 2, 1);
    }
    assert_clean(&region, "after writes from the end to the beginning");
    let in_disorder = create(b"in disorder");
    let mut state = 1;
    for round in 0..2000 {
        write(
            &in_disorder,
            random(&mut state, 600),
            1 + random(&mut state, 8),
        );
        if round % 50 == 0 {
            assert_clean(&region, &format!("after {round} writes"));
        }
    }
    let cut = SetAttributes {
        size: Some(77),
        ..SetAttributes::default()
    };
    store
        .inodes()
        .set_attributes(&mut Transaction::embedded(), &in_disorder, &cut)
        .unwrap();
    assert_clean(&region, "after it was cut");
}

/// State of random work.
struct Work {
    store: Store,
    directories: Vec<Arc<LiveInode>>,
    held: Vec<Arc<LiveInode>>,
    state: u64,
}

impl Work {
    fn open(region: &Region, state: u64) -> Work {
        let store = Store::open(region.clone(), PoolOptions::default()).unwrap();
        let directories = vec![store.root()];
        Work {
            store,
            directories,
            held: Vec::new(),
            state,
        }
    }

    fn below(&mut self, bound: u64) -> u64 {
        random(&mut self.state, bound)
    }

    fn directory(&mut self) -> Arc<LiveInode> {
        let index = self.below(self.directories.len() as u64);
        self.directories[index as usize].clone()
    }

    /// A name out of many, short or long.
    fn name(&mut self) -> Vec<u8> {
        let number = self.below(150);
        let length = if number.is_multiple_of(7) {
            250
        } else {
            number as usize % 60
        };
        let mut name = number.to_string().into_bytes();
        name.resize(name.len().max(length), b'n');
        name
    }

    fn create(&mut self, directory: &Arc<LiveInode>, name: &[u8], kind: FileKind) -> Result<()> {
        let made = self.store.names().create(
            &mut Transaction::embedded(),
            directory,
            name,
            &new_inode(kind),
        )?;
        if kind == FileKind::Directory {
            self.directories.push(made);
        }
        Ok(())
    }

    fn write(&mut self, node: &LiveInode) -> Result<()> {
        let (offset, length) = (self.below(90_000), self.below(30_000));
        let data = vec![7; length as usize];
        self.store
            .files()
            .write(
                &mut Transaction::embedded(),
                node,
                WriteAt::Offset(offset),
                &data,
            )
            .map(drop)
    }

    fn resize(&mut self, node: &Arc<LiveInode>) -> Result<()> {
        let size = Some(self.below(100_000));
        let set = SetAttributes {
            size,
            ..SetAttributes::default()
        };
        self.store
            .inodes()
            .set_attributes(&mut Transaction::embedded(), node, &set)
            .map(drop)
    }

    fn release(&mut self) -> Result<()> {
        let index = self.below(self.held.len() as u64) as usize;
        self.store
            .inodes()
            .release(&self.held.swap_remove(index), 1)
    }

    /// One random operation, which may well fail.
    fn step(&mut self) -> Result<()> {
        let (name, other_name) = (self.name(), self.name());
        let (directory, other) = (self.directory(), self.directory());
        let found = self.store.names().lookup(&directory, &name).ok();
        match (self.below(12), found) {
            (0, _) => self.create(&directory, &name, FileKind::Directory),
            (1, _) => self.create(&directory, &name, FileKind::Symlink),
            (2 | 3, None) => self.create(&directory, &name, FileKind::Regular),
            (2..5, Some(node)) => self.write(&node),
            (5, Some(node)) => self.resize(&node),
            (6, Some(node)) => {
                self.store
                    .names()
                    .link(&mut Transaction::embedded(), &node, &other, &other_name)
            }
            (7 | 8, _) => {
                self.store
                    .names()
                    .unlink(&mut Transaction::embedded(), &directory, &name)
            }
            (9, _) => {
                self.store
                    .names()
                    .remove_directory(&mut Transaction::embedded(), &directory, &name)
            }
            (10, Some(node)) => {
                self.held.push(node.clone());
                self.store.inodes().hold(&node)
            }
            (11, _) if !self.held.is_empty() => self.release(),
            (choice, _) => {
                use RenameMode::*;
                let mode = [Replace, Exchange, NoReplace][choice as usize % 3];
                self.store.names().rename(
                    &mut Transaction::embedded(),
                    &directory,
                    &name,
                    &other,
                    &other_name,
                    mode,
                )
            }
        }
    }
}

#[test]
fn random_work_leaves_a_clean_pool() {
    for seed in 1..=6u64 {
        // Pools of one and of several groups, which get full.
        let length = if seed % 2 == 0 { 1 << 20 } else { 5 << 20 };
        let (region, store) = memory_pool(length, &Geometry::small());
        drop(store);
        let mut work = Work::open(&region, seed);
        for step in 1..=3000 {
            let result = work.step();
            let is_damaged = matches!(result, Err(Error::Corrupt { .. }));
            assert!(!is_damaged, "seed {seed}, step {step}: {result:?}");
            if step % 100 == 0 {
                assert_clean(&region, &format!("seed {seed}, step {step}"));
            }
            if step % 500 == 0 {
                // A crash: holds are gone.
                work = Work::open(&region, work.state);
                assert_clean(&region, &format!("seed {seed}, opened again at {step}"));
            }
        }
    }
}
