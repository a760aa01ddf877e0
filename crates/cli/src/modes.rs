//! Permissions as chmod(1) takes them: octal, or changes such as `u+x,go-w`.

/// Set-user and set-group bits, which a directory keeps unless a change names them.
const SET_ID: u32 = 0o6000;
const STICKY: u32 = 0o1000;
/// Octal digits from which on an octal mode names the set-id bits even if they are zero.
const EXPLICIT_DIGITS: usize = 5;

/// Change of permissions, as chmod(1) takes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModeChange {
    /// All permissions, and whether a directory's set-id bits are among them.
    Octal { bits: u32, with_set_id: bool },
    /// Changes one after the other.
    Symbolic(Vec<Action>),
}

/// One change, such as `go-w`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Action {
    /// Bits of the classes that are changed.
    classes: u32,
    /// Whether no class was named, so that the mask of new files applies.
    is_masked: bool,
    operator: char,
    what: What,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum What {
    /// Letters among `rwxXst`.
    Letters(String),
    /// The permissions that a class has.
    CopyOf(char),
}

impl ModeChange {
    /// Parses a change of permissions.
    pub fn parse(text: &str) -> Result<ModeChange, String> {
        let wrong = || format!("'{text}' is not a mode; give one such as 755 or u+x,go-w");
        if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
            let bits = u32::from_str_radix(text, 8).ok();
            let bits = bits.filter(|bits| *bits <= 0o7777).ok_or_else(wrong)?;
            return Ok(ModeChange::Octal {
                bits,
                with_set_id: text.len() >= EXPLICIT_DIGITS,
            });
        }
        let mut actions = Vec::new();
        for clause in text.split(',') {
            parse_clause(clause, &mut actions).ok_or_else(wrong)?;
        }
        Ok(ModeChange::Symbolic(actions))
    }

    /// The permissions of a file that had `old`; `mask` is that of new files.
    pub fn apply(&self, old: u32, is_directory: bool, mask: u32) -> u32 {
        match self {
            ModeChange::Octal { bits, with_set_id } => {
                let kept = match is_directory && !with_set_id {
                    true => old & SET_ID,
                    false => 0,
                };
                bits | kept
            }
            ModeChange::Symbolic(actions) => actions
                .iter()
                .fold(old, |mode, action| action.apply(mode, is_directory, mask)),
        }
    }
}

fn parse_clause(clause: &str, actions: &mut Vec<Action>) -> Option<()> {
    let start = clause.find(['+', '-', '='])?;
    let (names, mut rest) = clause.split_at(start);
    let mut classes = 0;
    for name in names.chars() {
        classes |= class_bits(name)?;
    }
    let is_masked = names.is_empty();
    if is_masked {
        classes = class_bits('a')?;
    }
    while let Some(operator) = rest.chars().next() {
        rest = &rest[1..];
        let end = rest.find(['+', '-', '=']).unwrap_or(rest.len());
        let (letters, after) = rest.split_at(end);
        let what = match letters {
            "u" | "g" | "o" => What::CopyOf(letters.chars().next()?),
            letters if letters.chars().all(|letter| "rwxXst".contains(letter)) => {
                What::Letters(letters.into())
            }
            _ => return None,
        };
        actions.push(Action {
            classes,
            is_masked,
            operator,
            what,
        });
        rest = after;
    }
    Some(())
}

/// All bits that belong to a class of users.
fn class_bits(name: char) -> Option<u32> {
    Some(match name {
        'u' => 0o4700,
        'g' => 0o2070,
        'o' => 0o1007,
        'a' => 0o7777,
        _ => return None,
    })
}

impl Action {
    fn apply(&self, old: u32, is_directory: bool, mask: u32) -> u32 {
        let mut bits = self.bits(old, is_directory) & self.classes;
        if self.is_masked {
            bits &= !mask;
        }
        match self.operator {
            '+' => old | bits,
            '-' => old & !bits,
            _ => {
                let kept = if is_directory { SET_ID } else { 0 };
                (old & !(self.classes & !kept)) | bits
            }
        }
    }

    /// The bits for the letters, in every class.
    fn bits(&self, old: u32, is_directory: bool) -> u32 {
        let three = match &self.what {
            What::CopyOf('u') => old >> 6,
            What::CopyOf('g') => old >> 3,
            What::CopyOf(_) => old,
            What::Letters(letters) => {
                return letters.chars().fold(0, |bits, letter| {
                    bits | match letter {
                        'r' => 0o444,
                        'w' => 0o222,
                        'x' => 0o111,
                        'X' if is_directory || old & 0o111 != 0 => 0o111,
                        's' => SET_ID,
                        't' => STICKY,
                        _ => 0,
                    }
                });
            }
        };
        (three & 7) * 0o111
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(text: &str, old: u32, is_directory: bool) -> u32 {
        ModeChange::parse(text)
            .unwrap()
            .apply(old, is_directory, 0o022)
    }

    #[test]
    fn octal_modes_keep_set_id_bits_of_directories() {
        assert_eq!(applied("755", 0o4600, false), 0o755);
        assert_eq!(applied("755", 0o2700, true), 0o2755);
        assert_eq!(applied("00755", 0o2700, true), 0o755);
        assert_eq!(applied("1777", 0o700, true), 0o1777);
    }

    #[test]
    fn symbolic_modes_are_applied_in_order() {
        for (text, old, new) in [
            ("u+x,go-w", 0o666, 0o744),
            ("a=r", 0o777, 0o444),
            ("+w", 0o444, 0o644),
            ("g=u", 0o640, 0o660),
            ("o=", 0o777, 0o770),
            ("u+x,a+X", 0o644, 0o755),
            ("a+X", 0o644, 0o644),
            ("u+s,g+s,+t", 0o755, 0o7755),
            ("u=rw+x-r", 0o000, 0o300),
        ] {
            assert_eq!(applied(text, old, false), new, "{text}");
        }
        assert_eq!(applied("a+X", 0o644, true), 0o755);
    }

    #[test]
    fn other_text_is_no_mode() {
        for text in ["", "8", "77777", "u", "u+q", "z+r", "u+rg", ",", "+ugo"] {
            assert!(ModeChange::parse(text).is_err(), "{text}");
        }
    }
}
