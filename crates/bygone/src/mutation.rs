//! Deliberate breaches of the invariants, to prove that the tests notice them.
//!
//! Owns: [`Mutation`], and the switch. Promises: without the feature `mutations` nothing of it is in the program:
//! every question is answered `false` when it is compiled. With it the environment variable `BYGONE_MUTATION`,
//! read once, names the one breach that is made. May call: nothing of the engine.

/// What is done wrong on purpose. Each stands for one of the invariants of `docs/commit.md` and of `history/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutation {
    /// A slot is used again before the page that it held is durable in the archive.
    ReuseBeforeDurable,
    /// An address is published before what it points to is durable.
    PublishBeforeData,
    /// Archived pages are collected although an open view can reach them.
    CollectTooEarly,
    /// Recovery takes what it has replayed for flushed: a second crash loses it.
    ForgetReplayed,
    /// The last commit before a newer version does not count among those that see the older one.
    HideTooEarly,
    /// The window keeps no version.
    ForgetWindow,
}

#[cfg(feature = "mutations")]
impl Mutation {
    fn name(self) -> &'static str {
        match self {
            Mutation::ReuseBeforeDurable => "reuse-before-durable",
            Mutation::PublishBeforeData => "publish-before-data",
            Mutation::CollectTooEarly => "collect-too-early",
            Mutation::ForgetReplayed => "forget-replayed",
            Mutation::HideTooEarly => "hide-too-early",
            Mutation::ForgetWindow => "forget-window",
        }
    }
}

/// Whether this breach is to be made.
#[cfg(feature = "mutations")]
pub(crate) fn is_on(mutation: Mutation) -> bool {
    static WANTED: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    WANTED.get_or_init(|| std::env::var("BYGONE_MUTATION").ok()).as_deref() == Some(mutation.name())
}

/// Whether this breach is to be made: never.
#[cfg(not(feature = "mutations"))]
#[inline(always)]
pub(crate) const fn is_on(_: Mutation) -> bool {
    false
}
