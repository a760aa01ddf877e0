use super::*;
use crate::port::Gid;

fn gid(index: u8, gid: [u8; 16], protocol: Protocol) -> GidEntry {
    GidEntry {
        index,
        gid: Gid(gid),
        protocol,
    }
}

const LINK_LOCAL: [u8; 16] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
const IPV4: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1];

fn port(device: &str, state: PortState) -> Port {
    Port {
        device: device.to_owned(),
        number: 1,
        state,
        mtu: 4096,
        message_max: 1 << 30,
        lid: 0,
        gids: vec![
            gid(0, LINK_LOCAL, Protocol::RoceV1),
            gid(1, LINK_LOCAL, Protocol::RoceV2),
            gid(2, IPV4, Protocol::RoceV1),
            gid(3, IPV4, Protocol::RoceV2),
        ],
    }
}

fn wanted(device: Option<&str>, port: Option<u8>, gid_index: Option<u8>) -> Wanted {
    Wanted {
        device: device.map(str::to_owned),
        port,
        gid_index,
    }
}

#[test]
fn the_first_active_port_with_roce_v2_over_ipv4_is_taken() {
    let mut poor = port("a", PortState::Active);
    poor.gids.truncate(2);
    let ports = [
        poor,
        port("b", PortState::Down),
        port("c", PortState::Active),
        port("d", PortState::Active),
    ];
    let choice = choose(&ports, &Wanted::default()).unwrap();
    assert_eq!((choice.port.device.as_str(), choice.gid.index), ("c", 3));
    assert_eq!(
        choice.explanation,
        "c port 1, GID 3 (10.0.0.1, RoCE v2): the first active one with RoCE v2 over IPv4; b port 1 is down"
    );
}

#[test]
fn the_requested_device_is_used_or_named() {
    let ports = [port("a", PortState::Active), port("b", PortState::Active)];
    let choice = choose(&ports, &wanted(Some("b"), Some(1), Some(1))).unwrap();
    assert_eq!((choice.port.device.as_str(), choice.gid.index), ("b", 1));
    assert_eq!(
        choice.explanation,
        "b port 1, GID 1 (fe80::1, RoCE v2): the device and port and GID that was asked for"
    );
    for (wanted, message) in [
        (
            wanted(Some("c"), None, None),
            "there is no RDMA device c; there are: a port 1 is active, b port 1 is active",
        ),
        (
            wanted(None, Some(2), None),
            "there is no RDMA device with port 2; there are: a port 1 is active, b port 1 is active",
        ),
        (
            wanted(Some("a"), None, Some(9)),
            "there is no RDMA device a with GID 9; there are: a port 1 with GID 0 1 2 3",
        ),
    ] {
        assert_eq!(choose(&ports, &wanted).unwrap_err().to_string(), message);
    }
}

#[test]
fn ports_down_or_without_address_are_refused() {
    let error = choose(&[port("a", PortState::Down)], &Wanted::default()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "no port is active (a port 1 is down); set the interface up (`ip link set ... up`) or plug in the cable"
    );
    let mut bare = port("a", PortState::Active);
    bare.gids.clear();
    let error = choose(&[bare], &Wanted::default()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "no active port has a GID (a port 1 is active); give its interface an IP address"
    );
}
