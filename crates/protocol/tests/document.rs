//! `docs/PROTOCOL.md` against the code: every rule names the defect that breaks it, and every defect breaks a rule.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;

const DOCUMENT: &str = include_str!("../../../docs/PROTOCOL.md");
const DEFECTS: &str = include_str!("../src/defects.rs");
/// The rules of lent memory are broken where messages are sent.
const STREAM_DEFECTS: &str = include_str!("../../connections/src/messenger/pull.rs");

/// The variants of an enumeration of defects, as its source has them.
fn variants(source: &'static str, enumeration: &str) -> BTreeSet<&'static str> {
    let start = format!("pub enum {enumeration} {{");
    let (_, text) = source.split_once(&start).expect("the list");
    let (text, _) = text.split_once("\n}").expect("its end");
    let lines = text.lines().map(str::trim);
    lines
        .filter(|line| !line.starts_with("//"))
        .filter_map(|line| line.strip_suffix(','))
        .collect()
}

/// The rules: each title with its text.
fn rules() -> Vec<(&'static str, &'static str)> {
    let sections = DOCUMENT
        .split("\n## ")
        .filter(|it| it.starts_with("Rules of "));
    let rules = sections.flat_map(|section| section.split("\n### ").skip(1));
    rules.filter_map(|rule| rule.split_once('\n')).collect()
}

#[test]
fn every_rule_names_its_defect_and_every_defect_has_a_rule() {
    let mut named = BTreeSet::new();
    let of_streams = variants(STREAM_DEFECTS, "StreamDefect");
    for (title, text) in rules() {
        let mut lines = text
            .lines()
            .filter_map(|line| line.strip_prefix("Defect: "));
        let defect = lines
            .next()
            .unwrap_or_else(|| panic!("{title}: no defect, not even none"));
        assert_eq!(lines.next(), None, "{title}: one defect for each rule");
        if defect != "none" {
            let name = defect.strip_prefix('`').and_then(|it| it.strip_suffix('`'));
            let name = name.unwrap_or_else(|| panic!("{title}: {defect} is no name"));
            match name.strip_prefix("StreamDefect::") {
                Some(name) => assert!(of_streams.contains(name), "{title}: no defect {name}"),
                None => assert!(named.insert(name), "{name} breaks two rules"),
            }
        }
    }
    assert_eq!(named, variants(DEFECTS, "Defect"));
}

/// A schedule is short enough to be followed.
#[test]
fn every_rule_has_a_schedule() {
    for (title, text) in rules() {
        let mut parts = text.split("```").skip(1).step_by(2);
        let schedule = parts
            .next()
            .unwrap_or_else(|| panic!("{title}: no schedule"));
        let count = schedule.trim().lines().count();
        assert!((2..=6).contains(&count), "{title}: {count} lines");
        assert_eq!(parts.next(), None, "{title}: one schedule");
    }
}
