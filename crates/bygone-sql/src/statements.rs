//! Statements that SQLite does not know.
//!
//! Owns: cutting a script into statements, and telling those that mean the past. Promises: what is in strings, quoted
//! names and comments is left alone; what is not ours goes to SQLite as it is. May call: nothing.

use std::borrow::Cow;
use std::ops::Range;

/// One statement of a script.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Statement<'s> {
    /// SQLite's own.
    Plain(&'s str),
    /// `COMMIT WITH SNAPSHOT ['name']`.
    CommitWithSnapshot { name: Option<String> },
    /// `SELECT AS OF snapshot ...`: the snapshot, and the statement without it.
    SelectAsOf { snapshot: String, sql: String },
    /// One of ours that is not right.
    Wrong(&'static str),
}

/// The statements of a script, in order. Comments and empty statements between them are left out.
pub(crate) fn statements(script: &str) -> impl Iterator<Item = Statement<'_>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        loop {
            let end = statement_end(&script[at..])?;
            let text = &script[at..at + end];
            at += end;
            if let Some(statement) = statement(text) {
                return Some(statement);
            }
        }
    })
}

/// Whether a script ends where a statement may end: every statement in it has its semicolon, and no comment, string or
/// trigger is open. What reads statements line by line asks this to know whether to read on.
///
/// ```
/// assert!(bygone_sql::is_complete("SELECT ';'; -- done"));
/// assert!(!bygone_sql::is_complete("SELECT ';"));
/// assert!(!bygone_sql::is_complete("CREATE TRIGGER t AFTER INSERT ON a BEGIN DELETE FROM b;"));
/// ```
#[must_use]
pub fn is_complete(script: &str) -> bool {
    // The semicolon stands alone there if everything before it is complete; else it closes something, or is in it.
    let probe = format!("{script}\n;");
    let mut rest = &probe[..];
    loop {
        let first = tokens(rest).next();
        if first.is_some_and(|token| token.kind == Kind::Semicolon && token.at.end == rest.len()) {
            return true;
        }
        match statement_end(rest) {
            Some(end) if end < rest.len() => rest = &rest[end..],
            _ => return false,
        }
    }
}

/// What kind of token, and where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Token {
    kind: Kind,
    at: Range<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A keyword, a plain name, or a number.
    Word,
    /// In single quotes.
    Text,
    /// In any other quotes.
    Quoted,
    Semicolon,
    Other,
}

/// The tokens of a text, without white space and comments.
fn tokens(text: &str) -> impl Iterator<Item = Token> {
    let bytes = text.as_bytes();
    let mut at = 0;
    std::iter::from_fn(move || {
        loop {
            let from = at;
            let rest = &bytes[at..];
            let kind = match *rest.first()? {
                byte if byte.is_ascii_whitespace() => {
                    at += 1;
                    continue;
                }
                b'-' if rest.starts_with(b"--") => {
                    at += rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
                    continue;
                }
                b'/' if rest.starts_with(b"/*") => {
                    let end = rest[2..].windows(2).position(|pair| pair == b"*/");
                    at += end.map_or(rest.len(), |end| end + 4);
                    continue;
                }
                b';' => {
                    at += 1;
                    Kind::Semicolon
                }
                quote @ (b'\'' | b'"' | b'`') => {
                    at += quoted_length(rest, quote);
                    if quote == b'\'' { Kind::Text } else { Kind::Quoted }
                }
                b'[' => {
                    at += rest.iter().position(|byte| *byte == b']').map_or(rest.len(), |end| end + 1);
                    Kind::Quoted
                }
                byte if is_word(byte) => {
                    at += rest.iter().position(|byte| !is_word(*byte)).unwrap_or(rest.len());
                    Kind::Word
                }
                _ => {
                    at += 1;
                    Kind::Other
                }
            };
            return Some(Token { kind, at: from..at });
        }
    })
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'$' || byte >= 0x80
}

/// The length of what begins with a quote, in which two quotes stand for one.
fn quoted_length(rest: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while let Some(end) = rest[at..].iter().position(|byte| *byte == quote) {
        at += end + 1;
        if rest.get(at) != Some(&quote) {
            return at;
        }
        at += 1;
    }
    rest.len()
}

/// Where the first statement ends, with its semicolon; `None` if there is nothing. In a trigger semicolons stand
/// inside, and the one that ends it comes behind an `END` that comes behind a semicolon: so says SQLite, too.
fn statement_end(script: &str) -> Option<usize> {
    let mut words = Vec::new();
    let mut is_trigger = false;
    let mut ended = false;
    let mut behind_semicolon = false;
    for token in tokens(script) {
        let text = &script[token.at.clone()];
        let is = |word: &str| token.kind == Kind::Word && text.eq_ignore_ascii_case(word);
        if token.kind == Kind::Semicolon {
            if !is_trigger || ended {
                return Some(token.at.end);
            }
            (ended, behind_semicolon) = (false, true);
            continue;
        }
        if words.len() < 6 {
            words.push(text.to_ascii_lowercase());
            is_trigger |= begins_trigger(&words);
        }
        ended = behind_semicolon && is("end");
        behind_semicolon = false;
    }
    (!script.is_empty()).then_some(script.len())
}

/// Whether a statement that begins so makes a trigger.
fn begins_trigger(words: &[String]) -> bool {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let words = match words[..] {
        ["explain", "query", "plan", ..] => &words[3..],
        ["explain", ..] => &words[1..],
        _ => &words[..],
    };
    matches!(words, ["create", "trigger", ..] | ["create", "temp" | "temporary", "trigger", ..])
}

/// What a statement is; `None` if there is nothing in it.
fn statement(text: &str) -> Option<Statement<'_>> {
    let tokens: Vec<Token> = tokens(text).filter(|token| token.kind != Kind::Semicolon).collect();
    tokens.first()?;
    let word = |index: usize| {
        let token = tokens.get(index).filter(|token| token.kind == Kind::Word);
        token.map(|token| text[token.at.clone()].to_ascii_lowercase()).unwrap_or_default()
    };
    let first = match (&word(0)[..], &word(1)[..], &word(2)[..]) {
        ("explain", "query", "plan") => 3,
        ("explain", ..) => 1,
        _ => 0,
    };
    if word(first) == "select" && word(first + 1) == "as" && word(first + 2) == "of" {
        return Some(select_as_of(text, &tokens[first + 1..]));
    }
    if matches!(&word(0)[..], "commit" | "end") {
        let with = if word(1) == "transaction" { 2 } else { 1 };
        if word(with) == "with" && word(with + 1) == "snapshot" {
            return Some(match &tokens[with + 2..] {
                [] => Statement::CommitWithSnapshot { name: None },
                [name] if name.kind != Kind::Other => {
                    Statement::CommitWithSnapshot { name: Some(value(text, name).into_owned()) }
                }
                _ => Statement::Wrong("behind COMMIT WITH SNAPSHOT there is one name, or none"),
            });
        }
    }
    Some(Statement::Plain(text))
}

/// `tokens` begin with `AS OF`.
fn select_as_of<'s>(text: &'s str, tokens: &[Token]) -> Statement<'s> {
    let [from, _, snapshot, _, ..] = tokens else {
        return Statement::Wrong(
            "behind SELECT AS OF there is a snapshot (its name, its id, a time), and what to select",
        );
    };
    if snapshot.kind == Kind::Other {
        return Statement::Wrong("behind SELECT AS OF there is a snapshot: 'its name', its id, or 'a time'");
    }
    // As many blanks, so that what SQLite says of places in the statement holds.
    let cut = from.at.start..snapshot.at.end;
    let sql = [&text[..cut.start], &" ".repeat(cut.len()), &text[cut.end..]].concat();
    Statement::SelectAsOf { snapshot: value(text, snapshot).into_owned(), sql }
}

/// What a word, a text or a quoted name stands for.
fn value<'s>(text: &'s str, token: &Token) -> Cow<'s, str> {
    let text = &text[token.at.clone()];
    if token.kind == Kind::Word {
        return text.into();
    }
    let mut inner = text.chars();
    let quote = inner.next().unwrap_or('\'');
    let inner = inner.as_str();
    let inner = inner.strip_suffix(if quote == '[' { ']' } else { quote }).unwrap_or(inner);
    if quote == '[' {
        inner.into()
    } else {
        inner.replace(&format!("{quote}{quote}"), &quote.to_string()).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(script: &str) -> Vec<Statement<'_>> {
        statements(script).collect()
    }

    fn plain(script: &str) -> Vec<&str> {
        let text = |statement| match statement {
            Statement::Plain(text) => text.trim(),
            other => panic!("{other:?}"),
        };
        statements(script).map(text).collect()
    }

    #[test]
    fn scripts_are_cut_at_semicolons_that_end_statements() {
        assert_eq!(plain("a;b ; c"), ["a;", "b ;", "c"]);
        assert_eq!(plain("; ;; -- nothing\n/* nothing; */ ;"), [""; 0]);
        assert_eq!(
            plain("SELECT ';', \";\", `;`, [;] -- ;\n, 1 /* ; */; x"),
            ["SELECT ';', \";\", `;`, [;] -- ;\n, 1 /* ; */;", "x"]
        );
        assert_eq!(plain("SELECT 'it''s; so'; x"), ["SELECT 'it''s; so';", "x"]);
        assert_eq!(plain("SELECT 'not closed; x"), ["SELECT 'not closed; x"]);
        assert_eq!(plain("a /* not closed; x"), ["a /* not closed; x"]);
    }

    #[test]
    fn scripts_are_complete_behind_their_last_semicolon() {
        for complete in
            ["", " \n", ";", "a;", "a; ; -- b", "a; /* b */\n", "'a;';", "-- a", "COMMIT WITH SNAPSHOT;"]
        {
            assert!(is_complete(complete), "{complete}");
        }
        for open in ["a", "a; b", "a; /* b", "a; 'b;", "\"a;", "[a;", "a; /* ; ", "a -- ;"] {
            assert!(!is_complete(open), "{open}");
        }
        let trigger = "CREATE TRIGGER t AFTER INSERT ON a BEGIN SELECT CASE 1 WHEN 1 THEN 2 END; END";
        assert!(is_complete(&format!("{trigger};")));
        for end in 0..trigger.len() {
            assert_eq!(is_complete(&trigger[..end]), end == 0, "{}", &trigger[..end]);
        }
    }

    #[test]
    fn triggers_are_whole() {
        let trigger = "CREATE TEMP TRIGGER t AFTER INSERT ON a BEGIN UPDATE b SET c = CASE d WHEN 1 THEN 2 END; \
                       DELETE FROM b; END;";
        assert_eq!(plain(&format!("{trigger} SELECT 1")), [trigger, "SELECT 1"]);
        assert_eq!(plain("EXPLAIN CREATE TRIGGER t BEGIN x; END; y").len(), 2);
        assert_eq!(plain("CREATE TABLE trigger(x); y").len(), 2);
    }

    #[test]
    fn commits_with_snapshots_are_told() {
        let name = |text: &str| Statement::CommitWithSnapshot { name: Some(text.to_owned()) };
        assert_eq!(all("COMMIT WITH SNAPSHOT"), [Statement::CommitWithSnapshot { name: None }]);
        assert_eq!(all("end transaction with /* x */ snapshot 'it''s';"), [name("it's")]);
        assert_eq!(all("Commit with snapshot \"a\"; COMMIT WITH SNAPSHOT b;"), [name("a"), name("b")]);
        assert_eq!(all("COMMIT;"), [Statement::Plain("COMMIT;")]);
        assert!(matches!(all("COMMIT WITH SNAPSHOT a b")[..], [Statement::Wrong(_)]));
        assert!(matches!(all("COMMIT WITH SNAPSHOT (")[..], [Statement::Wrong(_)]));
    }

    #[test]
    fn selects_of_the_past_are_told() {
        let select = |snapshot: &str, sql: &str| Statement::SelectAsOf {
            snapshot: snapshot.to_owned(),
            sql: sql.to_owned(),
        };
        assert_eq!(all("SELECT AS OF 12 * FROM t;"), [select("12", "SELECT          * FROM t;")]);
        assert_eq!(
            all("select as of '5 minutes ago' 1"),
            [select("5 minutes ago", "select                       1")]
        );
        assert_eq!(
            all("EXPLAIN QUERY PLAN SELECT AS OF [a b] 1"),
            [select("a b", "EXPLAIN QUERY PLAN SELECT             1")]
        );
        assert_eq!(all("SELECT a AS of FROM t"), [Statement::Plain("SELECT a AS of FROM t")]);
        for wrong in ["SELECT AS OF", "SELECT AS OF 1", "SELECT AS OF ? 1"] {
            assert!(matches!(all(wrong)[..], [Statement::Wrong(_)]), "{wrong}");
        }
    }
}
