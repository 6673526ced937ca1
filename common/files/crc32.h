// common/files/crc32.h
// CRC-32 as zlib and gzip compute it (polynomial 0xEDB88320), for files that Python tools write or check.
#pragma once

#include <cstdint>

namespace rp {

// The checksum of the bytes so far, where `before` is that of the bytes before them (0 at the beginning).
[[nodiscard]] std::uint32_t crc32(std::uint32_t before, const void* data, std::uint64_t bytes);

}  // namespace rp
