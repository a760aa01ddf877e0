//! Reading and writing one file, in a pool, on this host, or as a stream.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use crate::failure::{Failure, Outcome};

/// A file that is being read.
pub enum Reader {
    Pool {
        file: client::File,
        place: String,
    },
    Host {
        file: File,
        place: String,
        size: u64,
    },
    /// Anything that can only be read from start to end.
    Stream {
        file: File,
        place: String,
    },
}

impl Reader {
    /// Reads the next bytes from `offset` on, and returns their start and number. With `skip_holes`, holes are skipped.
    pub fn read(
        &mut self,
        offset: u64,
        buffer: &mut [u8],
        skip_holes: bool,
    ) -> Result<Option<(u64, usize)>, Failure> {
        let (start, count) = match self {
            Reader::Pool { file, place } => {
                let read = read_pool(file, offset, buffer, skip_holes);
                read.map_err(|error| Failure::at(place, &error))?
            }
            Reader::Host { file, place, .. } => {
                let read = read_host(file, offset, buffer, skip_holes);
                read.map_err(|error| Failure::host_place("read", place, &error))?
            }
            Reader::Stream { file, place } => {
                let read = file.read(buffer);
                (
                    offset,
                    read.map_err(|error| Failure::host_place("read", place, &error))?,
                )
            }
        };
        Ok((count > 0).then_some((start, count)))
    }

    /// Length of the file, if it is known: there may be a hole at its end.
    pub fn size(&self) -> Option<u64> {
        match self {
            Reader::Pool { file, .. } => file.attributes().ok().map(|attributes| attributes.size),
            Reader::Host { size, .. } => Some(*size),
            Reader::Stream { .. } => None,
        }
    }
}

fn read_pool(
    file: &client::File,
    offset: u64,
    buffer: &mut [u8],
    skip_holes: bool,
) -> Result<(u64, usize), client::Error> {
    if !skip_holes {
        return Ok((offset, file.read_at(buffer, offset)?));
    }
    let Some(start) = file.next_data(offset)? else {
        return Ok((offset, 0));
    };
    let end = file.next_hole(start)?.unwrap_or(start);
    let most = buffer
        .len()
        .min(usize::try_from(end - start).unwrap_or(usize::MAX));
    Ok((start, file.read_at(&mut buffer[..most], start)?))
}

fn read_host(
    file: &File,
    offset: u64,
    buffer: &mut [u8],
    skip_holes: bool,
) -> io::Result<(u64, usize)> {
    if !skip_holes {
        return Ok((offset, file.read_at(buffer, offset)?));
    }
    let start = match rustix::fs::seek(file, SeekFrom::Data(offset)) {
        Err(Errno::NXIO) => return Ok((offset, 0)),
        found => found?,
    };
    let end = rustix::fs::seek(file, SeekFrom::Hole(start))?;
    let most = buffer
        .len()
        .min(usize::try_from(end - start).unwrap_or(usize::MAX));
    Ok((start, file.read_at(&mut buffer[..most], start)?))
}

/// A file that is being written.
pub enum Writer {
    Pool {
        file: client::File,
        place: String,
    },
    Host {
        file: File,
        place: String,
    },
    /// Anything that can only be written from start to end, such as `/dev/stdout`.
    Stream {
        file: File,
        place: String,
    },
}

impl Writer {
    /// Whether the file can have holes.
    pub fn has_holes(&self) -> bool {
        !matches!(self, Writer::Stream { .. })
    }

    /// Writes all of `data` at `offset`.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Outcome {
        match self {
            Writer::Pool { file, place } => {
                let mut written = 0;
                while written < data.len() {
                    let result = file.write_at(&data[written..], offset + written as u64);
                    written += result.map_err(|error| Failure::at(&*place, &error))?;
                }
                Ok(())
            }
            Writer::Host { file, place } => file
                .write_all_at(data, offset)
                .map_err(|error| Failure::host_place("write", place, &error)),
            Writer::Stream { file, place } => match file.write_all(data) {
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Failure::NoReader),
                result => result.map_err(|error| Failure::host_place("write", place, &error)),
            },
        }
    }

    /// Gives the file its length, where a hole is at its end.
    pub fn set_size(&self, size: u64) -> Outcome {
        match self {
            Writer::Pool { file, place } => file
                .truncate(size)
                .map_err(|error| Failure::at(place, &error)),
            Writer::Host { file, place } => file
                .set_len(size)
                .map_err(|error| Failure::host_place("set the size of", place, &error)),
            Writer::Stream { .. } => Ok(()),
        }
    }
}
