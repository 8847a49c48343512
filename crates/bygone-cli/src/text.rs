//! Bytes as text and back.
//!
//! Owns: the escaped form in which people see keys and values, and the form they have in JSON. Promises: both
//! are lossless. May call: nothing.
//!
//! Escaped: printable characters stand for themselves; `\\`, `\n`, `\r` and `\t` are what they are
//! everywhere; every other byte is `\xNN`. In JSON: a field `key` with a string if the bytes are UTF-8, else
//! a field `key_base64`.

use std::io::{self, Write};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

/// The bytes as escaped text.
pub fn escape(bytes: &[u8]) -> String {
    let mut out = Vec::with_capacity(bytes.len());
    // A `Vec` takes every write, and all that is written is UTF-8.
    let _ = write_escaped(&mut out, bytes);
    String::from_utf8_lossy(&out).into_owned()
}

pub fn write_escaped(out: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    for chunk in bytes.utf8_chunks() {
        let valid = chunk.valid();
        let mut written = 0;
        for (at, character) in valid.char_indices() {
            if character != '\\' && !character.is_control() {
                continue;
            }
            out.write_all(&valid.as_bytes()[written..at])?;
            written = at + character.len_utf8();
            match character {
                '\\' => out.write_all(b"\\\\")?,
                '\n' => out.write_all(b"\\n")?,
                '\r' => out.write_all(b"\\r")?,
                '\t' => out.write_all(b"\\t")?,
                _ => write_hex(out, &valid.as_bytes()[at..written])?,
            }
        }
        out.write_all(&valid.as_bytes()[written..])?;
        write_hex(out, chunk.invalid())?;
    }
    Ok(())
}

fn write_hex(out: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    bytes.iter().try_for_each(|byte| write!(out, "\\x{byte:02x}"))
}

/// The bytes that escaped text stands for. The error says which escape is unknown.
pub fn unescape(text: &[u8]) -> Result<Vec<u8>, String> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        let (plain, length) = match rest {
            [b'\\', ..] => (b'\\', 1),
            [b'n', ..] => (b'\n', 1),
            [b'r', ..] => (b'\r', 1),
            [b't', ..] => (b'\t', 1),
            [b'x', high, low, ..] => match (hex_digit(*high), hex_digit(*low)) {
                (Some(high), Some(low)) => (high << 4 | low, 3),
                _ => return Err(unknown_escape(rest)),
            },
            _ => return Err(unknown_escape(rest)),
        };
        out.push(plain);
        rest = &rest[length..];
    }
    Ok(out)
}

fn unknown_escape(rest: &[u8]) -> String {
    let shown = escape(&rest[..rest.len().min(3)]);
    format!("unknown escape \"\\{shown}\": there are \\\\ \\n \\r \\t and \\xNN with two hexadecimal digits")
}

fn hex_digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).map(|digit| digit as u8)
}

/// Adds `name` (UTF-8) or `name_base64` (anything else) to a JSON object.
pub fn insert_bytes(object: &mut Map<String, Value>, name: &str, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(text) => object.insert(name.to_owned(), Value::from(text)),
        Err(_) => object.insert(format!("{name}_base64"), Value::from(to_base64(bytes))),
    };
}

pub fn to_base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

pub fn from_base64(text: &str) -> Result<Vec<u8>, String> {
    STANDARD.decode(text).map_err(|error| format!("{text:?} is not base64: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_text_stays_as_it_is() {
        assert_eq!(escape("Malmö \"x\" 'y'".as_bytes()), "Malmö \"x\" 'y'");
    }

    #[test]
    fn what_cannot_be_seen_is_escaped() {
        assert_eq!(escape(b"a\\b\n\t\r\0\x7f\xff"), r"a\\b\n\t\r\x00\x7f\xff");
        assert_eq!(escape("\u{85}".as_bytes()), r"\xc2\x85");
    }

    #[test]
    fn every_byte_comes_back() {
        let all: Vec<u8> = (0..=255).chain(*b"\\x41\\").collect();
        assert_eq!(unescape(escape(&all).as_bytes()), Ok(all));
    }

    #[test]
    fn unknown_escapes_are_refused() {
        for text in [r"\", r"\q", r"\x", r"\x4", r"\xg0", r"\x4g"] {
            assert!(unescape(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn json_says_which_form_it_has() {
        let mut object = Map::new();
        insert_bytes(&mut object, "key", "ö".as_bytes());
        insert_bytes(&mut object, "value", b"\xff\0");
        assert_eq!(Value::Object(object).to_string(), r#"{"key":"ö","value_base64":"/wA="}"#);
        assert_eq!(from_base64("/wA="), Ok(b"\xff\0".to_vec()));
        assert!(from_base64("?").is_err());
    }
}
