//! Listings of directories.

use client::{Attributes, Entry};
use rustix::io::Errno;

use super::{Adapter, Answer};
use crate::access_times::AccessTime;
use crate::answer::{self, Listed, Listing, put};
use crate::wire::{self, opened};

impl Adapter {
    /// The kernel keeps listings. Where other processes change directories, it asks for attributes before it uses one, unless it
    /// may keep them under a lease.
    pub(super) fn open_directory(&self, body: &mut [u8]) -> Answer {
        if self.open_directory_unneeded && !self.access_times.sees_all_reads() {
            return Err(Errno::NOSYS);
        }
        let answer = wire::OpenOut {
            flags: match self.access_times.files() {
                AccessTime::Always => 0,
                _ => opened::KEEP_CACHE | opened::CACHE_DIR,
            },
            ..wire::OpenOut::default()
        };
        Ok(put(body, &answer))
    }

    pub(super) fn read_directory(&self, number: u64, cookie: u64, room: &mut [u8]) -> Answer {
        let mut listing = Listing::new(room);
        let read = self
            .file_system
            .read_directory(number, cookie, &mut |entry| listing.add(&listed(entry)));
        self.noted_directory(number, cookie, read)?;
        Ok(listing.length())
    }

    pub(super) fn read_directory_plus(&self, number: u64, cookie: u64, room: &mut [u8]) -> Answer {
        let mut listing = Listing::new(room);
        // The kernel remembers each inode that it gets here. Where the inode is 0, it asks when it needs the file.
        let mut add = |entry: &Entry, attributes: Option<&Attributes>| {
            let found = attributes.map(|attributes| {
                let validity = self.validity();
                // The kernel takes listings under the directory's lock.
                let name = self.keeps_name(number, &entry.name, &validity, false);
                let listed = self.validity_of(attributes, false, |it| it.listed);
                answer::entry(attributes, name, listed)
            });
            listing.add_with(&found.unwrap_or_default(), &listed(entry))
        };
        let read = self
            .file_system
            .read_directory_held(number, cookie, &mut add);
        self.noted_directory(number, cookie, read)?;
        Ok(listing.length())
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
