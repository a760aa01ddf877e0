//! Names against link counts, and the way to every inode from the root.

use super::Checker;
use super::inodes::{Live, NONE};
use crate::FileKind;
use crate::{SYSTEM, is_root};

/// State of the path to a directory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Unknown,
    /// It is on the way that is being followed.
    Here,
    FromRoot,
    Lost,
}

impl Checker<'_> {
    /// Checks that need the count of all names.
    pub(super) fn check_links(&mut self) {
        for index in 0..self.live.len() {
            let Live {
                number,
                named_in,
                is_grant,
                links,
                ..
            } = self.live[index];
            let directory = self.live.get(named_in as usize).map(|live| live.number);
            // One without a name is being reclaimed.
            if is_grant && links > 0 && directory != Some(SYSTEM) {
                self.inode_finding(number, "only a file in the system directory can be a grant");
            }
            for what in link_findings(&self.live[index]) {
                self.inode_finding(number, what);
            }
        }
        self.check_ways();
    }

    /// Directories must not form cycles apart from the roots. (An inode without a name is found by its link count.)
    fn check_ways(&mut self) {
        let mut ways = vec![Way::Unknown; self.live.len()];
        let mut trail = Vec::new();
        for index in 0..self.live.len() {
            if self.live[index].kind != FileKind::Directory {
                continue;
            }
            let mut at = index;
            let end = loop {
                let live = &self.live[at];
                match ways[at] {
                    _ if is_root(live.number) => break Way::FromRoot,
                    Way::Unknown if live.named_in == NONE => break Way::Lost,
                    Way::Unknown => {}
                    Way::Here => break Way::Lost,
                    known => break known,
                }
                ways[at] = Way::Here;
                trail.push(at);
                at = live.named_in as usize;
            };
            for passed in trail.drain(..) {
                ways[passed] = end;
                if end == Way::Lost {
                    let number = self.live[passed].number;
                    self.inode_finding(number, "no way from the root leads to the directory");
                }
            }
        }
    }
}

/// Returns the error in the link count of an inode, given the names that were found.
fn link_findings(live: &Live) -> Vec<String> {
    let mut findings = Vec::new();
    let Live {
        links,
        names,
        subdirectories,
        is_orphan,
        ..
    } = *live;
    let is_directory = live.kind == FileKind::Directory;
    let is_root = is_root(live.number);
    if links == 0 {
        if is_root {
            findings.push("the root has no links".into());
        } else if !is_orphan {
            findings.push("the inode has no links, but is not noted as an orphan".into());
        }
        if names > 0 {
            findings.push(format!(
                "the inode has no links, but {names} names lead to it"
            ));
        }
        return findings;
    }
    if is_orphan && !live.is_cut {
        findings.push("the inode is noted as an orphan, but has nothing to reclaim".into());
    }
    if names == 0 && !is_root {
        findings.push("the inode is in use, but no name leads to it".into());
    } else if is_directory && names != u32::from(!is_root) {
        findings.push(format!("{names} names lead to the directory"));
    } else if !is_directory && names != links {
        findings.push(format!(
            "the inode says that it has {links} names, but {names} lead to it"
        ));
    }
    if is_directory && u64::from(links) != 2 + u64::from(subdirectories) {
        findings.push(format!(
            "the directory has {links} links, but {subdirectories} subdirectories"
        ));
    }
    findings
}
