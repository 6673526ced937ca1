// launcher/trace/trace_event.h
// What a record of the journal is called in the trace, and what it says there: docs/formats/trace.md#json.
#pragma once

#include <string>

#include "hoststore/records/trace_journal.h"
#include "launcher/trace/json_text.h"

namespace rp {

// nullptr for a kind that this version does not know.
[[nodiscard]] const char* trace_category(TraceKind kind);

// Short, as "forward 0-3 m5".
[[nodiscard]] std::string trace_event_name(const TraceRecord& record);

// Adds the members of "args" after the first one, which is "pipeline".
void add_trace_arguments(JsonText& out, const TraceRecord& record);

}  // namespace rp
