// launcher/trace/trace_json.h
// A run's journal as the JSON that Perfetto and chrome://tracing read: docs/formats/trace.md#json.
#pragma once

#include <functional>
#include <string_view>

#include "hoststore/records/trace_journal.h"

namespace rp {

// Gives the whole text to `write`, in large parts and in order. Holds the records of one track at a time. REQUIRES:
// nobody writes to the journal any more; else the newest records may be missing. Throws what `write` throws, and
// rp::Error (kOutputFailed) if the journal cannot be read.
void write_trace_json(const TraceJournal& journal, const std::function<void(std::string_view)>& write);

}  // namespace rp
