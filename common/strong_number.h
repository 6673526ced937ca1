// common/strong_number.h
// An integer that numbers one kind of thing (weight groups, slots, versions, …). It converts to and from other integers
// only explicitly, so that the number of one kind of thing cannot be passed as that of another.
#pragma once

#include <compare>
#include <concepts>
#include <cstddef>
#include <ostream>

namespace rp {

// `Tag`: any type, which only distinguishes the kinds. In shared memory it has the format of `Integer`.
template <typename Tag, std::integral Integer>
class StrongNumber {
 public:
  using ShmFormat = void;
  using Value = Integer;

  constexpr StrongNumber() = default;
  constexpr explicit StrongNumber(std::integral auto value) : value_(static_cast<Integer>(value)) {}

  [[nodiscard]] constexpr Integer value() const { return value_; }

  constexpr auto operator<=>(const StrongNumber&) const = default;
  constexpr StrongNumber& operator++() {
    ++value_;
    return *this;
  }
  // The numbers that follow and precede this one by `distance`.
  [[nodiscard]] friend constexpr StrongNumber operator+(StrongNumber number, std::integral auto distance) {
    return StrongNumber(number.value_ + static_cast<Integer>(distance));
  }
  [[nodiscard]] friend constexpr StrongNumber operator-(StrongNumber number, std::integral auto distance) {
    return StrongNumber(number.value_ - static_cast<Integer>(distance));
  }
  [[nodiscard]] friend constexpr Integer operator-(StrongNumber a, StrongNumber b) { return a.value_ - b.value_; }
  friend std::ostream& operator<<(std::ostream& out, StrongNumber number) { return out << number.value_; }

 private:
  Integer value_ = 0;
};

// The numbers from `first` to before `last`, for range-based for loops.
template <typename Number>
class NumberRange {
 public:
  class Iterator {
   public:
    using value_type = Number;
    using difference_type = std::ptrdiff_t;
    constexpr Iterator() = default;
    constexpr explicit Iterator(Number number) : number_(number) {}
    constexpr Number operator*() const { return number_; }
    constexpr Iterator& operator++() {
      ++number_;
      return *this;
    }
    constexpr Iterator operator++(int) {
      const Iterator before = *this;
      ++number_;
      return before;
    }
    constexpr bool operator==(const Iterator&) const = default;

   private:
    Number number_;
  };

  constexpr NumberRange(Number first, Number last) : first_(first), last_(last) {}
  [[nodiscard]] constexpr Iterator begin() const { return Iterator(first_); }
  [[nodiscard]] constexpr Iterator end() const { return Iterator(last_); }

 private:
  Number first_, last_;
};

}  // namespace rp
