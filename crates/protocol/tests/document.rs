//! `docs/PROTOCOL.md` against the code: every rule names the defect that breaks it, and every defect breaks a rule.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;

const DOCUMENT: &str = include_str!("../../../docs/PROTOCOL.md");
const DEFECTS: &str = include_str!("../src/defects.rs");

/// The variants of `Defect`, as its source has them.
fn variants() -> BTreeSet<&'static str> {
    let (_, text) = DEFECTS.split_once("pub enum Defect {").expect("the list");
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
            assert!(named.insert(name), "{name} breaks two rules");
        }
    }
    assert_eq!(named, variants());
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
