//! The trend as a chart, where standard output is a terminal.
//!
//! Owns: the look of the chart. Promises: at most 80 columns; nothing at all in a pipe. May call:
//! `questions`.

use std::io::IsTerminal;

use console::{StyledObject, style};
use rgb::RGB8;
use textplots::{Chart, ColorPlot, LabelBuilder, LabelFormat, Shape};

use super::questions::Trend;

/// In dots: two to a column, four to a line.
const WIDTH_DOTS: u32 = 128;
const HEIGHT_DOTS: u32 = 48;
/// Of each line, and of its name below the chart. Colours that every palette has.
const COLORS: [(RGB8, Paint); 3] = [
    (RGB8::new(0, 205, 205), |name| style(name).cyan()),
    (RGB8::new(205, 0, 0), |name| style(name).red()),
    (RGB8::new(0, 205, 0), |name| style(name).green()),
];

type Paint = fn(&'static str) -> StyledObject<&'static str>;

/// The chart as lines of text; `None` in a pipe.
pub fn draw(trends: &[Trend]) -> Option<String> {
    std::io::stdout().is_terminal().then(|| to_text(trends))
}

fn to_text(trends: &[Trend]) -> String {
    let series: Vec<Vec<(f32, f32)>> = trends.iter().map(points).collect();
    let years: Vec<f32> = series.iter().flatten().map(|(year, _)| *year).collect();
    let (Some(first), Some(last)) = (years.first(), years.last()) else { return String::new() };
    let shapes: Vec<Shape<'_>> = series.iter().map(|points| Shape::Lines(points)).collect();
    let mut chart = Chart::new_with_y_range(WIDTH_DOTS, HEIGHT_DOTS, *first, *last, 20.0, 90.0);
    let mut drawn = chart
        .x_label_format(LabelFormat::Custom(Box::new(|year| format!("{year:.0}"))))
        .y_label_format(LabelFormat::Custom(Box::new(|years| format!("{years:.0} years"))));
    for (shape, (color, _)) in shapes.iter().zip(COLORS) {
        drawn = drawn.linecolorplot(shape, color);
    }
    drawn.axis();
    drawn.figures();
    let names: Vec<String> =
        trends.iter().zip(COLORS).map(|(trend, (_, paint))| paint(trend.country).to_string()).collect();
    format!("{drawn}\n{}", names.join("  "))
}

fn points(trend: &Trend) -> Vec<(f32, f32)> {
    trend.points.iter().filter_map(|(year, value)| Some((year.parse().ok()?, *value as f32))).collect()
}
