//! The results, as a table or as JSON.

use std::fmt::Write;

use serde::Serialize;

/// A value and its unit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Quantity {
    /// Value in the unit.
    pub value: f64,
    /// Unit: `ns`, `bytes`, `bytes/s` or `/s`.
    pub unit: &'static str,
}

/// A figure beside its limit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The group of rows that it belongs to.
    pub group: &'static str,
    /// Operations of the two sides of the group's rows: calls in this process or system calls, and how they wait.
    pub sides: &'static str,
    /// Name of the row.
    pub name: String,
    /// Quantity that was measured of Tako.
    pub tako: Quantity,
    /// Name of the limit.
    pub limit_name: Option<String>,
    /// The limit's figure in the same run.
    pub limit: Option<Quantity>,
    /// Tako's speed as a multiple of the limit's: the median of the rounds' ratios.
    pub ratio: Option<f64>,
    /// Least ratio to the limit that the project requires, if it requires any.
    pub bar: Option<f64>,
    /// Whether it is. Without a bar, it is.
    pub met: bool,
}

/// A note about a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Note {
    /// Subject of the note.
    pub name: &'static str,
    /// Text of the note.
    pub text: String,
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The figures, group by group.
    pub rows: Vec<Row>,
    /// Machine, pool and method.
    pub notes: Vec<Note>,
}

impl Quantity {
    pub(crate) fn new(value: f64, unit: &'static str) -> Quantity {
        Quantity { value, unit }
    }

    pub(crate) fn ns(value: f64) -> Quantity {
        Quantity::new(value, "ns")
    }

    /// For people: three digits and a suitable unit.
    fn to_text(self) -> String {
        let steps: &[(f64, &str)] = match self.unit {
            "ns" => &[(1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns")],
            "bytes" => &[(1e9, "GB"), (1e6, "MB"), (1e3, "KB"), (1.0, "B")],
            "bytes/s" => &[(1e9, "GB/s"), (1e6, "MB/s"), (1.0, "B/s")],
            "/s" => &[(1e6, "M/s"), (1e3, "k/s"), (1.0, "/s")],
            other => return format!("{} {other}", digits(self.value)),
        };
        let suits = |step: &&(f64, &str)| self.value >= step.0;
        let (factor, unit) = steps.iter().find(suits).unwrap_or(&steps[steps.len() - 1]);
        format!("{} {unit}", digits(self.value / factor))
    }
}

/// Formats a number with about three significant digits.
fn digits(value: f64) -> String {
    match value {
        10_000.0.. => format!("{value:.3e}"),
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

impl Row {
    /// A figure without a limit.
    pub(crate) fn new(name: &str, tako: Quantity) -> Row {
        Row {
            group: "",
            sides: "",
            name: name.to_owned(),
            tako,
            limit_name: None,
            limit: None,
            ratio: None,
            bar: None,
            met: true,
        }
    }

    /// The figure beside its limit.
    pub(crate) fn beside(
        self,
        limit_name: &str,
        limit: Quantity,
        ratio: f64,
        bar: Option<f64>,
    ) -> Row {
        Row {
            limit_name: Some(limit_name.to_owned()),
            limit: Some(limit),
            ratio: Some(ratio),
            bar,
            met: bar.is_none_or(|bar| ratio >= bar),
            ..self
        }
    }

    fn cells(&self, with_bars: bool) -> [String; 6] {
        let number = |value: Option<f64>| value.map_or(String::new(), digits);
        let bar = self.bar.filter(|_| with_bars);
        let verdict = match (bar, self.met) {
            (None, _) => "",
            (Some(_), true) => "met",
            (Some(_), false) => "MISSED",
        };
        [
            self.name.clone(),
            self.tako.to_text(),
            self.limit.map_or(String::new(), Quantity::to_text),
            self.limit_name.clone().unwrap_or_default(),
            number(self.ratio),
            format!("{} {verdict}", number(bar)).trim().to_owned(),
        ]
    }
}

impl Report {
    /// The report for people: groups of rows, then the notes. With `with_bars`, the project's own targets are beside
    /// the ratios.
    pub fn to_table(&self, with_bars: bool) -> String {
        let last = if with_bars { "at least" } else { "" };
        let head = ["", "Tako", "limit", "limit is", "ratio", last].map(str::to_owned);
        let cells: Vec<_> = self.rows.iter().map(|row| row.cells(with_bars)).collect();
        let width = |column: usize| {
            let all = cells.iter().chain([&head]);
            let widths = all.map(|cells| cells[column].chars().count());
            widths.max().unwrap_or(0)
        };
        let widths: [usize; 6] = std::array::from_fn(width);
        let mut table = line(&head, &widths);
        let mut group = "";
        for (row, cells) in self.rows.iter().zip(&cells) {
            if row.group != group {
                group = row.group;
                // Writing to a string cannot fail.
                let sides = if row.sides.is_empty() { "" } else { ": " };
                let _ = writeln!(table, "{group}{sides}{}", row.sides);
            }
            table += &line(cells, &widths);
        }
        let barred = self.rows.iter().filter(|row| row.bar.is_some());
        let met = barred.clone().filter(|row| row.met).count();
        table.push('\n');
        if with_bars {
            let _ = writeln!(table, "{met} of {} bars met", barred.count());
        }
        for note in &self.notes {
            let _ = writeln!(table, "{}: {}", note.name, note.text);
        }
        table
    }

    /// The report for programs. Values are in plain units: `ns`, `bytes`, `bytes/s`, `/s`.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("numbers and strings have a form in JSON")
    }
}

/// One line: names to the left, numbers to the right.
fn line(cells: &[String; 6], widths: &[usize; 6]) -> String {
    let [name, tako, limit, limit_name, ratio, bar] = cells;
    let line = format!(
        "  {name:<0$}  {tako:>1$}  {limit:>2$}  {limit_name:<3$}  {ratio:>4$}  {bar}",
        widths[0], widths[1], widths[2], widths[3], widths[4],
    );
    line.trim_end().to_owned() + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let slow = Row::new("small write", Quantity::ns(1500.0));
        let slow = slow.beside("tmpfs pwrite", Quantity::ns(750.0), 0.5, Some(0.8));
        let fast = Row::new("large write", Quantity::new(8.04e9, "bytes/s"));
        let fast = fast.beside("memcpy", Quantity::new(1e10, "bytes/s"), 0.8, Some(0.6));
        let alone = Row::new("fence", Quantity::ns(31.4));
        let note = Note {
            name: "machine",
            text: "a test".to_owned(),
        };
        Report {
            rows: vec![
                Row {
                    group: "data",
                    sides: "Tako calls, tmpfs system calls",
                    ..slow
                },
                Row {
                    group: "data",
                    ..fast
                },
                Row {
                    group: "primitives",
                    ..alone
                },
            ],
            notes: vec![note],
        }
    }

    #[test]
    fn the_table_aligns_and_judges() {
        let expected = "
                    Tako      limit  limit is      ratio  at least
data: Tako calls, tmpfs system calls
  small write    1.50 µs     750 ns  tmpfs pwrite   0.50  0.80 MISSED
  large write  8.04 GB/s  10.0 GB/s  memcpy         0.80  0.60 met
primitives
  fence          31.4 ns

1 of 2 bars met
machine: a test
";
        assert_eq!(format!("\n{}", report().to_table(true)), expected);
    }

    #[test]
    fn users_see_ratios_without_bars() {
        let table = report().to_table(false);
        assert!(table.contains("tmpfs pwrite   0.50\n"), "{table}");
        assert!(
            !table.contains("MISSED") && !table.contains("bars"),
            "{table}"
        );
    }

    #[test]
    fn json_has_plain_units() {
        let json: serde_json::Value = serde_json::from_str(&report().to_json()).unwrap();
        let first = &json["rows"][0];
        assert_eq!(first["name"], "small write");
        assert_eq!(
            first["tako"],
            serde_json::json!({"value": 1500.0, "unit": "ns"})
        );
        assert_eq!(first["limit_name"], "tmpfs pwrite");
        assert_eq!((&first["bar"], &first["met"]), (&0.8.into(), &false.into()));
        assert!(json["rows"][2]["limit"].is_null());
        assert_eq!(json["notes"][0]["text"], "a test");
    }

    #[test]
    fn quantities_have_units_that_suit() {
        let cases = [
            (0.5, "ns", "0.50 ns"),
            (12_345.0, "ns", "12.3 µs"),
            (3e8, "ns", "300 ms"),
            (8_388_608.0, "bytes", "8.39 MB"),
            (2_500_000.0, "/s", "2.50 M/s"),
            (7.0, "files", "7.00 files"),
        ];
        for (value, unit, text) in cases {
            assert_eq!(Quantity::new(value, unit).to_text(), text);
        }
    }
}
