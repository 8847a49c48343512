//! Key heads: the first bytes of a key as one number, so that most comparisons of keys are comparisons of
//! numbers.
//!
//! Owns: how a head is made. Promises: if two heads differ, the keys sort as the heads do; if they are equal,
//! only the keys can tell. May call: nothing.

/// The first eight bytes, zeros behind a shorter key.
#[inline]
pub(super) fn head_u64(key: &[u8]) -> u64 {
    match key.first_chunk::<8>() {
        Some(bytes) => u64::from_be_bytes(*bytes),
        None => {
            let mut bytes = [0; 8];
            bytes[..key.len()].copy_from_slice(key);
            u64::from_be_bytes(bytes)
        }
    }
}

/// The first four bytes, zeros behind a shorter key.
#[inline]
pub(super) fn head_u32(key: &[u8]) -> u32 {
    match key.first_chunk::<4>() {
        Some(bytes) => u32::from_be_bytes(*bytes),
        None => {
            let mut bytes = [0; 4];
            bytes[..key.len()].copy_from_slice(key);
            u32::from_be_bytes(bytes)
        }
    }
}

/// How many bytes two keys have in common from their beginning.
#[inline]
pub(super) fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    let mut common = 0;
    // Eight bytes at a time: the first differing bit of two little-endian words is in their first differing
    // byte.
    for (a, b) in a.as_chunks::<8>().0.iter().zip(b.as_chunks::<8>().0) {
        let difference = u64::from_le_bytes(*a) ^ u64::from_le_bytes(*b);
        if difference != 0 {
            return common + difference.trailing_zeros() as usize / 8;
        }
        common += 8;
    }
    common + a[common..].iter().zip(&b[common..]).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: [&[u8]; 9] =
        [b"", b"\0", b"\0\0\0\0\0\0\0\0\0", b"a", b"a\0", b"abcd", b"abcdefgh", b"abcdefghi", b"\xff\xff"];

    #[test]
    fn heads_never_contradict_the_keys() {
        for a in KEYS {
            for b in KEYS {
                if head_u64(a) != head_u64(b) {
                    assert_eq!(head_u64(a).cmp(&head_u64(b)), a.cmp(b), "{a:?} {b:?}");
                }
                if head_u32(a) != head_u32(b) {
                    assert_eq!(head_u32(a).cmp(&head_u32(b)), a.cmp(b), "{a:?} {b:?}");
                }
            }
        }
    }

    #[test]
    fn short_keys_are_padded_behind() {
        assert_eq!(head_u64(b"ab"), 0x6162_0000_0000_0000);
        assert_eq!(head_u64(b""), 0);
        assert_eq!(head_u32(b"abc"), 0x6162_6300);
    }

    #[test]
    fn common_prefixes_are_as_long_as_they_are() {
        let long = [b'x'; 40];
        for len in 0..40 {
            let mut other = long;
            other[len] = b'y';
            assert_eq!(common_prefix(&long, &other), len);
            assert_eq!(common_prefix(&long, &long[..len]), len);
            assert_eq!(common_prefix(&long[..len], &long), len);
        }
        assert_eq!(common_prefix(b"", b""), 0);
    }
}
