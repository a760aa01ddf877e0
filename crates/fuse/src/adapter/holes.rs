//! Where holes are.
//!
//! Data that a program stores through a mapping is the kernel's until it is written, and the kernel asks for holes
//! without writing it first: a copy that omits holes would lose it. So before a hole is reported, the kernel is
//! notified that the contents changed, writes its data, and gets the answer for the state then. A separate thread does
//! that, since the kernel's writes have to be answered meanwhile.

use std::io;
use std::ops::Range;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};

use client::Error;
use rustix::io::Errno;
use zerocopy::IntoBytes;

use super::{Adapter, Answer, Later, head};
use crate::request::Request;
use crate::translate::errno;
use crate::{Notifier, answer, wire};

/// A request with an answer that would report a hole.
pub(super) struct Asked {
    header: wire::InHeader,
    from: wire::LseekIn,
    hole: Range<u64>,
    later: Later,
}

impl Adapter {
    /// Starts the thread that has holes written to before they are named; it ends with [`Adapter::end_holes`]. Without it
    /// they are named as they are.
    pub(crate) fn start_holes(
        adapter: &Arc<Adapter>,
        notifier: Notifier,
    ) -> io::Result<JoinHandle<()>> {
        let (say, asked) = mpsc::channel();
        let answering = Arc::downgrade(adapter);
        let thread = thread::Builder::new().name("tako-holes".into());
        let thread = thread.spawn(move || answer_all(&asked, &answering, &notifier))?;
        *adapter.holes.lock() = Some(say);
        Ok(thread)
    }

    pub(crate) fn end_holes(&self) {
        *self.holes.lock() = None;
    }

    pub(super) fn seek(&self, number: u64, from: &wire::LseekIn, body: &mut [u8]) -> Answer {
        // The kernel's cached data may lie beyond the end that the file has here.
        if self.collects {
            return Err(Errno::NOSYS);
        }
        let found = match from.whence as i32 {
            _ if from.offset > i64::MAX as u64 => return Err(Errno::NXIO),
            libc::SEEK_DATA => self.file_system.next_data(number, from.offset),
            libc::SEEK_HOLE => self.file_system.next_hole(number, from.offset),
            _ => return Err(Errno::INVAL),
        };
        let offset = found.map_err(|error| errno(&error))?.ok_or(Errno::NXIO)?;
        Ok(answer::put(body, &wire::LseekOut { offset }))
    }

    /// Whether this request is answered later, since `answer` names a hole.
    pub(super) fn names_hole_later(
        &self,
        header: &wire::InHeader,
        argument: &[u8],
        answer: &mut Answer,
        later: &dyn Fn() -> Option<Later>,
    ) -> bool {
        let Ok(Request::Seek(from)) = Request::decode(header.opcode, argument, &[]) else {
            return false;
        };
        if !matches!(answer, Ok(_) | Err(Errno::NXIO)) {
            return false;
        }
        let hole = self.interruptibly(header, || self.named_hole(header.node, &from));
        let Ok(Some(hole)) = hole else {
            return false;
        };
        let holes = self.holes.lock();
        let Some(say) = &*holes else {
            return false;
        };
        let Some(later) = later() else {
            *answer = Err(Errno::NOMEM);
            return false;
        };
        let asked = Asked {
            header: *header,
            from,
            hole,
            later,
        };
        // If its thread is gone, so is the mount.
        say.send(asked).is_ok()
    }

    /// The hole that the answer depends on: the one that is passed over, or found.
    fn named_hole(&self, number: u64, from: &wire::LseekIn) -> Result<Option<Range<u64>>, Error> {
        let size = self.file_system.attributes(number)?.size;
        let start = match from.whence as i32 {
            libc::SEEK_HOLE => self.file_system.next_hole(number, from.offset)?,
            _ => Some(from.offset),
        };
        // Bytes beyond the end are no hole that could be stored to.
        let Some(start) = start.filter(|start| *start < size) else {
            return Ok(None);
        };
        let end = self.file_system.next_data(number, start)?.unwrap_or(size);
        Ok((start < end).then_some(start..end))
    }
}

fn answer_all(asked: &Receiver<Asked>, adapter: &Weak<Adapter>, notifier: &Notifier) {
    for asked in asked {
        // It fails where a program stores again meanwhile: earlier stores have been written in any case.
        let _ = notifier.contents_changed(asked.header.node, asked.hole);
        let Some(adapter) = adapter.upgrade() else {
            return;
        };
        let mut body = [0; size_of::<wire::LseekOut>()];
        let answer = adapter.serve_guarded(&asked.header, asked.from.as_bytes(), &mut body, 0);
        let body = &body[..answer.unwrap_or(0)];
        (asked.later)(head(asked.header.unique, answer), body);
    }
}
