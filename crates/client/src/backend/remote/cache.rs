//! Outcomes under leases: attributes and names that are answered again without a message.
//!
//! ```text
//!   call ──► find ── a hit ──► the outcome
//!              └──► begin ──► the cluster ──► end: keeps the outcome of a read, unless a change or recall came in between
//! ```
//! The session renews the leases of what was used lately. A front end's own changes drop what they change when they begin, and
//! nothing that was read meanwhile is kept. A recall drops the contents before the front end receives it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use operations::{Attributes, Details, ErrorCode, FileId, Operation, Outcome, ROOT};
use parking_lot::Mutex;
use protocol::leases::{Covers, changed, changed_names};

use super::is_dot;
use crate::leases::{Kept, Renewable};

const SHARDS: usize = 64;
/// Inodes with contents in a shard, and names of directories in it, at most.
const INODES_MAX: usize = 512;
const NAMES_MAX: usize = 16 << 10;
/// Leases are renewed for so long after the last use of their contents. The kernel uses what it has without a request.
const USED_FOR: Duration = Duration::from_secs(10);
/// A lease is renewed when so much of its time is left.
const RENEW_BEFORE: Duration = Duration::from_millis(600);

/// Contents under the lease of an inode.
struct Contents {
    /// End of the lease.
    until: Instant,
    used_at: Instant,
    attributes: Option<(FileId, Attributes)>,
    /// Names in a directory, those too that are not there.
    names: HashMap<Vec<u8>, Option<FileId>>,
}

#[derive(Default)]
struct Shard {
    /// Counts changes that begin or end, and recalls.
    stamp: u64,
    /// Number of changes that have begun and not ended.
    changing: u64,
    recalls: u64,
    contents: HashMap<u64, Contents>,
    /// Names in all contents.
    names: usize,
}

pub(super) struct Cache {
    /// The session is granted leases.
    is_on: AtomicBool,
    /// Calls that have ended and may still be executed.
    abandoned: AtomicUsize,
    shards: [Mutex<Shard>; SHARDS],
}

/// A call in progress.
pub(super) enum Work {
    /// Nothing is kept of it, and it changes nothing that is.
    Other,
    Read {
        asked: Asked,
        /// Stamps of the shards when it began; none where a change was in progress.
        stamps: Box<[Option<u64>; SHARDS]>,
    },
    Change {
        /// The inodes that it changes; all if they are not known.
        inodes: Option<Vec<u64>>,
        /// Directories with names that lead to some of them, as they were when it began.
        directories: Vec<NamesAtStart>,
        makes: Option<NewName>,
    },
}

/// What tells whether names of a directory still lead where they led when a call began.
pub(super) struct NamesAtStart {
    directory: u64,
    /// Recalls in its shard.
    recalls: u64,
    /// The end of its lease; none if the names were not known.
    until: Option<Instant>,
}

/// A name that a call makes.
pub(super) struct NewName {
    directory: u64,
    name: Vec<u8>,
    /// Stamp of the directory's shard once the call has begun.
    stamp: u64,
}

/// A read with contents to keep.
pub(super) enum Asked {
    Attributes(FileId),
    Name(u64, Vec<u8>),
    List(FileId),
}

impl Asked {
    fn of(operation: &Operation) -> Option<Asked> {
        match operation {
            Operation::Attributes { file } => Some(Asked::Attributes(*file)),
            Operation::Lookup {
                directory, name, ..
            } => Some(Asked::Name(directory.inode, name.clone())),
            Operation::ReadDirectory {
                directory,
                with_attributes: true,
                ..
            } => Some(Asked::List(*directory)),
            _ => None,
        }
    }
}

impl Shard {
    /// Contents under a lease that has not ended.
    fn live(&mut self, inode: u64, now: Instant) -> Option<&mut Contents> {
        let contents = self.contents.get_mut(&inode)?;
        (now < contents.until).then_some(contents)
    }

    /// Contents under a lease that was extended, or begins: then nothing earlier is left.
    fn extend(&mut self, inode: u64, now: Instant, until: Instant) -> Option<&mut Contents> {
        let is_full = |contents: &HashMap<u64, Contents>| {
            contents.len() >= INODES_MAX && !contents.contains_key(&inode)
        };
        if is_full(&self.contents) || self.names >= NAMES_MAX {
            self.drop_ended(now);
        }
        if self.names >= NAMES_MAX {
            self.drop_all();
        }
        if until <= now || is_full(&self.contents) {
            return None;
        }
        let contents = self.contents.entry(inode).or_insert(Contents {
            until,
            used_at: now,
            attributes: None,
            names: HashMap::new(),
        });
        if contents.until <= now {
            (contents.attributes, contents.names) = (None, HashMap::new());
        }
        contents.until = contents.until.max(until);
        contents.used_at = now;
        Some(contents)
    }

    /// Drops contents under leases that have ended.
    fn drop_ended(&mut self, now: Instant) {
        self.contents.retain(|_, it| now < it.until);
        self.names = self.contents.values().map(|it| it.names.len()).sum();
    }

    fn drop_all(&mut self) {
        self.contents.clear();
        self.names = 0;
    }

    fn drop_attributes(&mut self, inode: u64) {
        if let Some(contents) = self.contents.get_mut(&inode) {
            contents.attributes = None;
        }
    }
}

impl Contents {
    fn use_attributes(&mut self, file: FileId, now: Instant) -> Option<(FileId, Attributes)> {
        // The number of a removed file may be in use again.
        let is_same = |it: &FileId| file.inode == ROOT || it.generation == file.generation;
        let found = self.attributes.filter(|(it, _)| is_same(it))?;
        self.used_at = now;
        Some(found)
    }
}

impl Cache {
    pub(super) fn new() -> Cache {
        Cache {
            is_on: AtomicBool::new(false),
            abandoned: AtomicUsize::new(0),
            shards: std::array::from_fn(|_| Mutex::default()),
        }
    }

    fn shard(&self, inode: u64) -> &Mutex<Shard> {
        &self.shards[inode as usize % SHARDS]
    }

    /// The session is granted leases from now on, or not any more.
    pub(super) fn turn(&self, is_on: bool) {
        self.is_on.store(is_on, Ordering::SeqCst);
    }

    /// Whether anything may be kept now.
    pub(super) fn keeps(&self) -> bool {
        self.is_on.load(Ordering::Relaxed) && self.abandoned.load(Ordering::SeqCst) == 0
    }

    /// The outcome of a read that is kept, and until when its user may keep it.
    pub(super) fn find(&self, operation: &Operation) -> Option<(Outcome, Kept)> {
        if !self.keeps() {
            return None;
        }
        match operation {
            Operation::Attributes { file } => self.find_attributes(*file, Instant::now()),
            Operation::Lookup {
                directory,
                name,
                hold: false,
            } => self.find_name(*directory, name),
            _ => None,
        }
    }

    fn find_attributes(&self, file: FileId, now: Instant) -> Option<(Outcome, Kept)> {
        let mut shard = self.shard(file.inode).lock();
        let contents = shard.live(file.inode, now)?;
        let (file, attributes) = contents.use_attributes(file, now)?;
        let covers = Covers {
            subject: true,
            ..Covers::default()
        };
        let until = contents.until;
        Some((outcome_of(file, attributes), Kept { until, covers }))
    }

    /// The same for a name.
    pub(super) fn find_name(&self, directory: FileId, name: &[u8]) -> Option<(Outcome, Kept)> {
        if !self.keeps() {
            return None;
        }
        let now = Instant::now();
        let mut covers = Covers {
            subject: true,
            ..Covers::default()
        };
        let (found, until) = {
            let mut shard = self.shard(directory.inode).lock();
            let contents = shard.live(directory.inode, now)?;
            let found = *contents.names.get(name)?;
            contents.used_at = now;
            (found, contents.until)
        };
        let Some(file) = found else {
            let outcome = Outcome::failed(ErrorCode::NotFound);
            return Some((outcome, Kept { until, covers }));
        };
        let (outcome, kept) = self.find_attributes(file, now)?;
        covers.found = true;
        let until = until.min(kept.until);
        Some((outcome, Kept { until, covers }))
    }

    /// A call begins. [`Cache::end`] has to follow.
    pub(super) fn begin(&self, operation: &Operation) -> Work {
        if !self.is_on.load(Ordering::Relaxed) {
            return Work::Other;
        }
        if let Some(asked) = Asked::of(operation) {
            let stamps = Box::new(std::array::from_fn(|shard| {
                let shard = self.shards[shard].lock();
                (shard.changing == 0).then_some(shard.stamp)
            }));
            return Work::Read { asked, stamps };
        }
        if matches!(operation, Operation::CloseSession) {
            self.change(None, None, 1);
            return Work::Change {
                inodes: None,
                directories: Vec::new(),
                makes: None,
            };
        }
        let directories = changed_names(operation)
            .into_iter()
            .map(|(it, _)| self.names_at_start(it.inode))
            .collect();
        let inodes = self.changed(operation);
        if inodes.as_ref().is_some_and(Vec::is_empty) {
            return Work::Other;
        }
        self.change(inodes.as_deref(), Some(operation), 1);
        Work::Change {
            makes: self.new_name(operation),
            inodes,
            directories,
        }
    }

    fn names_at_start(&self, directory: u64) -> NamesAtStart {
        let shard = self.shard(directory).lock();
        NamesAtStart {
            directory,
            recalls: shard.recalls,
            until: shard.contents.get(&directory).map(|it| it.until),
        }
    }

    fn new_name(&self, operation: &Operation) -> Option<NewName> {
        let Operation::Create {
            directory, name, ..
        } = operation
        else {
            return None;
        };
        Some(NewName {
            directory: directory.inode,
            name: name.clone(),
            stamp: self.shard(directory.inode).lock().stamp,
        })
    }

    /// The inodes with attributes that an operation changes. None if that is not known.
    fn changed(&self, operation: &Operation) -> Option<Vec<u64>> {
        let mut inodes = changed(operation);
        match operation {
            Operation::NoteRead { file, .. }
            | Operation::Read {
                file,
                note_read: true,
                ..
            } => inodes.push(file.inode),
            _ => {}
        }
        let now = Instant::now();
        for (directory, name) in changed_names(operation) {
            let mut shard = self.shard(directory.inode).lock();
            let found = *shard.live(directory.inode, now)?.names.get(&name)?;
            inodes.extend(found.map(|file| file.inode));
        }
        Some(inodes)
    }

    /// Drops what an operation changes, when it begins (`begun` is 1) and when it ends (-1).
    fn change(&self, inodes: Option<&[u64]>, operation: Option<&Operation>, begun: i64) {
        let note = |shard: &mut Shard| {
            shard.stamp += 1;
            shard.changing = shard.changing.saturating_add_signed(begun);
        };
        match inodes {
            None => self.shards.iter().for_each(|shard| {
                let mut shard = shard.lock();
                note(&mut shard);
                shard.drop_all();
            }),
            Some(inodes) => inodes.iter().for_each(|inode| {
                let mut shard = self.shard(*inode).lock();
                note(&mut shard);
                shard.drop_attributes(*inode);
            }),
        }
        for (directory, name) in operation.map(names_of).unwrap_or_default() {
            let mut shard = self.shard(directory.inode).lock();
            if let Some(contents) = shard.contents.get_mut(&directory.inode) {
                contents.names.remove(&name);
            }
        }
    }

    /// A call has ended, with an outcome that may be kept for so long.
    pub(super) fn end(&self, work: Work, outcome: Option<&Outcome>, kept: Option<Kept>) {
        match (work, outcome, kept) {
            (
                Work::Change {
                    inodes,
                    directories,
                    makes,
                },
                outcome,
                kept,
            ) => {
                self.keep_new_name(makes, outcome, kept);
                self.change(inodes.as_deref(), None, -1);
                // Another session may have changed what a name leads to, before it was changed here: after a recall, or
                // after the lease's end.
                let now = Instant::now();
                let is_disturbed = |it: &NamesAtStart| {
                    let recalls = self.shard(it.directory).lock().recalls;
                    recalls != it.recalls || it.until.is_none_or(|until| until <= now)
                };
                if directories.iter().any(is_disturbed) {
                    self.change(None, None, 0);
                }
            }
            (Work::Read { asked, stamps }, Some(outcome), Some(kept)) => {
                self.keep(&asked, &stamps[..], outcome, kept);
            }
            _ => {}
        }
    }

    /// Keeps the file that a name leads to now: a change of this name then drops only what is known of that file.
    fn keep_new_name(&self, makes: Option<NewName>, outcome: Option<&Outcome>, kept: Option<Kept>) {
        let (Some(made), Some(outcome), Some(kept)) = (makes, outcome, kept) else {
            return;
        };
        let mut shard = self.shard(made.directory).lock();
        let is_undisturbed = shard.stamp == made.stamp && shard.changing == 1 && self.keeps();
        if is_undisturbed
            && kept.covers.subject
            && outcome.attributes.is_some()
            && let Some(contents) = shard.extend(made.directory, Instant::now(), kept.until)
            && contents
                .names
                .insert(made.name, Some(outcome.file))
                .is_none()
        {
            shard.names += 1;
        }
    }

    fn keep(&self, asked: &Asked, stamps: &[Option<u64>], outcome: &Outcome, kept: Kept) {
        let now = Instant::now();
        let Covers {
            subject,
            found,
            listed,
            ..
        } = kept.covers;
        let put = |inode: u64, put: &mut dyn FnMut(&mut Contents)| {
            let mut shard = self.shard(inode).lock();
            // Under the lock: what is kept before a call is abandoned is dropped when it has settled.
            if self.keeps()
                && stamps[inode as usize % SHARDS] == Some(shard.stamp)
                && let Some(contents) = shard.extend(inode, now, kept.until)
            {
                let before = contents.names.len();
                put(contents);
                let more = contents.names.len() - before;
                shard.names += more;
            }
        };
        let put_attributes = |file: FileId, attributes: Attributes| {
            put(file.inode, &mut |it| {
                it.attributes = Some((file, attributes))
            });
        };
        let put_name = |directory: u64, name: &[u8], found: Option<FileId>| {
            put(directory, &mut |it| {
                it.names.insert(name.to_vec(), found);
            });
        };
        let of_file = outcome.attributes.map(|it| (outcome.file, it));
        match asked {
            Asked::Attributes(file) if subject => {
                if let Some((_, attributes)) = of_file {
                    let generation = attributes.generation;
                    put_attributes(
                        FileId {
                            generation,
                            ..*file
                        },
                        attributes,
                    );
                }
            }
            Asked::Name(directory, name) if subject && outcome.is_done() == of_file.is_some() => {
                put_name(*directory, name, of_file.map(|(file, _)| file));
                if let Some((file, attributes)) = of_file.filter(|_| found) {
                    put_attributes(file, attributes);
                }
            }
            Asked::List(directory) if subject => {
                let Details::Entries(entries) = &outcome.details else {
                    return;
                };
                let entries = entries.iter().filter(|it| !is_dot(&it.entry.name));
                for (entry, attributes) in
                    entries.filter_map(|it| Some((&it.entry, it.attributes?)))
                {
                    let file = FileId {
                        inode: entry.number,
                        generation: attributes.generation,
                        ..*directory
                    };
                    put_name(directory.inode, &entry.name, Some(file));
                    if listed {
                        put_attributes(file, attributes);
                    }
                }
            }
            _ => {}
        }
    }
}

/// Names that an operation makes or changes.
fn names_of(operation: &Operation) -> Vec<(FileId, Vec<u8>)> {
    match operation {
        Operation::Create {
            directory, name, ..
        }
        | Operation::Link {
            directory, name, ..
        } => vec![(*directory, name.clone())],
        _ => changed_names(operation),
    }
}

fn outcome_of(file: FileId, attributes: Attributes) -> Outcome {
    Outcome {
        file,
        attributes: Some(attributes),
        ..Outcome::done()
    }
}

impl Renewable for Cache {
    fn to_renew(&self, now: Instant) -> Vec<u64> {
        let is_used = |it: &Contents| now < it.used_at + USED_FOR;
        let is_due = |it: &Contents| now < it.until && it.until < now + RENEW_BEFORE && is_used(it);
        let due = |shard: &Mutex<Shard>| {
            let mut shard = shard.lock();
            shard.drop_ended(now);
            let due = shard.contents.iter().filter(|(_, it)| is_due(it));
            due.map(|(inode, _)| *inode).collect::<Vec<u64>>()
        };
        self.shards.iter().flat_map(due).collect()
    }

    fn renewed(&self, inodes: &[u64], until: Instant) {
        let now = Instant::now();
        for inode in inodes {
            if let Some(contents) = self.shard(*inode).lock().live(*inode, now) {
                contents.until = contents.until.max(until);
            }
        }
    }

    fn recalled(&self, inode: u64) {
        let mut shard = self.shard(inode).lock();
        shard.stamp += 1;
        shard.recalls += 1;
        shard.contents.remove(&inode);
    }

    fn abandoned(&self) {
        self.abandoned.fetch_add(1, Ordering::SeqCst);
    }

    fn settled(&self) {
        self.change(None, None, 0);
        self.abandoned.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use operations::{FileKind, NewInode, OwnedNewInode, WriteAt};

    use super::*;
    use crate::backend::remote::attributes_of;

    const LONG: Duration = Duration::from_secs(120);
    const FILE: FileId = FileId {
        unit: 1,
        inode: 7,
        generation: 3,
    };
    const DIRECTORY: FileId = FileId {
        unit: 1,
        inode: 8,
        generation: 1,
    };

    fn attributes() -> Attributes {
        attributes_of(FILE.inode, FILE.generation, FileKind::Regular)
    }

    fn cache() -> Cache {
        let cache = Cache::new();
        cache.turn(true);
        cache
    }

    fn lookup() -> Operation {
        Operation::Lookup {
            directory: DIRECTORY,
            name: b"n".to_vec(),
            hold: false,
        }
    }

    fn write() -> Operation {
        Operation::Write {
            file: FILE,
            at: WriteAt::End,
            data: vec![1].into(),
            drop_privileges: None,
        }
    }

    fn unlink() -> Operation {
        Operation::Unlink {
            directory: DIRECTORY,
            name: b"n".to_vec(),
        }
    }

    fn end(cache: &Cache, work: Work, left: Duration) {
        let kept = Kept {
            until: Instant::now() + left,
            covers: Covers {
                subject: true,
                found: true,
                listed: false,
                owned: false,
            },
        };
        cache.end(work, Some(&outcome_of(FILE, attributes())), Some(kept));
    }

    /// The lookup is made, and its outcome is kept.
    fn fill(cache: &Cache, left: Duration) {
        end(cache, cache.begin(&lookup()), left);
    }

    fn has(cache: &Cache, operation: &Operation) -> bool {
        cache.find(operation).is_some()
    }

    #[test]
    fn a_lookup_shows_a_name_and_attributes_until_they_change() {
        let cache = cache();
        let attributes = Operation::Attributes { file: FILE };
        fill(&cache, LONG);
        assert!(has(&cache, &lookup()) && has(&cache, &attributes));
        let other = Operation::Attributes {
            file: FileId {
                generation: 4,
                ..FILE
            },
        };
        assert!(!has(&cache, &other), "the number is in use again");
        let work = cache.begin(&write());
        assert!(!has(&cache, &lookup()) && !has(&cache, &attributes));
        cache.end(work, None, None);
        fill(&cache, LONG);
        let work = cache.begin(&unlink());
        assert!(!has(&cache, &lookup()) && !has(&cache, &attributes));
        cache.end(work, None, None);
        // A change of a name that leads to an unknown file.
        end(&cache, cache.begin(&attributes), LONG);
        cache.end(cache.begin(&unlink()), None, None);
        assert!(!has(&cache, &attributes));
    }

    #[test]
    fn nothing_is_kept_that_was_read_during_a_change_or_a_recall() {
        let cache = cache();
        let (early, change) = (cache.begin(&lookup()), cache.begin(&write()));
        let during = cache.begin(&lookup());
        cache.end(change, None, None);
        for work in [early, during] {
            end(&cache, work, LONG);
            assert!(!has(&cache, &lookup()));
        }
        let work = cache.begin(&lookup());
        cache.recalled(DIRECTORY.inode);
        end(&cache, work, LONG);
        assert!(!has(&cache, &lookup()));
        fill(&cache, LONG);
        assert!(has(&cache, &lookup()));
        cache.recalled(FILE.inode);
        assert!(!has(&cache, &lookup()));
    }

    #[test]
    fn nothing_is_kept_while_a_call_that_has_ended_may_be_executed() {
        let cache = cache();
        fill(&cache, LONG);
        let early = cache.begin(&lookup());
        cache.end(cache.begin(&write()), None, None);
        cache.abandoned();
        assert!(!has(&cache, &lookup()));
        fill(&cache, LONG);
        cache.settled();
        assert!(!has(&cache, &lookup()));
        end(&cache, early, LONG);
        assert!(!has(&cache, &lookup()), "it may be from before the change");
        fill(&cache, LONG);
        assert!(has(&cache, &lookup()));
    }

    #[test]
    fn a_change_of_an_own_name_drops_nothing_of_other_files() {
        let cache = cache();
        let other = Operation::Attributes {
            file: FileId {
                inode: FILE.inode + 2,
                ..FILE
            },
        };
        let new = OwnedNewInode::from(&NewInode::new(FileKind::Regular, 0o644));
        let create = Operation::Create {
            directory: DIRECTORY,
            name: b"n".to_vec(),
            new,
            hold: false,
        };
        for is_recalled in [false, true] {
            end(&cache, cache.begin(&other), LONG);
            let work = cache.begin(&create);
            if is_recalled {
                cache.recalled(DIRECTORY.inode);
            }
            end(&cache, work, LONG);
            assert!(has(&cache, &other));
            cache.end(cache.begin(&unlink()), None, None);
            // Another session may have given the name to another file.
            assert_eq!(has(&cache, &other), !is_recalled);
        }
    }

    #[test]
    fn another_sessions_change_of_a_name_during_an_own_one_drops_all() {
        let cache = cache();
        fill(&cache, LONG);
        let work = cache.begin(&unlink());
        // It now leads to another file, with attributes that are kept.
        cache.recalled(DIRECTORY.inode);
        let other = FileId {
            inode: FILE.inode + 2,
            ..FILE
        };
        let attributes = Operation::Attributes { file: other };
        end(&cache, cache.begin(&attributes), LONG);
        assert!(has(&cache, &attributes));
        cache.end(work, None, None);
        assert!(!has(&cache, &attributes));
    }

    #[test]
    fn the_end_of_a_lease_of_names_during_an_own_change_drops_all() {
        let cache = cache();
        fill(&cache, LONG);
        let mut work = cache.begin(&unlink());
        let Work::Change { directories, .. } = &mut work else {
            panic!("a removal changes files");
        };
        // Another session may replace the name after the end, without a recall.
        directories[0].until = Some(Instant::now());
        let attributes = Operation::Attributes {
            file: FileId {
                inode: FILE.inode + 2,
                ..FILE
            },
        };
        end(&cache, cache.begin(&attributes), LONG);
        assert!(has(&cache, &attributes));
        cache.end(work, None, None);
        assert!(!has(&cache, &attributes));
    }

    #[test]
    fn names_are_bounded() {
        let cache = cache();
        for number in 0..3 * NAMES_MAX as u64 {
            let lookup = Operation::Lookup {
                directory: DIRECTORY,
                name: number.to_le_bytes().to_vec(),
                hold: false,
            };
            end(&cache, cache.begin(&lookup), LONG);
        }
        let shard = cache.shard(DIRECTORY.inode).lock();
        let names = shard.contents[&DIRECTORY.inode].names.len();
        assert!(names <= NAMES_MAX && names == shard.names);
    }

    #[test]
    fn a_renewal_extends_only_what_has_not_ended() {
        let cache = cache();
        let later = Instant::now() + 2 * LONG;
        fill(&cache, LONG);
        cache.renewed(&[DIRECTORY.inode, FILE.inode], later);
        let until = cache.find(&lookup()).map(|(_, kept)| kept.until);
        assert_eq!(until, Some(later));
        let ends = |inode| {
            let mut shard = cache.shard(inode).lock();
            shard.contents.get_mut(&inode).expect("contents").until = Instant::now();
        };
        [DIRECTORY.inode, FILE.inode].into_iter().for_each(ends);
        cache.renewed(&[DIRECTORY.inode, FILE.inode], later);
        assert!(!has(&cache, &lookup()));
        // The name is not shown by a lease that begins after that.
        end(
            &cache,
            cache.begin(&Operation::Attributes { file: DIRECTORY }),
            LONG,
        );
        assert!(!has(&cache, &lookup()));
    }
}
