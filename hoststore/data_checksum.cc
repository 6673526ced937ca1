#include "hoststore/data_checksum.h"

#include <xxhash.h>

#include <algorithm>

namespace rp {

void DataChecksum::Free::operator()(XXH3_state_s* state) const { XXH3_freeState(state); }

DataChecksum::DataChecksum() : state_(XXH3_createState()) { XXH3_64bits_reset(state_.get()); }

void DataChecksum::add(std::span<const std::byte> piece) {
  XXH3_64bits_update(state_.get(), piece.data(), piece.size());
}

std::uint64_t DataChecksum::value() const { return std::max<std::uint64_t>(XXH3_64bits_digest(state_.get()), 1); }

std::uint64_t DataChecksum::of(std::span<const std::byte> bytes) {
  return std::max<std::uint64_t>(XXH3_64bits(bytes.data(), bytes.size()), 1);
}

}  // namespace rp
