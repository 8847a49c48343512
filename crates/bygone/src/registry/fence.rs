//! Fences of which one side is free.
//!
//! Owns: the two halves of the asymmetric fence and the system call behind it. Promises: if a thread writes
//! `a`, passes [`Fences::light`] and reads `b`, and another writes `b`, passes [`Fences::heavy`] and reads
//! `a`, then at least one of them sees what the other wrote. May call: the operating system.
//!
//! That is what a sequentially consistent fence on both sides gives (the core of Dekker's algorithm). Readers
//! pass one side for every view they take, writers the other a few times a second; so the readers' half is
//! only a word to the compiler, and the writers' half makes every core that runs a thread of this process
//! pass a full fence (`membarrier`, Linux 4.14; P1202 proposes the pair for C++). Where that call is missing
//! or refused, both halves are full fences.

/// How a protocol orders its announcements. The shipped one is [`Asymmetric`]; models take parts out, to show
/// that they would be missed.
pub(crate) trait Fences {
    /// Whether a reader looks again after it has announced itself.
    const CONFIRMS: bool = true;

    /// The side of those who pass often.
    fn light();

    /// The side of those who pass seldom: takes about a microsecond.
    fn heavy();
}

/// What ships.
pub(crate) struct Asymmetric;

#[cfg(not(loom))]
impl Fences for Asymmetric {
    #[inline(always)]
    fn light() {
        platform::light();
    }

    fn heavy() {
        platform::heavy();
    }
}

/// `loom` knows no `membarrier`; the pair is modelled by the fences that it is specified to equal.
#[cfg(loom)]
impl Fences for Asymmetric {
    fn light() {
        loom::sync::atomic::fence(loom::sync::atomic::Ordering::SeqCst);
    }

    fn heavy() {
        loom::sync::atomic::fence(loom::sync::atomic::Ordering::SeqCst);
    }
}

/// Finds out what the system offers. Until it was called the light half is a full fence; called again it does
/// nothing.
pub(super) fn prepare() {
    #[cfg(not(loom))]
    platform::prepare();
}

#[cfg(all(not(loom), target_os = "linux"))]
mod platform {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, Ordering, compiler_fence, fence};

    // The kernel's `include/uapi/linux/membarrier.h`.
    const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
    const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

    /// Whether the light half needs no fence. Never set back.
    static LIGHT_IS_FREE: AtomicBool = AtomicBool::new(false);
    static REGISTERED: OnceLock<bool> = OnceLock::new();

    #[inline(always)]
    pub fn light() {
        // Relaxed: who still reads `false` only does more than is needed.
        if LIGHT_IS_FREE.load(Ordering::Relaxed) {
            compiler_fence(Ordering::SeqCst);
        } else {
            fence(Ordering::SeqCst);
        }
    }

    pub fn heavy() {
        // Waits for a registration that is under way: whoever skips the light fence has seen it done.
        if prepare() {
            // A kernel that takes back what it granted would leave readers unprotected.
            assert!(membarrier(PRIVATE_EXPEDITED), "membarrier failed after it was granted");
        }
        fence(Ordering::SeqCst);
    }

    pub fn prepare() -> bool {
        *REGISTERED.get_or_init(|| {
            let registered = membarrier(REGISTER_PRIVATE_EXPEDITED) && membarrier(PRIVATE_EXPEDITED);
            LIGHT_IS_FREE.store(registered, Ordering::Relaxed);
            registered
        })
    }

    fn membarrier(command: libc::c_int) -> bool {
        let (flags, cpu): (libc::c_uint, libc::c_int) = (0, 0);
        // SAFETY: the call takes three integers and touches no memory of this process.
        unsafe { libc::syscall(libc::SYS_membarrier, command, flags, cpu) == 0 }
    }
}

#[cfg(all(not(loom), not(target_os = "linux")))]
mod platform {
    use std::sync::atomic::{Ordering, fence};

    #[inline(always)]
    pub fn light() {
        fence(Ordering::SeqCst);
    }

    pub fn heavy() {
        fence(Ordering::SeqCst);
    }

    pub fn prepare() {}
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::{Asymmetric, Fences, prepare};

    /// Dekker's question, asked many times over: two threads, each says that it is there and looks for the
    /// other. Without the fences a store waits in its buffer and both miss each other.
    #[test]
    fn of_two_that_announce_themselves_at_least_one_sees_the_other() {
        const ROUNDS: u64 = 3000;
        prepare();
        let (reader, writer) = (AtomicU64::new(0), AtomicU64::new(0));
        let (reader_saw, writer_saw) = (AtomicU64::new(0), AtomicU64::new(0));
        let (begin, end) = (Barrier::new(2), Barrier::new(2));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=ROUNDS {
                    begin.wait();
                    reader.store(round, Ordering::Relaxed);
                    Asymmetric::light();
                    reader_saw.store(writer.load(Ordering::Relaxed), Ordering::Relaxed);
                    end.wait();
                }
            });
            for round in 1..=ROUNDS {
                begin.wait();
                writer.store(round, Ordering::Relaxed);
                Asymmetric::heavy();
                writer_saw.store(reader.load(Ordering::Relaxed), Ordering::Relaxed);
                end.wait();
                let saw = [&reader_saw, &writer_saw].map(|saw| saw.load(Ordering::Relaxed) == round);
                assert!(saw[0] || saw[1], "both missed each other in round {round}");
            }
        });
    }
}
