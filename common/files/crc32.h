// common/files/crc32.h
// Computes the CRC-32 of zlib and gzip (polynomial 0xEDB88320), for files that Python tools write
// or check.
#pragma once

#include <cstdint>

namespace rp {

// Returns the checksum of all bytes so far. `before`: the checksum of the bytes before `data` (0 at
// the beginning).
[[nodiscard]] std::uint32_t crc32(std::uint32_t before, const void* data, std::uint64_t bytes);

}  // namespace rp
