use super::*;

fn hello() -> Hello {
    Hello {
        versions: VERSIONS,
        cluster: [7; 16],
        node: "n-1".into(),
        boot: [9; 16],
        instance: 11,
        started: 13,
        socket: b"/run/tako.sock".into(),
        offers: Offers::new()
            .with(Provider::Tcp)
            .without(Provider::Verbs, "libibverbs is not installed")
            .only(Provider::Tcp),
        messages: 17,
    }
}

fn export() -> Message {
    let descriptor = RegionDescriptor {
        key: Key(1),
        base: 4096,
        length: 8192,
        access: Access::READ,
    };
    Message::Export {
        name: 3,
        descriptor,
    }
}

fn all() -> Vec<Message> {
    let choice = Choice {
        provider: Provider::Tcp,
        passed_over: vec![(Provider::Shm, "b is on another host".into())],
    };
    vec![
        Message::Hello(hello()),
        Message::Choice(choice),
        Message::Offer(Hidden(vec![1, 2, 3])),
        Message::Ready,
        export(),
        Message::Revoked { name: 5 },
        Message::Released { name: 6 },
        Message::Told(Hidden(vec![4, 5])),
        Message::Goodbye,
        Message::Refused("there is no room".into()),
    ]
}

fn decode(frame: &[u8]) -> Result<Option<Message>, Malformed> {
    let Some(head) = Head::decode(frame)? else {
        return Ok(None);
    };
    match frame.get(HEAD_BYTES..HEAD_BYTES + head.length) {
        Some(fields) => Message::decode(head.kind, fields).map(Some),
        None => Ok(None),
    }
}

/// Why the frame is refused, once `change` has changed its fields.
fn refused(message: &Message, change: impl FnOnce(&mut Vec<u8>)) -> &'static str {
    let frame = message.encode(0);
    let mut fields = frame[HEAD_BYTES..].to_vec();
    change(&mut fields);
    Message::decode(frame[4], &fields).unwrap_err().0
}

#[test]
fn messages_are_encoded_and_decoded() {
    for message in all() {
        let frame = message.encode(0);
        assert_eq!(decode(&frame), Ok(Some(message.clone())));
        for end in 0..frame.len() {
            assert_eq!(decode(&frame[..end]), Ok(None), "{message:?}");
        }
        let fields = &frame[HEAD_BYTES..];
        for end in 0..fields.len() {
            let cut = Message::decode(frame[4], &fields[..end]);
            assert!(
                cut.is_err() || matches!(message, Message::Offer(_) | Message::Told(_)),
                "{message:?} {end}"
            );
        }
    }
}

#[test]
fn a_frame_looks_like_this() {
    let frame = Message::Revoked { name: 0x0102 }.encode(0);
    assert_eq!(frame, [8, 0, 0, 0, 6, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0]);
    assert_eq!(
        Message::Offer(Hidden(vec![1])).encode(2)[..8],
        [1, 0, 0, 0, 3, 2, 0, 0]
    );
    assert_eq!(
        &Message::Hello(hello()).encode(0)[8..20],
        b"takoctl\n\x02\0\x02\0"
    );
}

#[test]
fn heads_that_lie_are_refused() {
    let head = |bytes: [u8; 8]| Head::decode(&bytes).unwrap_err().0;
    assert!(head([255, 255, 255, 255, 1, 0, 0, 0]).contains("longer"));
    assert!(head([249, 255, 0, 0, 1, 0, 0, 0]).contains("longer"));
    assert!(head([0, 0, 0, 0, 0, 0, 0, 0]).contains("no such message"));
    assert!(head([0, 0, 0, 0, 11, 0, 0, 0]).contains("no such message"));
    assert!(head([0, 0, 0, 0, 4, 0, 1, 0]).contains("zero"));
    assert!(head([0, 0, 0, 0, 4, 1, 0, 0]).contains("descriptors"));
    assert!(head([0, 0, 0, 0, 3, 17, 0, 0]).contains("descriptors"));
    assert!(head([0, 0, 0, 0, 5, 2, 0, 0]).contains("descriptors"));
    let longest = Head::decode(&[248, 255, 0, 0, 3, 16, 0, 0])
        .unwrap()
        .unwrap();
    assert_eq!(longest.length + HEAD_BYTES, FRAME_BYTES);
}

#[test]
fn fields_that_lie_are_refused() {
    let hello = Message::Hello(hello());
    let set = |at: usize, byte: u8| move |fields: &mut Vec<u8>| fields[at] = byte;
    assert!(refused(&hello, set(0, b'T')).contains("not a control connection"));
    assert!(refused(&hello, set(8, 0)).contains("range"));
    assert!(refused(&hello, set(8, 3)).contains("range"));
    assert!(refused(&hello, set(28, 64)).contains("exceeds its bound"));
    assert!(refused(&hello, set(30, b'N')).contains("name"));
    assert!(refused(&hello, set(30, b'\n')).contains("control characters"));
    assert!(refused(&hello, set(30, 0xff)).contains("UTF-8"));
    // After the name: boot, instance, start, path, forced transport, and the offers.
    let path = 33 + 16 + 8 + 8;
    assert!(refused(&hello, set(path, 108)).contains("exceeds its bound"));
    assert!(refused(&hello, set(path + 3, 0)).contains("zero"));
    let forced = path + 2 + 14;
    assert!(refused(&hello, set(forced, 9)).contains("no such transport"));
    assert!(refused(&hello, set(forced + 3, 2)).contains("neither"));
    assert!(refused(&hello, set(forced + 6, 3)).contains("twice"));
    assert!(refused(&hello, |fields| fields.push(0)).contains("follow"));
    let export = export();
    assert!(refused(&export, set(32, 8)).contains("no such access"));
    assert!(refused(&export, |fields| fields[16..32].fill(0xff)).contains("last address"));
    let choice = &all()[1];
    assert!(refused(choice, set(0, 0)).contains("no such transport"));
    assert!(refused(choice, set(1, 5)).contains("more reasons"));
    let long = Message::decode(3, &vec![0; PARAMETERS_MAX + 1]);
    assert!(long.unwrap_err().0.contains("longer"));
    let long = Message::decode(10, &[0; TOLD_MAX + 1]);
    assert!(long.unwrap_err().0.contains("longer"));
}

#[test]
fn later_versions_may_say_more() {
    let mut later = hello();
    later.versions.max = VERSIONS.max + 1;
    let mut fields = Message::Hello(later.clone()).encode(0)[HEAD_BYTES..].to_vec();
    fields.extend([1, 2, 3]);
    assert_eq!(Message::decode(1, &fields), Ok(Message::Hello(later)));
}

#[test]
fn an_earlier_version_says_less() {
    let mut earlier = hello();
    (earlier.versions.min, earlier.versions.max) = (1, 1);
    earlier.messages = 0;
    let fields = &Message::Hello(earlier.clone()).encode(0)[HEAD_BYTES..];
    assert_eq!(
        fields.len() + 2,
        Message::Hello(hello()).encode(0).len() - HEAD_BYTES
    );
    assert_eq!(Message::decode(1, fields), Ok(Message::Hello(earlier)));
}

#[test]
fn the_highest_common_version_is_spoken() {
    let versions = |min, max| Versions { min, max };
    let table = [
        ((1, 1), (1, 1), Some(1)),
        ((1, 3), (2, 5), Some(3)),
        ((2, 5), (1, 3), Some(3)),
        ((1, 1), (2, 3), None),
        ((4, 4), (1, 3), None),
    ];
    for ((a, b), (c, d), expected) in table {
        assert_eq!(versions(a, b).common(versions(c, d)), expected);
    }
    assert_eq!(versions(1, 3).to_string(), "1 to 3");
    assert_eq!(versions(2, 2).to_string(), "2");
}

#[test]
fn reasons_are_cut_and_cleaned() {
    let long = "\n".to_string() + &"€".repeat(REASON_MAX);
    let frame = Message::Refused(long).encode(0);
    let Ok(Some(Message::Refused(reason))) = decode(&frame) else {
        panic!("not understood");
    };
    assert_eq!(reason.len(), 1 + (REASON_MAX - 1) / 3 * 3);
    assert!(reason.starts_with(" €€"));
}

#[test]
fn secrets_are_not_shown() {
    assert_eq!(format!("{:?}", Hidden(vec![0x5e; 3])), "3 bytes");
    assert!(!format!("{:?}", export()).contains("Key("));
}
