#include "roundpipe/error.h"

#include <cstring>

namespace rp {

Interrupted::Interrupted(int signal_number)
    : std::runtime_error(std::string("interrupted by signal ") + strsignal(signal_number)),
      signal_number_(signal_number) {}

}  // namespace rp
