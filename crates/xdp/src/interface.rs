//! Ethernet interfaces of the thread's network namespace.

use std::ffi::{CStr, CString};
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsRawFd;

use rustix::net::{AddressFamily, SocketType, socket};

use crate::Error;

/// A hardware address of Ethernet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Hardware(pub [u8; 6]);

impl fmt::Display for Hardware {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for Hardware {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// An Ethernet interface of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Name of the interface.
    pub name: String,
    /// Its number in the network namespace.
    pub index: u32,
    /// Hardware address of the interface.
    pub hardware: Hardware,
    /// Payload bytes of its longest frame.
    pub mtu: u32,
    /// Whether it is up.
    pub is_up: bool,
    /// IP addresses of the interface.
    pub addresses: Vec<IpAddr>,
}

impl Interface {
    /// All Ethernet interfaces but the loopback.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn list() -> Result<Vec<Interface>, Error> {
        let failed = |source| Error::system("list the addresses of", "all interfaces", source);
        let mut first: *mut libc::ifaddrs = std::ptr::null_mut();
        // SAFETY: the kernel's list is stored to `first`.
        if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
            return Err(failed(io::Error::last_os_error()));
        }
        let mut found: Vec<Interface> = Vec::new();
        let mut addresses = Vec::new();
        let mut next = first;
        // SAFETY: `next` is null, or an element of the list, which is freed below.
        while let Some(entry) = unsafe { next.as_ref() } {
            next = entry.ifa_next;
            // SAFETY: each element has a name, and an address of its family or none.
            let (name, address) = unsafe {
                let name = CStr::from_ptr(entry.ifa_name).to_string_lossy();
                (name.into_owned(), entry.ifa_addr.as_ref())
            };
            let Some(address) = address else { continue };
            match i32::from(address.sa_family) {
                libc::AF_PACKET => {
                    // SAFETY: the family identifies this type.
                    let link = unsafe { &*entry.ifa_addr.cast::<libc::sockaddr_ll>() };
                    found.extend(ethernet(name, entry.ifa_flags, link));
                }
                libc::AF_INET => {
                    // SAFETY: as above.
                    let inet = unsafe { &*entry.ifa_addr.cast::<libc::sockaddr_in>() };
                    let bits = u32::from_be(inet.sin_addr.s_addr);
                    addresses.push((name, IpAddr::V4(Ipv4Addr::from_bits(bits))));
                }
                libc::AF_INET6 => {
                    // SAFETY: as above.
                    let inet = unsafe { &*entry.ifa_addr.cast::<libc::sockaddr_in6>() };
                    let bytes = inet.sin6_addr.s6_addr;
                    addresses.push((name, IpAddr::V6(Ipv6Addr::from(bytes))));
                }
                _ => {}
            }
        }
        // SAFETY: nothing refers to the list any more.
        unsafe { libc::freeifaddrs(first) };
        for interface in &mut found {
            interface.mtu = mtu(&interface.name).map_err(failed)?;
            let own = addresses.iter().filter(|(name, _)| *name == interface.name);
            interface.addresses.extend(own.map(|(_, address)| *address));
        }
        Ok(found)
    }

    /// The interface with this name.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Down`], [`Error::System`].
    pub fn named(name: &str) -> Result<Interface, Error> {
        Interface::find(name, |interface| interface.name == name)
    }

    /// The interface with this IP address.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Down`], [`Error::System`].
    pub fn with_address(address: IpAddr) -> Result<Interface, Error> {
        let wanted = format!("with the address {address}");
        Interface::find(&wanted, |interface| interface.addresses.contains(&address))
    }

    fn find(wanted: &str, is_wanted: impl Fn(&Interface) -> bool) -> Result<Interface, Error> {
        let present = Interface::list()?;
        match present.iter().find(|interface| is_wanted(interface)) {
            Some(interface) if interface.is_up => Ok(interface.clone()),
            Some(interface) => Err(Error::Down {
                interface: interface.name.clone(),
            }),
            None => {
                let names: Vec<&str> = present.iter().map(|found| &*found.name).collect();
                let present = match names.is_empty() {
                    true => "none".to_owned(),
                    false => names.join(", "),
                };
                Err(Error::NotFound {
                    wanted: wanted.to_owned(),
                    present,
                })
            }
        }
    }
}

fn ethernet(name: String, flags: u32, link: &libc::sockaddr_ll) -> Option<Interface> {
    let is_ethernet = link.sll_hatype == libc::ARPHRD_ETHER && link.sll_halen == 6;
    let is_loopback = flags & libc::IFF_LOOPBACK as u32 != 0;
    (is_ethernet && !is_loopback).then(|| Interface {
        name,
        index: link.sll_ifindex as u32,
        hardware: Hardware(std::array::from_fn(|at| link.sll_addr[at])),
        mtu: 0,
        is_up: flags & libc::IFF_UP as u32 != 0,
        addresses: Vec::new(),
    })
}

fn mtu(name: &str) -> io::Result<u32> {
    let socket = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    let name = CString::new(name)?;
    // SAFETY: all zeros is a request without a name.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let bytes = name.as_bytes();
    for (to, from) in request.ifr_name.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    // SAFETY: the request outlives the call, and its name ends with zero, since names are shorter than the field.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU, &raw mut request) };
    match result {
        // SAFETY: the call has stored this field.
        0 => Ok(unsafe { request.ifr_ifru.ifru_mtu } as u32),
        _ => Err(io::Error::last_os_error()),
    }
}
