// launcher/trace/trace_json.h
// Converts the journal of a run to JSON for Perfetto and chrome://tracing:
// docs/formats/trace.md#json.
#pragma once

#include <functional>
#include <string_view>

#include "hoststore/records/trace_journal.h"

namespace rp {

// Passes the whole text to `write`, in large parts and in order. Holds the records of one track at
// a time in memory. REQUIRES: no process writes to the journal any more; otherwise the newest
// records may be missing. Throws what `write` throws, and rp::Error (kOutputFailed) if the journal
// cannot be read.
void write_trace_json(const TraceJournal& journal, const std::function<void(std::string_view)>& write);

}  // namespace rp
