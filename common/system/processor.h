// common/system/processor.h
#pragma once

#include <string>

namespace rp {

// Returns the extensions of the processor that change how LibTorch computes, such as "avx2 avx512f", in this order.
// `cpuinfo`: the contents of /proc/cpuinfo.
[[nodiscard]] std::string instructions_of(const std::string& cpuinfo);

}  // namespace rp
