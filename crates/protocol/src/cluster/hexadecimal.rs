//! Identities as hexadecimal digits, for people who read the map.

use std::fmt::Write;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Uuid;

pub fn serialize<S: Serializer>(uuid: &Uuid, to: S) -> Result<S::Ok, S::Error> {
    if !to.is_human_readable() {
        return uuid.serialize(to);
    }
    let mut text = String::with_capacity(32);
    for byte in uuid {
        write!(text, "{byte:02x}").map_err(serde::ser::Error::custom)?;
    }
    to.serialize_str(&text)
}

pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Uuid, D::Error> {
    if !from.is_human_readable() {
        return Uuid::deserialize(from);
    }
    let text = String::deserialize(from)?;
    parse(&text).ok_or_else(|| D::Error::custom("an identity has 32 hexadecimal digits"))
}

fn parse(text: &str) -> Option<Uuid> {
    let mut uuid = Uuid::default();
    if text.len() != 32 || !text.is_ascii() {
        return None;
    }
    for (index, byte) in uuid.iter_mut().enumerate() {
        let digits = text.get(2 * index..2 * index + 2)?;
        *byte = u8::from_str_radix(digits, 16).ok()?;
    }
    Some(uuid)
}
