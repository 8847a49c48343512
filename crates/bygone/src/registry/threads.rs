//! Which thread looks at which slots.
//!
//! Owns: the slots of each open database, and what a thread remembers of them. Promises: beginning a view
//! looks at one slot, however many are held, and allocates nothing unless the thread already holds all its
//! slots; a thread's end frees its slots for others; there is no upper limit. May call: `slot`, `fence`.
//!
//! After Voron's reader tracking (per-thread arrays of reusable records that another thread may clear) and
//! Speedb's snapshot reuse (an unchanged sequence number takes the last view again).
//!
//! A thread keeps a stack of its slots that may be idle. It pins the topmost and leaves it there; only if
//! that is busy it takes slots off until one is idle. Giving a view back puts its slot on the stack unless it
//! is there. So each slot that is taken off in vain was put there by a view that ended. Slots whose views
//! end on other threads are found by looking round at all of them, so seldom that it costs a few looks for
//! each view; in between new slots are taken, at most an eighth more than there are.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::hint::prefetch;

use super::fence::{self, Asymmetric, Fences};
use super::owner::ThreadMark;
use super::slot::{Held, Side, Slot};

/// How many slots a thread looks at for each view that it begins, where views end on other threads.
const LOOKS: usize = 8;

/// How many slots ahead a look round asks for.
const LOOKS_AHEAD: usize = 16;

/// What slots may hold. Statics and thread-locals can't be generic, so who uses the registry declares them.
pub(crate) trait Contents: Send + Sync + Sized + 'static {
    /// Slots of databases that were closed.
    fn spares() -> &'static Mutex<Vec<&'static Slot<Self>>>;

    /// Hands over the calling thread's stack of slots.
    fn with_stack<R>(f: impl FnOnce(&Stack<Self>) -> R) -> R;

    /// Hands over the calling thread's slots; `None` when the thread is being torn down.
    fn with_owned<R>(f: impl FnOnce(&Owned<Self>) -> R) -> Option<R>;
}

/// The slots of a thread that may be idle, in one database: all that beginning and ending a view look at.
/// Has no destructor, so that looking at it is nothing but an address; which is also the thread's mark.
pub(crate) struct Stack<L: Contents> {
    registry: Cell<u64>,
    top: Cell<Option<&'static Slot<L>>>,
}

impl<L: Contents> Stack<L> {
    pub const fn new() -> Stack<L> {
        Stack { registry: Cell::new(0), top: Cell::new(None) }
    }

    #[inline]
    fn mark(&self) -> ThreadMark {
        std::ptr::from_ref(self) as ThreadMark
    }

    /// Gives a pin back.
    ///
    /// # Safety
    /// The caller has a pin, and does not use the contents any more.
    #[inline]
    unsafe fn unpin(&self, slot: &'static Slot<L>) {
        if slot.owner.is(self.mark()) {
            // While the pin is there yet: afterwards the slot may be another's, if its database is closed.
            if !slot.owner.is_listed() {
                self.push(slot);
            }
            // SAFETY: as the caller promises.
            unsafe { slot.unpin_owned(self.mark()) };
        } else {
            // SAFETY: as the caller promises.
            unsafe { slot.unpin_elsewhere() };
        }
    }

    fn push(&self, slot: &'static Slot<L>) {
        // Relaxed, here and below: a slot's listing is read and written by its owner's thread alone.
        if slot.listing.registry.load(Ordering::Relaxed) == self.registry.get() {
            let next = self.top.get().map_or(std::ptr::null_mut(), |top| std::ptr::from_ref(top).cast_mut());
            slot.listing.next.store(next, Ordering::Relaxed);
            slot.owner.set_listed(true);
            self.top.set(Some(slot));
        }
    }

    /// Takes the topmost slot off.
    fn pop(&self) {
        let Some(slot) = self.top.get() else { return };
        slot.owner.set_listed(false);
        // SAFETY: what is on a stack is a slot, and slots are never freed.
        self.top.set(unsafe { slot.listing.next.load(Ordering::Relaxed).as_ref() });
    }
}

/// Pins a slot once more for a copy of its handle.
///
/// # Safety
/// The caller has a pin.
#[inline]
pub(crate) unsafe fn pin_again<L: Contents>(slot: &'static Slot<L>) {
    // SAFETY: as the caller promises.
    L::with_stack(|stack| unsafe { slot.pin_again(stack.mark()) });
}

/// Gives a pin back, on whichever thread.
///
/// # Safety
/// The caller has a pin, and does not use the contents any more.
#[inline]
pub(crate) unsafe fn unpin<L: Contents>(slot: &'static Slot<L>) {
    // SAFETY: as the caller promises.
    L::with_stack(|stack| unsafe { stack.unpin(slot) });
}

/// All slots of one open database.
pub(crate) struct Registry<L: Contents> {
    /// Tells this database's entries in a thread's list from those of databases that were closed.
    id: u64,
    this: Weak<Registry<L>>,
    /// Whether views may be ended from outside.
    expires: bool,
    slots: Mutex<Slots<L>>,
}

struct Slots<L: Contents> {
    all: Vec<&'static Slot<L>>,
    /// Slots whose thread has ended.
    orphans: Vec<&'static Slot<L>>,
}

/// All slots of one thread, by database.
pub(crate) struct Owned<L: Contents> {
    name: RefCell<Option<Arc<str>>>,
    lists: RefCell<Vec<List<L>>>,
}

struct List<L: Contents> {
    registry: u64,
    home: Weak<Registry<L>>,
    slots: Vec<&'static Slot<L>>,
    /// How many views were begun since the last look round, or could be without another.
    begun: usize,
    /// The stack, while another database's is in use.
    top: Option<&'static Slot<L>>,
}

impl<L: Contents> Owned<L> {
    pub const fn new() -> Owned<L> {
        Owned { name: RefCell::new(None), lists: RefCell::new(Vec::new()) }
    }
}

impl<L: Contents> Drop for Owned<L> {
    fn drop(&mut self) {
        L::with_stack(|stack| {
            stack.registry.set(0);
            stack.top.set(None);
        });
        // The lists go next, and their slots with them.
    }
}

impl<L: Contents> List<L> {
    /// Puts the slots on the empty stack whose views ended on other threads, or while another database's stack
    /// was in use; `false` if there are none, or if it is too early to look again.
    fn look_round(&mut self, stack: &Stack<L>) -> bool {
        if self.begun < self.slots.len() / LOOKS {
            return false;
        }
        self.begun = 0;
        for (i, slot) in self.slots.iter().enumerate() {
            // Their lines are with the threads where the views ended: asked for ahead, they come side by side.
            if let Some(later) = self.slots.get(i + LOOKS_AHEAD) {
                prefetch(std::ptr::from_ref::<Slot<L>>(later));
            }
            if slot.is_idle() {
                stack.push(slot);
                self.begun += 1;
            }
        }
        self.begun > 0
    }
}

impl<L: Contents> Drop for List<L> {
    fn drop(&mut self) {
        let thread = L::with_stack(Stack::mark);
        let home = self.home.upgrade();
        let mut slots = home.as_ref().map(|home| home.slots());
        for slot in self.slots.drain(..) {
            // From here on its handles are given back as elsewhere, also by what this thread still drops.
            slot.owner.leave(thread);
            if let Some(slots) = &mut slots {
                // One whose view lives on in another thread is skipped until it is idle.
                slots.orphans.push(slot);
            }
        }
    }
}

static NEXT_REGISTRY: AtomicU64 = AtomicU64::new(1);

impl<L: Contents> Registry<L> {
    /// `expires`: whether views may be ended from outside, by [`Slot::expire`].
    pub fn new(expires: bool) -> Arc<Registry<L>> {
        fence::prepare();
        // Relaxed: only uniqueness matters.
        let id = NEXT_REGISTRY.fetch_add(1, Ordering::Relaxed);
        let slots = Mutex::new(Slots { all: Vec::new(), orphans: Vec::new() });
        Arc::new_cyclic(|this| Registry { id, this: this.clone(), expires, slots })
    }

    /// Pins a slot of this thread after `fill` has brought it up to date.
    #[inline]
    pub fn pin(&self, fill: impl Fn(Held<'_, L>)) -> &'static Slot<L> {
        L::with_stack(|stack| {
            if stack.registry.get() == self.id
                && let Some(slot) = stack.top.get()
                // SAFETY: what is on this thread's stack of a living registry is this thread's.
                && unsafe { slot.try_pin(&fill) }
            {
                return slot;
            }
            self.pin_next(stack, fill)
        })
    }

    /// Looks through the stack below its top, which is busy, then further.
    #[cold]
    fn pin_next(&self, stack: &Stack<L>, fill: impl Fn(Held<'_, L>)) -> &'static Slot<L> {
        while stack.registry.get() == self.id && stack.top.get().is_some() {
            stack.pop();
            if let Some(slot) = stack.top.get()
                // SAFETY: as in `pin`.
                && unsafe { slot.try_pin(&fill) }
            {
                return slot;
            }
        }
        self.pin_other(stack, &fill)
    }

    fn pin_other(&self, stack: &Stack<L>, fill: &dyn Fn(Held<'_, L>)) -> &'static Slot<L> {
        // `fill` and what it drops may not come back here: it only reads the present.
        let pinned = L::with_owned(|owned| {
            let mut lists = owned.lists.borrow_mut();
            let list = self.list(&mut lists, stack);
            loop {
                while let Some(slot) = stack.top.get() {
                    // SAFETY: as in `pin`.
                    if unsafe { slot.try_pin(fill) } {
                        return slot;
                    }
                    stack.pop();
                }
                if !list.look_round(stack) {
                    break;
                }
            }
            let name = owned.name.borrow_mut().get_or_insert_with(thread_name).clone();
            let slot = self.take_slot(stack.mark(), Some(name), fill);
            list.slots.push(slot);
            list.begun += 1;
            stack.push(slot);
            slot
        });
        // Of a thread that is being torn down nothing remembers slots: one that nobody owns will do.
        pinned.unwrap_or_else(|| self.take_slot(0, None, fill))
    }

    /// This thread's list for this database, with the stack set to it.
    fn list<'o>(&self, lists: &'o mut Vec<List<L>>, stack: &Stack<L>) -> &'o mut List<L> {
        if stack.registry.get() != self.id {
            let before = stack.registry.replace(self.id);
            let top = stack.top.take();
            if let Some(list) = lists.iter_mut().find(|list| list.registry == before) {
                list.top = top;
            }
            lists.retain(|list| list.home.strong_count() > 0);
            match lists.iter_mut().find(|list| list.registry == self.id) {
                Some(list) => stack.top.set(list.top.take()),
                None => lists.push(List {
                    registry: self.id,
                    home: self.this.clone(),
                    slots: Vec::new(),
                    begun: 0,
                    top: None,
                }),
            }
        }
        lists.iter_mut().find(|list| list.registry == self.id).expect("just made")
    }

    /// A slot whose thread has ended, or a new one, pinned for its new owner: `thread`, or nobody.
    fn take_slot(
        &self,
        thread: ThreadMark,
        name: Option<Arc<str>>,
        fill: &dyn Fn(Held<'_, L>),
    ) -> &'static Slot<L> {
        let mut slots = self.slots();
        let slot = match take_free(&mut slots.orphans) {
            Some(slot) => slot,
            None => {
                // Slots are never freed: handles in other threads point at them without counting. They are
                // few: as many as views were held at one time, and those of a closed database serve the next.
                let spare = take_free(&mut lock(L::spares()));
                let slot = spare.unwrap_or_else(|| Box::leak(Box::new(Slot::new())));
                slots.all.push(slot);
                slot
            }
        };
        slot.owner.set(thread, self.expires);
        slot.listing.registry.store(self.id, Ordering::Relaxed);
        slot.set_thread(name);
        // SAFETY: it was free, and under the lock nobody else can take it.
        let pinned = unsafe { slot.try_pin(fill) };
        assert!(pinned, "only its owner pins a slot");
        if thread == 0 {
            slots.orphans.push(slot);
        }
        slot
    }

    /// Lets idle slots forget layers that are out of date, and tells busy ones to when they fall idle.
    pub fn sweep(&self) {
        // One sweep at a time, under the lock.
        let slots = self.slots();
        slots.all.iter().for_each(|slot| slot.mark());
        Asymmetric::heavy();
        slots.all.iter().for_each(|slot| slot.clear_if_idle(Side::Sure));
    }

    /// Hands every slot to `visit`.
    pub fn for_each(&self, visit: impl FnMut(&'static Slot<L>)) {
        // Copied, so that nobody who begins a view waits for `visit`.
        let all = self.slots().all.clone();
        all.into_iter().for_each(visit);
    }

    /// How many slots there are, busy or idle.
    pub fn slot_count(&self) -> usize {
        self.slots().all.len()
    }

    fn slots(&self) -> MutexGuard<'_, Slots<L>> {
        lock(&self.slots)
    }
}

impl<L: Contents> Drop for Registry<L> {
    fn drop(&mut self) {
        self.sweep();
        let slots = self.slots.get_mut().unwrap_or_else(PoisonError::into_inner);
        lock(L::spares()).append(&mut slots.all);
    }
}

/// Takes a slot that nobody holds off the end of the list.
fn take_free<L: Contents>(slots: &mut Vec<&'static Slot<L>>) -> Option<&'static Slot<L>> {
    let from_end = slots.iter().rev().take(LOOKS).position(|slot| slot.is_free_for_all())?;
    Some(slots.swap_remove(slots.len() - 1 - from_end))
}

fn thread_name() -> Arc<str> {
    std::thread::current().name().unwrap_or_default().into()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
