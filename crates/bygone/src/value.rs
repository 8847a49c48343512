//! Bytes that a read hands out.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;

/// So many bytes are kept in the value itself, without an allocation: as many as fit beside the length in the
/// words that a pointer to more would take.
const INLINE_BYTES_MAX: usize = 22;

/// An owned key or value: dereferences to `[u8]`, and outlives the snapshot that it was read from. Up to 22
/// bytes are kept without an allocation.
#[derive(Clone)]
pub struct Value(Bytes);

#[derive(Clone)]
enum Bytes {
    Inline { length: u8, bytes: [u8; INLINE_BYTES_MAX] },
    Boxed(Box<[u8]>),
}

const _: () = assert!(size_of::<Value>() == 24);

impl Value {
    /// Gives the bytes away; more than 22 without copying them.
    pub fn into_vec(self) -> Vec<u8> {
        match self.0 {
            Bytes::Inline { .. } => self.to_vec(),
            Bytes::Boxed(bytes) => bytes.into_vec(),
        }
    }
}

impl Deref for Value {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Bytes::Inline { length, bytes } => &bytes[..usize::from(*length)],
            Bytes::Boxed(bytes) => bytes,
        }
    }
}

impl Default for Value {
    fn default() -> Self {
        Value::from(&[][..])
    }
}

impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Value {}

impl PartialOrd for Value {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Value {
    fn cmp(&self, other: &Self) -> Ordering {
        (**self).cmp(&**other)
    }
}

impl Hash for Value {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

impl AsRef<[u8]> for Value {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl From<&[u8]> for Value {
    #[inline]
    fn from(source: &[u8]) -> Self {
        if source.len() > INLINE_BYTES_MAX {
            return Value(Bytes::Boxed(source.into()));
        }
        let mut bytes = [0; INLINE_BYTES_MAX];
        bytes[..source.len()].copy_from_slice(source);
        Value(Bytes::Inline { length: source.len() as u8, bytes })
    }
}

impl From<Vec<u8>> for Value {
    fn from(bytes: Vec<u8>) -> Self {
        if bytes.len() > INLINE_BYTES_MAX {
            Value(Bytes::Boxed(bytes.into()))
        } else {
            Value::from(&bytes[..])
        }
    }
}

impl From<Box<[u8]>> for Value {
    fn from(bytes: Box<[u8]>) -> Self {
        if bytes.len() > INLINE_BYTES_MAX { Value(Bytes::Boxed(bytes)) } else { Value::from(&bytes[..]) }
    }
}

impl From<Value> for Vec<u8> {
    fn from(value: Value) -> Self {
        value.into_vec()
    }
}

impl PartialEq<[u8]> for Value {
    fn eq(&self, other: &[u8]) -> bool {
        **self == *other
    }
}

impl PartialEq<&[u8]> for Value {
    fn eq(&self, other: &&[u8]) -> bool {
        **self == **other
    }
}

impl<const N: usize> PartialEq<&[u8; N]> for Value {
    fn eq(&self, other: &&[u8; N]) -> bool {
        **self == **other
    }
}

impl PartialEq<Vec<u8>> for Value {
    fn eq(&self, other: &Vec<u8>) -> bool {
        **self == **other
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b\"{}\"", self.escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_every_length_come_back() {
        for length in 0..100u8 {
            let bytes: Vec<u8> = (0..length).collect();
            let boxed = bytes.clone().into_boxed_slice();
            let values = [Value::from(&bytes[..]), Value::from(bytes.clone()), Value::from(boxed)];
            for value in &values {
                assert_eq!(value, &bytes);
                assert_eq!(&value.clone()[..], &bytes[..]);
                assert_eq!(value.clone().into_vec(), bytes);
            }
            assert_eq!(values[0], values[1]);
            assert_eq!(values[0], values[2]);
        }
    }

    #[test]
    fn values_sort_and_hash_as_their_bytes() {
        use std::hash::{BuildHasher, RandomState};
        let short = Value::from(&b"b"[..]);
        let long = Value::from(&[b'a'; 40][..]);
        assert!(Value::default() < long);
        assert!(long < short);
        let state = RandomState::new();
        assert_eq!(state.hash_one(&short), state.hash_one(&b"b"[..]));
        assert_eq!(state.hash_one(&long), state.hash_one(&[b'a'; 40][..]));
    }
}
