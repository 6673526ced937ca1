// hoststore/data_checksum.h
// Computes the checksum of a block, a weight group or a gradient, from one piece or from several.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

struct XXH3_state_s;

namespace rp {

// An XXH3 checksum of 64 bits. The value does not depend on how the bytes are divided into pieces.
class DataChecksum {
 public:
  DataChecksum();
  void add(std::span<const std::byte> piece);
  // Adds the contents of a file; nothing if it cannot be read.
  void add_file(const std::filesystem::path& file);
  [[nodiscard]] std::uint64_t value() const;

  // Returns the checksum of one piece. Like value(), it is never 0, which represents a missing
  // checksum.
  [[nodiscard]] static std::uint64_t of(std::span<const std::byte> bytes);

 private:
  struct Free {
    void operator()(XXH3_state_s* state) const;
  };
  std::unique_ptr<XXH3_state_s, Free> state_;
};

}  // namespace rp
