// hoststore/data_checksum.h
// Checksum of the bytes of a block, a weight group or a gradient, in one piece or in several.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

struct XXH3_state_s;

namespace rp {

// XXH3, 64 bits. Any division into pieces gives the same value.
class DataChecksum {
 public:
  DataChecksum();
  void add(std::span<const std::byte> piece);
  [[nodiscard]] std::uint64_t value() const;

  // Of one piece; never 0, which stands for none.
  [[nodiscard]] static std::uint64_t of(std::span<const std::byte> bytes);

 private:
  struct Free {
    void operator()(XXH3_state_s* state) const;
  };
  std::unique_ptr<XXH3_state_s, Free> state_;
};

}  // namespace rp
