//! Telling the kernel what changed without it.

use std::io::{self, IoSlice};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::wire;

/// Notifies the kernel about changes of a mounted file system that did not come through the mount, so that its caches
/// of names, attributes and contents are exact again.
///
/// Must not be called by threads that answer the mount's own requests: the kernel may wait for an answer meanwhile.
#[derive(Clone)]
pub struct Notifier {
    /// Not kept open for this: when all answering threads are gone, the kernel must notice.
    device: Weak<OwnedFd>,
}

impl Notifier {
    pub(crate) fn new(device: &Arc<OwnedFd>) -> Notifier {
        Notifier {
            device: Arc::downgrade(device),
        }
    }

    /// Whether the kernel still has the file system. It frees the device number only after this has become false.
    pub(crate) fn is_connected(&self) -> bool {
        let Some(device) = self.device.upgrade() else {
            return false;
        };
        let mut found = [PollFd::new(&device, PollFlags::empty())];
        let polled = poll(&mut found, Some(&Timespec::default()));
        polled.is_err() || !found[0].revents().contains(PollFlags::ERR)
    }

    /// The attributes of an inode changed.
    pub fn attributes_changed(&self, number: u64) -> io::Result<()> {
        self.attributes_expired(number).map(drop)
    }

    /// The same; whether the kernel has the inode.
    pub(crate) fn attributes_expired(&self, number: u64) -> io::Result<bool> {
        // A negative offset leaves the contents alone.
        self.inode_changed(number, -1, 0)
    }

    /// Attributes and contents of an inode changed, the latter in this range of bytes.
    pub fn contents_changed(&self, number: u64, range: Range<u64>) -> io::Result<()> {
        let signed = |offset: u64| i64::try_from(offset).unwrap_or(i64::MAX);
        let (start, end) = (signed(range.start), signed(range.end));
        if end <= start {
            return self.attributes_changed(number);
        }
        // The kernel takes a length of zero for all that follows.
        let length = if end == i64::MAX { 0 } else { end - start };
        self.inode_changed(number, start, length).map(drop)
    }

    /// A name in a directory leads elsewhere now, or nowhere.
    pub fn name_changed(&self, directory: u64, name: &[u8]) -> io::Result<()> {
        self.entry_changed(directory, name, 0)
    }

    /// A name in a directory may have another target: the kernel asks before it uses it again. A mount on it stays.
    pub(crate) fn name_expired(&self, directory: u64, name: &[u8]) -> io::Result<()> {
        self.entry_changed(directory, name, wire::notice::EXPIRE_ONLY)
    }

    fn entry_changed(&self, directory: u64, name: &[u8], flags: u32) -> io::Result<()> {
        let entry = wire::NotifyEntry {
            directory,
            name_length: name.len() as u32,
            flags,
        };
        self.send(
            wire::notice::INVALIDATE_ENTRY,
            &[entry.as_bytes(), name, &[0]],
        )
        .map(drop)
    }

    /// These are contents of an inode; the kernel keeps them, and need not ask.
    pub fn store(&self, number: u64, offset: u64, data: &[u8]) -> io::Result<()> {
        let head = wire::NotifyStore {
            node: number,
            offset,
            size: data.len() as u32,
            padding: 0,
        };
        self.send(wire::notice::STORE, &[head.as_bytes(), data])
            .map(drop)
    }

    fn inode_changed(&self, number: u64, offset: i64, length: i64) -> io::Result<bool> {
        let inode = wire::NotifyInode {
            node: number,
            offset: offset as u64,
            length: length as u64,
        };
        self.send(wire::notice::INVALIDATE_INODE, &[inode.as_bytes()])
    }

    /// Sends a notification; whether the kernel has what it is about.
    fn send(&self, notice: i32, parts: &[&[u8]]) -> io::Result<bool> {
        let Some(device) = self.device.upgrade() else {
            return Ok(true);
        };
        let length: usize = parts.iter().map(|part| part.len()).sum();
        // A notification has no request, and its code in place of an error.
        let head = wire::OutHeader {
            length: (size_of::<wire::OutHeader>() + length) as u32,
            error: notice,
            unique: 0,
        };
        let slices: Vec<IoSlice<'_>> = std::iter::once(head.as_bytes())
            .chain(parts.iter().copied())
            .map(IoSlice::new)
            .collect();
        match rustix::io::writev(&*device, &slices) {
            Err(Errno::NOENT) => Ok(false),
            // After the end of the mount the kernel keeps nothing any more.
            Ok(_) | Err(Errno::NODEV | Errno::NOTCONN) => Ok(true),
            Err(errno) => Err(errno.into()),
        }
    }
}
