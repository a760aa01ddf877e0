//! Errors of this crate.

use std::io;

/// Reasons why an adapter is unavailable.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The adapter has no IOMMU group, or does not exist.
    #[error(
        "adapter {address} cannot be opened: it has no IOMMU group; check the address, and boot with an IOMMU (`intel_iommu=on`)"
    )]
    NoGroup {
        /// PCI address of the adapter.
        address: String,
    },
    /// A kernel driver has a device of the group.
    #[error(
        "adapter {address} cannot be opened: a kernel driver has a device of IOMMU group {group}; bind them all to vfio-pci"
    )]
    Bound {
        /// PCI address of the adapter.
        address: String,
        /// Number of the IOMMU group.
        group: String,
    },
    /// The device is another one.
    #[error(
        "adapter {address} cannot be opened: it is {found}, not 8086:10d3; name one of Intel's 82574"
    )]
    Foreign {
        /// PCI address of the adapter.
        address: String,
        /// Vendor and device, as four hexadecimal digits each.
        found: String,
    },
    /// The memory is invisible to adapters.
    #[error(
        "{memory} cannot be used by an adapter: it is not mapped; use memory, huge pages, or a file of tmpfs"
    )]
    Memory {
        /// Kind of the memory.
        memory: String,
    },
    /// The adapter does not answer.
    #[error("adapter {address} {what}: it did not answer within 5 s; check its cable, or reset it")]
    Silent {
        /// PCI address of the adapter.
        address: String,
        /// A phrase with a verb.
        what: &'static str,
    },
    /// A system call failed.
    #[error("cannot {what} {subject}: {source}; `dmesg` may say more")]
    System {
        /// A verb with its preposition.
        what: &'static str,
        /// The device or file.
        subject: String,
        /// Error of the system.
        source: io::Error,
    },
}
