//! A program for the kernel's XDP that loses a part of the datagrams to groups, as an object file that ip(8) loads.

/// An instruction: code, target, source, offset, immediate value.
type Instruction = (u8, u8, u8, i16, i32);

const STRINGS: &[u8] = b"\0.strtab\0xdp\0license\0.symtab\0lose\0";
const LICENSE: &[u8] = b"GPL\0";
/// Stands for the way to the end, which lets the packet pass.
const PASS: i16 = i16::MAX;

/// Loses so many of 1000 UDP datagrams with the Ethernet address of a group.
fn instructions(permille: i32) -> Vec<u8> {
    let program: [Instruction; 19] = [
        (0x61, 2, 1, 0, 0),
        (0x61, 3, 1, 4, 0),
        (0xbf, 4, 2, 0, 0),
        (0x07, 4, 0, 0, 34),
        (0x2d, 4, 3, PASS, 0),
        // The group bit of the address, IPv4, UDP.
        (0x71, 5, 2, 0, 0),
        (0x57, 5, 0, 0, 1),
        (0x15, 5, 0, PASS, 0),
        (0x69, 5, 2, 12, 0),
        (0x55, 5, 0, PASS, 8),
        (0x71, 5, 2, 23, 0),
        (0x55, 5, 0, PASS, 17),
        // A random number below 1000.
        (0x85, 0, 0, 0, 7),
        (0x94, 0, 0, 0, 1000),
        (0x35, 0, 0, PASS, permille),
        (0xb7, 0, 0, 0, 1),
        (0x95, 0, 0, 0, 0),
        (0xb7, 0, 0, 0, 2),
        (0x95, 0, 0, 0, 0),
    ];
    let pass = program.len() as i16 - 2;
    let mut bytes = Vec::new();
    for (index, (code, to, from, offset, immediate)) in (0..).zip(program) {
        let offset = if offset == PASS {
            pass - index - 1
        } else {
            offset
        };
        bytes.extend([code, to | from << 4]);
        bytes.extend(offset.to_le_bytes());
        bytes.extend(immediate.to_le_bytes());
    }
    bytes
}

fn name(of: &str) -> u32 {
    let mut places = 0..STRINGS.len();
    let found = places.find(|at| STRINGS[*at..].starts_with(of.as_bytes()));
    found.expect("it is one of the strings") as u32
}

fn words(to: &mut Vec<u8>, words: &[u64]) {
    to.extend(words.iter().flat_map(|word| word.to_le_bytes()));
}

/// The object file: strings, code, license, one symbol, and the sections that say so.
pub fn object(permille: i32) -> Vec<u8> {
    let code = instructions(permille);
    let mut symbols = vec![0; 24];
    symbols.extend(name("lose").to_le_bytes());
    symbols.extend([0x12, 0, 2, 0]);
    words(&mut symbols, &[0, code.len() as u64]);
    let parts: [(&[u8], &str, u32, u64); 4] = [
        (STRINGS, ".strtab", 3, 0),
        (&code, "xdp", 1, 6),
        (LICENSE, "license", 1, 3),
        (&symbols, ".symtab", 2, 0),
    ];
    let (mut contents, mut sections) = (vec![0; 64], vec![0; 64]);
    for (bytes, title, kind, flags) in parts {
        contents.resize(contents.len().next_multiple_of(8), 0);
        let is_symbols = title == ".symtab";
        let (link, entry) = if is_symbols {
            (1 | 1 << 32, 24)
        } else {
            (0, 0)
        };
        sections.extend(name(title).to_le_bytes());
        sections.extend(kind.to_le_bytes());
        let (at, length) = (contents.len() as u64, bytes.len() as u64);
        words(&mut sections, &[flags, 0, at, length, link, 8, entry]);
        contents.extend(bytes);
    }
    contents.resize(contents.len().next_multiple_of(8), 0);
    let mut head = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x01\0\xf7\0\x01\0\0\0".to_vec();
    words(&mut head, &[0, 0, contents.len() as u64]);
    head.extend([0; 4]);
    head.extend([64, 0, 0, 0, 0, 0, 64, 0, 5, 0, 1, 0]);
    contents[..64].copy_from_slice(&head);
    contents.extend(sections);
    contents
}
