//! Programs for the kernel's XDP that lose or damage a part of the datagrams to groups, as object files that ip(8) loads.

/// An instruction: code, target, source, offset, immediate value.
pub type Instruction = (u8, u8, u8, i16, i32);

const STRINGS: &[u8] = b"\0.strtab\0xdp\0license\0.symtab\0lose\0";
const LICENSE: &[u8] = b"GPL\0";
/// Stands for the way to the end, which lets the packet pass.
const PASS: i16 = i16::MAX;

/// Decides by chance about each UDP datagram with the Ethernet address of a group: so many of 1000 go on with what follows.
/// Registers: 6 is the packet, 7 its end, 0 the random number below 1000.
fn chosen(permille: i32) -> Vec<Instruction> {
    vec![
        (0x61, 6, 1, 0, 0),
        (0x61, 7, 1, 4, 0),
        (0xbf, 4, 6, 0, 0),
        (0x07, 4, 0, 0, 34),
        (0x2d, 4, 7, PASS, 0),
        // The group bit of the address, IPv4, UDP.
        (0x71, 5, 6, 0, 0),
        (0x57, 5, 0, 0, 1),
        (0x15, 5, 0, PASS, 0),
        (0x69, 5, 6, 12, 0),
        (0x55, 5, 0, PASS, 8),
        (0x71, 5, 6, 23, 0),
        (0x55, 5, 0, PASS, 17),
        // A random number below 1000.
        (0x85, 0, 0, 0, 7),
        (0x94, 0, 0, 0, 1000),
        (0x35, 0, 0, PASS, permille),
    ]
}

/// Flips a bit of the byte at this place of the packet.
fn flipped(at: i16) -> [Instruction; 6] {
    [
        (0xbf, 4, 6, 0, 0),
        (0x07, 4, 0, 0, i32::from(at) + 1),
        (0x2d, 4, 7, PASS, 0),
        (0x71, 5, 6, at, 0),
        (0xa7, 5, 0, 0, 4),
        (0x73, 6, 5, at, 0),
    ]
}

/// Loses so many of 1000 datagrams to groups.
pub fn losing(permille: i32) -> Vec<Instruction> {
    let mut program = chosen(permille);
    program.extend([(0xb7, 0, 0, 0, 1), (0x95, 0, 0, 0, 0)]);
    program
}

/// Damages so many of 1000 frames of groups: one half of their payload, and of one in four of them both halves.
pub fn damaging(permille: i32) -> Vec<Instruction> {
    /// Heads of Ethernet, IPv4, UDP and the transport, the frame's, and that of its halves.
    const HALVES: i16 = 14 + 20 + 8 + 12 + 26 + 16;
    let mut program = chosen(permille);
    program.extend(flipped(HALVES + 4));
    program.push((0x35, 0, 0, PASS, permille / 4));
    // A full frame with parity has its second half there.
    program.extend(flipped(HALVES + 600));
    program
}

fn assemble(mut program: Vec<Instruction>) -> Vec<u8> {
    let pass = program.len() as i16;
    program.extend([(0xb7, 0, 0, 0, 2), (0x95, 0, 0, 0, 0)]);
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
pub fn object(program: Vec<Instruction>) -> Vec<u8> {
    let code = assemble(program);
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
