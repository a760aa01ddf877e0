//! The requests about flags of files, `FS_IOC_GETFLAGS` and `FS_IOC_FSGETXATTR` with their counterparts, in `linux/fs.h`.

use client::FileFlags;

/// One of these requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlagsCommand {
    Get(Form),
    Set(Form),
}

/// Encoding of the flags: length in bytes, of which the first four are the flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Form {
    length: usize,
    immutable: u32,
    append_only: u32,
}

/// A request of `chattr` and `lsattr`. The kernel's own request has 4 bytes, though the command states 8.
const NUMBER: Form = Form {
    length: 4,
    immutable: 0x10,
    append_only: 0x20,
};
/// `struct fsxattr`. The rest of it is about extents and projects, which Tako does not report.
const STRUCTURE: Form = Form {
    length: 28,
    immutable: 0x08,
    append_only: 0x10,
};

impl FlagsCommand {
    pub(crate) fn of(command: u32) -> Option<FlagsCommand> {
        match command {
            0x8008_6601 => Some(FlagsCommand::Get(NUMBER)),
            0x4008_6602 => Some(FlagsCommand::Set(NUMBER)),
            0x801c_581f => Some(FlagsCommand::Get(STRUCTURE)),
            0x401c_5820 => Some(FlagsCommand::Set(STRUCTURE)),
            _ => None,
        }
    }
}

impl Form {
    pub(crate) fn encode(self, flags: FileFlags) -> Vec<u8> {
        let bit = |is_set, bit| if is_set { bit } else { 0 };
        let bits = bit(flags.immutable, self.immutable) | bit(flags.append_only, self.append_only);
        let mut bytes = bits.to_ne_bytes().to_vec();
        bytes.resize(self.length, 0);
        bytes
    }

    /// None if there is anything else in it.
    pub(crate) fn decode(self, bytes: &[u8]) -> Option<FileFlags> {
        let (bits, rest) = bytes.get(..self.length)?.split_first_chunk()?;
        let bits = u32::from_ne_bytes(*bits);
        let is_known = bits & !(self.immutable | self.append_only) == 0;
        (is_known && rest.iter().all(|byte| *byte == 0)).then_some(FileFlags {
            immutable: bits & self.immutable != 0,
            append_only: bits & self.append_only != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_survive_the_way() {
        for form in [NUMBER, STRUCTURE] {
            for (immutable, append_only) in [(false, false), (true, false), (false, true)] {
                let flags = FileFlags {
                    immutable,
                    append_only,
                };
                let bytes = form.encode(flags);
                assert_eq!(
                    (bytes.len(), form.decode(&bytes)),
                    (form.length, Some(flags))
                );
            }
            let mut unknown = vec![0; form.length];
            assert_eq!(form.decode(&unknown[1..]), None);
            unknown[0] = 0x40;
            assert_eq!(form.decode(&unknown), None);
        }
    }
}
