//! Attributes, flags and extended attributes of a file of a cluster.

use operations::{
    Attributes, Details, ErrorCode, FileFlags, FileKind, Operation, Outcome, SetAttributes,
    XattrMode,
};

use super::super::Result;
use super::changed::Shown;
use super::{Remote, RemoteInode, invalid};
use crate::leases;

/// The extended attribute with a file's capabilities. The kernel asks for it before it writes.
const CAPABILITIES: &[u8] = b"security.capability";

impl Remote {
    pub(in super::super) fn attributes(&self, inode: &RemoteInode) -> Result<Attributes> {
        self.send(inode.file)?;
        if let Some((attributes, kept)) = self
            .0
            .changed
            .attributes(inode.number, inode.file.generation)
        {
            leases::note(Some(kept));
            return Ok(attributes);
        }
        let outcome = self.call(Operation::Attributes { file: inode.file })?;
        Ok(self.found(&outcome)?.1)
    }

    pub(crate) fn is_own_change(&self, attributes: &Attributes, since: u64) -> bool {
        let Attributes {
            number,
            generation,
            version,
            ..
        } = *attributes;
        let changed = &self.0.changed;
        changed.is_own(number, generation, (since, version))
    }

    /// A handle from a lookup has them; no message is sent.
    pub(in super::super) fn named_attributes(&self, inode: &RemoteInode) -> Result<Attributes> {
        let attributes = match inode.found {
            Some(attributes) => attributes,
            None => self.attributes(inode)?,
        };
        match attributes.links {
            0 => Err(ErrorCode::Stale.into()),
            _ => Ok(attributes),
        }
    }

    pub(in super::super) fn kind(&self, inode: &RemoteInode) -> Result<FileKind> {
        Ok(self.named_attributes(inode)?.kind)
    }

    pub(in super::super) fn set_attributes(
        &self,
        inode: &RemoteInode,
        change: &SetAttributes,
    ) -> Result<Attributes> {
        let (file, change) = (inode.file, *change);
        self.send(file)?;
        let result = self.change(inode, Operation::SetAttributes { file, change });
        if let Some(length) = change.size {
            self.cut(file, length);
        }
        Ok(self.found(&result?)?.1)
    }

    pub(in super::super) fn drop_privileges(
        &self,
        inode: &RemoteInode,
        set_id: bool,
    ) -> Result<()> {
        let (file, changed) = (inode.file, &self.0.changed);
        if changed.has_no_privileges(inode.number, file.generation) {
            return Ok(());
        }
        self.send(file)?;
        self.change(inode, Operation::DropPrivileges { file, set_id })
            .map(drop)
    }

    pub(in super::super) fn set_flags(&self, inode: &RemoteInode, flags: FileFlags) -> Result<()> {
        let file = inode.file;
        self.send(file)?;
        let result = self.change(inode, Operation::SetFlags { file, flags });
        if let Some(behind) = self.0.behind.get() {
            behind.close_file(file);
        }
        result.map(drop)
    }

    pub(in super::super) fn note_read(&self, inode: &RemoteInode, always: bool) -> Result<()> {
        let file = inode.file;
        if always {
            // Each read drops the attributes that windows are compared with: none would be of any use.
            self.0.ahead.forget(file);
        }
        self.change(inode, Operation::NoteRead { file, always })
            .map(drop)
    }

    /// Changes something of an inode apart from data and names in it, and notes the attributes that the answer shows.
    fn change(&self, inode: &RemoteInode, operation: Operation) -> Result<Outcome> {
        let changed = &self.0.changed;
        let begun = changed.begin(inode.number);
        let result = self.call(operation);
        let kept = leases::last().filter(|it| it.covers.subject);
        let found = result.as_ref().ok().and_then(|it| self.found(it).ok());
        let shown = found.zip(kept).map(|((_, attributes), kept)| Shown {
            attributes,
            until: kept.until,
            name: None,
        });
        changed.end(&begun, shown);
        result
    }

    pub(in super::super) fn xattr(&self, inode: &RemoteInode, name: &[u8]) -> Result<Vec<u8>> {
        let (number, generation) = (inode.number, inode.file.generation);
        if name == CAPABILITIES && self.0.changed.has_no_capabilities(number, generation) {
            return Err(ErrorCode::NoXattr.into());
        }
        let operation = Operation::Xattr {
            file: inode.file,
            name: name.to_vec(),
        };
        match self.call(operation)?.details {
            Details::Data(value) => Ok(value.into()),
            _ => Err(invalid("the value of an extended attribute is missing")),
        }
    }

    pub(in super::super) fn xattr_names(&self, inode: &RemoteInode) -> Result<Vec<Vec<u8>>> {
        match self
            .call(Operation::XattrNames { file: inode.file })?
            .details
        {
            Details::Names(names) => Ok(names.into_iter().map(|name| name.into_vec()).collect()),
            _ => Err(invalid("the names of extended attributes are missing")),
        }
    }

    pub(in super::super) fn set_xattr(
        &self,
        inode: &RemoteInode,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        self.send(inode.file)?;
        let operation = Operation::SetXattr {
            file: inode.file,
            name: name.to_vec(),
            value: value.to_vec(),
            mode,
        };
        self.change(inode, operation).map(drop)
    }

    pub(in super::super) fn remove_xattr(&self, inode: &RemoteInode, name: &[u8]) -> Result<()> {
        self.send(inode.file)?;
        let operation = Operation::RemoveXattr {
            file: inode.file,
            name: name.to_vec(),
        };
        self.change(inode, operation).map(drop)
    }
}
