//! `bygone put`, `get`, `delete`, `scan`.
//!
//! Owns: how single records go in and out. Promises: reading creates neither database nor table. May call:
//! `open`, `past`, `text`, `output`, `failure`.

use std::ffi::OsStr;
use std::ffi::OsString;
use std::io::Read;
use std::ops::Bound;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use bygone::limits::VALUE_BYTES_MAX;
use clap::Args;
use serde_json::{Map, Value, json};

use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::past::AsOf;
use crate::{open, text};

/// One byte more than the largest value: enough to see that it is too large, without reading for ever.
const STDIN_BYTES_MAX: u64 = VALUE_BYTES_MAX as u64 + 1;

#[derive(Args)]
pub struct Put {
    /// Directory of the database; made if it does not exist
    db: PathBuf,
    /// Table; made if it does not exist
    table: String,
    /// Key
    key: OsString,
    /// The value; "-" or nothing reads it from standard input
    value: Option<OsString>,
    #[command(flatten)]
    form: Form,
}

#[derive(Args)]
pub struct Get {
    /// Directory of the database
    db: PathBuf,
    /// Table
    table: String,
    /// Key
    key: OsString,
    #[command(flatten)]
    as_of: AsOf,
    /// Write the value's bytes as they are, with no line end
    #[arg(long, conflicts_with = "json")]
    raw: bool,
    #[command(flatten)]
    form: Form,
}

#[derive(Args)]
pub struct Delete {
    /// Directory of the database
    db: PathBuf,
    /// Table
    table: String,
    /// Key
    key: OsString,
    #[command(flatten)]
    form: Form,
}

#[derive(Args)]
pub struct Scan {
    /// Directory of the database
    db: PathBuf,
    /// Table
    table: String,
    #[command(flatten)]
    as_of: AsOf,
    /// Start at this key
    #[arg(long, value_name = "KEY")]
    from: Option<OsString>,
    /// Stop before this key
    #[arg(long, value_name = "KEY")]
    to: Option<OsString>,
    /// Only keys that begin so
    #[arg(long, value_name = "KEY", conflicts_with_all = ["from", "to"])]
    prefix: Option<OsString>,
    /// At most this many records
    #[arg(long, value_name = "N", value_parser = whole_number)]
    limit: Option<u64>,
    /// From the last key to the first
    #[arg(long)]
    reverse: bool,
    /// Leave the values out
    #[arg(long)]
    keys_only: bool,
    #[command(flatten)]
    form: Form,
}

#[derive(Args)]
pub struct Form {
    /// Keys and values on the command line are escaped: \\ \n \r \t \xNN, as `scan` prints them
    #[arg(short, long)]
    escaped: bool,
}

pub fn whole_number(text: &str) -> std::result::Result<u64, String> {
    text.parse().map_err(|_| "a whole number is wanted".to_owned())
}

impl Form {
    pub fn bytes(&self, argument: &OsStr) -> Result<Vec<u8>> {
        match self.escaped {
            true => text::unescape(argument.as_bytes()).map_err(Failure::Usage),
            false => Ok(argument.as_bytes().to_vec()),
        }
    }
}

pub fn put(args: &Put, out: &mut Output) -> Result<()> {
    let key = args.form.bytes(&args.key)?;
    let value = match &args.value {
        Some(value) if value != "-" => args.form.bytes(value)?,
        _ => read_stdin()?,
    };
    let db = open::or_create(&args.db)?;
    let table = db.table(&args.table)?;
    let mut tx = db.begin()?;
    tx.put(&table, &key, &value)?;
    let seq = tx.commit()?;
    match out.is_json() {
        true => out.json(&json!({ "seq": u64::from(seq) })),
        false => Ok(()),
    }
}

fn read_stdin() -> Result<Vec<u8>> {
    let mut value = Vec::new();
    std::io::stdin()
        .lock()
        .take(STDIN_BYTES_MAX)
        .read_to_end(&mut value)
        .map_err(|error| Failure::System(format!("cannot read standard input: {error}")))?;
    Ok(value)
}

pub fn get(args: &Get, out: &mut Output) -> Result<()> {
    let key = args.form.bytes(&args.key)?;
    let db = open::reading(&args.db)?;
    let view = args.as_of.view(&db)?;
    let table = view.table(&args.table)?;
    let Some(value) = view.get(&table, &key)? else {
        return Err(no_key(&key, &args.table, &args.as_of.shown()));
    };
    if out.is_json() {
        out.json(&record(&key, Some(&value)))
    } else if args.raw {
        out.raw(&value)
    } else {
        out.escaped(&value)?;
        out.raw(b"\n")
    }
}

pub fn delete(args: &Delete, out: &mut Output) -> Result<()> {
    let key = args.form.bytes(&args.key)?;
    let db = open::existing(&args.db)?;
    let table = db.open_table(&args.table)?;
    let mut tx = db.begin()?;
    if tx.get(&table, &key)?.is_none() {
        return Err(no_key(&key, &args.table, ""));
    }
    tx.delete(&table, &key)?;
    let seq = tx.commit()?;
    match out.is_json() {
        true => out.json(&json!({ "seq": u64::from(seq) })),
        false => Ok(()),
    }
}

fn no_key(key: &[u8], table: &str, then: &str) -> Failure {
    Failure::No(format!("no key \"{}\" in table {table:?}{then}", text::escape(key)))
}

pub fn scan(args: &Scan, out: &mut Output) -> Result<()> {
    let key = |argument: &Option<OsString>| argument.as_deref().map(|text| args.form.bytes(text)).transpose();
    let (mut from, mut to) = (key(&args.from)?, key(&args.to)?);
    if let Some(prefix) = key(&args.prefix)? {
        to = first_after_prefix(&prefix);
        from = Some(prefix);
    }
    if let (Some(from), Some(to)) = (&from, &to)
        && from > to
    {
        return Err(Failure::usage(
            "--from must not be greater than --to; --reverse turns the order of the answer",
        ));
    }
    let bounds = (
        from.as_deref().map_or(Bound::Unbounded, Bound::Included),
        to.as_deref().map_or(Bound::Unbounded, Bound::Excluded),
    );

    let db = open::reading(&args.db)?;
    let view = args.as_of.view(&db)?;
    let table = view.table(&args.table)?;
    let mut range = view.range(&table, bounds)?;
    let limit = args.limit.unwrap_or(u64::MAX);
    for _ in 0..limit {
        let next = if args.reverse { range.next_back() } else { range.next() };
        let Some(next) = next else { break };
        let (key, value) = next?;
        if out.is_json() {
            out.json(&record(&key, (!args.keys_only).then_some(&value)))?;
            continue;
        }
        out.escaped(&key)?;
        if !args.keys_only {
            out.raw(b"\t")?;
            out.escaped(&value)?;
        }
        out.raw(b"\n")?;
    }
    Ok(())
}

/// A record as JSON: `key` and `value`, or `key_base64` and `value_base64` where they are not UTF-8.
pub fn record(key: &[u8], value: Option<&[u8]>) -> Value {
    let mut object = Map::new();
    text::insert_bytes(&mut object, "key", key);
    if let Some(value) = value {
        text::insert_bytes(&mut object, "value", value);
    }
    Value::Object(object)
}

/// The least key that is greater than every key with this prefix; `None` if there is no such key.
fn first_after_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte != 0xff)?;
    let mut bound = prefix[..=last].to_vec();
    bound[last] += 1;
    Some(bound)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_before_the_next_one() {
        assert_eq!(first_after_prefix(b"ab"), Some(b"ac".to_vec()));
        assert_eq!(first_after_prefix(b"a\xff\xff"), Some(b"b".to_vec()));
        assert_eq!(first_after_prefix(b"\xff"), None);
        assert_eq!(first_after_prefix(b""), None);
    }
}
