// common/strong_number.h
// Defines integer types that do not convert into each other, so that a weight group's number cannot be passed where
// the number of a use is expected, and a vector that is indexed by such a number.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <ostream>
#include <vector>

namespace rp {

// An integer of type `Number` that is distinct for each `Tag`. It has the size and alignment of `Number` and may be a
// field of a structure in shared memory. Converting from and to the integer is explicit.
template <typename Tag, typename Number>
class StrongNumber {
 public:
  using ShmFormat = void;

  constexpr StrongNumber() = default;
  constexpr explicit StrongNumber(Number value) : value_(value) {}

  [[nodiscard]] constexpr Number value() const { return value_; }
  // As an index into arrays.
  [[nodiscard]] constexpr std::size_t index() const { return static_cast<std::size_t>(value_); }

  auto operator<=>(const StrongNumber&) const = default;

  constexpr StrongNumber& operator++() {
    ++value_;
    return *this;
  }
  // The number that is `distance` after or before this one.
  friend constexpr StrongNumber operator+(StrongNumber number, Number distance) {
    return StrongNumber(static_cast<Number>(number.value_ + distance));
  }
  friend constexpr StrongNumber operator-(StrongNumber number, Number distance) {
    return StrongNumber(static_cast<Number>(number.value_ - distance));
  }
  friend constexpr Number operator-(StrongNumber a, StrongNumber b) { return static_cast<Number>(a.value_ - b.value_); }
  friend std::ostream& operator<<(std::ostream& out, StrongNumber number) { return out << number.value_; }

 private:
  Number value_ = 0;
};

// A vector that is indexed by a StrongNumber only.
template <typename Index, typename T>
class IndexedVector {
 public:
  using value_type = T;

  IndexedVector() = default;
  explicit IndexedVector(std::size_t size) : items_(size) {}
  IndexedVector(std::size_t size, const T& value) : items_(size, value) {}
  explicit IndexedVector(std::vector<T> items) : items_(std::move(items)) {}

  [[nodiscard]] T& operator[](Index index) { return items_[index.index()]; }
  [[nodiscard]] const T& operator[](Index index) const { return items_[index.index()]; }

  [[nodiscard]] std::size_t size() const { return items_.size(); }
  [[nodiscard]] bool empty() const { return items_.empty(); }
  // The index of the next item to be appended.
  [[nodiscard]] Index end_index() const { return Index(static_cast<decltype(Index().value())>(items_.size())); }
  Index push_back(T item) {
    const Index index = end_index();
    items_.push_back(std::move(item));
    return index;
  }

  [[nodiscard]] auto begin() { return items_.begin(); }
  [[nodiscard]] auto end() { return items_.end(); }
  [[nodiscard]] auto begin() const { return items_.begin(); }
  [[nodiscard]] auto end() const { return items_.end(); }
  // The items without their type of index, as their file format has them.
  [[nodiscard]] const std::vector<T>& items() const { return items_; }
  [[nodiscard]] std::vector<T>& items() { return items_; }

  bool operator==(const IndexedVector&) const = default;

 private:
  std::vector<T> items_;
};

}  // namespace rp
