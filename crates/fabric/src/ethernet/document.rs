//! `docs/ETHERNET.md` against the code: every offset, size and number in its tables.

use std::collections::BTreeMap;
use std::mem::offset_of;

use super::wire;

const DOCUMENT: &str = include_str!("../../../../docs/ETHERNET.md");

type Fields = Vec<(String, usize, usize)>;

fn size_of_field<T, F>(_: fn(&T) -> &F) -> usize {
    size_of::<F>()
}

/// All fields of a structure: it does not compile with one missing.
macro_rules! structure {
    ($type:ident { $($field:ident),+ $(,)? }) => {{
        fn _complete(value: wire::$type) {
            let wire::$type { $($field: _),+ } = value;
        }
        let fields: Fields = vec![$((
            stringify!($field).to_owned(),
            offset_of!(wire::$type, $field),
            size_of_field(|value: &wire::$type| &value.$field),
        )),+];
        (stringify!($type), fields)
    }};
}

fn structures() -> BTreeMap<&'static str, Fields> {
    BTreeMap::from([
        structure!(Header {
            destination,
            source,
            ether_type,
            tag,
            version,
            kind,
            flags,
            window,
            length,
            endpoint,
            immediate,
            sequence,
            expected,
            selective,
            check
        }),
        structure!(Send {
            total,
            at,
            returned
        }),
        structure!(Transfer {
            request,
            key,
            offset,
            total,
            at
        }),
        structure!(Atomic {
            request,
            key,
            offset,
            operand,
            new
        }),
        structure!(Data { request, at }),
        structure!(Answer { request, value }),
        structure!(Placed { request, seal }),
        structure!(Group {
            address,
            port,
            reserved
        }),
        structure!(Hello {
            version,
            endpoint,
            hardware,
            tag,
            types,
            frame_bytes,
            authenticated,
            placement,
            secret
        }),
    ])
}

/// The rows of the table below a heading.
fn rows<'a>(heading: &str) -> Vec<Vec<&'a str>> {
    let (_, section) = DOCUMENT
        .split_once(&format!("\n{heading}\n"))
        .expect(heading);
    let table = section.lines().skip_while(|line| !line.starts_with('|'));
    let rows = table.skip(2).take_while(|line| line.starts_with('|'));
    rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect())
        .collect()
}

#[test]
fn structures_are_as_documented() {
    for (name, fields) in structures() {
        let documented: Fields = rows(&format!("### {name}"))
            .iter()
            .map(|row| {
                (
                    row[2].to_owned(),
                    row[0].parse().unwrap(),
                    row[1].parse().unwrap(),
                )
            })
            .collect();
        assert_eq!(documented, fields, "{name}");
    }
}

#[test]
fn kinds_are_as_documented() {
    let documented: Vec<(u8, &str)> = rows("## Kinds")
        .iter()
        .map(|row| (row[0].parse().unwrap(), row[1]))
        .collect();
    let kinds: Vec<(u8, String)> = (0..=255)
        .filter_map(wire::Kind::from_byte)
        .map(|kind| (kind as u8, format!("{kind:?}")))
        .collect();
    let kinds: Vec<(u8, &str)> = kinds.iter().map(|(byte, name)| (*byte, &**name)).collect();
    assert_eq!(documented, kinds);
}
