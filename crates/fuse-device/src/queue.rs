//! A queue of requests over io_uring, as Documentation/filesystems/fuse-io-uring.rst in the kernel describes them.
//!
//! A queue has slots. Each slot belongs to the kernel until a completion reports a request in it, then to the process
//! until the answer is committed by the same system call that waits for the next request. So the whole life of a
//! request costs one system call here, and only the kernel copies it.
//!
//! ```text
//! a slot:   0                 128               256            288      4096                  4096 + payload length
//!           +-----------------+-----------------+--------------+--------+---------------------+
//!           | head of request | fixed part of   | flags, id,   | unused | names, data of the  |
//!           | or answer       | the request     | length below |        | request or answer   |
//!           +-----------------+-----------------+--------------+--------+---------------------+
//! ```

use std::collections::VecDeque;
use std::ffi::CStr;
use std::io;
use std::mem::{ManuallyDrop, offset_of, size_of};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::NonNull;
use std::slice;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use io_uring::opcode::{GetXattr, PollAdd, UringCmd80};
use io_uring::squeue::Entry128;
use io_uring::{EnterFlags, IoUring, cqueue, types};
use rustix::event::{EventfdFlags, eventfd};

use crate::memory::Memory;
use crate::{ARGUMENT, HEADER};

/// Commands of `enum fuse_uring_cmd`.
const REGISTER: u32 = 1;
const COMMIT_AND_FETCH: u32 = 2;

/// Identity of the completion of the bell's poll; those of slots have their indices.
const BELL: u64 = u64::MAX;
/// The same of nudges.
const NUDGE: u64 = u64::MAX - 1;
/// Nudges in flight for which the kernel has threads.
const NUDGES_MAX: u32 = 4096;
/// Bytes for a path.
const PATH_ROOM: usize = 4096;
/// The extended attribute of the mounted directory that nudges ask for. It does not exist, and the answer must not wait for
/// anything.
pub const NUDGE_NAME: &CStr = c"security.tako.nudge";

/// Where the payload of a slot begins: behind the page that has the rest.
const PAYLOAD: usize = 4096;

/// Header of a request, `struct fuse_uring_req_header`.
#[repr(C)]
struct Head {
    in_out: [u8; HEADER],
    argument: [u8; ARGUMENT],
    entry: Entry,
}

/// State of an entry, `struct fuse_uring_ent_in_out`.
#[repr(C)]
struct Entry {
    flags: u64,
    commit_id: u64,
    payload_length: u32,
    padding: u32,
    reserved: u64,
}

const _: () = assert!(size_of::<Head>() == 288 && offset_of!(Head, entry) == 256);
const _: () = assert!(size_of::<Head>() <= PAYLOAD);
const _: () = assert!(size_of::<Entry128>() == 128);

/// Where `struct fuse_uring_cmd_req`, in a command's own 80 bytes, has its members.
const COMMIT_ID: std::ops::Range<usize> = 8..16;
const QUEUE: std::ops::Range<usize> = 16..18;

/// A request that is to be answered in place.
pub struct Exchange<'a> {
    /// The request's head; before the exchange ends, the answer's.
    pub header: &'a mut [u8; HEADER],
    /// The fixed part of the request, or nothing in particular if it has none.
    pub argument: &'a [u8; ARGUMENT],
    /// Room for names and data: what came with the request, and in the end what goes with the answer.
    pub payload: &'a mut [u8],
    /// Bytes of the payload that came.
    pub length: usize,
    /// Handle for answering it later instead.
    pub place: RequestSlot<'a>,
}

/// Scheduling of a queue's thread.
pub trait Scheduling {
    /// Whether a thread that an answer wakes up runs at once, in place of this thread.
    fn yields(&self) -> bool;

    /// There is no request: the thread blocks.
    fn blocks(&self);

    /// There is a request. Returns whether other ones may wait that no free slot of the queue moves, so that a nudge is due.
    fn takes(&self) -> bool {
        false
    }

    /// Whether answers are to be with the kernel before the thread waits for a request.
    fn sends_first(&self) -> bool {
        self.yields()
    }

    /// The answers so far are with the kernel.
    fn sent(&self) {}
}

/// Where a request is.
pub struct RequestSlot<'a> {
    slot: usize,
    may_stay: bool,
    desk: &'a Arc<Desk>,
}

/// An answer that is still to come, from any thread.
pub struct Later {
    slot: usize,
    desk: Arc<Desk>,
}

/// Where other threads leave word for that of a queue.
struct Desk {
    answers: Mutex<Vec<Answer>>,
    is_stopped: AtomicBool,
    /// Wakes the thread up.
    bell: OwnedFd,
}

/// Answer to a slot that keeps its request.
struct Answer {
    slot: usize,
    head: Vec<u8>,
    payload: Vec<u8>,
}

/// Ends the service of a queue.
#[derive(Clone)]
pub struct Stop(Arc<Desk>);

/// The queues of some processors, served by the one thread that made this.
pub struct Queue {
    ring: IoUring<Entry128, cqueue::Entry>,
    device: Arc<OwnedFd>,
    slots: Vec<Slot>,
    /// Number of the first entry.
    first: usize,
    payload_length: usize,
    depth: usize,
    /// Slots with requests that are answered later.
    staying: usize,
    /// Slots that are ours for good.
    ended: usize,
    /// Completions that came while slots were given to the kernel.
    unread: VecDeque<(usize, i32)>,
    desk: Arc<Desk>,
}

/// A request of this process, made by a thread of the kernel on this thread's processor, so that no thread of this
/// process waits for it.
struct Nudge {
    /// Memory with the path of the request.
    memory: ManuallyDrop<Memory>,
    under_way: usize,
}

/// Room for a request. Of these each queue has as many as it takes before the first is answered, and some more while
/// requests stay.
struct Slot {
    /// Not dropped by itself: see [`Slot::drop`].
    memory: ManuallyDrop<Memory>,
    /// The number of its queue, which is that of a processor.
    number: u16,
    state: State,
    /// While the kernel has it, either it is free there and no request of its queue waits, or a request comes in it. Not so,
    /// perhaps, from when a slot is given until a request has come in it: those that waited already wait on beside it.
    moves_requests: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Ours: the kernel has no command for it, before the beginning and after the end.
    Ours,
    /// The kernel's, which may write to it.
    Kernels,
    /// Ours until its request is answered.
    Stays,
}

impl RequestSlot<'_> {
    /// Handle for answering the request later. None if too few slots would be left for others.
    pub fn later(&self) -> Option<Later> {
        self.may_stay.then(|| Later {
            slot: self.slot,
            desk: self.desk.clone(),
        })
    }
}

impl Later {
    /// Answers with a head and what follows it.
    pub fn answer(self, head: &[u8], payload: &[u8]) {
        self.desk.lock().push(Answer {
            slot: self.slot,
            head: head.to_vec(),
            payload: payload.to_vec(),
        });
        self.desk.ring();
    }
}

impl Desk {
    fn lock(&self) -> MutexGuard<'_, Vec<Answer>> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ring(&self) {
        // It fails only when the bell has rung very often, and no thread has polled yet.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }
}

impl Stop {
    /// Makes the queue's thread end soon, whatever the kernel reports.
    pub fn stop(&self) {
        self.0.is_stopped.store(true, Ordering::Release);
        self.0.ring();
    }
}

impl Queue {
    /// Prepares queues with these numbers, each with `depth` slots of `payload_length` bytes, for the session of
    /// `device`. Nothing comes before [`Queue::register`].
    pub fn new(
        device: Arc<OwnedFd>,
        numbers: &[u16],
        depth: usize,
        payload_length: usize,
    ) -> io::Result<Queue> {
        let mut slots = numbers
            .iter()
            .flat_map(|number| std::iter::repeat_n(*number, depth))
            .map(|number| Slot::new(number, payload_length))
            .collect::<io::Result<Vec<Slot>>>()?;
        // No request comes to a queue before its first slot.
        for slot in slots.iter_mut().step_by(depth) {
            slot.moves_requests = true;
        }
        // Work of the kernel for this thread waits until the thread next leaves the kernel, and never interrupts an answer:
        // so a thread that yields finds requests without asking for them.
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_coop_taskrun()
            .build((slots.len() + 1).next_power_of_two() as u32)?;
        let desk = Desk {
            answers: Mutex::default(),
            is_stopped: AtomicBool::new(false),
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        };
        Ok(Queue {
            ring,
            device,
            first: slots.len(),
            ended: slots.len(),
            slots,
            payload_length,
            depth,
            staying: 0,
            unread: VecDeque::new(),
            desk: Arc::new(desk),
        })
    }

    /// Handle for other threads to end the service.
    pub fn stop(&self) -> Stop {
        Stop(self.desk.clone())
    }

    /// Gives all slots to the kernel. When each processor of the machine has one, all requests come this way, apart
    /// from those that have no answer (forget, interrupt), which still have to be read from the device.
    ///
    /// # Errors
    /// The kernel refuses. Then requests may come this way nevertheless, if it has taken some slots.
    pub fn register(&mut self) -> io::Result<()> {
        self.listen()?;
        for slot in 0..self.slots.len() {
            self.give(slot)?;
        }
        // The kernel refuses at once.
        let mut refusal = None;
        let mut unread = VecDeque::new();
        while let Some((slot, result)) = self.completion() {
            if slot < self.slots.len() && result < 0 {
                self.end(slot);
                refusal = Some(io::Error::from_raw_os_error(-result));
            } else {
                unread.push_back((slot, result));
            }
        }
        self.unread = unread;
        refusal.map_or(Ok(()), Err)
    }

    /// Gives a slot to the kernel for the first time.
    fn give(&mut self, slot: usize) -> io::Result<()> {
        let vectors = self.vectors(slot);
        let entry = self.entry(slot, REGISTER, 0, Some(&vectors));
        self.push(&entry)?;
        self.slots[slot].state = State::Kernels;
        self.ended -= 1;
        // The kernel has read the vectors when this returns.
        self.ring.submit()?;
        Ok(())
    }

    /// Asks for word when the bell rings.
    fn listen(&mut self) -> io::Result<()> {
        let bell = types::Fd(self.desk.bell.as_raw_fd());
        let poll = PollAdd::new(bell, libc::POLLIN as u32).build();
        self.push(&Entry128::from(poll.user_data(BELL)))
    }

    /// Answers requests until the session ends, or another thread stops it. `answer` returns the bytes of payload of its
    /// answer, or None if the answer comes later, by [`RequestSlot::later`].
    ///
    /// When all slots of a queue stay occupied except those added meanwhile, further requests may wait in the kernel
    /// for a slot that is returned: a new slot does not move them, and nothing else would. Then there is one more
    /// request, from this processor, for [`NUDGE_NAME`] of `directory`, where the mount is ([`Nudge`]): its answer
    /// moves the next one. Not more often than that, since no process can unmount meanwhile. `joins` says that requests may
    /// wait at the beginning, in a queue with slots of other threads.
    pub fn serve(
        &mut self,
        mut answer: impl FnMut(Exchange<'_>) -> Option<usize>,
        scheduling: &impl Scheduling,
        directory: &Path,
        joins: bool,
    ) -> io::Result<()> {
        let mut failure = None;
        let mut nudge = None;
        if joins {
            self.nudge(&mut nudge, directory)?;
        }
        while self.ended + self.staying < self.slots.len() {
            match self.hand_over(scheduling) {
                Err(error) if !is_passing(&error) => return Err(error),
                _ => {}
            }
            let mut may_wait = false;
            while let Some((slot, result)) = self.completion() {
                if slot as u64 == NUDGE {
                    nudge.as_mut().map(Nudge::returned);
                } else if slot as u64 == BELL {
                    // A later ring is seen by the next poll.
                    let _ = rustix::io::read(&self.desk.bell, &mut [0; 8]);
                    self.listen()?;
                } else if result < 0 {
                    self.end(slot);
                    let end = [libc::ENOTCONN, libc::ECONNABORTED, libc::ECANCELED];
                    // A slot that was added is no loss if the kernel does not take it.
                    if !end.contains(&-result) && slot < self.first {
                        failure = Some(io::Error::from_raw_os_error(-result));
                    }
                } else {
                    if scheduling.takes() {
                        self.nudge(&mut nudge, directory)?;
                        self.submit()?;
                    }
                    match self.exchange(slot, &mut answer) {
                        Some(id) => self.commit(slot, id)?,
                        None => may_wait |= self.stay(slot)?,
                    }
                }
            }
            if may_wait {
                self.nudge(&mut nudge, directory)?;
            }
            if self.desk.is_stopped.load(Ordering::Acquire) {
                return Err(io::Error::other("the queue was stopped"));
            }
            self.answer_staying()?;
        }
        failure.map_or(Ok(()), Err)
    }

    fn nudge(&mut self, nudge: &mut Option<Nudge>, directory: &Path) -> io::Result<()> {
        if nudge.is_none() {
            *nudge = Some(Nudge::new(&self.ring, directory)?);
        }
        let entry = nudge.as_mut().map(Nudge::entry);
        entry.map_or(Ok(()), |entry| self.push(&entry))
    }

    /// Submits the pushed entries.
    fn submit(&mut self) -> io::Result<()> {
        loop {
            match self.enter(0) {
                Err(error) if is_passing(&error) && !self.ring.submission().is_empty() => {}
                result => return result,
            }
        }
    }

    /// Submits the pushed entries, and waits for a completion unless there is one.
    fn hand_over(&mut self, scheduling: &impl Scheduling) -> io::Result<()> {
        if !self.unread.is_empty() {
            return self.enter(0);
        }
        if scheduling.sends_first() && !self.ring.submission().is_empty() {
            // In the background, the thread that the answer wakes up runs before this returns. Its next request is then
            // here, and this thread neither blocks nor is woken up.
            self.enter(0)?;
            scheduling.sent();
            if !self.ring.completion().is_empty() {
                return Ok(());
            }
        }
        scheduling.blocks();
        self.enter(1)
    }

    /// Submits the pushed entries, and waits for so many completions.
    fn enter(&mut self, wanted: u32) -> io::Result<()> {
        let mut flags = EnterFlags::empty();
        if wanted > 0 {
            flags |= EnterFlags::GETEVENTS;
            // A missing request is no slow disk: without this, the kernel accounts all processors as waiting for I/O
            // while the mount is idle.
            if self.ring.params().is_feature_no_iowait() {
                flags |= EnterFlags::NO_IOWAIT;
            }
        }
        let pushed = self.ring.submission().len() as u32;
        let submitter = self.ring.submitter();
        // SAFETY: these flags take no argument, and there are as many commands as that.
        unsafe { submitter.enter::<libc::sigset_t>(pushed, wanted, flags.bits(), None) }?;
        Ok(())
    }

    fn completion(&mut self) -> Option<(usize, i32)> {
        if let Some(unread) = self.unread.pop_front() {
            return Some(unread);
        }
        let completion = self.ring.completion().next()?;
        Some((completion.user_data() as usize, completion.result()))
    }

    /// Has the request in a slot answered there, and returns its identity; None if it is answered later.
    fn exchange(
        &mut self,
        slot: usize,
        answer: &mut impl FnMut(Exchange<'_>) -> Option<usize>,
    ) -> Option<u64> {
        let may_stay = self.staying == 0 || self.free_beside(slot).next().is_some();
        self.slots[slot].moves_requests = true;
        let mut head = self.slots[slot].head().cast::<Head>();
        let payload = self.slots[slot].payload(self.payload_length);
        // SAFETY: a completion has given the slot to us, and it goes back only after this function; its head and its
        // payload do not overlap, are aligned to pages, and any bytes are a head.
        let (head, payload) = unsafe {
            (
                head.as_mut(),
                slice::from_raw_parts_mut(payload.as_ptr(), self.payload_length),
            )
        };
        let length = payload.len().min(head.entry.payload_length as usize);
        let id = head.entry.commit_id;
        let answered = answer(Exchange {
            header: &mut head.in_out,
            argument: &head.argument,
            payload,
            length,
            place: RequestSlot {
                slot,
                may_stay,
                desk: &self.desk,
            },
        })?;
        head.entry.payload_length = answered.min(self.payload_length) as u32;
        Some(id)
    }

    fn commit(&mut self, slot: usize, id: u64) -> io::Result<()> {
        let entry = self.entry(slot, COMMIT_AND_FETCH, id, None);
        self.push(&entry)
    }

    /// The other slots of the same queue that are free for requests.
    fn free_beside(&self, slot: usize) -> impl Iterator<Item = &Slot> {
        let number = self.slots[slot].number;
        let is_free = move |(other, candidate): &(usize, &Slot)| {
            *other != slot && candidate.number == number && candidate.state == State::Kernels
        };
        let free = self.slots.iter().enumerate().filter(is_free);
        free.map(|(_, slot)| slot)
    }

    /// Keeps a slot until its request is answered, and adds another one in its place if too few are left. Returns whether
    /// requests may wait that no other slot moves.
    fn stay(&mut self, slot: usize) -> io::Result<bool> {
        self.slots[slot].state = State::Stays;
        self.staying += 1;
        let may_wait = !self.free_beside(slot).any(|free| free.moves_requests);
        if self.free_beside(slot).take(self.depth).count() < self.depth
            && let Ok(further) = Slot::new(self.slots[slot].number, self.payload_length)
        {
            // The kernel gives requests to the slot that was returned last: this one is rarely used later.
            self.slots.push(further);
            self.ended += 1;
            self.give(self.slots.len() - 1)?;
        }
        Ok(may_wait)
    }

    /// Sends the answers that have come for requests that stayed.
    fn answer_staying(&mut self) -> io::Result<()> {
        if self.staying == 0 {
            return Ok(());
        }
        let answers = std::mem::take(&mut *self.desk.lock());
        for Answer {
            slot,
            head,
            payload,
        } in answers
        {
            let mut place = self.slots[slot].head().cast::<Head>();
            let room = self.slots[slot].payload(self.payload_length);
            // SAFETY: as in `exchange`: the slot is ours while it stays.
            let (place, room) = unsafe {
                (
                    place.as_mut(),
                    slice::from_raw_parts_mut(room.as_ptr(), self.payload_length),
                )
            };
            place.in_out[..head.len()].copy_from_slice(&head);
            room[..payload.len()].copy_from_slice(&payload);
            place.entry.payload_length = payload.len() as u32;
            let id = place.entry.commit_id;
            self.slots[slot].state = State::Kernels;
            self.staying -= 1;
            self.commit(slot, id)?;
        }
        Ok(())
    }

    fn end(&mut self, slot: usize) {
        self.slots[slot].state = State::Ours;
        self.ended += 1;
    }

    fn entry(
        &self,
        slot: usize,
        command: u32,
        commit_id: u64,
        vectors: Option<&[libc::iovec; 2]>,
    ) -> Entry128 {
        let mut bytes = [0; 80];
        bytes[COMMIT_ID].copy_from_slice(&commit_id.to_ne_bytes());
        bytes[QUEUE].copy_from_slice(&self.slots[slot].number.to_ne_bytes());
        let device = types::Fd(self.device.as_raw_fd());
        let build = UringCmd80::new(device, command).cmd(bytes);
        let Some(vectors) = vectors else {
            return build.build().user_data(slot as u64);
        };
        let build = build.addr(Some(vectors.as_ptr() as u64));
        with_length(build.build().user_data(slot as u64), 2)
    }

    fn push(&mut self, entry: &Entry128) -> io::Result<()> {
        // SAFETY: the descriptors and the slot's memory outlive the ring (see `Slot::drop`), vectors their submission. Each
        // slot has one command at a time.
        while unsafe { self.ring.submission().push(entry) }.is_err() {
            self.ring.submit()?;
        }
        Ok(())
    }

    fn vectors(&self, slot: usize) -> [libc::iovec; 2] {
        let slot = &self.slots[slot];
        [
            libc::iovec {
                iov_base: slot.head().as_ptr().cast(),
                iov_len: size_of::<Head>(),
            },
            libc::iovec {
                iov_base: slot.payload(self.payload_length).as_ptr().cast(),
                iov_len: self.payload_length,
            },
        ]
    }
}

impl Nudge {
    fn new(ring: &IoUring<Entry128, cqueue::Entry>, directory: &Path) -> io::Result<Nudge> {
        let processors = rustix::thread::sched_getaffinity(None)?;
        // SAFETY: a set of processors is plain bits, of which none is set.
        let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        for number in 0..rustix::thread::CpuSet::MAX_CPU {
            if processors.is_set(number) {
                // SAFETY: the number is within the set.
                unsafe { libc::CPU_SET(number, &mut set) };
            }
        }
        ring.submitter().register_iowq_aff(&set)?;
        // A nudge that waits must not keep the next one from being made.
        ring.submitter()
            .register_iowq_max_workers(&mut [NUDGES_MAX; 2])?;
        let memory = Memory::new(PATH_ROOM)?;
        let path = directory.as_os_str().as_bytes();
        let room = memory.at(0, PATH_ROOM);
        let length = path.len().min(PATH_ROOM - 1);
        // SAFETY: the room is ours, as long as that, and zeros, one of which ends the path.
        unsafe { room.copy_from_nonoverlapping(NonNull::from(path).cast(), length) };
        Ok(Nudge {
            memory: ManuallyDrop::new(memory),
            under_way: 0,
        })
    }

    fn entry(&mut self) -> Entry128 {
        self.under_way += 1;
        let path = self.memory.at(0, PATH_ROOM);
        // Only the length is asked for.
        let (name, nowhere) = (NUDGE_NAME.as_ptr(), std::ptr::null_mut());
        let ask = GetXattr::new(name, nowhere, path.as_ptr().cast(), 0);
        Entry128::from(ask.build().user_data(NUDGE))
    }

    fn returned(&mut self) {
        self.under_way -= 1;
    }
}

impl Drop for Nudge {
    fn drop(&mut self) {
        // SAFETY: it is not used after this.
        let memory = unsafe { ManuallyDrop::take(&mut self.memory) };
        // The slot may still be written.
        if self.under_way > 0 {
            memory.leak();
        }
    }
}

impl Slot {
    fn new(number: u16, payload_length: usize) -> io::Result<Slot> {
        let memory = Memory::new(PAYLOAD + payload_length)?;
        Ok(Slot {
            memory: ManuallyDrop::new(memory),
            number,
            state: State::Ours,
            moves_requests: false,
        })
    }

    fn head(&self) -> NonNull<u8> {
        self.memory.at(0, PAYLOAD)
    }

    fn payload(&self, length: usize) -> NonNull<u8> {
        self.memory.at(PAYLOAD, length)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // SAFETY: it is not used after this.
        let memory = unsafe { ManuallyDrop::take(&mut self.memory) };
        // A slot that the kernel has may still be written to until the process ends.
        if self.state == State::Kernels {
            memory.leak();
        }
    }
}

/// Whether the same call may succeed when it is made again.
fn is_passing(error: &io::Error) -> bool {
    let passing = [libc::EINTR, libc::EAGAIN, libc::EBUSY];
    error
        .raw_os_error()
        .is_some_and(|errno| passing.contains(&errno))
}

/// The same command with the number of its vectors, which the library has no word for.
fn with_length(mut entry: Entry128, length: u32) -> Entry128 {
    /// Where `struct io_uring_sqe` has `len`.
    const LENGTH: usize = 24;
    // SAFETY: an entry is 128 plain bytes that begin with that structure (both are `repr(C)`), and aligned to 8.
    unsafe {
        let bytes = (&raw mut entry).cast::<u8>();
        bytes.add(LENGTH).cast::<u32>().write(length);
    }
    entry
}
