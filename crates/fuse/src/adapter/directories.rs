//! Listings of directories.

use client::{Entry, Error};
use rustix::io::Errno;

use super::{Adapter, Answer};
use crate::answer::{self, Listed, Listing, put};
use crate::wire::{self, opened};

/// Entries of a directory that are looked up at a time.
const ENTRIES_BATCH: usize = 64;

impl Adapter {
    pub(super) fn open_directory(&self, body: &mut [u8]) -> Answer {
        if self.open_directory_unneeded {
            return Err(Errno::NOSYS);
        }
        let flags = opened::KEEP_CACHE | opened::CACHE_DIR;
        let answer = wire::OpenOut {
            flags,
            ..wire::OpenOut::default()
        };
        Ok(put(body, &answer))
    }

    pub(super) fn read_directory(&self, number: u64, cookie: u64, room: &mut [u8]) -> Answer {
        let mut listing = Listing::new(room);
        let read = self
            .file_system
            .read_directory(number, cookie, &mut |entry| listing.add(&listed(entry)));
        self.noted_directory(number, read)?;
        Ok(listing.length())
    }

    pub(super) fn read_directory_plus(&self, number: u64, cookie: u64, room: &mut [u8]) -> Answer {
        let mut listing = Listing::new(room);
        let filled = self.fill(number, cookie, &mut listing);
        self.noted_directory(number, filled)?;
        Ok(listing.length())
    }

    /// Adds entries with their attributes from `cookie` on, until the answer is full or the directory ends.
    fn fill(
        &self,
        directory: u64,
        mut cookie: u64,
        listing: &mut Listing<'_>,
    ) -> Result<(), Error> {
        loop {
            // The directory is not asked about its files while it is being read: it is locked then.
            let mut batch: Vec<Entry> = Vec::with_capacity(ENTRIES_BATCH);
            self.file_system
                .read_directory(directory, cookie, &mut |entry| {
                    let room = batch.len() < ENTRIES_BATCH;
                    if room {
                        batch.push(entry.clone());
                    }
                    room
                })?;
            for entry in &batch {
                if !listing.has_room(&entry.name, true) {
                    return Ok(());
                }
                self.add_plus(entry, listing);
                cookie = entry.cookie;
            }
            if batch.len() < ENTRIES_BATCH {
                return Ok(());
            }
        }
    }

    /// Adds one entry with its attributes. The kernel remembers what it gets here, apart from `.` and `..`.
    fn add_plus(&self, entry: &Entry, listing: &mut Listing<'_>) {
        let attributes = self.file_system.attributes(entry.number);
        let attributes = if entry.name == b"." || entry.name == b".." {
            attributes
        } else {
            self.held(attributes)
        };
        // One without attributes has been removed since the directory was read.
        if let Ok(attributes) = attributes {
            listing.add_with(&answer::entry(&attributes, self.cache), &listed(entry));
        }
    }
}

fn listed(entry: &Entry) -> Listed<'_> {
    Listed {
        number: entry.number,
        kind: entry.kind,
        name: &entry.name,
        cookie: entry.cookie,
    }
}
