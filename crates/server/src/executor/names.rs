//! Names, and holds of the files that they lead to.

use operations::{Details, FileId, ListedEntry, NewInode, Operation, Outcome};
use store::{Attributes, Error, LiveInode, Transaction};

use super::{Executed, Executor, Request, done, missing, shown};

/// How often a lookup restarts because other threads removed the file that it had found.
const ATTEMPTS_MAX: u32 = 1000;

impl Executor {
    pub(super) fn run_on_names(
        &self,
        transaction: &mut Transaction<'_>,
        operation: &Operation,
    ) -> Option<Result<Executed, Error>> {
        let store = &self.store;
        Some(match operation {
            Operation::Link {
                file,
                directory,
                name,
            } => self.link(transaction, *file, (*directory, name)),
            Operation::Unlink { directory, name } => self.node(*directory).and_then(|directory| {
                store.names().unlink(transaction, &directory, name)?;
                Ok(self.in_directory(done(), &directory))
            }),
            Operation::RemoveDirectory { directory, name } => {
                self.node(*directory).and_then(|directory| {
                    store
                        .names()
                        .remove_directory(transaction, &directory, name)?;
                    Ok(self.in_directory(done(), &directory))
                })
            }
            Operation::Rename {
                directory,
                name,
                new_directory,
                new_name,
                mode,
            } => self.node(*directory).and_then(|from| {
                let to = self.node(*new_directory)?;
                store
                    .names()
                    .rename(transaction, &from, name, &to, new_name, *mode)?;
                Ok(done())
            }),
            Operation::ReadLink { file } => self.look(*file, |node| {
                self.store.names().read_link(node).map(Outcome::with_data)
            }),
            Operation::ReadDirectory {
                directory,
                cookie,
                length,
                with_attributes,
            } => self.read_directory(*directory, *cookie, (*length, *with_attributes)),
            _ => return None,
        })
    }

    pub(super) fn lookup(
        &self,
        request: &Request<'_>,
        directory: FileId,
        name: &[u8],
        hold: bool,
    ) -> Result<Executed, Error> {
        if let Some(again) = self.held_before(request).filter(|_| hold) {
            return again;
        }
        let directory = self.node(directory)?;
        for _ in 0..ATTEMPTS_MAX {
            let found = if hold {
                self.store.names().lookup_held(&directory, name)
            } else {
                self.store.names().attributes_of(&directory, name)
            };
            let version = self.store.inodes().attributes(&directory).version;
            match found {
                Ok(attributes) if hold => {
                    self.note_hold(request, &attributes)?;
                    return Ok(self.found(attributes, version));
                }
                Ok(attributes) => return Ok(self.found(attributes, version)),
                Err(Error::NotFound) => return Ok(missing(version)),
                // Its last name was removed meanwhile: then this name is gone or leads elsewhere.
                Err(Error::Stale) => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::Stale)
    }

    /// Inodes of the files behind these names. A name that cannot be looked up has none: the change itself reports why.
    pub(crate) fn resolve(&self, names: &[(FileId, Vec<u8>)]) -> Vec<u64> {
        let find = |(directory, name): &(FileId, Vec<u8>)| {
            let directory = self.node(*directory).ok()?;
            let found = self.store.names().attributes_of(&directory, name).ok()?;
            Some(found.number)
        };
        names.iter().filter_map(find).collect()
    }

    pub(super) fn create(
        &self,
        transaction: &mut Transaction<'_>,
        request: &Request<'_>,
        (directory, name, new): (FileId, &[u8], &NewInode<'_>),
        hold: bool,
    ) -> Result<Executed, Error> {
        let directory = self.node(directory)?;
        let holds = u64::from(hold);
        let (_, attributes) =
            self.store
                .names()
                .create_held(transaction, &directory, name, new, holds)?;
        if hold {
            self.note_hold(request, &attributes)?;
        }
        Ok(self.in_directory(self.found(attributes, 0), &directory))
    }

    /// Adds the attributes of the directory that was changed: its client need not ask for them.
    fn in_directory(&self, mut executed: Executed, directory: &LiveInode) -> Executed {
        let attributes = self.store.inodes().attributes(directory);
        executed.version = executed.version.max(self.shown_version(&attributes));
        executed.outcome.details = Details::Directory(Box::new(attributes));
        executed
    }

    pub(super) fn create_unnamed(
        &self,
        transaction: &mut Transaction<'_>,
        request: &Request<'_>,
        (directory, new): (FileId, &NewInode<'_>),
        may_be_named: bool,
    ) -> Result<Executed, Error> {
        let directory = self.node(directory)?;
        let node = self
            .store
            .names()
            .create_unnamed(transaction, &directory, new, may_be_named)?;
        let attributes = self.store.inodes().attributes(&node);
        self.note_hold(request, &attributes)?;
        Ok(self.found(attributes, 0))
    }

    pub(super) fn hold(&self, request: &Request<'_>, file: FileId) -> Result<Executed, Error> {
        if let Some(again) = self.held_before(request) {
            return again;
        }
        let node = self.node(file)?;
        self.store.inodes().hold(&node)?;
        let attributes = self.store.inodes().attributes(&node);
        self.note_hold(request, &attributes)?;
        Ok(self.found(attributes, 0))
    }

    /// Result of the request when it was executed before, with the present attributes.
    fn held_before(&self, request: &Request<'_>) -> Option<Result<Executed, Error>> {
        let file = self.holds.found_by(request.id)?;
        let node = self.node(file);
        Some(node.map(|node| self.found(self.store.inodes().attributes(&node), 0)))
    }

    /// Counts a hold that was taken of the store for the session. The store counts one for each session.
    fn note_hold(&self, request: &Request<'_>, attributes: &Attributes) -> Result<(), Error> {
        let file = attributes.file(self.unit);
        if self.holds.take(request.id, file) {
            return Ok(());
        }
        let node = self.store.inodes().node(attributes.number)?;
        self.store.inodes().release(&node, 1)
    }

    fn link(
        &self,
        transaction: &mut Transaction<'_>,
        file: FileId,
        (directory, name): (FileId, &[u8]),
    ) -> Result<Executed, Error> {
        let (node, directory) = (self.node(file)?, self.node(directory)?);
        self.store
            .names()
            .link(transaction, &node, &directory, name)?;
        let found = self.found(self.store.inodes().attributes(&node), 0);
        Ok(self.in_directory(found, &directory))
    }

    fn read_directory(
        &self,
        directory: FileId,
        cookie: u64,
        (length, with_attributes): (u32, bool),
    ) -> Result<Executed, Error> {
        let node = self.node(directory)?;
        let (mut entries, mut bytes) = (Vec::new(), 0);
        self.store
            .names()
            .read_directory(&node, cookie, &mut |entry| {
                bytes += ListedEntry::page_bytes(entry.name.len(), with_attributes);
                let fits = bytes <= length as usize || entries.is_empty();
                if fits {
                    entries.push(ListedEntry {
                        entry: entry.clone(),
                        attributes: None,
                    });
                }
                fits
            })?;
        let mut version = self.store.inodes().attributes(&node).version;
        // The directory is not locked any more: a file that was removed meanwhile has no attributes.
        if with_attributes {
            for listed in &mut entries {
                listed.attributes = self.attributes_in(&node, &listed.entry.name);
                let of_file = listed.attributes.map_or(0, |it| self.shown_version(&it));
                version = version.max(of_file);
            }
        }
        Ok(shown(Outcome::with(Details::Entries(entries)), version))
    }

    /// The attributes of a listed name; none for the directory's own names.
    fn attributes_in(&self, directory: &LiveInode, name: &[u8]) -> Option<Attributes> {
        match name {
            b"." | b".." => None,
            name => self.store.names().attributes_of(directory, name).ok(),
        }
    }
}
