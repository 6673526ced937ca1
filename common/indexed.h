// common/indexed.h
// An array and a vector that are indexed by a type of their own, an enumeration or a StrongNumber, so that an index of
// another kind of thing does not compile.
#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/strong_number.h"

namespace rp {

template <typename Index>
[[nodiscard]] constexpr std::size_t position_of(Index index) {
  if constexpr (std::is_enum_v<Index>) {
    return static_cast<std::size_t>(index);
  } else {
    return static_cast<std::size_t>(index.value());
  }
}

// Initialized like std::array, with one item per value of the index.
template <typename Index, typename Item, std::size_t kSize>
struct IndexedArray {
  std::array<Item, kSize> items;

  [[nodiscard]] constexpr Item& operator[](Index index) { return items[position_of(index)]; }
  [[nodiscard]] constexpr const Item& operator[](Index index) const { return items[position_of(index)]; }
  [[nodiscard]] constexpr auto begin() { return items.begin(); }
  [[nodiscard]] constexpr auto begin() const { return items.begin(); }
  [[nodiscard]] constexpr auto end() { return items.end(); }
  [[nodiscard]] constexpr auto end() const { return items.end(); }
  [[nodiscard]] static constexpr std::size_t size() { return kSize; }
  // All indices, in ascending order.
  [[nodiscard]] static constexpr std::array<Index, kSize> indices() {
    std::array<Index, kSize> all{};
    for (std::size_t i = 0; i < kSize; ++i) all[i] = static_cast<Index>(i);
    return all;
  }
  bool operator==(const IndexedArray&) const = default;
};

template <typename Index, typename Item>
class IndexedVector {
 public:
  IndexedVector() = default;
  explicit IndexedVector(std::size_t size) : items_(size) {}
  IndexedVector(std::size_t size, const Item& item) : items_(size, item) {}
  IndexedVector(std::initializer_list<Item> items) : items_(items) {}
  explicit IndexedVector(std::vector<Item> items) : items_(std::move(items)) {}

  [[nodiscard]] auto& operator[](Index index) { return items_[position_of(index)]; }
  [[nodiscard]] const auto& operator[](Index index) const { return items_[position_of(index)]; }
  [[nodiscard]] auto& at(Index index) { return items_.at(position_of(index)); }
  [[nodiscard]] const auto& at(Index index) const { return items_.at(position_of(index)); }
  [[nodiscard]] auto begin() { return items_.begin(); }
  [[nodiscard]] auto begin() const { return items_.begin(); }
  [[nodiscard]] auto end() { return items_.end(); }
  [[nodiscard]] auto end() const { return items_.end(); }
  [[nodiscard]] Item& back() { return items_.back(); }
  [[nodiscard]] const Item& back() const { return items_.back(); }
  [[nodiscard]] Item* data() { return items_.data(); }
  [[nodiscard]] const Item* data() const { return items_.data(); }
  [[nodiscard]] std::size_t size() const { return items_.size(); }
  [[nodiscard]] bool empty() const { return items_.empty(); }
  void push_back(Item item) { items_.push_back(std::move(item)); }
  void resize(std::size_t size) { items_.resize(size); }
  void assign(std::size_t size, const Item& item) { items_.assign(size, item); }
  // All indices, in ascending order.
  [[nodiscard]] NumberRange<Index> indices() const { return {Index(0U), Index(items_.size())}; }
  bool operator==(const IndexedVector&) const = default;

 private:
  std::vector<Item> items_;
};

}  // namespace rp
