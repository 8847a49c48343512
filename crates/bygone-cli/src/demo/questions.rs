//! The demo's questions.
//!
//! Owns: the queries, written as any program would write them. May call: `data`, `past`, `failure`.

use std::ops::ControlFlow;

use bygone::{Db, Snapshot};

use super::data::{Facts, Survey};
use super::{
    POINT_COUNTRY, POINT_YEAR, SCAN_CONTINENT, SCAN_LIMIT, SCAN_YEAR, TABLE, TREND_COUNTRIES, facts, wrong,
};
use crate::failure::Result;

/// A country of the scan, then and now.
pub struct Lead {
    pub country: String,
    pub then: Facts,
    pub now: Facts,
}

/// A country through all snapshots.
pub struct Trend {
    pub country: &'static str,
    /// The snapshot's name, and the life expectancy in years.
    pub points: Vec<(String, f64)>,
}

/// Compares every record as of every snapshot with the data file.
pub fn check_everything(db: &Db, surveys: &[Survey]) -> Result<()> {
    let declared = db.snapshots()?;
    if declared.len() != surveys.len() {
        return Err(wrong(format!(
            "{} snapshots were declared, {} are there",
            surveys.len(),
            declared.len()
        )));
    }
    for (info, survey) in declared.iter().zip(surveys) {
        if info.name.as_deref() != Some(&survey.name) {
            return Err(wrong(format!("snapshot {} is not named {}", info.id, survey.name)));
        }
        let past = db.as_of(info.id)?;
        let table = past.table(TABLE)?;
        // The scan counts, so that nothing more can be there; the look-ups compare.
        let mut records = 0;
        past.for_each(&table, .., |_, _| {
            records += 1;
            ControlFlow::Continue(())
        })?;
        if records != survey.entries.len() {
            return Err(wrong(format!("{records} records as of {}", survey.name)));
        }
        for entry in &survey.entries {
            if past.get(&table, &entry.key)?.as_deref() != Some(&entry.value) {
                let country = String::from_utf8_lossy(&entry.key);
                return Err(wrong(format!("{country} as of {}", survey.name)));
            }
        }
    }
    Ok(())
}

pub fn point(db: &Db) -> Result<(Facts, Facts)> {
    Ok((facts(db, Some(POINT_YEAR), POINT_COUNTRY)?, facts(db, None, POINT_COUNTRY)?))
}

/// The countries of one continent that led as of a year.
pub fn longest_lives(db: &Db) -> Result<Vec<Lead>> {
    let past = db.as_of(SCAN_YEAR)?;
    let mut countries: Vec<(String, Facts)> =
        scan(&past)?.into_iter().filter(|(_, facts)| facts.continent == SCAN_CONTINENT).collect();
    countries.sort_by(|(_, a), (_, b)| b.life_expectancy.total_cmp(&a.life_expectancy));
    countries.truncate(SCAN_LIMIT);
    countries
        .into_iter()
        .map(|(country, then)| Ok(Lead { now: facts(db, None, &country)?, country, then }))
        .collect()
}

fn scan(view: &Snapshot) -> Result<Vec<(String, Facts)>> {
    let table = view.table(TABLE)?;
    let mut all = Vec::new();
    for record in view.range(&table, ..)? {
        let (country, value) = record?;
        all.push((String::from_utf8_lossy(&country).into_owned(), Facts::parse(&value)?));
    }
    Ok(all)
}

/// The same point query as of every snapshot there is.
pub fn trends(db: &Db) -> Result<Vec<Trend>> {
    let mut trends = TREND_COUNTRIES.map(|country| Trend { country, points: Vec::new() });
    for info in db.snapshots()? {
        let past = db.as_of(info.id)?;
        let table = past.table(TABLE)?;
        for trend in &mut trends {
            let value = past.get(&table, trend.country.as_bytes())?;
            let value = value.ok_or_else(|| wrong(format!("{} is not there", trend.country)))?;
            let name = info.name.clone().unwrap_or_else(|| info.id.to_string());
            trend.points.push((name, Facts::parse(&value)?.life_expectancy));
        }
    }
    Ok(trends.into())
}
