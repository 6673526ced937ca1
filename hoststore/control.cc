#include "hoststore/control.h"

namespace rp {

namespace {

constexpr std::uint64_t kRegionAlignment = 4096;

}  // namespace

ControlLayout::ControlLayout(const ControlHeader& header) {
  std::uint64_t end = align_up(sizeof(ControlHeader), kRegionAlignment);
  const auto region = [&end](std::uint64_t bytes) {
    const std::uint64_t offset = end;
    end = align_up(end + bytes, kRegionAlignment);
    return offset;
  };
  const std::uint64_t workers = header.num_workers;
  epoch = region(sizeof(EpochWord));
  failed = region(sizeof(SequenceWord));
  published = region(sizeof(NumberWord<Version>) * header.num_groups);
  gradient_released = region(sizeof(SequenceWord) * header.num_uses);
  loss_scales = region(sizeof(LossScaleRecord) * header.num_pipelines);
  update_heartbeats = region(sizeof(SequenceWord) * header.num_pipelines);
  worker_words = region(align_up(sizeof(WorkerWords), 64) * workers);
  event_rings = region(align_up(sizeof(EventRing), 64) * workers);
  communicators = region(sizeof(CommunicatorId) * workers);
  commands = region(align_up(ring_bytes<Command>(kCommandRing), 64) * workers);
  completions = region(align_up(ring_bytes<Completion>(kCompletionRing), 64) * workers);
  frees = region(align_up(ring_bytes<FreeRecord>(kFreeRing), 64) * workers);
  failures = region(sizeof(FailureRecord) * workers);
  stamps =
      region(header.checks_consistency != 0 ? sizeof(WeightStamp) * WeightStamp::kMaxCopies * header.num_groups : 0);
  catalogue = end;
}

}  // namespace rp
