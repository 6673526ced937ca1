#include "worker/observers/copy_trace.h"

#include <algorithm>

namespace rp {

CopyTrace::CopyTrace(Stream& stream, TraceJournal& journal, TraceTrack& track)
    : stream_(stream), journal_(journal), track_(track) {
  for (Copy& copy : copies_) copy.owner = this;
}

// SYNC: acquire; pairs with the release in ended(), after which the contents of the place are no
// longer read. A place may still be used by a thread that sleeps between begin() and end() while
// others have recorded many copies; then the next place is tried.
CopyTrace::Copy* CopyTrace::begin() {
  for (std::size_t tried = 0; tried < kMaxCopies; ++tried) {
    Copy& copy = copies_[num_tried_.fetch_add(1, std::memory_order_relaxed) % kMaxCopies];
    if (copy.is_used.exchange(true, std::memory_order_acquire)) continue;
    stream_.call(&CopyTrace::begun, &copy);
    return &copy;
  }
  journal_.count_dropped();
  return nullptr;
}

void CopyTrace::end(Copy& copy, const TraceRecord& record) {
  copy.record = record;
  stream_.call(&CopyTrace::ended, &copy);
}

void CopyTrace::begun(void* argument) { static_cast<Copy*>(argument)->begin_ns = now_ns(); }

void CopyTrace::ended(void* argument) {
  auto& copy = *static_cast<Copy*>(argument);
  CopyTrace& owner = *copy.owner;
  TraceRecord record = copy.record;
  record.begin_ns = std::max(copy.begin_ns, owner.last_end_ns_);
  copy.is_used.store(false, std::memory_order_release);
  record.end_ns = owner.last_end_ns_ = now_ns();
  const bool is_bulk = record.kind == TraceKind::kUploadWeights || record.kind == TraceKind::kDownloadGradient;
  is_bulk ? owner.track_.add_part(record) : owner.track_.add(record);
}

}  // namespace rp
