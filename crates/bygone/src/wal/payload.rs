//! What the log takes for a commit.
//!
//! Owns: [`Payload`]. Promises: nothing. May call: nothing.

/// The bytes of a commit, in pieces that may lie in different places: large values need not be copied to stand behind
/// each other.
pub(crate) trait Payload {
    /// The sum of all pieces' lengths.
    fn bytes(&self) -> usize;

    /// In their order; the same at each call.
    fn pieces(&self) -> impl Iterator<Item = &[u8]>;
}

impl<T: AsRef<[u8]> + ?Sized> Payload for &T {
    fn bytes(&self) -> usize {
        (**self).as_ref().len()
    }

    fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        std::iter::once((**self).as_ref())
    }
}
