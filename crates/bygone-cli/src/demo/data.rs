//! The demo's data: the Gapminder table, one row per country and survey year.
//!
//! Owns: the embedded file (see data/README.md for its source and licence). May call: `transfer`, `failure`.

use serde_json::{Value, json};

use super::wrong;
use crate::failure::Result;
use crate::numbers;
use crate::transfer::{self, Entry, Format, KeyColumns, Shape};

const CSV: &str = include_str!("../../data/gapminder.csv");

/// One survey: the year, and a row of each country.
pub struct Survey {
    /// The year; the name of its snapshot.
    pub name: String,
    pub entries: Vec<Entry>,
}

/// All surveys by year, as `bygone import --key country --snapshot-by year` would load them.
pub fn surveys() -> Result<Vec<Survey>> {
    let key = KeyColumns { columns: vec!["country".to_owned()], separator: "/".to_owned() };
    let shape = Shape { key: Some(key), snapshot_by: Some("year".to_owned()) };
    let groups = transfer::group(transfer::entries(CSV.as_bytes(), Format::Csv, shape))?;
    Ok(groups.into_iter().map(|(name, entries)| Survey { name, entries }).collect())
}

/// What a row says.
#[derive(Clone, Debug, PartialEq)]
pub struct Facts {
    pub continent: String,
    /// At birth, in years.
    pub life_expectancy: f64,
    pub population: u64,
    /// Per person, in international dollars of 2005.
    pub gdp_per_capita: f64,
}

impl Facts {
    pub fn parse(value: &[u8]) -> Result<Self> {
        let parsed = serde_json::from_slice::<Value>(value).ok().and_then(|row| {
            Some(Facts {
                continent: row["continent"].as_str()?.to_owned(),
                life_expectancy: row["lifeExp"].as_f64()?,
                population: row["pop"].as_u64()?,
                gdp_per_capita: row["gdpPercap"].as_f64()?,
            })
        });
        parsed.ok_or_else(|| wrong("a row of the data set is not what was stored"))
    }

    pub fn shown(&self) -> String {
        format!(
            "{:.1} years, {} people, {} dollars a head",
            self.life_expectancy,
            numbers::count(self.population),
            numbers::count(self.gdp_per_capita.round() as u64),
        )
    }

    pub fn to_json(&self) -> Value {
        json!({
            "life_expectancy_years": self.life_expectancy,
            "population": self.population,
            "gdp_per_capita_dollars": self.gdp_per_capita,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_holds_twelve_surveys_of_all_countries() {
        let surveys = surveys().unwrap();
        let years: Vec<String> = (1952..=2007).step_by(5).map(|year: u32| year.to_string()).collect();
        assert_eq!(surveys.iter().map(|survey| survey.name.clone()).collect::<Vec<_>>(), years);
        for survey in &surveys {
            assert_eq!(survey.entries.len(), 142, "{}", survey.name);
            for entry in &survey.entries {
                Facts::parse(&entry.value).unwrap();
            }
        }
    }
}
