//! Contents of a file or device, by the signatures that blkid(8) knows.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};

use pmem::Region;
use rustix::fs::{MemfdFlags, memfd_create};

/// Signatures are found at the beginning and at the end of a device.
const PROBED: u64 = 2 << 20;
/// Exit code of blkid(8) if it recognizes nothing.
const NOTHING: i32 = 2;

/// Returns the contents of a file, such as "ext4"; `None` if nothing is recognized.
pub fn of_file(path: &Path) -> io::Result<Option<String>> {
    probe(File::open(path)?)
}

/// Returns the contents of a device. Its ends are copied, since a DAX device cannot be read.
pub fn of_region(region: &Region) -> io::Result<Option<String>> {
    let copy: File = memfd_create("tako-signature", MemfdFlags::CLOEXEC)?.into();
    let length = region.length();
    copy.set_len(length)?;
    let part = PROBED.min(length);
    let mut bytes = vec![0; part as usize];
    for offset in [0, length - part] {
        region.read(offset, &mut bytes);
        copy.write_all_at(&bytes, offset)?;
    }
    probe(copy)
}

fn probe(file: File) -> io::Result<Option<String>> {
    // Paths of users other than root often lack its directory.
    let usual = Path::new("/usr/sbin/blkid");
    let program = if usual.exists() {
        usual
    } else {
        Path::new("blkid")
    };
    let output = Command::new(program)
        .args([
            "-p",
            "-o",
            "value",
            "-s",
            "TYPE",
            "-s",
            "PTTYPE",
            "/dev/stdin",
        ])
        .stdin(Stdio::from(file))
        .stderr(Stdio::null())
        .output()?;
    let found = String::from_utf8_lossy(&output.stdout)
        .trim()
        .replace('\n', ", ");
    match (output.status.code(), found.is_empty()) {
        (_, false) => Ok(Some(found)),
        (Some(0 | NOTHING), true) => Ok(None),
        // Several signatures contradict each other, or the probe failed.
        _ => Ok(Some("signatures that contradict each other".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Magic number and version of LUKS 1.
    const LUKS: [u8; 8] = *b"LUKS\xba\xbe\x00\x01";

    #[test]
    fn signatures_are_recognized() {
        let region = Region::memory(8 << 20, false).unwrap();
        assert_eq!(of_region(&region).unwrap(), None);
        region.write(0, &LUKS);
        assert_eq!(of_region(&region).unwrap().as_deref(), Some("crypto_LUKS"));
    }

    #[test]
    fn files_are_probed() {
        let path = std::env::temp_dir().join(format!("tako-signature-{}", std::process::id()));
        let probe = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            of_file(&path).unwrap()
        };
        let empty = vec![0; 1 << 20];
        let nothing = probe(&empty);
        let found = probe(&[&LUKS[..], &empty].concat());
        std::fs::remove_file(&path).unwrap();
        assert_eq!((nothing, found.as_deref()), (None, Some("crypto_LUKS")));
    }
}
