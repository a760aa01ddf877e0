//! The XDP program: which frames of an interface go to which socket.

use crate::Hardware;
use crate::bpf::Instruction;

/// Where the 16-bit tag is in a frame: behind the type.
pub const TAG_AT: i16 = 14;
/// Bytes that a frame needs to have a tag.
const HEADER: i32 = 16;

/// Actions, as the kernel numbers them.
const PASS: i32 = 2;
/// Number of the helper bpf_redirect_map.
const REDIRECT_MAP: i32 = 51;

/// Fields of `struct xdp_md`.
const DATA: i16 = 0;
const DATA_END: i16 = 4;
const RX_QUEUE: i16 = 16;

/// Number of the helper bpf_xdp_adjust_head.
const ADJUST_HEAD: i32 = 44;
const DROP: i32 = 1;
/// The action that a helper returns for a frame that goes to a socket.
const REDIRECT: i32 = 4;
/// Set in the tag of frames that are placed, and of frames without content.
const PLACED: i32 = 0x8000;
/// The helper bpf_xdp_get_buff_len: data_end is the end of a long frame's first part only.
const LENGTH: i32 = 188;

/// Criteria of the program.
pub struct Selection {
    pub hardware: Hardware,
    pub queue: u32,
    /// EtherTypes of data and of commands.
    pub types: [u16; 2],
    pub map: i32,
    pub placed: Option<Placed>,
}

/// Frames that are placed: they arrive through a separate queue.
pub struct Placed {
    pub queue: u32,
    /// The map of [`Lane`](crate::Lane).
    pub lane: i32,
    /// Where their socket is in the map of sockets.
    pub slot: u32,
    pub shape: crate::Shape,
    /// They come by the queue of all other frames, and take descriptors from the same ring.
    pub is_shared: bool,
    /// Bytes of the longest other frame.
    pub longest: u32,
}

/// Frames of these types that are for this interface, or for a group, and arrive through this queue go to the socket
/// that their tag names in the map; placed ones go to their socket if they are expected next, else they are dropped.
/// All others continue to the kernel.
pub fn select(selection: &Selection) -> Vec<Instruction> {
    let [a, b, c, d, e, f] = selection.hardware.0;
    let head = i32::from_ne_bytes([a, b, c, d]);
    let tail = i32::from(u16::from_ne_bytes([e, f]));
    // Compared as they are in the frame, so most significant byte first.
    let [first, second] = selection.types.map(|number| i32::from(number.to_be()));
    let mut code = Assembler::default();
    code.move_register(6, 1);
    code.load_word(2, 1, DATA);
    code.load_word(3, 1, DATA_END);
    code.load_word(5, 1, RX_QUEUE);
    code.move_register(4, 2);
    code.add(4, HEADER);
    code.jump_if(0x2d, 4, 3, 0, Label::Pass);
    let shared = selection.placed.as_ref().filter(|it| it.is_shared);
    if let (Some(placed), None) = (&selection.placed, shared) {
        code.jump_if(0x15, 5, 0, placed.queue as i32, Label::Placed);
    }
    code.unless(5, selection.queue as i32, Label::Pass);
    code.load_half(4, 2, 12);
    code.skip_if(4, first, 1);
    code.unless(4, second, Label::Pass);
    // A group's address has the lowest bit of its first byte set.
    code.load_byte(4, 2, 0);
    code.and(4, 1);
    code.skip_if(4, 1, 4);
    code.load_word(4, 2, 0);
    code.unless_word(4, head, Label::Pass);
    code.load_half(4, 2, 4);
    code.unless(4, tail, Label::Pass);
    if let Some(placed) = shared {
        select_shared(&mut code, placed, second, selection.map);
    } else {
        code.load_half(2, 2, TAG_AT);
        code.swap_half(2);
        code.redirect(selection.map, PASS);
    }
    if let Some(placed) = &selection.placed {
        select_placed(&mut code, placed, first, selection.map);
    }
    code.finish()
}

/// All frames take descriptors from one ring. While a run is aimed at, other frames take those in front of it only, and data takes none
/// of these: so frames without content have to take them first.
fn select_shared(code: &mut Assembler, placed: &Placed, command: i32, map: i32) {
    use crate::lane::{AIMED_AT, EMPTY_TAG_AT, END_AT, EXPECTED_AT, FILLED_AT, GATE_AT, TAKEN_AT};
    code.load_value(7, placed.lane);
    code.load_word(4, 7, GATE_AT);
    code.unless(4, 0, Label::Drop);
    code.move_register(4, 2);
    code.add(4, placed.longest as i32 + 1);
    code.jump_if(0xbd, 4, 3, 0, Label::Drop);
    code.load_half(9, 2, TAG_AT);
    code.swap_half(9);
    code.load_word(8, 7, TAKEN_AT);
    code.load_word(4, 7, FILLED_AT);
    code.jump_if(0x1d, 8, 4, 0, Label::Drop);
    code.load_word(4, 7, EXPECTED_AT);
    code.load_word(5, 7, END_AT);
    code.jump_if(0x45, 9, 0, PLACED, Label::Marked);
    code.jump_if(0x1d, 4, 5, 0, Label::Take);
    code.load_word(4, 7, AIMED_AT);
    code.jump_if(0x1d, 8, 4, 0, Label::Drop);
    code.jump(Label::Take);
    code.place(Label::Marked);
    code.load_half(9, 2, 12);
    code.unless(9, command, Label::Placed);
    code.jump_if(0x1d, 4, 5, 0, Label::Drop);
    code.load_word(4, 7, AIMED_AT);
    code.jump_if(0x1d, 8, 4, 0, Label::Drop);
    code.check_source();
    code.load_word(9, 7, EMPTY_TAG_AT);
    code.place(Label::Take);
    code.move_register(2, 9);
    code.redirect_and_count(map, PASS, &[TAKEN_AT]);
}

/// The frame in r2 to r3 of the context in r6. Only the one that is expected next goes to the socket.
fn select_placed(code: &mut Assembler, placed: &Placed, data: i32, map: i32) {
    use crate::lane::{AIMED_AT, END_AT, EXPECTED_AT, TAKEN_AT};
    code.place(Label::Placed);
    code.load_half(4, 2, 12);
    code.unless(4, data, Label::Pass);
    code.load_value(7, placed.lane);
    code.load_word(8, 7, EXPECTED_AT);
    code.load_word(5, 7, END_AT);
    code.jump_if(0x1d, 8, 5, 0, Label::Drop);
    if placed.is_shared {
        code.load_word(4, 7, TAKEN_AT);
        code.load_word(5, 7, AIMED_AT);
        code.jump_if(0x5d, 4, 5, 0, Label::Drop);
    }
    code.check_source();
    code.load_half(4, 2, TAG_AT);
    code.swap_half(4);
    code.move_register(5, 8);
    code.and(5, 0x7fff);
    code.or(5, 0x8000);
    code.jump_if(0x5d, 4, 5, 0, Label::Missed);
    // The length must be that of this frame of a block: not more, and not less.
    let [usual, last] = placed.shape.lengths();
    if placed.shape == crate::Shape::Jumbo {
        code.move_register(1, 6);
        code.call(LENGTH);
        code.unless(0, usual as i32, Label::Drop);
        return take_placed(code, placed, map);
    }
    code.move_register(5, 8);
    code.modulo(5, placed.shape.frames() as i32);
    let is_last = placed.shape.frames() as i32 - 1;
    code.jump_if(0x15, 5, 0, is_last, Label::Last);
    code.check_length(usual as i32);
    code.jump(Label::Fits);
    code.place(Label::Last);
    code.check_length(last as i32);
    code.place(Label::Fits);
    take_placed(code, placed, map);
}

/// Sends the expected frame, with the number in r8 and the lane in r7, to the socket.
fn take_placed(code: &mut Assembler, placed: &Placed, map: i32) {
    use crate::lane::{AIMED_AT, EXPECTED_AT, TAKEN_AT};
    code.add(8, 1);
    code.store_word(7, 8, EXPECTED_AT);
    if placed.shape.is_stripped() {
        code.move_register(1, 6);
        code.move_immediate(2, HEADER);
        code.call(ADJUST_HEAD);
        code.unless(0, 0, Label::Drop);
    }
    code.move_immediate(2, placed.slot as i32);
    match placed.is_shared {
        true => code.redirect_and_count(map, DROP, &[TAKEN_AT, AIMED_AT]),
        false => code.redirect(map, DROP),
    }
    note_missed(code);
}

/// A frame with the tag in r4 came while that of r5 is expected, with the number in r8: if it is a later one, the lane in r7 says so.
fn note_missed(code: &mut Assembler) {
    use crate::lane::{DROPPED_AT, MISSED_AT, PASSES_AT};
    code.place(Label::Missed);
    code.move_register(1, 4);
    code.subtract(1, 5);
    code.and(1, 0x7fff);
    // More than half of all numbers ahead is behind: it has come before.
    code.jump_if(0x25, 1, 0, 0x4000, Label::Drop);
    code.load_word(5, 7, DROPPED_AT);
    code.store_word(7, 4, DROPPED_AT);
    code.jump_if(0x2d, 4, 5, 0, Label::Noted);
    code.load_word(1, 7, PASSES_AT);
    code.add(1, 1);
    code.store_word(7, 1, PASSES_AT);
    code.place(Label::Noted);
    code.store_word(7, 8, MISSED_AT);
    code.jump(Label::Drop);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Label {
    Pass,
    Drop,
    Placed,
    Last,
    Fits,
    /// A frame takes the next descriptor.
    Take,
    /// Its tag is that of frames that are placed, or without content.
    Marked,
    /// Another frame is expected.
    Missed,
    Noted,
}

/// Instructions, and those that jump.
#[derive(Default)]
struct Assembler {
    code: Vec<Instruction>,
    /// Positions of jumps, and their instructions without the distance.
    jumps: Vec<(usize, [u8; 3], i32, Label)>,
    labels: Vec<(Label, usize)>,
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

    fn subtract(&mut self, to: u8, from: u8) {
        self.add_instruction(0x1f, to, from, 0, 0);
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

    fn or(&mut self, to: u8, value: i32) {
        self.add_instruction(0x47, to, 0, 0, value);
    }

    fn modulo(&mut self, to: u8, value: i32) {
        self.add_instruction(0x97, to, 0, 0, value);
    }

    fn store_word(&mut self, to: u8, from: u8, offset: i16) {
        self.add_instruction(0x63, to, from, offset, 0);
    }

    /// The address of the value of a map with one: two instructions.
    fn load_value(&mut self, to: u8, map: i32) {
        self.add_instruction(0x18, to, 2, 0, map);
        self.add_instruction(0, 0, 0, 0, 0);
    }

    /// Ends with a redirection to the socket with the number in r2.
    fn redirect(&mut self, map: i32, otherwise: i32) {
        self.load_map(1, map);
        self.move_immediate(3, otherwise);
        self.call(REDIRECT_MAP);
        self.exit();
    }

    /// The same, and words of the lane in r7 count the frames that went there.
    fn redirect_and_count(&mut self, map: i32, otherwise: i32, words: &[i16]) {
        self.load_map(1, map);
        self.move_immediate(3, otherwise);
        self.call(REDIRECT_MAP);
        let count = 3 * words.len() as i16;
        self.add_instruction(0x55, 0, 0, count, REDIRECT);
        for word in words {
            self.load_word(1, 7, *word);
            self.add(1, 1);
            self.store_word(7, 1, *word);
        }
        self.exit();
    }

    /// The frame in r2 is from the source that is expected, or is dropped.
    fn check_source(&mut self) {
        use crate::lane::SOURCE_AT;
        self.load_word(4, 2, 6);
        self.load_word(5, 7, SOURCE_AT);
        self.jump_if(0x5d, 4, 5, 0, Label::Drop);
        self.load_half(4, 2, 10);
        self.load_word(5, 7, SOURCE_AT + 4);
        self.jump_if(0x5d, 4, 5, 0, Label::Drop);
    }

    /// The frame in r2 to r3 has exactly this length, or is dropped.
    fn check_length(&mut self, bytes: i32) {
        self.move_register(4, 2);
        self.add(4, bytes);
        self.jump_if(0x2d, 4, 3, 0, Label::Drop);
        self.add(4, 1);
        self.jump_if(0xbd, 4, 3, 0, Label::Drop);
    }

    fn place(&mut self, label: Label) {
        self.labels.push((label, self.code.len()));
    }

    fn jump(&mut self, label: Label) {
        self.jump_if(0x05, 0, 0, 0, label);
    }

    /// Jumps if the condition of the instruction holds.
    fn jump_if(&mut self, code: u8, to: u8, from: u8, immediate: i32, label: Label) {
        let at = self.code.len();
        self.jumps.push((at, [code, to, from], immediate, label));
        self.add_instruction(code, to, from, 0, immediate);
    }

    fn unless(&mut self, register: u8, value: i32, label: Label) {
        self.jump_if(0x55, register, 0, value, label);
    }

    /// The same, of the lower 32 bits only: the value is not extended by its sign.
    fn unless_word(&mut self, register: u8, value: i32, label: Label) {
        self.jump_if(0x56, register, 0, value, label);
    }

    fn finish(mut self) -> Vec<Instruction> {
        let uses_drop = self.jumps.iter().any(|jump| jump.3 == Label::Drop);
        for (label, action) in [(Label::Pass, PASS), (Label::Drop, DROP)] {
            // The kernel refuses instructions that are never reached.
            if label == Label::Pass || uses_drop {
                self.place(label);
                self.move_immediate(0, action);
                self.exit();
            }
        }
        for (at, [code, to, from], immediate, label) in self.jumps {
            let found = self.labels.iter().find(|(known, _)| *known == label);
            let end = found.map_or(at, |(_, end)| *end);
            let distance = (end - at - 1) as i16;
            self.code[at] = Instruction::new(code, to, from, distance, immediate);
        }
        self.code
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `docs/ETHERNET.md` names these numbers.
    #[test]
    fn programs_are_as_long_as_documented() {
        let length = |placed: Option<(crate::Shape, bool)>| {
            let placed = placed.map(|(shape, is_shared)| Placed {
                queue: 1,
                lane: 5,
                slot: 64,
                shape,
                is_shared,
                longest: 1792,
            });
            select(&Selection {
                hardware: Hardware([2, 0, 0, 0, 0, 1]),
                queue: 0,
                types: [0x8000, 0x8001],
                map: 4,
                placed,
            })
            .len()
        };
        use crate::Shape::{Jumbo, Overlay, Strip};
        let separate = [Overlay, Strip, Jumbo].map(|shape| length(Some((shape, false))));
        let shared = [Overlay, Strip].map(|shape| length(Some((shape, true))));
        assert_eq!(
            (length(None), separate, shared),
            (27, [83, 87, 76], [126, 130])
        );
    }
}
