// common/order_stores.h
// Makes the stores before a point take effect before those behind it, for memory that another process reads after the
// death of this one.
#pragma once

namespace rp {

// Not a fence of the standard library, which ThreadSanitizer does not know. Always inline, so that code for one
// instruction set may call it.
[[gnu::always_inline]] inline void order_stores() {
#if defined(__x86_64__)
  asm volatile("" ::: "memory");  // the processor keeps the order by itself
#elif defined(__aarch64__)
  asm volatile("dmb ishst" ::: "memory");
#else
  __sync_synchronize();
#endif
}

}  // namespace rp
