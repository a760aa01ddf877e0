//! Figures as people write and read them.

use client::{Attributes, FileKind};

const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

/// Reads a size such as `4G`: bytes, with K, M, G or T for their multiples by 1024.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|character: char| character.is_ascii_alphabetic());
    let shift = match &text[digits.len()..] {
        "" => Some(0),
        "K" | "k" => Some(10),
        "M" | "m" => Some(20),
        "G" | "g" => Some(30),
        "T" | "t" => Some(40),
        _ => None,
    };
    let count: Option<u64> = digits.parse().ok();
    let size = count
        .zip(shift)
        .and_then(|(count, shift)| count.checked_mul(1 << shift));
    size.filter(|size| *size > 0)
        .ok_or("give a size such as 512M or 4G".into())
}

/// A size for people: three digits and a unit.
pub fn show_size(bytes: u64) -> String {
    let mut size = bytes as f64;
    let mut unit = "B";
    for larger in UNITS {
        // A value that would be rounded to four digits is shown in the next unit.
        if size < 999.5 {
            break;
        }
        size /= 1024.0;
        unit = larger;
    }
    let decimals = if unit == "B" || size >= 99.95 { 0 } else { 1 };
    format!("{size:.decimals$} {unit}")
}

/// A size as coreutils show it with `-h`: rounded up, at most three digits.
pub fn show_short_size(bytes: u64) -> String {
    let mut unit = 1u64;
    for suffix in ["", "K", "M", "G", "T", "P", "E"] {
        let whole = bytes.div_ceil(unit);
        if unit == 1 && bytes < 1024 {
            return bytes.to_string();
        }
        let tenths = (u128::from(bytes) * 10).div_ceil(u128::from(unit));
        if unit > 1 && tenths < 100 {
            return format!("{}.{}{suffix}", tenths / 10, tenths % 10);
        }
        if unit > 1 && (whole < 1024 || suffix == "E") {
            return format!("{whole}{suffix}");
        }
        unit = unit.saturating_mul(1024);
    }
    bytes.to_string()
}

/// A moment, in UTC: date and time, and the rest of the second apart.
pub fn show_time(nanoseconds: i64) -> (String, u32) {
    let seconds = nanoseconds.div_euclid(1_000_000_000);
    let (year, month, day) = civil_date(seconds.div_euclid(86_400));
    let in_day = seconds.rem_euclid(86_400);
    let (hour, minute, second) = (in_day / 3600, in_day / 60 % 60, in_day % 60);
    let text = format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}");
    (text, nanoseconds.rem_euclid(1_000_000_000) as u32)
}

const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];
/// Half of a mean year in seconds: older files are shown with their year.
const RECENT_S: i64 = 31_556_952 / 2;

/// A moment, in UTC, as `ls -l` shows it at the moment `now_ns`.
pub fn show_short_time(nanoseconds: i64, now_ns: i64) -> String {
    let seconds = nanoseconds.div_euclid(1_000_000_000);
    let (year, month, day) = civil_date(seconds.div_euclid(86_400));
    let in_day = seconds.rem_euclid(86_400);
    let month = MONTHS[(month - 1) as usize % 12];
    let is_recent = nanoseconds <= now_ns && now_ns.div_euclid(1_000_000_000) - seconds < RECENT_S;
    match is_recent {
        true => format!(
            "{month} {day:>2} {:02}:{:02}",
            in_day / 3600,
            in_day / 60 % 60
        ),
        false => format!("{month} {day:>2}  {year}"),
    }
}

/// Nanoseconds from 1970 until now.
pub fn now_ns() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |time| time.as_nanos() as i64)
}

/// Year, month and day of a day counted from 1970: years are counted from March, so that leap days end them, in
/// eras of 400.
fn civil_date(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// Kind and permissions as `ls -l` shows them.
pub fn show_mode(attributes: &Attributes) -> String {
    let kind = match attributes.kind {
        FileKind::Regular => '-',
        FileKind::Directory => 'd',
        FileKind::Symlink => 'l',
        FileKind::Fifo => 'p',
        FileKind::Socket => 's',
        FileKind::CharacterDevice => 'c',
        FileKind::BlockDevice => 'b',
    };
    let mut mode = String::from(kind);
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = attributes.permissions >> shift;
        mode.push(if bits & 4 != 0 { 'r' } else { '-' });
        mode.push(if bits & 2 != 0 { 'w' } else { '-' });
        mode.push(
            match (attributes.permissions & special != 0, bits & 1 != 0) {
                (true, true) => letter,
                (true, false) => letter.to_ascii_uppercase(),
                (false, true) => 'x',
                (false, false) => '-',
            },
        );
    }
    mode
}

/// Name of a kind.
pub fn kind_name(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Regular => "regular file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symbolic link",
        FileKind::Fifo => "FIFO",
        FileKind::Socket => "socket",
        FileKind::CharacterDevice => "character device",
        FileKind::BlockDevice => "block device",
    }
}

/// A device number as `ls -l` shows it.
pub fn show_device(device: u32) -> String {
    let device = u64::from(device);
    format!(
        "{},{}",
        rustix::fs::major(device),
        rustix::fs::minor(device)
    )
}

/// A name that cannot disturb a terminal or break a line: control characters are escaped.
pub fn show_name(name: &[u8]) -> String {
    let mut shown = String::new();
    for character in String::from_utf8_lossy(name).chars() {
        match character.is_control() {
            true => shown.extend(character.escape_default()),
            false => shown.push(character),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        for (text, size) in [
            ("1", 1),
            ("512k", 512 << 10),
            ("3M", 3 << 20),
            ("4G", 4 << 30),
            ("2T", 2 << 40),
        ] {
            assert_eq!(parse_size(text), Ok(size));
        }
        for text in [
            "",
            "G",
            "0",
            "0M",
            "-1",
            "1.5G",
            "4GB",
            "4 G",
            "20000000T",
            "99999999999999999999",
        ] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_shown() {
        for (bytes, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.0 KiB"),
            (1536, "1.5 KiB"),
            (100 << 10, "100 KiB"),
            (999 << 10, "999 KiB"),
            (1000 << 10, "1.0 MiB"),
            (4 << 30, "4.0 GiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(show_size(bytes), text);
        }
    }

    #[test]
    fn short_sizes_are_rounded_up() {
        for (bytes, text) in [
            (0, "0"),
            (1023, "1023"),
            (1024, "1.0K"),
            (1025, "1.1K"),
            (10 << 10, "10K"),
            ((10 << 10) + 1, "11K"),
            ((1 << 20) - 1, "1.0M"),
            (1 << 30, "1.0G"),
            (u64::MAX, "16E"),
        ] {
            assert_eq!(show_short_size(bytes), text, "{bytes}");
        }
    }

    #[test]
    fn times_are_shown() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00"),
            (-1, "1969-12-31 23:59:59"),
            (951_782_400, "2000-02-29 00:00:00"),
            (1_795_284_000, "2026-11-21 18:00:00"),
            (4_107_542_400, "2100-03-01 00:00:00"),
        ] {
            assert_eq!(show_time(seconds * 1_000_000_000), (text.into(), 0));
        }
        assert_eq!(show_time(-1), ("1969-12-31 23:59:59".into(), 999_999_999));
        assert_eq!(show_time(i64::MIN).0, "1677-09-21 00:12:43");
    }

    #[test]
    fn names_are_shown_on_one_line() {
        assert_eq!(show_name("käse\n\x1b[1m".as_bytes()), "käse\\n\\u{1b}[1m");
    }
}
