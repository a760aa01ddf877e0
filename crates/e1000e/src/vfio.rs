//! A PCI device in this process (VFIO): registers, one interrupt, and the memory that it may reach.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;

use pmem::Region;
use rustix::event::{EventfdFlags, eventfd};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::Error;
use crate::registers::WINDOW;

// linux/vfio.h
const TYPE1V2_IOMMU: libc::c_ulong = 3;
const SET_IOMMU: libc::c_ulong = number(2);
const GROUP_GET_STATUS: libc::c_ulong = number(3);
const GROUP_SET_CONTAINER: libc::c_ulong = number(4);
const GROUP_GET_DEVICE_FD: libc::c_ulong = number(6);
const DEVICE_GET_REGION_INFO: libc::c_ulong = number(8);
const DEVICE_SET_IRQS: libc::c_ulong = number(10);
const IOMMU_MAP_DMA: libc::c_ulong = number(13);
/// All devices of the group are free or with VFIO.
const GROUP_VIABLE: u32 = 1;
const MAP_READ_WRITE: u32 = 3;
const REGION_BAR0: u32 = 0;
const REGION_CONFIGURATION: u32 = 7;
const INTERRUPT_MSI: u32 = 1;
/// The data is a descriptor; it is signalled when the interrupt comes.
const INTERRUPT_SIGNALS: u32 = 1 << 2 | 1 << 5;

const PAGE: u64 = 4096;

// PCI configuration space
const COMMAND_AT: u64 = 4;
/// Registers are accessible, and the device may access memory.
const COMMAND_MEMORY_MASTER: u16 = 1 << 1 | 1 << 2;

const fn number(number: libc::c_ulong) -> libc::c_ulong {
    (b';' as libc::c_ulong) << 8 | (100 + number)
}

#[repr(C)]
#[derive(Default)]
struct GroupStatus {
    argsz: u32,
    flags: u32,
}

#[repr(C)]
#[derive(Default)]
struct RegionInfo {
    argsz: u32,
    flags: u32,
    index: u32,
    cap_offset: u32,
    size: u64,
    offset: u64,
}

#[repr(C)]
struct MapDma {
    argsz: u32,
    flags: u32,
    vaddr: u64,
    iova: u64,
    size: u64,
}

#[repr(C)]
struct SetInterrupt {
    argsz: u32,
    flags: u32,
    index: u32,
    start: u32,
    count: u32,
    descriptor: RawFd,
}

/// The device. Dropping it ends its access to memory.
pub struct Vfio {
    window: NonNull<u32>,
    interrupt: OwnedFd,
    _device: File,
    _group: OwnedFd,
    container: OwnedFd,
    /// Memory that is mapped for it.
    mapped: Vec<Region>,
}

// SAFETY: the window is the value's own, and is accessed a word at a time.
unsafe impl Send for Vfio {}

fn system(what: &'static str, subject: &str, source: impl Into<io::Error>) -> Error {
    Error::System {
        what,
        subject: subject.to_owned(),
        source: source.into(),
    }
}

/// # Safety
/// `argument` is what the request expects, and outlives the call.
unsafe fn ioctl(
    descriptor: &impl AsFd,
    request: libc::c_ulong,
    argument: libc::c_ulong,
) -> io::Result<i32> {
    // SAFETY: the caller's.
    let result = unsafe { libc::ioctl(descriptor.as_fd().as_raw_fd(), request, argument) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result)
}

/// Calls the kernel with a structure of it.
fn exchange<T>(
    descriptor: &impl AsFd,
    request: libc::c_ulong,
    argument: &mut T,
) -> io::Result<i32> {
    let address = std::ptr::from_mut(argument) as libc::c_ulong;
    // SAFETY: private, and only called with the structure of the request, of which `argsz` states the size.
    unsafe { ioctl(descriptor, request, address) }
}

fn open_file(path: &str) -> Result<OwnedFd, Error> {
    let file = OpenOptions::new().read(true).write(true).open(path);
    file.map(OwnedFd::from)
        .map_err(|source| system("open", path, source))
}

impl Vfio {
    /// Opens the device with this PCI address, which is bound to vfio-pci.
    ///
    /// # Errors
    /// [`Error::NoGroup`], [`Error::Bound`], [`Error::System`].
    pub fn open(address: &str) -> Result<Vfio, Error> {
        let no_group = || Error::NoGroup {
            address: address.to_owned(),
        };
        let link = fs::read_link(format!("/sys/bus/pci/devices/{address}/iommu_group"));
        let link = link.map_err(|_| no_group())?;
        let name = link.file_name().ok_or_else(no_group)?.to_string_lossy();
        let container = open_file("/dev/vfio/vfio")?;
        let group = open_file(&format!("/dev/vfio/{name}"))?;
        attach(address, &name, &container, &group)?;
        let device = device_of(address, &group)?;
        let configuration = region(&device, REGION_CONFIGURATION)
            .map_err(|source| system("find the configuration of", address, source))?;
        enable(&device, configuration.offset)
            .map_err(|source| system("enable", address, source))?;
        let interrupt =
            signal(&device).map_err(|source| system("take the interrupt of", address, source))?;
        let window =
            registers(&device).map_err(|source| system("map the registers of", address, source))?;
        Ok(Vfio {
            window,
            interrupt,
            _device: device,
            _group: group,
            container,
            mapped: Vec::new(),
        })
    }

    /// Lets the device reach a region at this address of its own.
    ///
    /// # Errors
    /// [`Error::Memory`], [`Error::System`].
    pub fn map(&mut self, region: &Region, at: u64) -> Result<(), Error> {
        let refused = || Error::Memory {
            memory: format!("{region:?}"),
        };
        let size = region.length();
        let bytes = usize::try_from(size).map_err(|_| refused())?;
        let address = region.address(0, bytes).ok_or_else(refused)?;
        let mut request = MapDma {
            argsz: size_of::<MapDma>() as u32,
            flags: MAP_READ_WRITE,
            vaddr: address as u64,
            iova: at,
            // Mappings consist of whole pages.
            size: size.next_multiple_of(PAGE),
        };
        // The region stays mapped as long as this value has it; regions expect to be changed by others.
        exchange(&self.container, IOMMU_MAP_DMA, &mut request)
            .map_err(|source| system("map for an adapter", &format!("{region:?}"), source))?;
        self.mapped.push(region.clone());
        Ok(())
    }

    fn register(&self, at: u32) -> *mut u32 {
        assert!(at.is_multiple_of(4) && (at as usize) < WINDOW);
        // SAFETY: it is inside of the window.
        unsafe { self.window.as_ptr().byte_add(at as usize) }
    }

    /// Reads a register. Memory that is read after it is not read earlier.
    pub fn read(&self, at: u32) -> u32 {
        // SAFETY: a register of the window, which lives as long as this value.
        let value = unsafe { self.register(at).read_volatile() };
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        value
    }

    /// Writes a register. Stores to memory before it are visible to the device before.
    pub fn write(&self, at: u32, value: u32) {
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        // SAFETY: as above. The device reaches only mapped regions, whatever its registers contain.
        unsafe { self.register(at).write_volatile(value) }
    }

    /// Becomes readable when the device raises its interrupt.
    pub fn interrupt(&self) -> BorrowedFd<'_> {
        self.interrupt.as_fd()
    }
}

impl Drop for Vfio {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own.
        let unmapped = unsafe { munmap(self.window.as_ptr().cast(), WINDOW) };
        debug_assert!(unmapped.is_ok());
    }
}

/// Puts the group into the container, and gives that its kind.
fn attach(address: &str, name: &str, container: &OwnedFd, group: &OwnedFd) -> Result<(), Error> {
    let failed = |source| system("use the IOMMU group of", address, source);
    let mut status = GroupStatus {
        argsz: size_of::<GroupStatus>() as u32,
        flags: 0,
    };
    exchange(group, GROUP_GET_STATUS, &mut status).map_err(failed)?;
    if status.flags & GROUP_VIABLE == 0 {
        let (address, group) = (address.to_owned(), name.to_owned());
        return Err(Error::Bound { address, group });
    }
    let mut number: RawFd = container.as_raw_fd();
    exchange(group, GROUP_SET_CONTAINER, &mut number).map_err(failed)?;
    // SAFETY: the request takes a number.
    unsafe { ioctl(container, SET_IOMMU, TYPE1V2_IOMMU) }.map_err(failed)?;
    Ok(())
}

fn device_of(address: &str, group: &OwnedFd) -> Result<File, Error> {
    let failed = |source| system("open", address, source);
    let name = std::ffi::CString::new(address).map_err(|error| failed(error.into()))?;
    // SAFETY: the request takes a string that ends with zero.
    let number = unsafe { ioctl(group, GROUP_GET_DEVICE_FD, name.as_ptr() as libc::c_ulong) };
    let number = number.map_err(failed)?;
    // SAFETY: the kernel has just made this descriptor.
    Ok(unsafe { File::from_raw_fd(number) })
}

fn region(device: &File, index: u32) -> io::Result<RegionInfo> {
    let mut info = RegionInfo {
        argsz: size_of::<RegionInfo>() as u32,
        index,
        ..RegionInfo::default()
    };
    exchange(device, DEVICE_GET_REGION_INFO, &mut info)?;
    Ok(info)
}

fn enable(device: &File, configuration: u64) -> io::Result<()> {
    let mut command = [0; 2];
    device.read_exact_at(&mut command, configuration + COMMAND_AT)?;
    let command = u16::from_le_bytes(command) | COMMAND_MEMORY_MASTER;
    device.write_all_at(&command.to_le_bytes(), configuration + COMMAND_AT)
}

/// A descriptor that the device's interrupt signals.
fn signal(device: &File) -> io::Result<OwnedFd> {
    let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let mut request = SetInterrupt {
        argsz: size_of::<SetInterrupt>() as u32,
        flags: INTERRUPT_SIGNALS,
        index: INTERRUPT_MSI,
        start: 0,
        count: 1,
        descriptor: event.as_raw_fd(),
    };
    exchange(device, DEVICE_SET_IRQS, &mut request)?;
    Ok(event)
}

fn registers(device: &File) -> io::Result<NonNull<u32>> {
    let info = region(device, REGION_BAR0)?;
    if info.size < WINDOW as u64 {
        return Err(io::ErrorKind::InvalidData.into());
    }
    // SAFETY: a new mapping at an address that the kernel chooses.
    let window = unsafe {
        mmap(
            std::ptr::null_mut(),
            WINDOW,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED,
            device,
            info.offset,
        )?
    };
    NonNull::new(window.cast()).ok_or(io::ErrorKind::OutOfMemory.into())
}
