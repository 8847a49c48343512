//! The extension in hosts that are not ours: the `sqlite3` shell, and Python's `sqlite3`.
//!
//! Owns: building it as the documentation says, and using it there. Promises: without such a host on the machine its
//! tests say so and pass, unless `BYGONE_HOSTS=required`. May call: cargo, and the hosts.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::LazyLock;

/// The extension's file.
static EXTENSION: LazyLock<PathBuf> = LazyLock::new(|| {
    let built = Command::new(env!("CARGO"))
        .args(["build", "--release", "--locked", "--package", "bygone-sql-extension"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status()
        .expect("cargo runs");
    assert!(built.success());
    // The test itself lies in target/PROFILE/deps.
    let test = std::env::current_exe().expect("it has a path");
    let target = test.ancestors().nth(3).expect("three folders above");
    let extension = target.join("release/libbygone_sql.so");
    assert!(extension.is_file(), "{}", extension.display());
    extension
});

/// Python with an `sqlite3` that loads extensions, if there is one.
static PYTHON: LazyLock<Option<&str>> = LazyLock::new(|| {
    let able = "import sqlite3; sqlite3.connect(':memory:').enable_load_extension(True)";
    let works = |name: &&str| {
        let run = Command::new(name).args(["-c", able]).stderr(Stdio::null()).status();
        run.is_ok_and(|status| status.success())
    };
    ["python3", "/usr/bin/python3"].into_iter().find(works)
});

/// Whether a host is there; if not, says that its test is skipped.
fn is_there(host: &str, there: bool) -> bool {
    if !there {
        let required = std::env::var_os("BYGONE_HOSTS").is_some_and(|value| value == "required");
        assert!(!required, "{host} is not installed");
        eprintln!("skipped: {host} is not installed");
    }
    there
}

/// Runs a host with this on its standard input; answers whether it was content, and what it wrote, errors included.
fn run(program: &str, arguments: &[&str], input: &str, directory: &std::path::Path) -> (bool, String) {
    let mut child = Command::new(program)
        .args(arguments)
        .current_dir(directory)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the host runs");
    child.stdin.take().expect("piped").write_all(input.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

fn shell(script: &str, directory: &std::path::Path) -> (bool, String) {
    run("sqlite3", &["-batch", "-bail"], &format!(".load {}\n{script}", EXTENSION.display()), directory)
}

fn shell_is_there() -> bool {
    let found = Command::new("sqlite3").arg("--version").stdout(Stdio::null()).status();
    is_there("the sqlite3 shell", found.is_ok())
}

#[test]
fn no_sqlite_is_in_it() {
    let bytes = std::fs::read(&*EXTENSION).expect("it is there");
    let has = |text: &[u8]| bytes.windows(text.len()).any(|window| window == text);
    assert!(has(b"sqlite3_extension_init") && has(b"sqlite3_bygonesql_init"));
    for sign in [&b"SQLite format 3"[..], b"sqlite3_open", b"sqlite3_prepare", b"libsqlite3"] {
        assert!(!has(sign), "{}", sign.escape_ascii());
    }
}

#[test]
fn the_shell_reads_the_past() {
    if !shell_is_there() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let script = "
.open file:bank?vfs=bygone
CREATE TABLE accounts(owner TEXT PRIMARY KEY, balance INTEGER);
INSERT INTO accounts VALUES ('alice', 100), ('bob', 20);
SELECT snapshot_now('before-fees');
UPDATE accounts SET balance = balance - 5;
PRAGMA as_of = 'before-fees';
SELECT sum(balance) FROM accounts;
PRAGMA as_of = now;
SELECT sum(balance) FROM accounts;
ATTACH 'file:bank?vfs=bygone&as_of=before-fees' AS past;
SELECT owner, main.accounts.balance - past.accounts.balance FROM main.accounts JOIN past.accounts USING (owner);
BEGIN;
DELETE FROM accounts WHERE owner = 'bob';
SELECT snapshot_now('without bob');
COMMIT;
SELECT id, name FROM bygone_snapshots;
PRAGMA integrity_check;
PRAGMA journal_mode = WAL;
SELECT last_snapshot();
";
    let (content, text) = shell(script, directory.path());
    let expected =
        "1\nbefore-fees\n120\nnow\n110\nalice|-5\nbob|-5\n\n1|before-fees\n2|without bob\nok\nmemory\n2\n";
    assert_eq!((content, &text[..]), (true, expected));
    // Another process, by the command line.
    let uri = "file:bank?vfs=bygone&as_of=1";
    let (content, text) = shell(
        &format!(".open {uri}\nSELECT count(*) FROM accounts;\nDELETE FROM accounts;\n"),
        directory.path(),
    );
    assert!(!content && text.starts_with("2\n") && text.contains("readonly"), "{text}");
}

#[test]
fn the_shell_imports_and_dumps() {
    if !shell_is_there() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let csv: String = (0..5000).map(|i| format!("{i},name {i}\n")).collect();
    std::fs::write(directory.path().join("rows.csv"), format!("id,name\n{csv}")).expect("written");
    let script = "
.open file:bank?vfs=bygone&db=csv
.mode csv
.import rows.csv rows
.mode list
SELECT count(*), max(CAST(id AS INTEGER)) FROM rows;
CREATE INDEX by_name ON rows(name);
SELECT id FROM rows WHERE name = 'name 4321';
VACUUM;
PRAGMA integrity_check;
.backup copy.db
.open copy.db
SELECT count(*) FROM rows;
";
    let (content, text) = shell(script, directory.path());
    assert_eq!((content, &text[..]), (true, "5000|4999\n4321\nok\n5000\n"));
}

#[test]
fn a_second_process_is_told_who_has_the_directory() {
    let Some(python) = *PYTHON else {
        is_there("a Python whose sqlite3 loads extensions", false);
        return;
    };
    if !shell_is_there() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let open = "
.open file:bank?vfs=bygone
CREATE TABLE t(a);
INSERT INTO t VALUES (1);
SELECT snapshot_now('one');
";
    let python_first = format!(
        "import sqlite3, subprocess
c = sqlite3.connect(':memory:')
c.enable_load_extension(True)
c.load_extension({extension:?})
bank = sqlite3.connect('file:bank?vfs=bygone', uri=True)
def shell(script):
    done = subprocess.run(['sqlite3', '-batch'], input='.load {path}\\n' + script, text=True, capture_output=True)
    return done.stdout + done.stderr
print(shell('.open file:bank?vfs=bygone\\nSELECT * FROM t;\\n').strip())
print(shell('.open file:bank?vfs=bygone&as_of=one\\nSELECT a FROM t;\\n').strip())
bank.execute('UPDATE t SET a = 2')
bank.commit()
print(shell('.open file:bank?vfs=bygone&mode=ro\\nSELECT a FROM t;\\n').strip())
",
        extension = EXTENSION.display().to_string(),
        path = EXTENSION.display(),
    );
    let (content, text) = shell(open, directory.path());
    assert!(content, "{text}");
    let (content, text) = run(python, &["-"], &python_first, directory.path());
    assert!(content, "{text}");
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].contains("locked"), "{text}");
    assert_eq!(lines[lines.len() - 2..], ["1", "2"], "{text}");
}

#[test]
fn python_uses_it() {
    let Some(python) = *PYTHON else {
        is_there("a Python whose sqlite3 loads extensions", false);
        return;
    };
    let directory = tempfile::tempdir().expect("a directory");
    let script = format!(
        "import sqlite3, threading
loader = sqlite3.connect(':memory:')
loader.enable_load_extension(True)
loader.load_extension({extension:?})
loader.close()

bank = sqlite3.connect('file:bank?vfs=bygone', uri=True)
bank.execute('CREATE TABLE accounts(owner TEXT PRIMARY KEY, balance INTEGER)')
with bank:
    bank.executemany('INSERT INTO accounts VALUES (?, ?)', [(f'owner {{i}}', i) for i in range(1000)])
assert bank.execute('SELECT snapshot_now(?)', ['a thousand']).fetchone() == (1,)
with bank:
    bank.execute('DELETE FROM accounts WHERE balance >= 10')
    assert bank.execute('SELECT snapshot_now(?)', ['ten']).fetchone() == (None,)

total = 'SELECT count(*) FROM accounts'
assert bank.execute(total).fetchone() == (10,)
assert bank.execute('PRAGMA as_of = \"a thousand\"').fetchone() == ('a thousand',)
assert bank.execute(total).fetchone() == (1000,)
try:
    bank.execute('DELETE FROM accounts')
    assert False
except sqlite3.OperationalError as error:
    assert 'readonly' in str(error), error
bank.rollback()
assert bank.execute('PRAGMA as_of = now').fetchone() == ('now',)
assert bank.execute('SELECT name FROM bygone_snapshots ORDER BY id').fetchall() == [('a thousand',), ('ten',)]

def read():
    other = sqlite3.connect('file:bank?vfs=bygone&as_of=ten', uri=True)
    counts.append(other.execute(total).fetchone()[0])
    other.close()
counts = []
threads = [threading.Thread(target=read) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert counts == [10] * 4, counts
assert bank.execute('PRAGMA integrity_check').fetchone() == ('ok',)
print('done')
",
        extension = EXTENSION.display().to_string()
    );
    let (content, text) = run(python, &["-"], &script, directory.path());
    assert_eq!((content, text.trim()), (true, "done"));
}

/// The first block of the documentation in this language.
fn documented(language: &str) -> String {
    let page = include_str!("../../../docs/sql.md");
    let begin = format!("```{language}\n");
    let block = page.split_once(&begin).and_then(|(_, rest)| rest.split_once("```")).map(|(block, _)| block);
    block.expect("there is such a block").to_owned()
}

#[test]
fn the_documentation_s_examples_run() {
    let directory = tempfile::tempdir().expect("a directory");
    let release = EXTENSION.parent().expect("a folder above");
    std::fs::create_dir(directory.path().join("target")).expect("made");
    std::os::unix::fs::symlink(release, directory.path().join("target/release")).expect("made");
    if shell_is_there() {
        let (content, text) = run("sqlite3", &["-batch", "-bail"], &documented("text"), directory.path());
        assert_eq!((content, &text[..]), (true, "1\nbefore-fees\n120\nnow\nalice|-5\nbob|-5\n"));
    }
    match *PYTHON {
        Some(python) => {
            let example = documented("python");
            let script =
                format!("import sqlite3\n{example}\nprint(bank.execute('SELECT 7').fetchone()[0])\n");
            let (content, text) = run(python, &["-"], &script, directory.path());
            assert_eq!((content, text.trim()), (true, "7"));
        }
        None => {
            is_there("a Python whose sqlite3 loads extensions", false);
        }
    }
}
