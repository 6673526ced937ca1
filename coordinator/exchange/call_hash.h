// coordinator/exchange/call_hash.h
// A hash of the calls that a node's program has made. Nodes compare it in each step, since nodes whose
// programs do different things would make a model that no program makes.
#pragma once

#include <bit>
#include <cstdint>

namespace rp {

class CallHash {
 public:
  void add(std::uint64_t value) {
    // The finalizer of SplitMix64, over the hash so far.
    hash_ = (hash_ ^ value) + 0x9e3779b97f4a7c15;
    hash_ = (hash_ ^ (hash_ >> 30)) * 0xbf58476d1ce4e5b9;
    hash_ = (hash_ ^ (hash_ >> 27)) * 0x94d049bb133111eb;
    hash_ ^= hash_ >> 31;
  }
  void add_number(double value) { add(std::bit_cast<std::uint64_t>(value)); }
  [[nodiscard]] std::uint64_t value() const { return hash_; }

 private:
  std::uint64_t hash_ = 0;
};

}  // namespace rp
