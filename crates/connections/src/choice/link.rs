//! Which hosts are on the link of an interface.

use std::net::{IpAddr, Ipv4Addr};

/// Whether the kernel reaches an address by this interface without a router: it has the neighbor's hardware address, since
/// the control connection came from there.
pub fn is_neighbor(address: IpAddr, interface: &str) -> bool {
    let IpAddr::V4(address) = address.to_canonical() else {
        return false;
    };
    // Of the thread's network namespace.
    let table = std::fs::read_to_string("/proc/thread-self/net/arp");
    table.is_ok_and(|table| is_in(&table, address, interface))
}

fn is_in(table: &str, address: Ipv4Addr, interface: &str) -> bool {
    table.lines().skip(1).any(|line| {
        let mut fields = line.split_whitespace();
        let found = fields.next().and_then(|field| field.parse().ok());
        // Type, flags (2: the hardware address is known), hardware address, mask, device.
        let flags = fields.nth(1).and_then(|field| field.strip_prefix("0x"));
        let is_known = flags
            .and_then(|flags| u32::from_str_radix(flags, 16).ok())
            .is_some_and(|flags| flags & 2 != 0);
        found == Some(address) && is_known && fields.nth(2) == Some(interface)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbors_are_those_with_a_hardware_address_at_the_interface() {
        let table = "\
IP address       HW type     Flags       HW address            Mask     Device
10.0.0.2         0x1         0x2         aa:bb:cc:dd:ee:ff     *        eth0
10.0.0.3         0x1         0x0         00:00:00:00:00:00     *        eth0
10.0.1.2         0x1         0x6         aa:bb:cc:dd:ee:01     *        eth1
";
        let is_one = |last: [u8; 4], interface| is_in(table, Ipv4Addr::from(last), interface);
        assert!(is_one([10, 0, 0, 2], "eth0"));
        assert!(is_one([10, 0, 1, 2], "eth1"));
        assert!(!is_one([10, 0, 0, 2], "eth1"));
        assert!(
            !is_one([10, 0, 0, 3], "eth0"),
            "its hardware address is not known"
        );
        assert!(!is_one([10, 0, 0, 4], "eth0"));
    }
}
