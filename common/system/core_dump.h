// common/system/core_dump.h
// Excludes memory from core dumps.
#pragma once

#include <cstdint>

namespace rp {

// Leaves a mapping out of core dumps, which would otherwise contain the whole model and take
// minutes to write. With RP_CORE=full in the environment, the mapping stays in. REQUIRES: `data` is
// the start of a page.
void keep_out_of_core_dump(void* data, std::uint64_t bytes);

}  // namespace rp
