#include "common/check.h"

#include <cstdio>
#include <cstdlib>

namespace rp {

void fail_assertion(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "roundpipe: internal error: %s does not hold (%s:%d); please report it\n", condition, file, line);
  std::abort();
}

}  // namespace rp
