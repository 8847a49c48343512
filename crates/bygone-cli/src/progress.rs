//! Progress of long work, on standard error and only if that is a terminal.
//!
//! Owns: the look of the bars. Promises: silent in a pipe. May call: nothing.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar over a known number of bytes; over an unknown number, a spinner that counts them.
pub fn bytes(total: Option<u64>) -> ProgressBar {
    match total {
        Some(_) => styled(total, "{bar:40} {bytes}/{total_bytes} {bytes_per_sec} {eta} left"),
        None => styled(None, "{spinner} {bytes} {bytes_per_sec}"),
    }
}

/// A bar over a known number of steps.
pub fn steps(total: u64, unit: &str) -> ProgressBar {
    styled(Some(total), &format!("{{bar:40}} {{pos}}/{{len}} {unit}"))
}

/// A spinner that counts.
pub fn count(unit: &str) -> ProgressBar {
    styled(None, &format!("{{spinner}} {{human_pos}} {unit}"))
}

/// A spinner that turns by itself, for one long call.
pub fn spinner(what: &'static str) -> ProgressBar {
    let bar = styled(None, "{spinner} {msg} ({elapsed})").with_message(what);
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

fn styled(total: Option<u64>, template: &str) -> ProgressBar {
    // `stderr` hides itself where standard error is not a terminal.
    let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr());
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        // A template that indicatif does not know costs only the look.
        Err(_) => bar,
    }
}
