#include "common/system/core_dump.h"

#include <sys/mman.h>

#include <cstdlib>
#include <string_view>

namespace rp {

void keep_out_of_core_dump(void* data, std::uint64_t bytes) {
  static const bool is_full = [] {
    const char* setting = std::getenv("RP_CORE");
    return setting != nullptr && std::string_view(setting) == "full";
  }();
  if (bytes > 0 && !is_full) (void)madvise(data, bytes, MADV_DONTDUMP);
}

}  // namespace rp
