//! A queue of requests over io_uring, as Documentation/filesystems/fuse-io-uring.rst in the kernel describes them.
//!
//! A queue has slots. Each slot belongs to the kernel until a completion says that there is a request in it, then to
//! us until the answer is committed by the same system call that waits for the next request. So the whole life of a
//! request costs one system call here, and none of it is copied but by the kernel.
//!
//! ```text
//! a slot:   0                 128               256            288      4096                  4096 + payload length
//!           +-----------------+-----------------+--------------+--------+---------------------+
//!           | head of request | fixed part of   | flags, id,   | unused | names, data of the  |
//!           | or answer       | the request     | length below |        | request or answer   |
//!           +-----------------+-----------------+--------------+--------+---------------------+
//! ```

use std::io;
use std::mem::{ManuallyDrop, offset_of, size_of};
use std::os::fd::{AsRawFd, OwnedFd};
use std::slice;

use io_uring::opcode::UringCmd80;
use io_uring::squeue::Entry128;
use io_uring::{IoUring, cqueue, types};

use crate::memory::Memory;
use crate::{ARGUMENT, HEADER};

/// Commands of `enum fuse_uring_cmd`.
const REGISTER: u32 = 1;
const COMMIT_AND_FETCH: u32 = 2;

/// Where the payload of a slot begins: behind the page that has the rest.
const PAYLOAD: usize = 4096;

/// `struct fuse_uring_req_header`.
#[repr(C)]
struct Head {
    in_out: [u8; HEADER],
    argument: [u8; ARGUMENT],
    entry: Entry,
}

/// `struct fuse_uring_ent_in_out`.
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
}

/// The queues of some processors, served by the one thread that made this.
pub struct Queue {
    ring: IoUring<Entry128, cqueue::Entry>,
    device: OwnedFd,
    /// Not dropped by itself: see [`Queue::drop`].
    memory: ManuallyDrop<Memory>,
    payload_length: usize,
    /// For each slot the number of its queue, which is that of a processor.
    numbers: Vec<u16>,
    /// Slots that are ours for good.
    ended: usize,
}

impl Queue {
    /// Prepares queues with these numbers, each with `depth` slots of `payload_length` bytes, for the session of
    /// `device`. Nothing comes before [`Queue::register`].
    pub fn new(
        device: OwnedFd,
        numbers: &[u16],
        depth: usize,
        payload_length: usize,
    ) -> io::Result<Queue> {
        let numbers: Vec<u16> = numbers
            .iter()
            .flat_map(|number| std::iter::repeat_n(*number, depth))
            .collect();
        // Work of the kernel for this thread waits until the thread asks for it, and never interrupts an answer.
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .build(numbers.len().next_power_of_two() as u32)?;
        let memory = Memory::new(numbers.len() * (PAYLOAD + payload_length))?;
        Ok(Queue {
            ring,
            device,
            memory: ManuallyDrop::new(memory),
            payload_length,
            ended: numbers.len(),
            numbers,
        })
    }

    /// Gives all slots to the kernel. When each processor of the machine has one, all requests come this way, apart
    /// from those that nobody answers (forget, interrupt), which still have to be read from the device.
    pub fn register(&mut self) -> io::Result<()> {
        let count = self.numbers.len();
        let vectors: Vec<[libc::iovec; 2]> = (0..count).map(|slot| self.vectors(slot)).collect();
        for (slot, vector) in vectors.iter().enumerate() {
            let entry = self.entry(slot, REGISTER, 0, Some(vector));
            self.push(&entry);
        }
        self.ended = 0;
        // The kernel has read the vectors when this returns.
        let submitted = self.ring.submit()?;
        if submitted == count {
            Ok(())
        } else {
            Err(io::ErrorKind::Interrupted.into())
        }
    }

    /// Answers requests until the session ends. `answer` returns the bytes of payload of its answer; whether it may
    /// still write to the exchange then, the borrow says.
    pub fn serve(&mut self, mut answer: impl FnMut(Exchange<'_>) -> usize) -> io::Result<()> {
        let mut failure = None;
        while self.ended < self.numbers.len() {
            match self.ring.submit_and_wait(1) {
                Err(error) if error.raw_os_error() != Some(libc::EINTR) => return Err(error),
                _ => {}
            }
            while let Some((slot, result)) = self.completion() {
                if result < 0 {
                    self.ended += 1;
                    let end = [libc::ENOTCONN, libc::ECONNABORTED, libc::ECANCELED];
                    if !end.contains(&-result) {
                        failure = Some(io::Error::from_raw_os_error(-result));
                    }
                    continue;
                }
                let id = self.exchange(slot, &mut answer);
                let entry = self.entry(slot, COMMIT_AND_FETCH, id, None);
                self.push(&entry);
            }
        }
        failure.map_or(Ok(()), Err)
    }

    fn completion(&mut self) -> Option<(usize, i32)> {
        let completion = self.ring.completion().next()?;
        Some((completion.user_data() as usize, completion.result()))
    }

    /// Has the request in a slot answered there, and returns its identity.
    fn exchange(&mut self, slot: usize, answer: &mut impl FnMut(Exchange<'_>) -> usize) -> u64 {
        let mut head = self.head(slot).cast::<Head>();
        let payload = self.payload(slot);
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
        });
        head.entry.payload_length = answered.min(self.payload_length) as u32;
        id
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
        bytes[QUEUE].copy_from_slice(&self.numbers[slot].to_ne_bytes());
        let device = types::Fd(self.device.as_raw_fd());
        let build = UringCmd80::new(device, command).cmd(bytes);
        let Some(vectors) = vectors else {
            return build.build().user_data(slot as u64);
        };
        let build = build.addr(Some(vectors.as_ptr() as u64));
        with_length(build.build().user_data(slot as u64), 2)
    }

    fn push(&mut self, entry: &Entry128) {
        // SAFETY: the descriptor and the slot's memory outlive the ring (see `drop`), vectors their submission. Each
        // slot has one command at a time and the ring room for one of each.
        let pushed = unsafe { self.ring.submission().push(entry) };
        pushed.expect("room for a command of each slot");
    }

    fn vectors(&self, slot: usize) -> [libc::iovec; 2] {
        [
            libc::iovec {
                iov_base: self.head(slot).as_ptr().cast(),
                iov_len: size_of::<Head>(),
            },
            libc::iovec {
                iov_base: self.payload(slot).as_ptr().cast(),
                iov_len: self.payload_length,
            },
        ]
    }

    fn head(&self, slot: usize) -> std::ptr::NonNull<u8> {
        self.memory
            .at(slot * (PAYLOAD + self.payload_length), PAYLOAD)
    }

    fn payload(&self, slot: usize) -> std::ptr::NonNull<u8> {
        let start = slot * (PAYLOAD + self.payload_length) + PAYLOAD;
        self.memory.at(start, self.payload_length)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: it is not used after this.
        let memory = unsafe { ManuallyDrop::take(&mut self.memory) };
        // A slot that the kernel has may still be written to until the process ends.
        if self.ended < self.numbers.len() {
            memory.leak();
        }
    }
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
