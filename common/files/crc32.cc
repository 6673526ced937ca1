#include "common/files/crc32.h"

#include <array>
#include <cstddef>
#include <cstring>

namespace rp {
namespace {

using Tables = std::array<std::array<std::uint32_t, 256>, 8>;

// tables[k][b]: the effect of byte b on the checksum, k bytes before the end of a block ("slicing
// by 8").
constexpr Tables make_tables() {
  Tables tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ (value % 2 == 1 ? 0xEDB88320U : 0U);
    tables[0][byte] = value;
  }
  for (std::size_t k = 1; k < 8; ++k) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      tables[k][byte] = (tables[k - 1][byte] >> 8) ^ tables[0][tables[k - 1][byte] & 0xff];
    }
  }
  return tables;
}

constexpr Tables kTables = make_tables();

}  // namespace

std::uint32_t crc32(std::uint32_t before, const void* data, std::uint64_t bytes) {
  const auto* next = static_cast<const unsigned char*>(data);
  std::uint32_t value = ~before;
  for (; bytes >= 8; bytes -= 8, next += 8) {
    std::uint64_t block = 0;
    std::memcpy(&block, next, 8);
    block ^= value;
    value = 0;
    for (std::size_t k = 0; k < 8; ++k) value ^= kTables[7 - k][block >> (8 * k) & 0xff];
  }
  for (; bytes > 0; --bytes, ++next) value = (value >> 8) ^ kTables[0][(value ^ *next) & 0xff];
  return ~value;
}

}  // namespace rp
