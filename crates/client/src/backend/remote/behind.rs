//! Writes that are answered before the cluster has them: under leases for writing, and sent by a thread of this mount.
//!
//! The thread sends the writes of a file when a call or a recall waits for them, after [`SENT_AFTER`], and when there are too many.
//! A recall is answered when nothing is left of its file.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use operations::{Acknowledge, ErrorCode, FileId, WriteAt, Written};
use parking_lot::{Condvar, Mutex, MutexGuard};
use protocol::Answered;
use protocol::answered::{BLOCK_BYTES, Found, Taken};
use protocol::client::{Ownership, Recalled};

use super::super::Result;
use super::cache::Cache;
use crate::{Interrupt, RequestError, Requests};

/// Bytes of a mount that are answered and not sent, at most.
const BYTES_MAX: usize = 64 << 20;
/// Longest write that is answered early: longer ones gain nothing.
const WRITE_MAX: usize = 64 << 10;
/// Writes are sent after so long.
const SENT_AFTER: Duration = Duration::from_millis(300);
/// Bytes of a file that are sent at a time.
const SENT_AT_ONCE: usize = 4 << 20;
/// Files that are sent before recalls and calls that wait are looked at again.
const FILES_AT_ONCE: usize = 8;
/// A file is asked for by its second write within this time.
const AGAIN_WITHIN: Duration = Duration::from_secs(1);
/// A file is not asked for so long after it was recalled: others use it, too.
const SHARED_FOR: Duration = Duration::from_secs(1);
/// Files that were not owned for so long are forgotten.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(10);
/// Files that are remembered for their last write or recall, at most.
const NOTED_MAX: usize = 4096;
/// Time for which the log does not repeat a reason why writes were lost.
const LOGGED_FOR: Duration = Duration::from_secs(60);
/// Interval at which a call that waits checks whether its caller was interrupted.
const CHECK_EVERY: Duration = Duration::from_millis(100);

/// Receives one sentence when answered writes are lost.
pub(crate) type Report = Box<dyn Fn(&str) + Send + Sync>;

pub(crate) struct Behind {
    requests: Arc<dyn Requests>,
    acknowledge: Acknowledge,
    /// Drops attributes that writes change.
    cache: Arc<Cache>,
    report: Report,
    state: Mutex<State>,
    /// There is something to send, or to answer.
    work: Condvar,
    /// Notified when writes of a file have ended, and at the end of the mount.
    sent: Condvar,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct State {
    answered: Answered,
    /// Files that calls wait for, and how many.
    wanted: HashMap<u64, (FileId, usize)>,
    /// Recalls that wait for their files.
    recalls: Vec<Recalled>,
    /// When files were last written past the buffer, and last recalled.
    noted: HashMap<u64, Noted>,
    /// Counts files that were sent.
    sends: u64,
    /// In which sessions answered writes were lost, why, and when the log had a line about it.
    logged: HashMap<(u64, ErrorCode), Instant>,
    is_ended: bool,
}

#[derive(Clone, Copy, Default)]
struct Noted {
    written: Option<Instant>,
    recalled: Option<Instant>,
}

impl Behind {
    /// Starts the thread. It ends with [`Behind::end`].
    pub(super) fn start(
        requests: Arc<dyn Requests>,
        acknowledge: Acknowledge,
        cache: Arc<Cache>,
        report: Report,
    ) -> io::Result<Arc<Behind>> {
        let blocks = BYTES_MAX / BLOCK_BYTES;
        let arena = requests.write_memory(BLOCK_BYTES, blocks as u32);
        let state = State {
            answered: arena.map(Answered::with_arena).unwrap_or_default(),
            ..State::default()
        };
        let behind = Arc::new(Behind {
            requests,
            // A recall is answered when the primary has executed the writes.
            acknowledge: match acknowledge {
                Acknowledge::Sent => Acknowledge::Primary,
                other => other,
            },
            cache,
            report,
            state: Mutex::new(state),
            work: Condvar::new(),
            sent: Condvar::new(),
            thread: Mutex::default(),
        });
        let thread = thread::Builder::new().name("tako-writes".into());
        let own = behind.clone();
        *behind.thread.lock() = Some(thread.spawn(move || own.run())?);
        Ok(behind)
    }

    /// Answers a write, or returns whether the caller asks for the file with it.
    pub(super) fn write(
        &self,
        file: FileId,
        at: WriteAt,
        data: &[u8],
        drop_privileges: Option<bool>,
    ) -> Result<std::result::Result<Written, bool>> {
        let is_short = data.len() <= WRITE_MAX && file.generation != FileId::ANY_GENERATION;
        let mut state = self.state.lock();
        if let WriteAt::Offset(offset) = at
            && is_short
            && !state.is_ended
            && !state.wanted.contains_key(&file.inode)
        {
            while state.answered.bytes() + data.len() > BYTES_MAX {
                self.work.notify_one();
                self.wait(&mut state)?;
            }
            let (now, before) = (self.requests.now_ns(), state.answered.oldest());
            if state
                .answered
                .write(now, file, offset, data, drop_privileges)
            {
                if before.is_none() || state.answered.bytes() > BYTES_MAX / 2 {
                    self.work.notify_one();
                }
                let length = data.len();
                return Ok(Ok(Written { offset, length }));
            }
        }
        drop(self.wait_for(state, file)?);
        Ok(Err(is_short && self.asks_for(file)))
    }

    /// Whether a file is used by this mount, not by others, so that it is worth a lease.
    fn asks_for(&self, file: FileId) -> bool {
        let now = Instant::now();
        let mut state = self.state.lock();
        if state.noted.len() > NOTED_MAX {
            state.noted.clear();
        }
        let noted = state.noted.entry(file.inode).or_default();
        let is_within = |at: Option<Instant>, time| at.is_some_and(|at| now < at + time);
        let is_again = is_within(noted.written, AGAIN_WITHIN);
        noted.written = Some(now);
        is_again && !is_within(noted.recalled, SHARED_FOR)
    }

    /// A write of a file was executed.
    pub(super) fn granted(&self, file: FileId, ownership: Option<Ownership>, written: &Written) {
        if let Some(ownership) = ownership {
            let end = written.offset + written.length as u64;
            self.state.lock().answered.granted(file, ownership, end);
        }
    }

    /// Data of a read, if all of it is here. Otherwise waits until nothing of it is only here.
    pub(super) fn read(&self, file: FileId, offset: u64, length: usize) -> Result<Option<Vec<u8>>> {
        let state = self.state.lock();
        let now = self.requests.now_ns();
        match state.answered.read(now, file, offset, length) {
            Found::Elsewhere => Ok(None),
            Found::Here(data) => Ok(Some(data)),
            Found::Unsent => self.wait_for(state, file).map(|_| None),
        }
    }

    /// A file was made this long, or changed from here on.
    pub(super) fn cut(&self, file: FileId, length: u64) {
        self.state.lock().answered.cut(file, length);
    }

    /// The next writes of a file are executed before they are answered: they may be refused from now on.
    pub(super) fn close_file(&self, file: FileId) {
        self.state.lock().answered.close(file);
    }

    /// Waits until the cluster has the writes of a file.
    pub(super) fn send(&self, file: FileId) -> Result<()> {
        self.wait_for(self.state.lock(), file).map(drop)
    }

    /// The same, and fails if answered writes of the file were lost since the last time.
    pub(super) fn sync(&self, file: FileId) -> Result<()> {
        let mut state = self.wait_for(self.state.lock(), file)?;
        match state.answered.take_error(file) {
            Some(error) => Err(error.into()),
            None => Ok(()),
        }
    }

    /// The same for a close, which may be one of several.
    pub(super) fn flush(&self, file: FileId) -> Result<()> {
        let mut state = self.wait_for(self.state.lock(), file)?;
        match state.answered.report_error(file) {
            Some(error) => Err(error.into()),
            None => Ok(()),
        }
    }

    /// An open file has ended.
    pub(super) fn released(&self, file: FileId) {
        self.state.lock().answered.released(file);
    }

    /// Number of files that were sent so far.
    pub(super) fn sends(&self) -> u64 {
        self.state.lock().sends
    }

    /// Whether attributes of a file that were requested after so many had been sent may lack answered writes.
    pub(super) fn is_outdated(&self, file: FileId, sends: u64) -> bool {
        let state = self.state.lock();
        state.answered.is_unsent(file) || state.sends != sends && state.answered.knows(file)
    }

    fn wait_for<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        file: FileId,
    ) -> Result<MutexGuard<'a, State>> {
        if !state.answered.is_unsent(file) {
            return Ok(state);
        }
        state.wanted.entry(file.inode).or_insert((file, 0)).1 += 1;
        self.work.notify_one();
        let mut result = Ok(());
        while state.answered.is_unsent(file) && result.is_ok() {
            result = self.wait(&mut state);
        }
        if let Some((_, count)) = state.wanted.get_mut(&file.inode) {
            *count -= 1;
            if *count == 0 {
                state.wanted.remove(&file.inode);
            }
        }
        result.map(|()| state)
    }

    /// Waits until something was sent.
    fn wait(&self, state: &mut MutexGuard<'_, State>) -> Result<()> {
        if Interrupt::current().is_some_and(|it| it.is_interrupted()) {
            return Err(RequestError::Interrupted.into());
        }
        if state.is_ended {
            return Err(RequestError::Ended("the mount has ended".to_owned()).into());
        }
        self.sent.wait_for(state, CHECK_EVERY);
        Ok(())
    }

    /// The lease of a file is recalled: no more writes of it are answered.
    pub(super) fn close(&self, recalled: &Recalled) {
        let now = self.requests.now_ns();
        let mut state = self.state.lock();
        if state.answered.recalled(now, recalled).is_some() {
            let noted = state.noted.entry(recalled.inode).or_default();
            noted.recalled = Some(Instant::now());
        }
    }

    /// Answers a recall, when its file was sent.
    pub(super) fn answer(&self, recalled: Recalled) {
        let now = self.requests.now_ns();
        let mut state = self.state.lock();
        match state.answered.recalled(now, &recalled).is_some() {
            true => {
                state.recalls.push(recalled);
                self.work.notify_one();
            }
            false => {
                drop(state);
                self.requests.invalidated(recalled);
            }
        }
    }

    /// The same from where nothing may wait.
    pub(super) fn answer_later(&self, recalled: Recalled) {
        self.state.lock().recalls.push(recalled);
        self.work.notify_one();
    }

    /// Waits until the cluster has everything.
    pub(super) fn send_all(&self) -> Result<()> {
        let files = self.state.lock().answered.all_unsent();
        files.into_iter().try_for_each(|file| self.send(file))
    }

    /// Whether the cluster may lack answered writes.
    pub(super) fn has_unsent(&self) -> bool {
        !self.state.lock().answered.all_unsent().is_empty()
    }

    /// Sends what is left. The thread ends, and every later write is executed by the cluster.
    pub(super) fn end(&self) {
        let mut state = self.state.lock();
        state.is_ended = true;
        self.work.notify_one();
        self.sent.notify_all();
    }

    /// Waits for the thread after [`Behind::end`], when requests have ended, too. Returns the number of files of which answered
    /// writes are lost that neither fsync nor close has reported.
    pub(super) fn join(&self) -> usize {
        if let Some(thread) = self.thread.lock().take() {
            // After a panic of the thread its files are unsent.
            let _ = thread.join();
        }
        self.state.lock().answered.unreported()
    }

    fn run(&self) {
        let mut state = self.state.lock();
        loop {
            let now = self.requests.now_ns();
            let old = now.saturating_sub(FORGOTTEN_AFTER.as_nanos() as u64);
            state.answered.forget_ended(old);
            let files = state.take(now);
            let State {
                recalls, answered, ..
            } = &mut *state;
            let is_clean = |it: &mut Recalled| answered.unsent(it.inode).is_none();
            let clean: Vec<Recalled> = recalls.extract_if(.., is_clean).collect();
            if files.is_empty() && clean.is_empty() {
                if state.is_ended {
                    return;
                }
                let after = SENT_AFTER.as_nanos() as u64;
                let due = state.answered.oldest().map(|at| (at + after).max(now));
                let pause = due.map_or(FORGOTTEN_AFTER, |due| Duration::from_nanos(due - now));
                self.work.wait_for(&mut state, pause);
                continue;
            }
            MutexGuard::unlocked(&mut state, || {
                for recalled in clean {
                    self.requests.invalidated(recalled);
                }
            });
            for (file, taken) in files {
                let result = MutexGuard::unlocked(&mut state, || self.send_taken(&taken));
                self.note_sent(&mut state, file, &taken, result);
            }
        }
    }

    /// Has writes executed, several at a time. Returns the newest lease, or the first error.
    fn send_taken(&self, taken: &Taken) -> std::result::Result<Option<Ownership>, ErrorCode> {
        let (writes, session) = (taken.writes.clone(), taken.session);
        // All writes are to one file.
        let work = writes.first().map(|write| self.cache.begin(write));
        let outcomes = self.requests.call_all_in(session, writes, self.acknowledge);
        work.into_iter()
            .for_each(|work| self.cache.end(work, None, None));
        let mut newest: Option<Ownership> = None;
        for outcome in outcomes {
            // Of a request without an answer nothing is known.
            let (outcome, ownership) = outcome.map_err(|_| ErrorCode::SessionEnded)?;
            outcome.into_result()?;
            newest = match (newest, ownership) {
                (Some(one), Some(other)) if one.number > other.number => Some(one),
                (one, other) => other.or(one),
            };
        }
        Ok(newest)
    }

    fn note_sent(
        &self,
        state: &mut MutexGuard<'_, State>,
        file: FileId,
        taken: &Taken,
        result: std::result::Result<Option<Ownership>, ErrorCode>,
    ) {
        state.sends += 1;
        let had_error = state.answered.sent(file, result.as_ref().err().copied());
        match result {
            Ok(ownership) => {
                if let Some(ownership) = ownership {
                    state.answered.granted(file, ownership, 0);
                }
            }
            Err(error) => {
                let lost = match error {
                    ErrorCode::SessionEnded => state.answered.session_over(taken.session),
                    _ => Vec::new(),
                };
                let others = lost.iter().filter(|it| **it != file).count();
                let count = others + usize::from(!had_error);
                let reason = (taken.session, error);
                if count > 0 && state.begins_line(reason, Instant::now()) {
                    self.report_lost(state, count, error);
                }
            }
        }
        self.sent.notify_all();
    }

    fn report_lost(&self, state: &State, count: usize, error: ErrorCode) {
        let why = match error {
            // A mount begins another session by itself.
            ErrorCode::SessionEnded => {
                "the session with the cluster has ended, or a request had no answer".to_owned()
            }
            _ => error.to_string(),
        };
        let then = match state.is_ended {
            false => "the next fsync or close of each file reports it",
            true => "write these files again",
        };
        (self.report)(&format!(
            "writes to {count} file(s) that were answered early are lost: {why}; {then}; the log counts no further files for this reason and session within a minute"
        ));
    }
}

impl State {
    /// Whether the log has had no line about writes lost in this session, for this reason, for a while. It has one now.
    fn begins_line(&mut self, reason: (u64, ErrorCode), now: Instant) -> bool {
        self.logged
            .retain(|_, at| now.duration_since(*at) < LOGGED_FOR);
        let is_new = !self.logged.contains_key(&reason);
        if is_new {
            self.logged.insert(reason, now);
        }
        is_new
    }

    /// The writes to send now: of files that are waited for first.
    fn take(&mut self, now: u64) -> Vec<(FileId, Taken)> {
        let wanted = self.wanted.values().map(|(file, _)| *file);
        let answered = &mut self.answered;
        let recalled = self.recalls.iter();
        let recalled = recalled.filter_map(|it| answered.unsent(it.inode));
        let mut files: Vec<FileId> = recalled.collect();
        files.extend(wanted);
        if files.is_empty() {
            let before = now.saturating_sub(SENT_AFTER.as_nanos() as u64);
            let has_many = answered.bytes() > BYTES_MAX / 2 || self.is_ended;
            files = answered.due((!has_many).then_some(before));
        }
        let unique: HashSet<FileId> = files.iter().copied().collect();
        let taken = unique.into_iter();
        taken
            .filter_map(|file| Some((file, answered.take(file, SENT_AT_ONCE)?)))
            .take(FILES_AT_ONCE)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use operations::{Operation, Outcome};

    use super::*;
    use crate::requests::Owning;
    use crate::{HoldsSource, Started};

    const FILE: FileId = FileId {
        unit: 0,
        inode: 7,
        generation: 1,
    };

    /// A primary that grants each file, and executes answered writes when it is told to.
    #[derive(Default)]
    struct Primary {
        is_open: Mutex<bool>,
        opened: Condvar,
        /// Why it executes no write.
        refusal: Mutex<Option<ErrorCode>>,
        /// Bytes of answered writes that it has executed.
        executed: Mutex<usize>,
    }

    impl Primary {
        fn open(&self) {
            *self.is_open.lock() = true;
            self.opened.notify_all();
        }
    }

    impl Requests for Primary {
        fn call(
            &self,
            operation: Operation,
            _: Acknowledge,
        ) -> std::result::Result<Outcome, RequestError> {
            panic!("{operation:?}")
        }

        fn start(&self, operation: Operation, _: Acknowledge) -> Started {
            panic!("{operation:?}")
        }

        fn call_all_in(&self, _: u64, writes: Vec<Operation>, _: Acknowledge) -> Vec<Owning> {
            let mut is_open = self.is_open.lock();
            while !*is_open {
                self.opened.wait(&mut is_open);
            }
            if let Some(error) = *self.refusal.lock() {
                let failed = || Outcome::failed(error);
                return writes.iter().map(|_| Ok((failed(), None))).collect();
            }
            let length = |write: &Operation| match write {
                Operation::Write { data, .. } => data.len(),
                other => panic!("{other:?}"),
            };
            *self.executed.lock() += writes.iter().map(length).sum::<usize>();
            writes.iter().map(|_| Ok((Outcome::done(), None))).collect()
        }

        fn set_holds(&self, _: HoldsSource) {}

        fn end(&self) {
            self.open();
        }
    }

    /// Opens the primary at the end of a scope, after a panic too.
    struct Opened<'a>(&'a Primary);

    impl Drop for Opened<'_> {
        fn drop(&mut self) {
            self.0.open();
        }
    }

    fn owner(requests: &Arc<Primary>) -> Arc<Behind> {
        let behind = start(requests, Box::new(|sentence| panic!("{sentence}")));
        grant(&behind, FILE);
        behind
    }

    fn start(requests: &Arc<Primary>, report: Report) -> Arc<Behind> {
        let cache = Arc::new(Cache::new());
        let behind = Behind::start(requests.clone(), Acknowledge::Primary, cache, report);
        behind.expect("a thread")
    }

    fn grant(behind: &Behind, file: FileId) {
        let ownership = Ownership {
            session: 3,
            number: (1, 1),
            until: u64::MAX,
        };
        let written = Written {
            offset: 0,
            length: 0,
        };
        behind.granted(file, Some(ownership), &written);
    }

    fn write(behind: &Behind, number: usize) {
        write_to(behind, FILE, number);
    }

    fn write_to(behind: &Behind, file: FileId, number: usize) {
        let at = WriteAt::Offset((number * WRITE_MAX) as u64);
        let written = behind.write(file, at, &[1; WRITE_MAX], None);
        assert!(written.expect("no error").is_ok(), "it is answered early");
    }

    #[test]
    fn answered_writes_that_are_not_sent_are_bounded() {
        const WRITES: usize = BYTES_MAX / WRITE_MAX;
        let requests = Arc::<Primary>::default();
        let behind = owner(&requests);
        let (note, noted) = channel();
        thread::scope(|scope| {
            let behind = &behind;
            // A failed assertion may not leave the scope waiting for the writer.
            let _opened = Opened(&requests);
            let writer = scope.spawn(move || {
                for number in 0..WRITES + 100 {
                    write(behind, number);
                    assert!(behind.state.lock().answered.bytes() <= BYTES_MAX);
                    note.send(number).expect("a receiver");
                }
            });
            let is_full = || behind.state.lock().answered.bytes() + WRITE_MAX > BYTES_MAX;
            while !is_full() && !writer.is_finished() {
                thread::yield_now();
            }
            // The write that fills it may not be noted yet. The next one waits until something is sent.
            let early = noted.try_iter().count();
            let more = std::iter::from_fn(|| noted.recv_timeout(SENT_AFTER).ok()).count();
            assert!(early + more <= WRITES && more <= 1, "{early}, {more}");
            requests.open();
        });
        behind.send_all().expect("the primary has all");
        assert_eq!(*requests.executed.lock(), (WRITES + 100) * WRITE_MAX);
        behind.end();
        assert_eq!(behind.join(), 0);
    }

    /// A mount with a primary, and the lines of its log.
    struct Log {
        requests: Arc<Primary>,
        behind: Arc<Behind>,
        lines: Receiver<String>,
    }

    impl Log {
        fn new() -> Log {
            let requests = Arc::<Primary>::default();
            let (report, lines) = channel();
            let report = Mutex::new(report);
            let line = move |line: &str| report.lock().send(line.to_owned()).expect("a receiver");
            let behind = start(&requests, Box::new(line));
            Log {
                requests,
                behind,
                lines,
            }
        }

        /// Sends writes to a file, which the primary refuses for this reason. Returns the new lines.
        fn send(&self, inode: u64, writes: usize, refusal: Option<ErrorCode>) -> Vec<String> {
            let file = FileId { inode, ..FILE };
            grant(&self.behind, file);
            *self.requests.refusal.lock() = refusal;
            (0..writes).for_each(|number| write_to(&self.behind, file, number));
            self.requests.open();
            self.behind.send(file).expect("the primary answers");
            self.lines.try_iter().collect()
        }

        fn end(self) {
            self.behind.end();
            self.behind.join();
        }
    }

    #[test]
    fn the_log_has_one_line_a_minute_for_each_reason() {
        const BATCHES: usize = 3;
        const FULL: Option<ErrorCode> = Some(ErrorCode::NoSpace);
        let log = Log::new();
        let lines = log.send(1, BATCHES * SENT_AT_ONCE / WRITE_MAX, FULL);
        let start = "writes to 1 file(s) that were answered early are lost: ";
        assert!(lines.len() == 1 && lines[0].starts_with(start), "{lines:?}");
        for inode in 2..6 {
            assert!(log.send(inode, 1, FULL).is_empty(), "the same reason");
            let file = FileId { inode, ..FILE };
            assert!(log.behind.sync(file).is_err(), "each file has its error");
            // Overwrites need no room.
            assert!(log.send(6, 1, None).is_empty());
        }
        assert_eq!(log.send(7, 1, Some(ErrorCode::Corrupt)).len(), 1);
        assert!(log.send(8, 1, FULL).is_empty(), "still the same minute");
        let mut state = log.behind.state.lock();
        let reason = (3, ErrorCode::NoSpace);
        let minute = Instant::now() + LOGGED_FOR;
        assert!(state.begins_line(reason, minute) && !state.begins_line(reason, minute));
        drop(state);
        log.end();
    }

    #[test]
    fn a_reason_without_a_line_is_not_known() {
        let log = Log::new();
        // The second batch of a file is refused for another reason: the file has a line already.
        let file = FileId { inode: 1, ..FILE };
        assert_eq!(log.send(1, 1, Some(ErrorCode::NoSpace)).len(), 1);
        let mut state = log.behind.state.lock();
        let taken = Taken {
            session: 3,
            writes: Vec::new(),
        };
        log.behind
            .note_sent(&mut state, file, &taken, Err(ErrorCode::Corrupt));
        drop(state);
        assert_eq!(log.lines.try_iter().count(), 0);
        assert_eq!(
            log.send(2, 1, Some(ErrorCode::Corrupt)).len(),
            1,
            "its first line"
        );
        log.end();
    }

    #[test]
    fn the_end_waits_for_writes_that_are_being_sent() {
        let requests = Arc::<Primary>::default();
        let behind = owner(&requests);
        write(&behind, 0);
        // The thread takes it, and waits for the primary.
        while !behind.state.lock().answered.due(None).is_empty() {
            thread::yield_now();
        }
        assert!(behind.has_unsent());
        thread::scope(|scope| {
            let _opened = Opened(&requests);
            let sent = scope.spawn(|| behind.send_all());
            while !behind.state.lock().wanted.contains_key(&FILE.inode) && !sent.is_finished() {
                thread::yield_now();
            }
            assert!(!sent.is_finished(), "the primary has not executed it");
            requests.open();
            sent.join().expect("no panic").expect("the primary has all");
        });
        assert_eq!(*requests.executed.lock(), WRITE_MAX);
        behind.end();
        assert_eq!(behind.join(), 0);
    }
}
