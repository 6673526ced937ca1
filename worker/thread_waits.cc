#include "worker/thread_waits.h"

#include "common/text.h"
#include "roundpipe/error.h"

namespace rp {

void ThreadWaits::fail(const Command& command, const Wait& what) const {
  throw Error(ExitCode::kHang,
              cat("worker ", worker_, " waited in vain for ", what.text(), " in slot ", command.slot.number(), " (",
                  phase_name(command.phase), " of layers ", command.first_layer, "-", command.end_layer - 1, ", ",
                  round_text(static_cast<std::int64_t>(command.round)), "): nothing was computed or updated for ",
                  store_.header().wait_timeout_ns / kNsPerSecond, " s; is another process stopped?"));
}

}  // namespace rp
