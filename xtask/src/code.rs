//! A minimal Rust lexer, which distinguishes code from comments and literals.

/// The text with comments, strings and character literals blanked. Lines stay where they were.
pub fn code_only(text: &str) -> String {
    let characters: Vec<char> = text.chars().collect();
    let mut code = String::with_capacity(text.len());
    let mut rest = &characters[..];
    while let Some(&first) = rest.first() {
        let length = opaque_length(rest).min(rest.len());
        if length == 0 {
            code.push(first);
            rest = &rest[1..];
        } else {
            let (opaque, after) = rest.split_at(length);
            let blank = |&character: &char| if character == '\n' { '\n' } else { ' ' };
            code.extend(opaque.iter().map(blank));
            rest = after;
        }
    }
    code
}

/// Whether `word` occurs in `line` as a whole word, not as a part of a longer name.
pub fn has_word(line: &str, word: &str) -> bool {
    let is_name = |character: char| character.is_alphanumeric() || character == '_';
    line.match_indices(word).any(|(start, _)| {
        let before = line[..start].chars().next_back();
        let after = line[start + word.len()..].chars().next();
        !before.is_some_and(is_name) && !after.is_some_and(is_name)
    })
}

/// Length in characters of the comment or literal that begins here: 0 without one. An unterminated one may be counted
/// longer than the rest.
fn opaque_length(rest: &[char]) -> usize {
    match rest {
        ['/', '/', ..] => position(rest, |c| c == '\n'),
        ['/', '*', ..] => block_comment_length(rest),
        ['"', ..] => string_length(rest),
        ['r', '"' | '#', ..] => raw_string_length(rest),
        ['\'', '\\', _, after @ ..] => 4 + position(after, |c| c == '\''),
        ['\'', _, '\'', ..] => 3,
        _ => 0,
    }
}

fn position(rest: &[char], wanted: impl Fn(char) -> bool) -> usize {
    let found = rest.iter().position(|&character| wanted(character));
    found.unwrap_or(rest.len())
}

fn block_comment_length(rest: &[char]) -> usize {
    let (mut depth, mut index) = (0, 0);
    while index < rest.len() {
        match rest[index..] {
            ['/', '*', ..] => (depth, index) = (depth + 1, index + 2),
            ['*', '/', ..] => (depth, index) = (depth - 1, index + 2),
            _ => index += 1,
        }
        if depth == 0 {
            break;
        }
    }
    index
}

fn string_length(rest: &[char]) -> usize {
    let mut index = 1;
    while index < rest.len() && rest[index] != '"' {
        index += if rest[index] == '\\' { 2 } else { 1 };
    }
    index + 1
}

/// `r"…"` and `r#"…"#`; 0 for a raw name such as `r#type`.
fn raw_string_length(rest: &[char]) -> usize {
    let hashes = position(&rest[1..], |c| c != '#');
    if rest.get(1 + hashes) != Some(&'"') {
        return 0;
    }
    let body = 2 + hashes;
    let closes = |at: &[char]| at[0] == '"' && at[1..].iter().all(|&c| c == '#');
    let end = rest[body..].windows(1 + hashes).position(closes);
    end.map_or(rest.len(), |end| body + end + 1 + hashes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blanked() {
        for (text, code) in [
            ("a // b\nc", "a     \nc"),
            ("a /* b /* c\n */ d */ e", "a          \n         e"),
            (r#"a("b\"c") d"#, "a(      ) d"),
            (r##"a(r#"b"c"#) d"##, "a(        ) d"),
            (r#"b"\\" c"#, "b     c"),
            (r"f('\'', 'x', '\u{1F}') g", "f(    ,    ,         ) g"),
            ("fn f<'a>(x: &'a str) {}", "fn f<'a>(x: &'a str) {}"),
            ("r#type = r\"b\";", "r#type =     ;"),
            ("a \"never ends", "a            "),
        ] {
            assert_eq!(code_only(text), code, "of {text}");
        }
    }

    #[test]
    fn words_stand_alone() {
        assert!(has_word("unsafe { f() }", "unsafe"));
        assert!(has_word("#[unsafe(no_mangle)]", "unsafe"));
        assert!(!has_word("forbid(unsafe_code)", "unsafe"));
        assert!(!has_word("very_unsafe", "unsafe"));
    }
}
