//! Two sides that take turns, so that what slows the machine for a while slows both.
//!
//! Owns: the order of the turns, medians, and what one side is behind the other. Promises: neither side is always
//! the first, and only turns that are next to each other are compared.

use anyhow::Result;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// What the other is compared with.
    Plain,
    Other,
}

/// The figures of all turns.
#[derive(Default)]
pub struct Turns {
    pub plain: Vec<f64>,
    pub other: Vec<f64>,
}

impl Turns {
    /// How many times the other side's figure is of the plain one's: the median over pairs of turns.
    pub fn ratio(&self) -> f64 {
        median(self.plain.iter().zip(&self.other).map(|(plain, other)| other / plain).collect())
    }

    /// How many percent less the other side's figure is.
    pub fn lost(&self) -> f64 {
        (1.0 - self.ratio()) * 100.0
    }

    pub fn medians(&self) -> (f64, f64) {
        (median(self.plain.clone()), median(self.other.clone()))
    }
}

/// Lets both sides have so many turns: A B B A A B B A. A turn gives `N` figures, each of which is gathered by itself.
pub fn take<const N: usize>(
    turns: usize,
    mut turn: impl FnMut(Side, usize) -> Result<[f64; N]>,
) -> Result<[Turns; N]> {
    let mut all = std::array::from_fn(|_| Turns::default());
    for number in 0..turns {
        let pair = if number % 2 == 0 { [Side::Plain, Side::Other] } else { [Side::Other, Side::Plain] };
        for side in pair {
            let figures = turn(side, number)?;
            for (turns, figure) in all.iter_mut().zip(figures) {
                match side {
                    Side::Plain => turns.plain.push(figure),
                    Side::Other => turns.other.push(figure),
                }
            }
        }
    }
    Ok(all)
}

pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => values[middle],
        _ => (values[middle - 1] + values[middle]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_compared_with_their_neighbours() {
        let mut order = Vec::new();
        // A machine that gets slower all the time; the other side takes half as much again.
        let [turns] = take(4, |side, number| {
            order.push(side);
            let slowness = 1.0 + number as f64;
            Ok([if side == Side::Plain { slowness } else { slowness * 1.5 }])
        })
        .unwrap();
        let (plain, other) = (Side::Plain, Side::Other);
        assert_eq!(order, [plain, other, other, plain, plain, other, other, plain]);
        assert_eq!(turns.ratio(), 1.5);
        assert_eq!(turns.lost(), -50.0);
        assert_eq!(turns.medians(), (2.5, 3.75));
    }
}
