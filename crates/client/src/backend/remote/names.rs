//! Names and directories of a cluster.

use std::sync::Arc;

use operations::{
    Attributes, Details, Entry, ErrorCode, FileId, FileKind, ListedEntry, NAME_LENGTH_MAX,
    NewInode, Operation, Outcome, OwnedNewInode, RenameMode,
};

use super::super::Result;
use super::changed::Shown;
use super::{PAGE_LENGTH, Remote, RemoteInode, invalid, is_dot};
use crate::leases;

/// Takeovers in a row that the making of a file without a name outlives.
const ATTEMPTS_MAX: u32 = 10;

impl Remote {
    pub(in super::super) fn lookup(
        &self,
        directory: &RemoteInode,
        name: &[u8],
    ) -> Result<Arc<RemoteInode>> {
        let outcome = self.look_up(directory, name, false)?;
        Ok(self.handle(&outcome)?.0)
    }

    pub(in super::super) fn attributes_of(
        &self,
        directory: &RemoteInode,
        name: &[u8],
    ) -> Result<Attributes> {
        let outcome = self.look_up(directory, name, false)?;
        Ok(self.found(&outcome)?.1)
    }

    pub(in super::super) fn lookup_held(
        &self,
        directory: &RemoteInode,
        name: &[u8],
    ) -> Result<Attributes> {
        if let Some(found) = self.find_held(directory, name) {
            return found;
        }
        let outcome = self.look_up(directory, name, true)?;
        let (file, attributes) = self.found(&outcome)?;
        self.0.table.add(attributes.number, file, 1);
        Ok(attributes)
    }

    /// A name that is kept, of a file that the session holds already.
    fn find_held(&self, directory: &RemoteInode, name: &[u8]) -> Option<Result<Attributes>> {
        let sends = self.0.behind.get().map_or(0, |it| it.sends());
        let (outcome, kept) = self.0.cache.find_name(directory.file, name)?;
        let found = match outcome.into_result() {
            Ok(outcome) => {
                let (file, attributes) = self.found(&outcome).ok()?;
                let behind = self.0.behind.get();
                if behind.is_some_and(|it| it.is_outdated(file, sends)) {
                    return None;
                }
                if !self.0.table.refer_held(attributes.number, file) {
                    return None;
                }
                Ok(attributes)
            }
            Err(error) => Err(error.into()),
        };
        leases::note(Some(kept));
        Some(found)
    }

    pub(in super::super) fn create(
        &self,
        directory: &RemoteInode,
        name: &[u8],
        new: &NewInode<'_>,
    ) -> Result<Attributes> {
        let outcome = self.make(directory, name, new, false)?;
        Ok(self.found(&outcome)?.1)
    }

    pub(in super::super) fn create_held(
        &self,
        directory: &RemoteInode,
        name: &[u8],
        new: &NewInode<'_>,
    ) -> Result<(Arc<RemoteInode>, Attributes)> {
        let outcome = self.make(directory, name, new, true)?;
        if outcome.attributes.is_none() && new.kind == FileKind::Regular {
            // It was made before a takeover, and other clients removed it before it could be held again. The caller has it
            // open without a name, and nothing was written to it yet: another file without a name is the same.
            let inode = self.create_unnamed(directory, new, false)?;
            let attributes = inode.found.ok_or(ErrorCode::Stale)?;
            return Ok((inode, attributes));
        }
        let (inode, attributes) = self.handle(&outcome)?;
        self.0.table.add(inode.number, inode.file, 1);
        Ok((inode, attributes))
    }

    pub(in super::super) fn create_unnamed(
        &self,
        directory: &RemoteInode,
        new: &NewInode<'_>,
        may_be_named: bool,
    ) -> Result<Arc<RemoteInode>> {
        for _ in 0..ATTEMPTS_MAX {
            let outcome = self.call(Operation::CreateUnnamed {
                directory: directory.file,
                new: OwnedNewInode::from(new),
                may_be_named,
            })?;
            // A file that was made before a takeover was reclaimed: the new primary did not know of its hold.
            if outcome.attributes.is_some() {
                let inode = self.handle(&outcome)?.0;
                self.0.table.add(inode.number, inode.file, 1);
                return Ok(inode);
            }
        }
        Err(invalid("attributes are missing"))
    }

    pub(in super::super) fn link(
        &self,
        inode: &RemoteInode,
        directory: &RemoteInode,
        name: &[u8],
    ) -> Result<Attributes> {
        let operation = Operation::Link {
            file: inode.file,
            directory: directory.file,
            name: name.to_vec(),
        };
        let outcome = self.change_name(directory, (name, true), operation)?;
        Ok(self.found(&outcome)?.1)
    }

    pub(in super::super) fn unlink(&self, directory: &RemoteInode, name: &[u8]) -> Result<()> {
        let operation = Operation::Unlink {
            directory: directory.file,
            name: name.to_vec(),
        };
        self.change_name(directory, (name, false), operation)
            .map(drop)
    }

    pub(in super::super) fn remove_directory(
        &self,
        directory: &RemoteInode,
        name: &[u8],
    ) -> Result<()> {
        let operation = Operation::RemoveDirectory {
            directory: directory.file,
            name: name.to_vec(),
        };
        self.0.changed.forget_directories();
        self.change_name(directory, (name, false), operation)
            .map(drop)
    }

    pub(in super::super) fn rename(
        &self,
        (from, name): (&RemoteInode, &[u8]),
        (to, new_name): (&RemoteInode, &[u8]),
        mode: RenameMode,
    ) -> Result<()> {
        let operation = Operation::Rename {
            directory: from.file,
            name: name.to_vec(),
            new_directory: to.file,
            new_name: new_name.to_vec(),
            mode,
        };
        self.0.changed.forget_directories();
        let renamed = self.call(operation);
        self.0.changed.forget_directories();
        renamed.map(drop)
    }

    pub(in super::super) fn read_link(&self, inode: &RemoteInode) -> Result<Vec<u8>> {
        match self.call(Operation::ReadLink { file: inode.file })?.details {
            Details::Data(target) => Ok(target.into()),
            _ => Err(invalid("the target of a symbolic link is missing")),
        }
    }

    pub(in super::super) fn read_directory(
        &self,
        directory: &RemoteInode,
        cookie: u64,
        visit: &mut dyn FnMut(&Entry) -> bool,
    ) -> Result<()> {
        self.read_pages(directory, cookie, false, &mut |listed| visit(&listed.entry))
    }

    pub(in super::super) fn read_directory_held(
        &self,
        directory: &RemoteInode,
        cookie: u64,
        visit: &mut dyn FnMut(&Entry, Option<&Attributes>) -> bool,
    ) -> Result<()> {
        self.read_pages(directory, cookie, true, &mut |listed| {
            let ListedEntry { entry, attributes } = listed;
            if is_dot(&entry.name) {
                return visit(entry, None);
            }
            // An entry without attributes has been removed since the page was read.
            let Some(attributes) = attributes else {
                return true;
            };
            let is_taken = visit(entry, Some(attributes));
            if is_taken {
                // The session takes a hold when the file is opened.
                let file = FileId {
                    generation: attributes.generation,
                    ..self.file(entry.number)
                };
                self.0.table.add(entry.number, file, 0);
            }
            is_taken
        })
    }

    /// Visits entries, a page at a time, with the numbers that users see.
    fn read_pages(
        &self,
        directory: &RemoteInode,
        mut cookie: u64,
        with_attributes: bool,
        visit: &mut dyn FnMut(&ListedEntry) -> bool,
    ) -> Result<()> {
        loop {
            let page = self.call(Operation::ReadDirectory {
                directory: directory.file,
                cookie,
                length: PAGE_LENGTH,
                with_attributes,
            })?;
            let Details::Entries(entries) = page.details else {
                return Err(invalid("the entries of a directory are missing"));
            };
            let mut room = PAGE_LENGTH as usize;
            for mut listed in entries {
                let bytes = ListedEntry::page_bytes(listed.entry.name.len(), with_attributes);
                room = room.saturating_sub(bytes);
                listed.entry.number = self.number(FileId {
                    unit: directory.file.unit,
                    inode: listed.entry.number,
                    generation: FileId::ANY_GENERATION,
                });
                if let Some(attributes) = &mut listed.attributes {
                    attributes.number = listed.entry.number;
                }
                cookie = listed.entry.cookie;
                if !visit(&listed) {
                    return Ok(());
                }
            }
            if room >= ListedEntry::page_bytes(NAME_LENGTH_MAX, with_attributes) {
                return Ok(());
            }
        }
    }
}

/// Names of directories that the session knows from its own changes.
impl Remote {
    fn look_up(&self, directory: &RemoteInode, name: &[u8], hold: bool) -> Result<Outcome> {
        let kept = self
            .0
            .changed
            .is_missing(directory.number, directory.file.generation, name);
        // Names that no directory can have fail in another way.
        let is_possible = !is_dot(name) && name.len() <= NAME_LENGTH_MAX;
        if let Some(kept) = kept.filter(|_| is_possible) {
            leases::note(Some(kept));
            return Err(ErrorCode::NotFound.into());
        }
        self.call(Operation::Lookup {
            directory: directory.file,
            name: name.to_vec(),
            hold,
        })
    }

    fn make(
        &self,
        directory: &RemoteInode,
        name: &[u8],
        new: &NewInode<'_>,
        hold: bool,
    ) -> Result<Outcome> {
        let operation = Operation::Create {
            directory: directory.file,
            name: name.to_vec(),
            new: OwnedNewInode::from(new),
            hold,
        };
        self.change_name(directory, (name, true), operation)
    }

    /// Makes or removes a name, and notes what the answer shows of its directory.
    fn change_name(
        &self,
        directory: &RemoteInode,
        name: (&[u8], bool),
        operation: Operation,
    ) -> Result<Outcome> {
        let is_create = matches!(operation, Operation::Create { .. });
        let changed = &self.0.changed;
        let begun = changed.begin(directory.number);
        let result = self.call(operation);
        let kept = leases::last().filter(|it| it.covers.subject);
        if let (Ok(outcome), Some(kept)) = (&result, kept)
            && let Details::Directory(attributes) = &outcome.details
        {
            if is_create
                && kept.covers.found
                && let Ok((_, made)) = self.found(outcome)
            {
                changed.made(&begun, made, kept.until);
            }
            let attributes = Attributes {
                number: directory.number,
                ..**attributes
            };
            let until = kept.until;
            let shown = Shown {
                attributes,
                until,
                name: Some(name),
            };
            changed.end(&begun, Some(shown));
        } else {
            changed.end(&begun, None);
        }
        result
    }
}
