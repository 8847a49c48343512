//! `.plot`.
//!
//! Owns: the drawing of a query as a line. Promises: at most 80 columns, of a terminal or of a file. May call:
//! `session`.

use rusqlite::types::ValueRef;
use textplots::{Chart, LabelBuilder, LabelFormat, Plot, Shape};

use super::session::Session;
use crate::failure::{Failure, Result};

/// In dots: two to a column, four to a line.
const WIDTH_DOTS: u32 = 128;
const HEIGHT_DOTS: u32 = 48;

pub fn plot(session: &mut Session<'_>, query: &str) -> Result<()> {
    let mut wrong = None;
    let mut points = Vec::new();
    let mut names = Vec::new();
    bygone_sql::run(&session.connection, query, |statement| {
        names = statement.column_names().map(str::to_owned).collect();
        if names.len() != 2 {
            wrong = Some(format!("a query to plot has two columns, this one has {}", names.len()));
            return Ok(());
        }
        let mut rows = statement.raw_query();
        while let Some(row) = rows.next()? {
            // A gap is no point.
            if let Some(y) = number(row.get_ref(1)?) {
                points.push((number(row.get_ref(0)?).unwrap_or(points.len() as f32), y));
            }
        }
        Ok(())
    })?;
    if let Some(wrong) = wrong {
        return Err(Failure::usage(wrong));
    }
    let [x, y] = &names[..] else { return Err(Failure::usage("write .plot SELECT ...")) };
    match draw(&points) {
        Some(chart) => session.line(format_args!("{chart}{y} over {x}")),
        None => Err(Failure::No("there are no numbers to plot".to_owned())),
    }
}

/// What is a number, or a text that says one.
fn number(value: ValueRef<'_>) -> Option<f32> {
    let number = match value {
        ValueRef::Integer(number) => number as f32,
        ValueRef::Real(number) => number as f32,
        ValueRef::Text(text) => std::str::from_utf8(text).ok()?.trim().parse().ok()?,
        ValueRef::Null | ValueRef::Blob(_) => return None,
    };
    number.is_finite().then_some(number)
}

fn draw(points: &[(f32, f32)]) -> Option<String> {
    let bounds = |value: fn(&(f32, f32)) -> f32| {
        let least = points.iter().map(value).reduce(f32::min)?;
        let most = points.iter().map(value).reduce(f32::max)?;
        // A range of nothing cannot be drawn.
        Some(if least < most { (least, most) } else { (least - 1.0, most + 1.0) })
    };
    let (from, to) = bounds(|point| point.0)?;
    let (lowest, highest) = bounds(|point| point.1)?;
    let shape = Shape::Lines(points);
    let mut chart = Chart::new_with_y_range(WIDTH_DOTS, HEIGHT_DOTS, from, to, lowest, highest);
    let label =
        |number: f32| if number.fract() == 0.0 { format!("{number:.0}") } else { format!("{number:.2}") };
    let drawn = chart
        .x_label_format(LabelFormat::Custom(Box::new(label)))
        .y_label_format(LabelFormat::Custom(Box::new(label)))
        .lineplot(&shape);
    drawn.axis();
    drawn.figures();
    Some(format!("{drawn}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_drawn_with_their_bounds() {
        let drawn = draw(&[(1952.0, 1.0), (1957.0, 7.5), (1962.0, 3.0)]).unwrap();
        for bound in ["1952", "1962", "7.50", "1"] {
            assert!(drawn.contains(bound), "{drawn}");
        }
        assert!(drawn.lines().all(|line| console::measure_text_width(line) <= 80), "{drawn}");
        assert!(draw(&[(1.0, 1.0)]).is_some(), "one point is drawn, too");
        assert!(draw(&[]).is_none());
    }
}
