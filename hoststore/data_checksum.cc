#include "hoststore/data_checksum.h"

#include <xxhash.h>

#include <algorithm>
#include <fstream>
#include <vector>

namespace rp {

void DataChecksum::Free::operator()(XXH3_state_s* state) const { XXH3_freeState(state); }

DataChecksum::DataChecksum() : state_(XXH3_createState()) { XXH3_64bits_reset(state_.get()); }

void DataChecksum::add(std::span<const std::byte> piece) {
  XXH3_64bits_update(state_.get(), piece.data(), piece.size());
}

void DataChecksum::add_file(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::vector<char> piece(std::size_t{1} << 20);
  while (in.read(piece.data(), static_cast<std::streamsize>(piece.size())) || in.gcount() > 0)
    add(std::as_bytes(std::span(piece).first(static_cast<std::size_t>(in.gcount()))));
}

std::uint64_t DataChecksum::value() const { return std::max<std::uint64_t>(XXH3_64bits_digest(state_.get()), 1); }

std::uint64_t DataChecksum::of(std::span<const std::byte> bytes) {
  return std::max<std::uint64_t>(XXH3_64bits(bytes.data(), bytes.size()), 1);
}

}  // namespace rp
