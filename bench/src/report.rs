//! Medians, JSON lines, and the table at the end.
//!
//! Owns: the shape of the output. Promises: the JSON fields that the interface page names, and no others.

use std::collections::HashMap;
use std::io::Write;

use anyhow::Result;
use serde::Serialize;

use crate::context::Measurement;

/// The engine whose ratios are of interest.
pub const OURS: &str = "bygone";

/// All runs of one figure of one engine.
#[derive(Debug, Serialize)]
pub struct Row {
    pub suite: String,
    pub case: String,
    pub engine: String,
    pub threads: usize,
    /// The median.
    pub value: f64,
    pub unit: String,
    pub runs: usize,
    pub min: f64,
    pub max: f64,
    pub config: serde_json::Value,
}

/// Every measurement, in the order in which figures first came up.
#[derive(Default)]
pub struct Figures {
    order: Vec<(String, usize, String)>,
    values: HashMap<(String, usize, String, String), Vec<f64>>,
}

impl Figures {
    pub fn add(&mut self, engine: &str, measurement: Measurement) {
        let Measurement { case, threads, value, unit } = measurement;
        let figure = (case.clone(), threads, unit.clone());
        if !self.order.contains(&figure) {
            self.order.push(figure);
        }
        self.values.entry((case, threads, unit, engine.to_owned())).or_default().push(value);
    }

    pub fn rows(&self, suite: &str, engines: &[String], config: &serde_json::Value) -> Vec<Row> {
        let mut rows = Vec::new();
        for (case, threads, unit) in &self.order {
            for engine in engines {
                let key = (case.clone(), *threads, unit.clone(), engine.clone());
                let Some(values) = self.values.get(&key) else { continue };
                let mut sorted = values.clone();
                sorted.sort_by(f64::total_cmp);
                rows.push(Row {
                    suite: suite.to_owned(),
                    case: case.clone(),
                    engine: engine.clone(),
                    threads: *threads,
                    value: median(&sorted),
                    unit: unit.clone(),
                    runs: sorted.len(),
                    min: sorted[0],
                    max: sorted[sorted.len() - 1],
                    config: config.clone(),
                });
            }
        }
        rows
    }
}

fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 }
}

pub fn write_json(out: &mut impl Write, rows: &[Row]) -> Result<()> {
    for row in rows {
        writeln!(out, "{}", serde_json::to_string(row)?)?;
    }
    Ok(())
}

/// The medians side by side, and after each peer's how many times better ours is.
pub fn write_table(out: &mut impl Write, rows: &[Row], engines: &[String]) -> Result<()> {
    let mut head = format!("{:<34}{:>3} {:<11}", "case", "thr", "unit");
    for engine in engines {
        head += &format!("{engine:>14}");
        if engine != OURS {
            head += &format!("{:>9}", "ratio");
        }
    }
    writeln!(out, "{head}")?;
    let mut at = 0;
    while at < rows.len() {
        let first = &rows[at];
        let same =
            |row: &Row| row.case == first.case && row.threads == first.threads && row.unit == first.unit;
        let group: Vec<_> = rows[at..].iter().take_while(|row| same(row)).collect();
        at += group.len();
        let of = |engine: &str| group.iter().find(|row| row.engine == engine).map(|row| row.value);
        let mut line = format!("{:<34}{:>3} {:<11}", first.case, first.threads, first.unit);
        for engine in engines {
            line += &format!("{:>14}", of(engine).map_or("-".to_owned(), number));
            if engine != OURS {
                let ratio =
                    of(OURS).zip(of(engine)).and_then(|(ours, theirs)| ratio(&first.unit, ours, theirs));
                line += &format!("{:>9}", ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}x")));
            }
        }
        writeln!(out, "{}", line.trim_end())?;
    }
    if engines.len() > 1 {
        writeln!(
            out,
            "ratio: how many times better {OURS} is than the engine before it (of rates more is better, else less)"
        )?;
    }
    Ok(())
}

fn ratio(unit: &str, ours: f64, theirs: f64) -> Option<f64> {
    // A share is a difference: near nothing its ratio tells nothing.
    if unit == "%" {
        return None;
    }
    let (better, worse) = if unit.ends_with("/s") { (ours, theirs) } else { (theirs, ours) };
    (worse > 0.0).then(|| better / worse)
}

fn number(value: f64) -> String {
    if value.abs() >= 1000.0 {
        let digits = format!("{value:.0}");
        let (sign, digits) = digits.strip_prefix('-').map_or(("", digits.as_str()), |rest| ("-", rest));
        let mut grouped = String::new();
        for (place, digit) in digits.chars().enumerate() {
            if place > 0 && (digits.len() - place).is_multiple_of(3) {
                grouped.push(',');
            }
            grouped.push(digit);
        }
        return format!("{sign}{grouped}");
    }
    format!("{value:.2}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_lies_between() {
        assert_eq!(median(&[1.0, 2.0, 4.0, 8.0]), 3.0);
        assert_eq!(median(&[1.0, 2.0, 8.0]), 2.0);
    }

    #[test]
    fn numbers_are_grouped_by_thousands() {
        assert_eq!(number(1_234_567.0), "1,234,567");
        assert_eq!(number(123.456), "123.46");
    }

    #[test]
    fn of_times_less_is_better() {
        assert_eq!(ratio("ns", 10.0, 20.0), Some(2.0));
        assert_eq!(ratio("puts/s", 10.0, 20.0), Some(0.5));
        assert_eq!(ratio("ns", 0.0, 20.0), None);
        assert_eq!(ratio("%", 1.0, 2.0), None);
    }
}
