#include "common/lifecycle.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "common/check.h"
#include "common/text.h"

namespace rp {

void log_transition(const char* subject, std::int64_t number, std::int64_t pipeline, const char* from, const char* to,
                    const char* why) {
  static const bool is_logged = [] {
    const char* setting = std::getenv("RP_LOG_STATES");
    return setting != nullptr && std::strcmp(setting, "1") == 0;
  }();
  if (why != nullptr && !is_logged) return;
  std::string name = number < 0 ? subject : cat(subject, " ", number);
  if (pipeline >= 0) name += cat(" of pipeline ", pipeline);
  if (why == nullptr) {
    fail_assertion(cat("that ", name, " may change from '", from, "' to '", to, "'").c_str(), __FILE__, __LINE__);
  }
  std::fputs(cat("roundpipe: ", name, ": ", from, " -> ", to, " (", why, ")\n").c_str(), stderr);
}

}  // namespace rp
