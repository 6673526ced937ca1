// tests/hoststore/small_catalogue.h
// Makes a catalogue with one of everything, and computes the checksum after bytes of it were
// changed.
#pragma once

#include <xxhash.h>

#include <cstring>
#include <vector>

#include "hoststore/catalogue.h"

namespace rp::test {

// Returns a catalogue with two pipelines; tied, frozen and 16-bit parameters; sums; and two working
// copies.
inline Catalogue small_catalogue() {
  const ParameterRequest weight{.name = "w", .dtype = DType::kBFloat16, .shape = {3, 5}};
  const ParameterRequest frozen{.name = "f", .dtype = DType::kFloat32, .shape = {7}, .is_trained = false};
  const ParameterRequest tied{.name = "t", .dtype = DType::kBFloat16, .shape = {2, 2}, .tied_group = 0};
  return Catalogue::lay_out(
      {{.name = "first",
        .layers = {{.name = "a", .parameters = {weight, frozen, tied}}, {.name = "b", .parameters = {tied}}},
        .num_copies = 2,
        .with_sums = true},
       {.name = "second", .layers = {{.name = "c", .parameters = {weight}, .num_buffers = 1}}}});
}

// Sets the checksum as Catalogue::to_bytes() does: over everything after the checksum's own 8
// bytes.
inline void set_checksum(std::vector<std::byte>& bytes) {
  const std::uint64_t checksum = XXH3_64bits(bytes.data() + sizeof(checksum), bytes.size() - sizeof(checksum));
  std::memcpy(bytes.data(), &checksum, sizeof(checksum));
}

}  // namespace rp::test
