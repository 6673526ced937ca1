// launcher/trace/trace_event.h
// Maps a record of the journal to the category, name and arguments of its trace event:
// docs/formats/trace.md#json.
#pragma once

#include <string>

#include "hoststore/records/trace_journal.h"
#include "launcher/trace/json_text.h"

namespace rp {

// Returns nullptr for a kind that this version does not know.
[[nodiscard]] const char* trace_category(TraceKind kind);

// Returns a short name, such as "forward 0-3 m5".
[[nodiscard]] std::string trace_event_name(const TraceRecord& record);

// Appends the members of "args", except the first one, which is "pipeline".
void add_trace_arguments(JsonText& out, const TraceRecord& record);

}  // namespace rp
