//! sql: statements, modes, the past, commands, the shell.

use std::fs;
use std::process::Command;
use std::time::Duration;

use rexpect::session::PtySession;

use super::{Ended, Place};

impl Place {
    /// Runs `bygone sql db` with these arguments.
    pub fn run_sql(&self, arguments: &[&str]) -> Ended {
        self.run_with(&[&["sql", "db"], arguments].concat(), b"")
    }

    pub fn sql(&self, arguments: &[&str]) -> String {
        self.run_sql(arguments).ok()
    }

    /// Runs what a pipe brings.
    fn run_script(&self, arguments: &[&str], script: &str) -> Ended {
        self.run_with(&[&["sql", "db"], arguments].concat(), script.as_bytes())
    }
}

impl Ended {
    /// Ended with `code`, and one line that contains `expected`.
    pub fn fails(self, code: i32, expected: &str) {
        assert_eq!((self.code, self.stderr.lines().count()), (code, 1), "{}", self.stderr);
        assert!(self.stderr.contains(expected), "{}", self.stderr);
    }
}

fn with_accounts() -> Place {
    let place = Place::new();
    place.sql(&["CREATE TABLE accounts(owner TEXT PRIMARY KEY, balance INTEGER) STRICT;
                 INSERT INTO accounts VALUES ('alice', 100), ('bob', NULL);"]);
    place
        .sql(&["BEGIN; UPDATE accounts SET balance = 95 WHERE owner = 'alice'; COMMIT WITH SNAPSHOT 'fees'"]);
    place.sql(&["UPDATE accounts SET balance = 5; CREATE TABLE later(x)"]);
    place
}

#[test]
fn statements_are_run_and_their_rows_shown() {
    let place = with_accounts();
    assert_eq!(
        place.sql(&["SELECT owner, balance FROM accounts WHERE owner = 'alice'"]),
        "┌───────┬─────────┐\n│ owner ┆ balance │\n╞═══════╪═════════╡\n│ alice ┆       5 │\n└───────┴─────────┘\n"
    );
    let all = "SELECT * FROM accounts";
    assert_eq!(place.sql(&["--mode", "csv", all]), "owner,balance\nalice,5\nbob,5\n");
    assert_eq!(place.sql(&["--mode", "csv", "--no-header", all]), "alice,5\nbob,5\n");
    let objects = "{\"owner\":\"alice\",\"balance\":5}\n{\"owner\":\"bob\",\"balance\":5}\n";
    assert_eq!(place.sql(&["--json", all]), objects);
    assert_eq!(place.sql(&["--mode", "jsonl", all]), objects);
    assert!(place.sql(&["--mode", "json", all]).starts_with("[{\"owner\":\"alice\""));
    assert_eq!(place.sql(&["--mode", "list", "--no-header", "SELECT 1, NULL; SELECT 2"]), "1|\n2\n");
    assert_eq!(place.sql(&["--mode", "line", "SELECT 1 AS a"]), "a = 1\n");
    assert!(place.sql(&["--mode", "markdown", all]).starts_with("| owner | balance |\n|"));
}

#[test]
fn databases_have_names() {
    let place = with_accounts();
    place.sql(&["--db", "other", "CREATE TABLE t(x); INSERT INTO t VALUES (1)"]);
    assert_eq!(place.sql(&["--db", "other", "--mode", "list", "SELECT * FROM t"]), "x\n1\n");
    place.run_sql(&["SELECT * FROM t"]).fails(2, "no such table: t");
    let databases = place.sql(&["--mode", "list", ".databases"]);
    assert!(databases.contains("|main|") && databases.contains("|other|"), "{databases}");
}

#[test]
fn the_past_is_read_and_not_written() {
    let place = with_accounts();
    let balance = "SELECT balance FROM accounts WHERE owner = 'alice'";
    let list = |arguments: &[&str]| place.sql(&[&["--mode", "list", "--no-header"], arguments].concat());
    assert_eq!(list(&["--as-of", "fees", balance]), "95\n");
    assert_eq!(list(&["--as-of", "1", balance]), "95\n");
    let commit = &place.json("snapshots db")[0]["seq"];
    assert_eq!(list(&["--as-of", &format!("@{commit}"), balance]), "95\n");
    assert_eq!(list(&[balance]), "5\n");
    assert_eq!(list(&["SELECT AS OF fees balance FROM accounts WHERE owner = 'alice'; SELECT 1"]), "95\n1\n");
    assert_eq!(list(&["--as-of", "fees", ".tables"]), "accounts|table\n");
    assert_eq!(list(&[".tables"]), "accounts|table\nlater|table\n");
    assert_eq!(list(&["SELECT id, name FROM bygone_snapshots"]), "1|fees\n");
    assert_eq!(list(&["SELECT snapshot_now('again')"]), "2\n");

    place.run_sql(&["--as-of", "fees", "DELETE FROM accounts"]).fails(2, "readonly");
    place.run_sql(&["--as-of", "id:x", balance]).fails(2, "not understood");
    place.run_sql(&["--as-of", "9", balance]).fails(1, "no declared snapshot");
    place.run_sql(&["--as-of", "never", balance]).fails(1, "no snapshot is named \"never\"");
    place.run_sql(&["SELECT AS OF never 1"]).fails(1, "no snapshot is named \"never\"");
    place.run_with(&["sql", "absent", "--as-of", "fees", "SELECT 1"], b"").fails(2, "there is no database");
    assert!(!place.path("absent").exists());
}

#[test]
fn moments_are_named_as_everywhere() {
    let place = with_accounts();
    let commit = place.json("snapshots db")[0]["seq"].to_string();
    let balance = "SELECT balance FROM accounts WHERE owner = 'alice'";
    for word in [
        format!("@{commit}"),
        format!("commit:{commit}"),
        format!("seq:{commit}"),
        "id:1".into(),
        "fees".into(),
    ] {
        let sql = format!("PRAGMA as_of = '{word}'; {balance}");
        assert!(place.sql(&["--mode", "list", "--no-header", &sql]).ends_with("\n95\n"), "{word}");
        assert_eq!(
            place.sql(&["--mode", "list", "--no-header", "--as-of", &word, balance]),
            "95\n",
            "{word}"
        );
        assert!(place.ok(&format!("scan db sql/main --as-of {word} --limit 1")).len() > 4, "{word}");
    }
    assert_eq!(place.sql(&["--mode", "list", "--no-header", "--as-of", "now", balance]), "5\n");
}

#[test]
fn what_changed_is_shown_with_columns() {
    let place = with_accounts();
    place.sql(&["SELECT snapshot_now('later')"]);
    let list = |command: &str| place.sql(&["--mode", "list", command]);
    let change = "change|owner|balance|old_balance\n";
    assert_eq!(list(".diff accounts fees"), format!("{change}update|alice|5|95\nupdate|bob|5|\n"));
    assert_eq!(list(".diff accounts later now"), change);
    let history = "snapshot|change|owner|balance\n";
    assert_eq!(list(".history accounts alice"), format!("{history}1|insert|alice|95\n2|update|alice|5\n"));
    assert_eq!(list(".history accounts").lines().count(), 5);
    assert_eq!(list(".tables"), "name|type\naccounts|table\nlater|table\n");
    place.run_sql(&[".diff accounts"]).fails(2, "write .diff TABLE A [B]");
    place.run_sql(&[".diff absent fees"]).fails(2, "no table \"absent\"");
    place.run_sql(&[".diff accounts never"]).fails(1, "never");
    place.run_sql(&[".history accounts a b c d"]).fails(2, "no key of 4 values");
}

#[test]
fn errors_have_their_codes_and_leave_what_was_committed() {
    let place = with_accounts();
    place.run_sql(&["SELEC 1"]).fails(2, "near \"SELEC\": syntax error");
    place.run_sql(&["INSERT INTO accounts VALUES ('alice', 1)"]).fails(1, "UNIQUE constraint failed");
    place.run_sql(&["COMMIT WITH SNAPSHOT"]).fails(2, "none is open");
    place.run_sql(&["BEGIN; DELETE FROM accounts; COMMIT WITH SNAPSHOT fees"]).fails(1, "taken");
    place.run_sql(&[".nothing"]).fails(2, ".help");
    place.run_sql(&[".mode xml"]).fails(2, "there are table, markdown, csv");
    place.run_sql(&[".import only-one"]).fails(2, "write .import FILE TABLE");
    place.run_sql(&[".read absent.sql"]).fails(2, "absent.sql does not exist");
    place.run_sql(&["--mode", "xml", "SELECT 1"]).fails(2, "possible values: table");
    let count = place.sql(&["--json", "SELECT count(*) AS n FROM accounts"]);
    assert_eq!(count, "{\"n\":2}\n");
    // What was shown before the error is still there.
    let ended = place.run_sql(&["--json", "SELECT 1 AS a; SELECT * FROM absent; SELECT 2 AS a"]);
    assert_eq!(ended.stdout, b"{\"a\":1}\n");
    assert_eq!(ended.code, 2);
}

#[test]
fn a_pipe_brings_statements_and_commands() {
    let place = with_accounts();
    let script = "
        -- nothing; yet
        SELECT 'a;
b' AS text; SELECT 2 AS two;
.mode list
.headers off
CREATE TRIGGER note AFTER INSERT ON later BEGIN
  UPDATE accounts SET balance = balance + 1;
END;
INSERT INTO later VALUES (1);
.asof fees
SELECT owner, balance FROM accounts;
.asof
.asof now
SELECT owner, balance FROM accounts
";
    let shown = place.run_script(&["--mode", "csv"], script).ok();
    assert_eq!(shown, "text\n\"a;\nb\"\ntwo\n2\nalice|95\nbob|\nfees\nalice|6\nbob|6\n");

    let ended = place.run_script(&["--mode", "list"], "SELECT 1;\n\nSELECT\n  * FROM absent;\nSELECT 2;\n");
    assert_eq!(ended.stdout, b"1\n1\n");
    ended.fails(2, "line 3: no such table: absent");

    fs::write(place.path("script.sql"), "SELECT 1 AS a;\nSELECT x FROM absent;\n").unwrap();
    place.run_sql(&[".read script.sql"]).fails(2, "script.sql, line 2: no such table");
    fs::write(place.path("endless.sql"), ".read endless.sql\n").unwrap();
    place.run_sql(&[".read endless.sql"]).fails(2, "no more");
    assert_eq!(place.run_script(&[], ".quit\nSELECT 1;\n").ok(), "");
}

#[test]
fn schemas_are_listed() {
    let place = with_accounts();
    place.sql(&["CREATE INDEX by_balance ON accounts(balance); CREATE VIEW rich AS SELECT 1 AS x"]);
    let list = |line: &str| place.sql(&["--mode", "list", "--no-header", line]);
    assert_eq!(list(".tables"), "accounts|table\nlater|table\nrich|view\n");
    assert_eq!(list(".tables la%"), "later|table\n");
    assert!(list(".indexes accounts").contains("by_balance|accounts\n"));
    let schema = list(".schema accounts");
    assert!(schema.starts_with("CREATE TABLE accounts(owner TEXT PRIMARY KEY"), "{schema}");
    assert!(schema.ends_with("CREATE INDEX by_balance ON accounts(balance);\n"), "{schema}");
    place.run_sql(&[".schema absent"]).fails(1, "absent");
    assert!(list(".snapshots").starts_with("1|fees|2"));
    assert!(place.sql(&[".help"]).contains(".snapshots [sizes]"));
    let plot = place.sql(&[".plot SELECT 1950 + value * 5, value * value FROM json_each('[1,2,3,4]')"]);
    assert!(plot.contains("1955") && plot.contains("16"), "{plot}");
    place.run_sql(&[".plot SELECT 1"]).fails(2, "two columns");
}

#[test]
fn a_dump_makes_the_database_again() {
    let place = Place::new();
    place.sql(&["PRAGMA user_version = 7;
        CREATE TABLE t(id INTEGER PRIMARY KEY AUTOINCREMENT, a TEXT, b BLOB, r REAL, g AS (a || '!'));
        INSERT INTO t(a, b, r) VALUES ('it''s\nMalmö', x'00ff', 0.1), (NULL, NULL, 1e300), ('', '', 9e999);
        CREATE TABLE \"odd name\"(\"a \"\"b\" PRIMARY KEY) WITHOUT ROWID; INSERT INTO \"odd name\" VALUES (1);
        CREATE INDEX i ON t(a); CREATE VIEW v AS SELECT a FROM t;
        CREATE TRIGGER g AFTER DELETE ON t BEGIN DELETE FROM \"odd name\"; END;
        CREATE VIRTUAL TABLE words USING fts5(text); INSERT INTO words VALUES ('past and present'), ('past');"]);
    let dump = place.sql(&[".dump"]);
    let stock = rusqlite::Connection::open_in_memory().unwrap();
    stock.execute_batch(&dump).unwrap();
    let texts = |sql: &str| -> Vec<String> {
        let mut statement = stock.prepare(sql).unwrap();
        let rows = statement.query_map([], |row| row.get(0)).unwrap();
        rows.map(Result::unwrap).collect()
    };
    assert_eq!(texts("PRAGMA integrity_check"), ["ok"]);
    for sql in [
        "SELECT quote(id) || quote(a) || quote(b) || quote(r) || quote(g) FROM t ORDER BY id",
        "SELECT quote(\"a \"\"b\") FROM \"odd name\"",
        "SELECT type || name || coalesce(sql, '') FROM sqlite_schema ORDER BY name",
        "SELECT name || seq FROM sqlite_sequence",
    ] {
        let ours = place.sql(&["--mode", "list", "--no-header", sql]);
        assert_eq!(ours.trim_end(), texts(sql).join("\n"), "{sql}");
    }
    // What follows a change of the schema table is there when it is read anew, as SQLite's own dumps say.
    let place_again = Place::new();
    place_again.run_script(&[], &dump).ok();
    let found = place_again.sql(&["--mode", "list", "--no-header", "SELECT count(*) FROM words('past')"]);
    assert_eq!(found, "2\n");
    assert!(!place.sql(&[".dump t"]).contains("odd name\"("));
    place.run_sql(&[".dump absent"]).fails(1, "absent");
}

#[test]
fn csv_is_imported_whole_or_not() {
    let place = with_accounts();
    fs::write(place.path("in.csv"), "owner,balance\ncarol,7\n\"d,e\",\n").unwrap();
    place.sql(&[".import in.csv accounts"]);
    place.sql(&[".import in.csv 'new table'"]);
    let rows = "SELECT owner, typeof(balance) FROM";
    let list = |sql: &str| place.sql(&["--mode", "list", "--no-header", sql]);
    assert_eq!(list(&format!("{rows} \"new table\"")), "carol|integer\nd,e|null\n");
    assert_eq!(
        list(&format!("{rows} accounts WHERE owner IN ('carol', 'd,e')")),
        "carol|integer\nd,e|null\n"
    );
    fs::write(place.path("bad.csv"), "owner,balance\nerin,1\ncarol,7\n").unwrap();
    place.run_sql(&[".import bad.csv accounts"]).fails(1, "bad.csv, line 3: UNIQUE");
    fs::write(place.path("ragged.csv"), "owner,balance\nerin,1\nfrank\n").unwrap();
    place.run_sql(&[".import ragged.csv accounts"]).fails(2, "ragged.csv, line 3: 1 columns");
    assert_eq!(list("SELECT count(*) FROM accounts"), "4\n");

    let script =
        ".mode csv\n.output out.csv\nSELECT owner FROM accounts ORDER BY 1;\n.output\nSELECT 1 AS a;\n";
    assert_eq!(place.run_script(&[], script).ok(), "a\n1\n");
    let written = fs::read_to_string(place.path("out.csv")).unwrap();
    assert_eq!(written, "owner\nalice\nbob\ncarol\n\"d,e\"\n");
}

#[test]
fn beside_a_process_that_writes_it_is_read() {
    let place = with_accounts();
    let mut owner = place.owner();
    let balance = "SELECT sum(balance) AS n FROM accounts";
    assert_eq!(place.sql(&["--json", "--as-of", "fees", balance]), "{\"n\":95}\n");
    assert_eq!(place.sql(&["--json", balance]), "{\"n\":10}\n");
    assert_eq!(
        place.sql(&["--json", "SELECT AS OF fees balance FROM accounts LIMIT 1"]),
        "{\"balance\":95}\n"
    );
    place.run_sql(&["DELETE FROM accounts"]).fails(4, &format!("process {}", owner.id()));
    place.run_sql(&["--db", "absent", "SELECT 1"]).fails(1, "there is no SQL database \"absent\"");
    drop(owner.stdin.take());
    owner.wait().expect("it ends");
    place.sql(&["DELETE FROM accounts"]);
}

fn shell(place: &Place) -> PtySession {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bygone"));
    command
        .args(["sql", "db", "--mode", "list"])
        .current_dir(place.dir.path())
        .env("TERM", "xterm")
        .env("BYGONE_SQL_HISTORY", place.path("history"));
    let mut shell = rexpect::session::spawn_command(command, Some(60_000)).expect("the shell starts");
    shell.exp_string("bygone> ").expect("a prompt");
    shell
}

#[test]
fn the_shell_talks_with_a_person() {
    let place = with_accounts();
    let mut shell = shell(&place);
    let mut say = |line: &str, answer: &str, prompt: &str| {
        shell.send_line(line).expect("it listens");
        shell.exp_string(answer).unwrap_or_else(|error| panic!("{line}: {error}"));
        shell.exp_string(prompt).unwrap_or_else(|error| panic!("{line}: {error}"));
    };
    say("SELECT owner || '-' || balance FROM accounts;", "alice-5", "bygone> ");
    // A statement goes on until its semicolon, an error does not end the session.
    say("SELECT 40 +\r 2;", "42", "bygone> ");
    say("SELECT * FROM absent;", "no such table: absent", "bygone> ");
    say(".asof fees", "", "bygone as of fees> ");
    say("SELECT sum(balance) || '!' FROM accounts;", "95!", "bygone as of fees> ");
    say(".asof now", "", "bygone> ");
    say("BEGIN;", "", "bygone*> ");
    say("DELETE FROM later; COMMIT WITH SNAPSHOT 'emptied';", "snapshot 2", "bygone> ");
    say("SELECT sum(balance) || '?' FROM acc\t;", "10?", "bygone> ");
    say(".timer on", "s", "bygone> ");

    // Ctrl-C ends the statement that runs, and drops a line that is typed.
    shell
        .send_line("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n;")
        .unwrap();
    std::thread::sleep(Duration::from_millis(500));
    shell.send_control('c').unwrap();
    shell.exp_string("interrupted").expect("the statement ends");
    shell.exp_string("bygone> ").expect("a prompt");
    shell.send("SELECT nothing").unwrap();
    shell.flush().unwrap();
    shell.send_control('c').unwrap();
    shell.exp_string("bygone> ").expect("a prompt");
    shell.send_line("SELECT 'still' || '-here';").unwrap();
    shell.exp_string("still-here").expect("the session goes on");
    shell.send_line(".quit").unwrap();
    shell.exp_eof().expect("it ends");
    let history = fs::read_to_string(place.path("history")).expect("a history");
    assert!(history.contains("emptied") && !history.contains("SELECT nothing\n"), "{history}");
}
