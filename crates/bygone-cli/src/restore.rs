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
    /// The state: a snapshot's name, its id, a time, or @COMMIT, as for --as-of
    #[arg(value_name = "S")]
    snapshot: String,
}

pub fn restore(args: &Restore, out: &mut Output) -> Result<()> {
    let db = open::existing(&args.db)?;
    let state = past::State::of(&db, past::moment(&db, &args.snapshot)?)?;
    let restored = db.restore(state.asked.clone())?;
    if out.is_json() {
        return out.json(&json!({
            "restored": state.snapshot.map(u64::from),
            "restored_seq": u64::from(state.seq),
            "seq": u64::from(restored.seq),
            "before": u64::from(restored.before),
        }));
    }
    let before = restored.before;
    out.line(format_args!(
        "{state} is the present again; snapshot {before} is what was before (`restore` it to undo this)"
    ))
}
