#include "roundpipe/error.h"

#include <atomic>
#include <cstring>

#include "common/interrupted.h"

namespace rp {

namespace {
std::atomic<int> g_num_interrupted{0};
}  // namespace

Interrupted::Interrupted(int signal_number)
    : std::runtime_error(std::string("interrupted by signal ") + strsignal(signal_number)),
      signal_number_(signal_number) {
  ++g_num_interrupted;
}

Interrupted::Interrupted(const Interrupted& other) noexcept
    : std::runtime_error(other), signal_number_(other.signal_number_) {
  ++g_num_interrupted;
}

Interrupted::~Interrupted() { --g_num_interrupted; }

bool interrupted_exists() { return g_num_interrupted > 0; }

}  // namespace rp
