//! Salvage of a pool: all of it that can be read. Unreadable parts are distinct from existing ones.

use std::collections::{BTreeMap, BTreeSet};

use client::{Attributes, FileKind, FileSystem, PoolOptions};
use pmem::Region;
use store::Finding;

const BLOCK: u64 = store::BLOCK as u64;
/// Blocks of a file that are read from its beginning; its last one is, too.
const BLOCKS_MAX: u64 = 32;

/// Readable contents of one inode; `None` stands for an error.
#[derive(Clone, Debug, PartialEq)]
pub struct SalvagedFile {
    /// Attributes, as stat returned them.
    pub attributes: Attributes,
    /// Blocks of a file, or the target of a link.
    pub blocks: BTreeMap<u64, Option<Vec<u8>>>,
    /// Extended attributes with their values.
    pub xattrs: Option<BTreeMap<Vec<u8>, Vec<u8>>>,
    /// Names of a directory and their targets.
    pub names: Option<BTreeMap<Vec<u8>, u64>>,
}

/// Readable contents of a pool.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Salvage {
    /// Inodes that a path leads to.
    pub inodes: BTreeMap<u64, SalvagedFile>,
    /// Paths and their targets; `None`: the lookup is an error.
    pub paths: BTreeMap<Vec<u8>, Option<u64>>,
}

impl Salvage {
    /// Opens a pool through the client, and reads all of it. An error says why it does not open.
    pub fn read(region: &Region) -> Result<Salvage, String> {
        let opened = FileSystem::open_region(region.clone(), PoolOptions::default());
        let file_system = opened.map_err(|error| error.to_string())?;
        let mut salvage = Salvage::default();
        salvage.paths.insert(b"/".to_vec(), Some(store::ROOT));
        let mut left = vec![(Vec::new(), store::ROOT)];
        while let Some((path, number)) = left.pop() {
            let known = salvage.inodes.contains_key(&number);
            if !known && let Ok(attributes) = file_system.attributes(number) {
                let file = SalvagedFile::read(&file_system, number, attributes);
                salvage.inodes.insert(number, file);
            }
            let names = salvage.inodes.get(&number).and_then(|it| it.names.clone());
            // A damaged pool could lead in circles.
            for name in names.into_iter().flatten().filter(|_| !known) {
                let path = [&path[..], b"/", &name.0].concat();
                let found = file_system.lookup(number, &name.0);
                let found = found.ok().map(|found| found.number);
                salvage.paths.insert(path.clone(), found);
                left.extend(found.map(|found| (path, found)));
            }
        }
        Ok(salvage)
    }

    /// Whether all contents read of a damaged pool are the original ones, and each error is of an inode with a finding,
    /// or of an entry in a directory with one.
    pub fn is_right(&self, expected: &Salvage, findings: &[Finding]) -> Result<(), String> {
        let found: BTreeSet<u64> = findings.iter().filter_map(|it| it.inode).collect();
        let explain = |number: u64, what: &str| match found.contains(&number) {
            true => Ok(()),
            false => Err(format!(
                "{what} of inode {number} fails without a finding there"
            )),
        };
        for (number, file) in &self.inodes {
            let right = expected.inodes.get(number);
            let right = right.ok_or(format!("there is an inode {number}"))?;
            if file.attributes != right.attributes {
                return Err(format!("attributes of inode {number} are others"));
            }
            for (at, block) in &file.blocks {
                match block {
                    None => explain(*number, "reading")?,
                    Some(_) if right.blocks.get(at) == Some(block) => {}
                    Some(_) => return Err(format!("block {at} of inode {number} is wrong")),
                }
            }
            match (&file.xattrs, &right.xattrs) {
                (None, _) => explain(*number, "reading attributes")?,
                (own, right) if own == right => {}
                _ => return Err(format!("extended attributes of inode {number} are wrong")),
            }
            match (&file.names, &right.names) {
                (None, Some(_)) => explain(*number, "listing")?,
                (own, right) if own == right => {}
                _ => return Err(format!("names in inode {number} are wrong")),
            }
        }
        for (path, number) in &self.paths {
            match (number, expected.paths.get(path)) {
                (None, Some(Some(number))) => explain(*number, "looking up the path")?,
                (own, Some(right)) if own == right => {}
                _ => return Err(format!("path {} is wrong", path.escape_ascii())),
            }
        }
        Ok(())
    }

    /// Whether a repaired pool has all its contents except those that repair reported lost. `lied`: inodes with
    /// structures that were changed under right checksums; they may be anything.
    pub fn is_kept(
        &self,
        expected: &Salvage,
        repair: &store::Repair,
        lied: &BTreeSet<u64>,
    ) -> Result<(), String> {
        let says = |number: u64, words: &[&str]| {
            let own = repair.done.iter().filter(|it| it.inode == Some(number));
            let mut what = own.map(|it| it.what.as_str());
            what.any(|what| words.iter().any(|words| what.contains(words)))
        };
        let left: BTreeSet<u64> = repair
            .left
            .findings
            .iter()
            .filter_map(|it| it.inode)
            .collect();
        for (number, right) in &expected.inodes {
            if lied.contains(number) {
                continue;
            }
            let Some(file) = self.inodes.get(number) else {
                match says(*number, &["lost", "freed", "removed"]) {
                    true => continue,
                    false => return Err(format!("inode {number} is gone")),
                }
            };
            let attributes = |it: &SalvagedFile| {
                let it = &it.attributes;
                (it.kind, it.permissions, it.uid, it.gid, it.device)
            };
            if attributes(file) != attributes(right) {
                return Err(format!("attributes of inode {number} are others"));
            }
            let is_directory = right.attributes.kind == FileKind::Directory;
            if file.attributes.size != right.attributes.size && !is_directory {
                return Err(format!("inode {number} has another size"));
            }
            for (at, block) in &file.blocks {
                let is_excused = match block {
                    None => left.contains(number),
                    Some(_) => says(*number, &["are zeros now"]),
                };
                if right.blocks.get(at) != Some(block) && !is_excused {
                    return Err(format!("block {at} of inode {number} is another"));
                }
            }
            let are_lost = says(*number, &["extended attributes are lost"]);
            if file.xattrs != right.xattrs && !are_lost {
                return Err(format!("extended attributes of inode {number} are others"));
            }
            self.has_names(expected, *number, &says, lied)?;
        }
        Ok(())
    }

    /// Whether a directory has its names, but those that were lost and those of inodes that are gone.
    fn has_names(
        &self,
        expected: &Salvage,
        number: u64,
        says: &dyn Fn(u64, &[&str]) -> bool,
        lied: &BTreeSet<u64>,
    ) -> Result<(), String> {
        let (own, right) = (&self.inodes[&number].names, &expected.inodes[&number].names);
        let (Some(own), Some(right)) = (own, right) else {
            return match own == right {
                true => Ok(()),
                false => Err(format!("inode {number} cannot be listed")),
            };
        };
        for (name, target) in right {
            let is_excused = lied.contains(target)
                || !self.inodes.contains_key(target)
                || says(
                    number,
                    &["the names in it are lost", "recreated", "is left out"],
                );
            if own.get(name) != Some(target) && !is_excused {
                return Err(format!(
                    "name {} in inode {number} is gone",
                    name.escape_ascii()
                ));
            }
        }
        let is_new =
            |name: &&Vec<u8>| !right.contains_key(*name) && !name.starts_with(b"lost+found");
        match own.keys().find(is_new) {
            Some(name) if number != store::ROOT => Err(format!(
                "there is a name {} in inode {number}",
                name.escape_ascii()
            )),
            _ => Ok(()),
        }
    }
}

impl SalvagedFile {
    fn read(file_system: &FileSystem, number: u64, attributes: Attributes) -> SalvagedFile {
        let mut blocks = BTreeMap::new();
        let (size, kind) = (attributes.size, attributes.kind);
        if kind == FileKind::Regular {
            let last = size.saturating_sub(1) / BLOCK;
            let numbers = 0..size.div_ceil(BLOCK).min(BLOCKS_MAX);
            for index in numbers.chain((size > 0).then_some(last)) {
                let mut data = vec![0; BLOCK as usize];
                let read = file_system.read(number, index * BLOCK, &mut data);
                let data = read.ok().map(|count| data[..count].to_vec());
                blocks.insert(index, data);
            }
        }
        if kind == FileKind::Symlink {
            blocks.insert(0, file_system.read_link(number).ok());
        }
        let mut names = BTreeMap::new();
        let listed = file_system.read_directory(number, 2, &mut |entry| {
            names.insert(entry.name.clone(), entry.number);
            true
        });
        let is_directory = kind == FileKind::Directory;
        SalvagedFile {
            attributes,
            blocks,
            xattrs: read_xattrs(file_system, number),
            names: listed.ok().filter(|()| is_directory).map(|()| names),
        }
    }
}

fn read_xattrs(file_system: &FileSystem, number: u64) -> Option<BTreeMap<Vec<u8>, Vec<u8>>> {
    let names = file_system.xattr_names(number).ok()?;
    let with_value = |name: Vec<u8>| {
        let value = file_system.xattr(number, &name).ok()?;
        Some((name, value))
    };
    names.into_iter().map(with_value).collect()
}
