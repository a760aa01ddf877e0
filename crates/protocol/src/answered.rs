//! Writes that a client has answered under leases for writing, and not sent yet.
//!
//! ```text
//!   write ──► pieces ──► being sent ──► the primary has them
//!     │         └─────────┴── reads see both
//!     └─ without a lease: the file is sent first, and then the write itself
//! ```
//! Its user sends the writes that [`Answered::take`] returns, in the session that owns the file, and reports the result. It
//! answers a recall when nothing is left of the file.

mod pieces;

use std::collections::BTreeMap;

use operations::{Bytes, ErrorCode, FileId, Operation, WriteAt};
use pmem::Arena;

use crate::client::{Ownership, Recalled};
use crate::defects::{Defect, Defects};
use pieces::Pieces;

/// A write that ends behind this is left to the primary, which may refuse it.
const END_MAX: u64 = 1 << 62;
/// Recalls that are remembered, at most.
const RECALLS_MAX: usize = 1 << 16;

/// Writes of a file to be sent in a session.
#[derive(Debug, PartialEq, Eq)]
pub struct Taken {
    /// The session that owns the file.
    pub session: u64,
    /// They do not overlap: their order does not matter.
    pub writes: Vec<Operation>,
}

/// How a read is executed.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    /// By the primary: nothing of it is only here.
    Elsewhere,
    /// All of it is here.
    Here(Vec<u8>),
    /// By the primary, when the file was sent.
    Unsent,
}

/// What a client knows of a file that its session owns.
struct File {
    file: FileId,
    ownership: Ownership,
    /// No more writes are answered: the lease is recalled.
    is_closed: bool,
    /// The primary has a file that is this long at least.
    length: u64,
    pieces: Pieces,
    sending: Pieces<Bytes>,
    /// When the oldest piece was written that is not being sent.
    since: u64,
    drop_privileges: Option<bool>,
    /// Why writes were lost.
    error: Option<ErrorCode>,
    /// A close has reported it.
    is_reported: bool,
}

/// Answered writes by file.
#[derive(Default)]
pub struct Answered {
    /// Answered files by inode.
    files: BTreeMap<u64, File>,
    /// When inodes were last recalled, and the epoch and number of that. A grant that was made before it is noted later now and
    /// then, and is void.
    recalls: BTreeMap<u64, (u64, (u32, u64))>,
    /// All grants before this one are void.
    void_to: (u32, u64),
    /// Bytes of all writes.
    bytes: usize,
    /// Memory for long parts; ordinary memory while it is full.
    arena: Option<Arena>,
    defects: Defects,
}

/// Bytes of the blocks of an arena for [`Answered::with_arena`].
pub const BLOCK_BYTES: usize = pieces::PART_MAX;

impl Answered {
    /// Breaks a rule, as tests do.
    pub fn with_defects(defects: Defects) -> Answered {
        Answered {
            defects,
            ..Answered::default()
        }
    }

    /// Keeps long parts in an arena with blocks of [`BLOCK_BYTES`].
    pub fn with_arena(arena: Arena) -> Answered {
        Answered {
            arena: Some(arena),
            ..Answered::default()
        }
    }

    /// The session owns a file, by the answer to a write that ended at this offset.
    pub fn granted(&mut self, file: FileId, ownership: Ownership, end: u64) {
        let recalled = self.recalls.get(&file.inode).map(|(_, number)| *number);
        if ownership.number < recalled.map_or(self.void_to, |it| it.max(self.void_to)) {
            return;
        }
        if self
            .files
            .get(&file.inode)
            .is_some_and(|it| it.file != file)
        {
            self.forget(file);
        }
        let known = self.files.entry(file.inode).or_insert_with(|| File {
            file,
            ownership,
            is_closed: false,
            length: end,
            pieces: Pieces::default(),
            sending: Pieces::default(),
            since: 0,
            drop_privileges: None,
            error: None,
            is_reported: false,
        });
        if known.file != file {
            return;
        }
        // When others owned the file meanwhile, they may have made it shorter.
        let continues = !known.is_closed && known.ownership.session == ownership.session;
        known.length = match continues {
            true => known.length.max(end),
            false => end,
        };
        if known.ownership.number < ownership.number {
            known.is_closed = false;
            known.ownership = ownership;
        }
    }

    /// Answers a write, if the session owns the file. Otherwise it is sent, after what is left of the file.
    pub fn write(
        &mut self,
        now: u64,
        file: FileId,
        offset: u64,
        data: &[u8],
        drop_privileges: Option<bool>,
    ) -> bool {
        let is_late = self.defects.has(Defect::AnswerAfterLease);
        let known = self.files.get_mut(&file.inode);
        let Some(known) = known.filter(|it| it.file == file) else {
            return false;
        };
        let owns = !known.is_closed && now < known.ownership.until;
        let end = offset.checked_add(data.len() as u64);
        let is_sound = known.error.is_none() && end.is_some_and(|end| end <= END_MAX);
        if !(owns || is_late) || !is_sound {
            return false;
        }
        if known.pieces.is_empty() {
            known.since = now;
        }
        let before = known.pieces.bytes();
        known.pieces.put(self.arena.as_ref(), offset, data);
        self.bytes = self.bytes + known.pieces.bytes() - before;
        known.drop_privileges = match (known.drop_privileges, drop_privileges) {
            (Some(one), Some(other)) => Some(one || other),
            (one, other) => one.or(other),
        };
        true
    }

    /// Where the data of a read is.
    pub fn read(&self, now: u64, file: FileId, offset: u64, length: usize) -> Found {
        let Some(known) = self.files.get(&file.inode) else {
            return Found::Elsewhere;
        };
        if self.defects.has(Defect::SkipAnswered) {
            return Found::Elsewhere;
        }
        let end = offset.saturating_add(length as u64);
        let whole = known.pieces.get(offset, length);
        // Later, the session may have ended, and what it answered is lost.
        let is_owned = now < known.ownership.until;
        if let Some(data) = whole.filter(|_| is_owned) {
            return Found::Here(data);
        }
        // What was written behind the end of the file makes it longer.
        let grows = known.end() > known.length && end > known.length;
        let touches = known.pieces.touches(offset, end) || known.sending.touches(offset, end);
        match grows || touches {
            true => Found::Unsent,
            false => Found::Elsewhere,
        }
    }

    /// Whether a file has writes that the primary may not have.
    pub fn is_unsent(&self, file: FileId) -> bool {
        let known = self.files.get(&file.inode);
        known.is_some_and(File::is_unsent)
    }

    /// Takes writes of a file to be sent, of about so many bytes, unless some are being sent already. [`Answered::sent`] has to
    /// follow.
    pub fn take(&mut self, file: FileId, most: usize) -> Option<Taken> {
        let known = self.files.get_mut(&file.inode)?;
        if !known.sending.is_empty() || known.pieces.is_empty() {
            return None;
        }
        known.sending = known.pieces.take(most);
        let (file, drop_privileges) = (known.file, known.drop_privileges);
        if known.pieces.is_empty() {
            known.drop_privileges = None;
        }
        let write = |(offset, data): (u64, &Bytes)| Operation::Write {
            file,
            at: WriteAt::Offset(offset),
            data: data.clone(),
            drop_privileges,
        };
        Some(Taken {
            session: known.ownership.session,
            writes: known.sending.iter().map(write).collect(),
        })
    }

    /// The writes that were taken of a file have ended: with the first error, if there was one. They are not sent again.
    /// Returns whether the file has had an error before that no fsync or close has reported.
    pub fn sent(&mut self, file: FileId, error: Option<ErrorCode>) -> bool {
        let again = self.defects.has(Defect::FlushInNextSession);
        let Some(known) = self.files.get_mut(&file.inode) else {
            return false;
        };
        let had_error = known.error.is_some() && !known.is_reported;
        self.bytes -= known.sending.bytes();
        let sent = std::mem::take(&mut known.sending);
        if again && error == Some(ErrorCode::SessionEnded) {
            self.bytes -= known.pieces.bytes();
            let newer = std::mem::take(&mut known.pieces);
            let all = sent.iter().map(|(at, data)| (at, &data[..]));
            let newer = newer.iter().map(|(at, data)| (at, data.as_ref()));
            let arena = self.arena.as_ref();
            all.chain(newer)
                .for_each(|(at, data)| known.pieces.put(arena, at, data));
            self.bytes += known.pieces.bytes();
            return had_error;
        }
        known.length = known.length.max(sent.end());
        known.error = known.error.or(error);
        had_error
    }

    /// The session has made a file this long, or changed parts of it from here on.
    pub fn cut(&mut self, file: FileId, length: u64) {
        let known = self.files.get_mut(&file.inode);
        if let Some(known) = known.filter(|it| it.file == file) {
            known.length = known.length.min(length);
        }
    }

    /// Writes of a file are not answered any more until the session is granted it again.
    pub fn close(&mut self, file: FileId) {
        if let Some(known) = self.files.get_mut(&file.inode) {
            known.is_closed = true;
        }
    }

    /// The lease of an inode is recalled: writes to it are not answered any more. Returns the file, if something of it is left.
    pub fn recalled(&mut self, now: u64, recalled: &Recalled) -> Option<FileId> {
        let (inode, number) = (recalled.inode, (recalled.epoch, recalled.number));
        let last = self.recalls.get(&inode).map(|(_, number)| *number);
        if last.is_none_or(|last| last < number) {
            self.recalls.insert(inode, (now, number));
        }
        if self.recalls.len() > RECALLS_MAX {
            let newest = self.recalls.values().map(|(_, number)| *number).max();
            self.void_to = self.void_to.max(newest.unwrap_or_default());
            self.recalls.clear();
        }
        let drops = self.defects.has(Defect::DropAnswered);
        let known = self.files.get_mut(&inode)?;
        known.is_closed = true;
        if drops {
            self.bytes -= known.pieces.bytes();
            known.pieces = Pieces::default();
        }
        known.is_unsent().then_some(known.file)
    }

    /// The file of an inode, if the primary may not have all its writes.
    pub fn unsent(&self, inode: u64) -> Option<FileId> {
        let known = self.files.get(&inode).filter(|it| it.is_unsent());
        known.map(|it| it.file)
    }

    /// The session has ended. Returns the files of which something is lost: the next fsync of each reports it.
    pub fn session_over(&mut self, session: u64) -> Vec<FileId> {
        if self.defects.has(Defect::FlushInNextSession) {
            return Vec::new();
        }
        let mut lost = Vec::new();
        let own = self.files.values_mut();
        for known in own.filter(|it| it.ownership.session == session) {
            known.is_closed = true;
            if known.is_unsent() {
                self.bytes -= known.pieces.bytes();
                known.pieces = Pieces::default();
                known.error = known.error.or(Some(ErrorCode::SessionEnded));
                lost.push(known.file);
            }
        }
        lost
    }

    /// Why a write to the file was lost after it was answered, for a close. It is kept: the close may be one of several, of a
    /// program that was started with the file open.
    pub fn report_error(&mut self, file: FileId) -> Option<ErrorCode> {
        let known = self.files.get_mut(&file.inode)?;
        known.is_reported = known.error.is_some();
        known.error
    }

    /// An open file has ended: what its close has reported is over.
    pub fn released(&mut self, file: FileId) {
        if let Some(known) = self.files.get_mut(&file.inode)
            && std::mem::take(&mut known.is_reported)
        {
            known.error = None;
        }
    }

    /// The same for fsync. It is reported once.
    pub fn take_error(&mut self, file: FileId) -> Option<ErrorCode> {
        let known = self.files.get_mut(&file.inode)?;
        known.is_reported = false;
        known.error.take()
    }

    /// Files with writes that are this old, or all if none are given. Those being sent are not among them.
    pub fn due(&self, before: Option<u64>) -> Vec<FileId> {
        let due = self.files.values().filter(|it| {
            let is_old = before.is_none_or(|before| it.since <= before);
            !it.pieces.is_empty() && it.sending.is_empty() && is_old
        });
        due.map(|it| it.file).collect()
    }

    /// Files with writes that the primary may not have.
    pub fn all_unsent(&self) -> Vec<FileId> {
        let unsent = self.files.values().filter(|it| it.is_unsent());
        unsent.map(|it| it.file).collect()
    }

    /// Number of files of which writes are lost, or may be, that neither fsync nor close has reported.
    pub fn unreported(&self) -> usize {
        let is_lost = |it: &&File| it.is_unsent() || it.error.is_some() && !it.is_reported;
        self.files.values().filter(is_lost).count()
    }

    /// When the oldest write was answered that is not being sent.
    pub fn oldest(&self) -> Option<u64> {
        let unsent = self.files.values();
        let unsent = unsent.filter(|it| !it.pieces.is_empty() && it.sending.is_empty());
        unsent.map(|it| it.since).min()
    }

    /// Forgets a file of which nothing is left, and an error that was not reported.
    pub fn forget(&mut self, file: FileId) {
        if !self.is_unsent(file) {
            self.files.remove(&file.inode);
        }
    }

    /// Forgets files that were not owned any more before this time, and of which nothing is left, and recalls before it.
    pub fn forget_ended(&mut self, before: u64) {
        self.recalls.retain(|_, (at, _)| before < *at);
        self.files
            .retain(|_, it| it.is_unsent() || it.error.is_some() || before < it.ownership.until);
    }

    /// Whether the session owns or owned a file.
    pub fn knows(&self, file: FileId) -> bool {
        self.files.contains_key(&file.inode)
    }

    /// Bytes of all writes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl File {
    fn is_unsent(&self) -> bool {
        !self.pieces.is_empty() || !self.sending.is_empty()
    }

    /// End of the last write.
    fn end(&self) -> u64 {
        self.pieces.end().max(self.sending.end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: FileId = FileId {
        unit: 0,
        inode: 5,
        generation: 1,
    };

    fn owned(number: u64, until: u64) -> Ownership {
        Ownership {
            session: 3,
            number: (1, number),
            until,
        }
    }

    fn recall(number: u64) -> Recalled {
        Recalled {
            inode: FILE.inode,
            has_entries: false,
            epoch: 1,
            number,
        }
    }

    #[test]
    fn a_grant_that_is_noted_after_its_recall_is_void() {
        let mut answered = Answered::default();
        assert_eq!(answered.recalled(1, &recall(8)), None);
        answered.granted(FILE, owned(7, 100), 4);
        assert!(!answered.write(1, FILE, 0, b"recalled", None));
        answered.granted(FILE, owned(9, 100), 4);
        assert!(answered.write(1, FILE, 0, b"owned", None));
        assert_eq!(answered.recalled(2, &recall(12)), Some(FILE));
        answered.take(FILE, usize::MAX).expect("there is a write");
        answered.sent(FILE, None);
        answered.granted(FILE, owned(11, 100), 0);
        assert!(!answered.write(3, FILE, 0, b"recalled", None));
        // Recalls are not remembered for all time, but of very many some.
        answered.forget_ended(100);
        assert!(answered.recalls.is_empty() && answered.files.is_empty());
        for inode in 0..=RECALLS_MAX as u64 {
            answered.recalled(
                101,
                &Recalled {
                    inode,
                    ..recall(20)
                },
            );
        }
        answered.granted(FILE, owned(19, 200), 0);
        assert!(answered.recalls.is_empty() && !answered.knows(FILE));
    }

    #[test]
    fn a_read_of_a_hole_behind_the_end_at_the_primary_waits() {
        let mut answered = Answered::default();
        answered.granted(FILE, owned(7, 100), 1000);
        assert!(answered.write(1, FILE, 500, b"inside", None));
        assert_eq!(answered.read(1, FILE, 0, 4), Found::Elsewhere);
        answered.cut(FILE, 0);
        assert_eq!(answered.read(1, FILE, 0, 4), Found::Unsent);
        answered.take(FILE, usize::MAX).expect("there is a write");
        answered.sent(FILE, None);
        assert_eq!(answered.read(1, FILE, 0, 4), Found::Elsewhere);
        // Others may make it shorter, too.
        answered.recalled(2, &recall(8));
        answered.granted(FILE, owned(9, 100), 1);
        assert!(answered.write(3, FILE, 500, b"longer", None));
        assert_eq!(answered.read(3, FILE, 0, 4), Found::Unsent);
    }

    #[test]
    fn writes_are_answered_while_the_file_is_owned() {
        let mut answered = Answered::default();
        assert!(!answered.write(1, FILE, 0, b"no lease", None));
        answered.granted(FILE, owned(7, 100), 8);
        assert!(answered.write(1, FILE, 8, b"abcd", Some(false)));
        assert!(answered.write(2, FILE, 10, b"CDEF", Some(true)));
        assert!(!answered.write(100, FILE, 0, b"late", None));
        assert_eq!(
            answered.read(5, FILE, 8, 6),
            Found::Here(b"abCDEF".to_vec())
        );
        assert_eq!(answered.read(5, FILE, 0, 9), Found::Unsent);
        assert_eq!(answered.read(5, FILE, 0, 8), Found::Elsewhere);
        assert_eq!(
            (answered.due(Some(0)), answered.due(Some(1))),
            (vec![], vec![FILE])
        );
        let taken = answered.take(FILE, usize::MAX).expect("there are writes");
        let write = Operation::Write {
            file: FILE,
            at: WriteAt::Offset(8),
            data: Bytes::from_static(b"abCDEF"),
            drop_privileges: Some(true),
        };
        assert_eq!((taken.session, &taken.writes[..]), (3, &[write][..]));
        // While they are sent, others are answered, and reads wait.
        assert!(
            answered.write(3, FILE, 8, b"x", None) && answered.take(FILE, usize::MAX).is_none()
        );
        assert_eq!(answered.read(5, FILE, 8, 2), Found::Unsent);
        answered.sent(FILE, None);
        assert_eq!(answered.read(5, FILE, 10, 4), Found::Elsewhere);
        assert_eq!(answered.recalled(4, &recall(8)), Some(FILE));
        assert!(!answered.write(4, FILE, 0, b"recalled", None));
        answered.take(FILE, usize::MAX).expect("there is a write");
        assert!(!answered.sent(FILE, Some(ErrorCode::NoSpace)));
        assert_eq!(answered.recalled(5, &recall(8)), None);
        assert_eq!(answered.take_error(FILE), Some(ErrorCode::NoSpace));
        assert_eq!(answered.take_error(FILE), None);
        answered.granted(FILE, owned(9, 200), 0);
        assert!(answered.write(5, FILE, 0, b"owned again", None));
        assert!(!answered.write(5, FILE, END_MAX, b"too long", None));
        answered.close(FILE);
        assert!(!answered.write(5, FILE, 0, b"closed", None));
    }

    #[test]
    fn requests_share_the_data_of_answered_writes() {
        let mut answered = Answered::default();
        answered.granted(FILE, owned(7, 100), 0);
        assert!(answered.write(1, FILE, 0, &[1; 3000], None));
        assert!(answered.write(1, FILE, 3000, &[2; 5000], None));
        let address = |data: &[u8]| data.as_ptr();
        let known = answered.files.get(&FILE.inode).expect("a file");
        let cached = known.pieces.iter();
        let cached = cached.map(|(_, data)| address(data.as_ref()));
        let cached: Vec<_> = cached.collect();
        let taken = answered.take(FILE, usize::MAX).expect("there are writes");
        let sent = taken.writes.iter().map(|write| match write {
            Operation::Write { data, .. } => address(data),
            other => panic!("{other:?}"),
        });
        assert!(cached.into_iter().eq(sent), "no copy is made");
    }

    #[test]
    fn writes_of_an_ended_session_are_lost_and_reported() {
        let mut answered = Answered::default();
        answered.granted(FILE, owned(7, 100), 0);
        assert!(answered.write(1, FILE, 0, b"lost", None));
        assert_eq!(answered.session_over(4), []);
        assert_eq!(
            (answered.all_unsent(), answered.unreported()),
            (vec![FILE], 1)
        );
        assert_eq!(answered.session_over(3), [FILE]);
        assert!(!answered.is_unsent(FILE) && answered.bytes() == 0);
        assert_eq!((answered.all_unsent(), answered.unreported()), (vec![], 1));
        assert_eq!(answered.report_error(FILE), Some(ErrorCode::SessionEnded));
        assert_eq!(answered.unreported(), 0, "a close has reported it");
        assert_eq!(answered.take_error(FILE), Some(ErrorCode::SessionEnded));
        answered.forget_ended(100);
        assert!(answered.files.is_empty());
    }

    #[test]
    fn a_loss_behind_a_reported_one_is_not_reported_yet() {
        let mut answered = Answered::default();
        let lose = |answered: &mut Answered, number: u64, error: ErrorCode| {
            answered.granted(FILE, owned(number, 100), 0);
            assert!(answered.write(1, FILE, 0, b"lost", None));
            answered.take(FILE, usize::MAX).expect("there is a write");
            assert!(!answered.sent(FILE, Some(error)), "it is a new loss");
        };
        lose(&mut answered, 7, ErrorCode::NoSpace);
        assert_eq!(answered.report_error(FILE), Some(ErrorCode::NoSpace));
        assert_eq!(answered.take_error(FILE), Some(ErrorCode::NoSpace));
        lose(&mut answered, 8, ErrorCode::Corrupt);
        assert_eq!(answered.unreported(), 1);
        answered.released(FILE);
        assert_eq!(answered.take_error(FILE), Some(ErrorCode::Corrupt));
    }
}
