//! Kinds of memory, how a pool is mapped, and what its contents outlive.

use std::fmt;

/// How a pool is mapped: the access that it allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Stores reach the medium.
    ReadWrite,
    /// Stores are seen through this region only (copy-on-write); nothing ever reaches the medium.
    Private,
}

/// The worst event that a region's persistent contents outlive. Each includes those before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Survival {
    /// The contents end with the region.
    Nothing,
    /// Survives a crash of the process while the operating system continues.
    ProcessCrash,
    /// The operating system may crash and restart.
    NodeCrash,
    /// Power may fail and return.
    PowerLoss,
}

impl fmt::Display for Survival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Survival::Nothing => "nothing",
            Survival::ProcessCrash => "a crash of the process",
            Survival::NodeCrash => "a crash of the node",
            Survival::PowerLoss => "a power loss",
        })
    }
}

/// Kind of memory of a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A mapped file: the page cache, or tmpfs.
    File,
    /// A file on hugetlbfs.
    HugePageFile,
    /// Anonymous memory of this process.
    Memory,
    /// Anonymous memory in huge pages.
    HugePageMemory,
    /// A file on a DAX file system, mapped so that flushed stores need no system call (`MAP_SYNC`).
    FileDax,
    /// A DAX device.
    DeviceDax,
    /// A [`Simulation`](crate::Simulation).
    Simulated,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::File => "file",
            Kind::HugePageFile => "huge-page file",
            Kind::Memory => "memory",
            Kind::HugePageMemory => "huge-page memory",
            Kind::FileDax => "DAX file",
            Kind::DeviceDax => "DAX device",
            Kind::Simulated => "simulated memory",
        })
    }
}
