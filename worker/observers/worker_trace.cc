#include "worker/observers/worker_trace.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace rp {

namespace {

std::int64_t number(std::uint64_t value) { return static_cast<std::int64_t>(value); }

TraceRecord record_of(TraceKind kind, const Command& command) {
  return {.kind = kind, .slot = number(command.slot), .pipeline = static_cast<std::int32_t>(command.pipeline)};
}

TraceRecord compute_of(TraceKind kind, const Command& command, std::int64_t begin_ns, std::int64_t end_ns) {
  TraceRecord record = record_of(kind, command);
  record.begin_ns = begin_ns;
  record.detail = static_cast<std::uint32_t>(command.phase);
  record.end_ns = end_ns;
  record.first_layer = command.first_layer;
  record.end_layer = command.end_layer;
  record.numbers = {number(command.round), number(command.step)};
  return record;
}

TraceRecord block_of(TraceKind kind, const Command& command, BlockRow row, int microbatch) {
  TraceRecord record = record_of(kind, command);
  record.detail = static_cast<std::uint32_t>(row.kind);
  record.first_layer = row.index;
  record.microbatch = is_once_a_task(row.kind) ? -1 : microbatch;
  return record;
}

TraceRecord use_of(TraceKind kind, const Command& command, const UseRecord& use) {
  TraceRecord record = record_of(kind, command);
  record.first_layer = static_cast<std::int32_t>(use.layer - command.layer_base);
  record.end_layer = record.first_layer + 1;
  return record;
}

}  // namespace

struct WorkerTrace::Tracks {
  Tracks(TraceJournal& journal, int worker, Device& device)
      : process(1 + static_cast<std::uint32_t>(worker)),
        compute(&journal, process, static_cast<std::uint32_t>(WorkerTrack::kCompute)),
        upload_inputs(&journal, process, static_cast<std::uint32_t>(WorkerTrack::kUploadInputs)),
        upload_weights(&journal, process, static_cast<std::uint32_t>(WorkerTrack::kUploadWeights)),
        download(&journal, process, static_cast<std::uint32_t>(WorkerTrack::kDownload)),
        waits{TraceTrack(&journal, process, wait_track(WorkerThread::kWeightUploader)),
              TraceTrack(&journal, process, wait_track(WorkerThread::kInputUploader)),
              TraceTrack(&journal, process, wait_track(WorkerThread::kStageRunner)),
              TraceTrack(&journal, process, wait_track(WorkerThread::kGradientDownloader))},
        inputs(device.stream(StreamKind::kUploadActivations), journal, upload_inputs),
        weights(device.stream(StreamKind::kUploadParameters), journal, upload_weights),
        downloads(device.stream(StreamKind::kDownload), journal, download) {
    Stream& stream = device.stream(StreamKind::kDownloadGradients);
    if (&stream == &device.stream(StreamKind::kDownload)) return;
    download_gradients.emplace(&journal, process, static_cast<std::uint32_t>(WorkerTrack::kDownloadGradients));
    own_gradients.emplace(stream, journal, *download_gradients);
  }

  static std::uint32_t wait_track(WorkerThread thread) {
    return static_cast<std::uint32_t>(WorkerTrack::kWaits) + static_cast<std::uint32_t>(thread);
  }

  const std::uint32_t process;
  TraceTrack compute;
  std::int64_t last_compute_ns = 0;  // the end of the last computation
  TraceTrack upload_inputs;
  TraceTrack upload_weights;
  TraceTrack download;
  IndexedArray<WorkerThread, TraceTrack, 4> waits;
  CopyTrace inputs;
  CopyTrace weights;
  CopyTrace downloads;
  std::optional<TraceTrack> download_gradients;  // set if gradients have a stream of their own
  std::optional<CopyTrace> own_gradients;
  [[nodiscard]] CopyTrace& gradients() { return own_gradients ? *own_gradients : downloads; }
};

WorkerTrace::WorkerTrace(TraceJournal* journal, int worker, Device& device) {
  if (journal != nullptr) tracks_ = std::make_unique<Tracks>(*journal, worker, device);
}

WorkerTrace::WorkerTrace() = default;
WorkerTrace::~WorkerTrace() = default;

TraceTrack* WorkerTrace::waits(WorkerThread thread) { return tracks_ ? &tracks_->waits[thread] : nullptr; }

// The estimate of a device's clock improves over time, so a computation may seem to begin before
// the previous one ended.
void WorkerTrace::microbatch(const Command& command, const MicrobatchTime& time) {
  if (!tracks_) return;
  const TraceKind kind = time.is_recompute ? TraceKind::kRecompute : TraceKind::kCompute;
  const std::int64_t begin_ns = std::max(time.begin_ns, std::exchange(tracks_->last_compute_ns, time.end_ns));
  TraceRecord record = compute_of(kind, command, begin_ns, std::max(begin_ns, time.end_ns));
  record.microbatch = time.microbatch;
  tracks_->compute.add(record);
}

void WorkerTrace::task(const Command& command, std::int64_t begin_ns, std::int64_t end_ns) {
  if (tracks_) tracks_->compute.add(compute_of(TraceKind::kTask, command, begin_ns, end_ns));
}

CopyTrace::Copy* WorkerTrace::begin_copy(StreamKind stream) {
  if (!tracks_) return nullptr;
  switch (stream) {
    case StreamKind::kUploadParameters: return tracks_->weights.begin();
    case StreamKind::kUploadActivations: return tracks_->inputs.begin();
    case StreamKind::kDownload: return tracks_->downloads.begin();
    case StreamKind::kDownloadGradients: return tracks_->gradients().begin();
    case StreamKind::kCompute: break;
  }
  return nullptr;
}

void WorkerTrace::output(CopyTrace::Copy* copy, const Command& command, BlockRow row, int microbatch,
                         std::uint64_t bytes) {
  if (copy == nullptr) return;
  TraceRecord record = block_of(TraceKind::kDownloadOutput, command, row, microbatch);
  record.numbers = {number(bytes)};
  tracks_->downloads.end(*copy, record);
}

void WorkerTrace::weights(CopyTrace::Copy* copy, const Command& command, const UseRecord& use, std::uint64_t version,
                          std::uint64_t bytes) {
  if (copy == nullptr) return;
  TraceRecord record = use_of(TraceKind::kUploadWeights, command, use);
  record.numbers = {number(bytes), number(version), use.group.value()};
  tracks_->weights.end(*copy, record);
}

void WorkerTrace::input(CopyTrace::Copy* copy, const Command& command, BlockRow row, BlockRow made_as, int microbatch,
                        const BlockPlace& place) {
  if (copy == nullptr) return;
  TraceRecord record = block_of(TraceKind::kUploadInput, command, row, microbatch);
  const std::int64_t maker = place.arena == kCoordinatorArena ? -1 : number(place.slot);
  record.numbers = {number(place.bytes), maker, static_cast<std::int64_t>(made_as.kind), made_as.index};
  tracks_->inputs.end(*copy, record);
}

void WorkerTrace::gradient(CopyTrace::Copy* copy, const Command& command, const UseRecord& use, std::uint64_t bytes) {
  if (copy == nullptr) return;
  TraceRecord record = use_of(TraceKind::kDownloadGradient, command, use);
  record.numbers = {number(bytes), use.group.value()};
  tracks_->gradients().end(*copy, record);
}

}  // namespace rp
