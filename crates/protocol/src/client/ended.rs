//! Unconfirmed writes of sessions that have ended.

use super::{Client, UNCONFIRMED_MAX};
use crate::defects::Defect;
use crate::map::Sequence;
use crate::wire::{ErrorCode, FileId};

impl Client {
    /// Nothing replays the unconfirmed writes of a session that ends. While their primary goes on, they are not lost.
    pub(super) fn leave_writes_behind(&mut self) {
        let unconfirmed = std::mem::take(&mut self.unconfirmed).into_iter();
        let writes = unconfirmed.filter_map(|it| Some((it.sequence, it.operation.file()?)));
        if self.defects.has(Defect::ForgetLeftBehind) {
            return;
        }
        self.left_behind.extend(writes);
        let epoch = self.map.epoch;
        let is_current = |(sequence, _): &(Sequence, FileId)| sequence.epoch == epoch;
        if self.left_behind.len() > UNCONFIRMED_MAX || !self.left_behind.iter().all(is_current) {
            self.refuse_left_behind();
        }
    }

    /// Writes of sessions that have ended may be lost: the next fsync of their files says so.
    pub(super) fn refuse_left_behind(&mut self) {
        for (_, file) in std::mem::take(&mut self.left_behind) {
            self.note_refused(file, ErrorCode::SessionEnded);
        }
    }
}
