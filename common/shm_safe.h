// common/shm_safe.h
// Defines which types may be stored in shared memory: those with a fixed layout, no pointers and no
// virtual functions.
#pragma once

#include <atomic>
#include <type_traits>

namespace rp {

// std::is_trivially_copyable accepts raw pointers, which mean nothing in another process. Therefore
// every struct that is meant for shared memory declares this itself: `using ShmFormat = void;`.
// Atomics are allowed if they are lock-free.
template <typename T>
concept ShmSafe =
    (std::is_standard_layout_v<T> && std::is_trivially_destructible_v<T> && requires { typename T::ShmFormat; }) ||
    std::is_arithmetic_v<T> || std::is_enum_v<T>;

static_assert(std::atomic<unsigned long>::is_always_lock_free && std::atomic<unsigned int>::is_always_lock_free);

}  // namespace rp
