//! `bygone restore`.
//!
//! Owns: going back from the command line. Promises: it says how to undo what it did. May call: `open`, `past`,
//! `output`, `failure`.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use crate::failure::Result;
use crate::output::Output;
use crate::{open, past};

#[derive(Args)]
pub struct Restore {
    /// Directory of the database
    db: PathBuf,
    /// The snapshot: a name, an id, or a time as for --as-of
    #[arg(value_name = "S")]
    snapshot: String,
}

pub fn restore(args: &Restore, out: &mut Output) -> Result<()> {
    let db = open::existing(&args.db)?;
    let info = past::find(&db, &args.snapshot)?;
    let restored = db.restore(&info)?;
    if out.is_json() {
        return out.json(&json!({
            "restored": u64::from(info.id),
            "seq": u64::from(restored.seq),
            "before": u64::from(restored.before),
        }));
    }
    let before = restored.before;
    out.line(format_args!(
        "snapshot {} is the present again; snapshot {before} is what was before (`restore` it to undo this)",
        info.id
    ))
}
