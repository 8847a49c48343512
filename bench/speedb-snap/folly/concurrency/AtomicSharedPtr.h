// Stands in for Folly's `atomic_shared_ptr`, which Speedb's snapshot optimization needs and its crate does not bring
// along, so that what is measured under the name `speedb-snap` is Speedb's own code.
//
// Owns: the few operations that Speedb's snapshot list calls. Promises: they cost the same read-modify-writes of shared
// memory as Folly's, whose way it goes: the word holds the control block's address and, in its upper 16 bits, how many
// references were lent out of a number paid for in advance. So a load is one compare-and-swap, and the reference count
// is touched once in 4,096 loads. Like Folly's, it knows the inside of libstdc++'s `shared_ptr`.

#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>

namespace folly {

// For pointers that were made with `shared_ptr(pointer, deleter)` and a deleter without members.
template <typename T>
class atomic_shared_ptr {
  using Shared = std::shared_ptr<T>;

  // libstdc++'s control block with a deleter.
  struct Control {
    void* functions;
    int uses;
    int weak_uses;
    T* pointer;
  };
  struct Parts {
    T* pointer;
    Control* control;
  };
  static_assert(sizeof(Parts) == sizeof(Shared));

  static constexpr uint64_t kLoan = uint64_t{1} << 48;
  static constexpr uint64_t kAddress = kLoan - 1;
  static constexpr int kPaid = 0x2000;
  static constexpr int kBatch = kPaid / 2;

 public:
  atomic_shared_ptr() = default;
  atomic_shared_ptr(const atomic_shared_ptr&) = delete;
  atomic_shared_ptr& operator=(const atomic_shared_ptr&) = delete;
  ~atomic_shared_ptr() { *this = nullptr; }

  operator Shared() const { return adopt(control_of(borrow())); }

  void operator=(Shared desired) {
    uint64_t old = word_.exchange(pay(desired));
    settle(old, 0);
  }

  // When it fails, `expected` is what was there.
  bool compare_exchange_weak(Shared& expected, const Shared& desired) {
    uint64_t fresh = pay(desired);
    uint64_t seen = borrow();
    if (control_of(seen) == parts_of(expected).control) {
      uint64_t old = seen;
      if (word_.compare_exchange_weak(old, fresh)) {
        settle(seen, 1);
        return true;
      }
    }
    expected = adopt(control_of(seen));
    settle(fresh, 0);
    return false;
  }

 private:
  mutable std::atomic<uint64_t> word_{0};

  static Control* control_of(uint64_t word) { return reinterpret_cast<Control*>(word & kAddress); }
  static int loans_of(uint64_t word) { return static_cast<int>(word >> 48); }

  static Parts parts_of(const Shared& shared) {
    Parts parts;
    std::memcpy(&parts, static_cast<const void*>(&shared), sizeof parts);
    return parts;
  }

  // A pointer that owns a reference which somebody else has counted.
  static Shared adopt(Control* control) {
    Shared shared;
    if (control != nullptr) {
      Parts parts{control->pointer, control};
      std::memcpy(static_cast<void*>(&shared), &parts, sizeof parts);
    }
    return shared;
  }

  static void add(Control* control, int uses) { __atomic_fetch_add(&control->uses, uses, __ATOMIC_ACQ_REL); }

  // Gives references back, at least one; the last of all disposes.
  static void release(Control* control, int uses) {
    if (uses > 1) {
      add(control, 1 - uses);
    }
    adopt(control);
  }

  // A word for what `shared` points to, with nothing lent out yet.
  static uint64_t pay(const Shared& shared) {
    Parts parts = parts_of(shared);
    if (parts.control == nullptr) {
      return 0;
    }
    if (parts.control->pointer != parts.pointer) {
      std::abort();  // not made as it says above, or by another standard library
    }
    add(parts.control, kPaid);
    return reinterpret_cast<uint64_t>(parts.control);
  }

  // Ends a word that nobody can borrow from any more: what was not lent is given back, and `own` loans of the caller.
  static void settle(uint64_t word, int own) {
    if (Control* control = control_of(word)) {
      release(control, kPaid - loans_of(word) + own);
    }
  }

  // The word, with a reference lent to the caller unless it is null.
  uint64_t borrow() const {
    uint64_t word = word_.load(std::memory_order_acquire);
    for (;;) {
      if (word == 0) {
        return 0;
      }
      if (loans_of(word) == kPaid) {
        std::this_thread::yield();
        word = word_.load(std::memory_order_acquire);
      } else if (word_.compare_exchange_weak(word, word + kLoan)) {
        break;
      }
    }
    word += kLoan;
    if (loans_of(word) <= kBatch) {
      return word;
    }
    // Many were lent: pay for them now, so that as many can be lent again.
    Control* control = control_of(word);
    add(control, kBatch);
    uint64_t now = word_.load(std::memory_order_acquire);
    while (control_of(now) == control && loans_of(now) > kBatch) {
      if (word_.compare_exchange_weak(now, now - kBatch * kLoan)) {
        return word - kBatch * kLoan;
      }
    }
    // Somebody else did, or the word is another by now.
    release(control, kBatch);
    return word;
  }
};

}  // namespace folly
