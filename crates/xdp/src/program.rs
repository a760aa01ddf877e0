//! The XDP program: which frames of an interface go to which socket.

use crate::Hardware;
use crate::bpf::Instruction;

/// Where the 16-bit tag is in a frame: behind the type.
pub const TAG_AT: i16 = 14;
/// Bytes that a frame needs to have a tag.
const HEADER: i32 = 16;

/// Actions, as the kernel numbers them.
const PASS: i32 = 2;
/// The helper bpf_redirect_map.
const REDIRECT_MAP: i32 = 51;

/// Fields of `struct xdp_md`.
const DATA: i16 = 0;
const DATA_END: i16 = 4;
const RX_QUEUE: i16 = 16;

/// Frames of these types that are for this interface, or for a group, and come by this queue go to the socket that their tag
/// names in the map; all others go on to the kernel.
pub fn redirect(hardware: Hardware, queue: u32, types: [u16; 2], map: i32) -> Vec<Instruction> {
    let [a, b, c, d, e, f] = hardware.0;
    let head = i32::from_ne_bytes([a, b, c, d]);
    let tail = i32::from(u16::from_ne_bytes([e, f]));
    // Compared as they are in the frame, so most significant byte first.
    let [first, second] = types.map(|number| i32::from(number.to_be()));
    let mut code = Assembler::default();
    code.load_word(2, 1, DATA);
    code.load_word(3, 1, DATA_END);
    code.load_word(5, 1, RX_QUEUE);
    code.move_register(4, 2);
    code.add(4, HEADER);
    code.pass_if_greater(4, 3);
    code.pass_unless(5, queue as i32);
    code.load_half(4, 2, 12);
    code.skip_if(4, first, 1);
    code.pass_unless(4, second);
    // A group's address has the lowest bit of its first byte set.
    code.load_byte(4, 2, 0);
    code.and(4, 1);
    code.skip_if(4, 1, 4);
    code.load_word(4, 2, 0);
    code.pass_unless_word(4, head);
    code.load_half(4, 2, 4);
    code.pass_unless(4, tail);
    code.load_half(2, 2, TAG_AT);
    code.swap_half(2);
    code.load_map(1, map);
    code.move_immediate(3, PASS);
    code.call(REDIRECT_MAP);
    code.exit();
    code.finish()
}

/// Instructions, and those that jump to the end.
#[derive(Default)]
struct Assembler {
    code: Vec<Instruction>,
    /// Where there are jumps to "pass", and what they are without their distance.
    jumps: Vec<(usize, u8, u8, u8, i32)>,
}

impl Assembler {
    fn add_instruction(&mut self, code: u8, to: u8, from: u8, offset: i16, immediate: i32) {
        self.code
            .push(Instruction::new(code, to, from, offset, immediate));
    }

    fn load_word(&mut self, to: u8, from: u8, offset: i16) {
        self.add_instruction(0x61, to, from, offset, 0);
    }

    fn load_half(&mut self, to: u8, from: u8, offset: i16) {
        self.add_instruction(0x69, to, from, offset, 0);
    }

    fn load_byte(&mut self, to: u8, from: u8, offset: i16) {
        self.add_instruction(0x71, to, from, offset, 0);
    }

    fn move_register(&mut self, to: u8, from: u8) {
        self.add_instruction(0xbf, to, from, 0, 0);
    }

    fn move_immediate(&mut self, to: u8, value: i32) {
        self.add_instruction(0xb7, to, 0, 0, value);
    }

    fn add(&mut self, to: u8, value: i32) {
        self.add_instruction(0x07, to, 0, 0, value);
    }

    fn and(&mut self, to: u8, value: i32) {
        self.add_instruction(0x57, to, 0, 0, value);
    }

    fn swap_half(&mut self, to: u8) {
        self.add_instruction(0xdc, to, 0, 0, 16);
    }

    /// The address of a map: two instructions.
    fn load_map(&mut self, to: u8, map: i32) {
        self.add_instruction(0x18, to, 1, 0, map);
        self.add_instruction(0, 0, 0, 0, 0);
    }

    fn call(&mut self, helper: i32) {
        self.add_instruction(0x85, 0, 0, 0, helper);
    }

    fn exit(&mut self) {
        self.add_instruction(0x95, 0, 0, 0, 0);
    }

    /// Leaves out so many instructions if they are equal.
    fn skip_if(&mut self, register: u8, value: i32, count: i16) {
        self.add_instruction(0x15, register, 0, count, value);
    }

    fn jump_to_pass(&mut self, code: u8, to: u8, from: u8, immediate: i32) {
        self.jumps
            .push((self.code.len(), code, to, from, immediate));
        self.add_instruction(code, to, from, 0, immediate);
    }

    fn pass_if_greater(&mut self, register: u8, other: u8) {
        self.jump_to_pass(0x2d, register, other, 0);
    }

    fn pass_unless(&mut self, register: u8, value: i32) {
        self.jump_to_pass(0x55, register, 0, value);
    }

    /// The same, of the lower 32 bits only: the value is not extended by its sign.
    fn pass_unless_word(&mut self, register: u8, value: i32) {
        self.jump_to_pass(0x56, register, 0, value);
    }

    fn finish(mut self) -> Vec<Instruction> {
        let end = self.code.len();
        self.move_immediate(0, PASS);
        self.exit();
        for (at, code, to, from, immediate) in self.jumps {
            let distance = (end - at - 1) as i16;
            self.code[at] = Instruction::new(code, to, from, distance, immediate);
        }
        self.code
    }
}
