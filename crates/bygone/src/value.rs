//! Bytes that a read hands out.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::{Deref, Range};
use std::sync::Arc;

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
    Shared { bytes: Arc<Vec<u8>>, start: u32, length: u32 },
}

const _: () = assert!(size_of::<Value>() == 24);

impl Value {
    /// A part of bytes that others may have, too: more than 22 are not copied. For who writes many values out of
    /// memory that is used again: `Arc::get_mut` tells when the last value of it is gone, which may be some time
    /// after the commit.
    ///
    /// # Panics
    /// If the range is not within the bytes.
    pub fn part_of(bytes: &Arc<Vec<u8>>, range: Range<usize>) -> Value {
        let part = &bytes[range.clone()];
        match (u32::try_from(range.start), u32::try_from(part.len())) {
            (Ok(start), Ok(length)) if part.len() > INLINE_BYTES_MAX => {
                Value(Bytes::Shared { bytes: bytes.clone(), start, length })
            }
            _ => Value::from(part),
        }
    }

    /// Gives the bytes away; more than 22 without copying them, unless they are shared.
    pub fn into_vec(self) -> Vec<u8> {
        match self.0 {
            Bytes::Inline { .. } | Bytes::Shared { .. } => self.to_vec(),
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
            Bytes::Shared { bytes, start, length } => &bytes[*start as usize..][..*length as usize],
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
    fn parts_of_shared_bytes_are_what_they_are_and_let_go_of_them() {
        let mut bytes = Arc::new((0..100).collect::<Vec<u8>>());
        for range in [0..0, 0..22, 0..23, 50..100, 99..100, 100..100] {
            let value = Value::part_of(&bytes, range.clone());
            assert_eq!(value, bytes[range.clone()]);
            assert_eq!(value.clone().into_vec(), bytes[range.clone()]);
            let is_short = range.len() <= INLINE_BYTES_MAX;
            assert_eq!(Arc::get_mut(&mut bytes).is_some(), is_short, "{range:?}");
            drop(value);
            assert!(Arc::get_mut(&mut bytes).is_some(), "{range:?}");
        }
    }

    #[test]
    #[should_panic]
    fn a_part_of_shared_bytes_lies_within_them() {
        Value::part_of(&Arc::new(vec![0; 100]), 60..101);
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
