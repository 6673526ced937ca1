#include "coordinator/coordinator_trace.h"

namespace rp {

namespace {

TraceRecord record_of(TraceKind kind, const Round& round, std::int64_t since) {
  return {.kind = kind,
          .begin_ns = since,
          .end_ns = now_ns(),
          .pipeline = round.traits.pipeline,
          .numbers = {static_cast<std::int64_t>(round.number), static_cast<std::int64_t>(round.step)}};
}

}  // namespace

CoordinatorTrace::CoordinatorTrace(TraceJournal* journal, const Catalogue& catalogue)
    : caller_(journal, 0, static_cast<std::uint32_t>(CoordinatorTrack::kCaller)),
      commit_(journal, 0, static_cast<std::uint32_t>(CoordinatorTrack::kCommit)) {
  for (std::uint32_t i = 0; i < catalogue.pipelines().size(); ++i) updates_.emplace_back(journal, catalogue, i);
}

TraceTrack* CoordinatorTrace::waits(CoordinatorThread thread) {
  if (!caller_.is_on()) return nullptr;
  return thread == CoordinatorThread::kUser ? &caller_ : &commit_;
}

void CoordinatorTrace::accept_round(const Round& round, std::int64_t since) {
  if (!caller_.is_on()) return;
  TraceRecord record = record_of(TraceKind::kAcceptRound, round, since);
  record.numbers[2] = static_cast<std::int64_t>(round.slots.size());
  caller_.add(record);
}

void CoordinatorTrace::copy_inputs(const Round& round, std::uint64_t bytes, std::int64_t since) {
  if (!caller_.is_on()) return;
  TraceRecord record = record_of(TraceKind::kCopyInputs, round, since);
  record.numbers[2] = static_cast<std::int64_t>(bytes);
  caller_.add(record);
}

void CoordinatorTrace::commit(SlotInEpoch slot, int worker, std::int64_t since) {
  if (!commit_.is_on()) return;
  commit_.add({.kind = TraceKind::kCommit,
               .begin_ns = since,
               .end_ns = now_ns(),
               .slot = static_cast<std::int64_t>(slot.value()),
               .numbers = {worker}});
}

}  // namespace rp
