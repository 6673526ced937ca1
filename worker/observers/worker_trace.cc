#include "worker/observers/worker_trace.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "common/check.h"
#include "worker/observers/copy_trace.h"

namespace rp {

namespace {

std::int64_t number(std::uint64_t value) { return static_cast<std::int64_t>(value); }

TraceRecord record_of(TraceKind kind, const Command& command) {
  return {.kind = kind, .slot = number(command.slot.value()), .pipeline = static_cast<std::int32_t>(command.pipeline)};
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
  IndexedArray<WorkerThread, TraceTrack, kNumWorkerThreads> waits;
  CopyTrace inputs;
  CopyTrace weights;
  CopyTrace downloads;
  std::optional<TraceTrack> download_gradients;  // set if gradients have a stream of their own
  std::optional<CopyTrace> own_gradients;
  // By stream: the copy that the stream's thread is enqueueing; null if it was dropped.
  IndexedArray<StreamKind, CopyTrace::Copy*, kNumStreamKinds> begun{};

  [[nodiscard]] CopyTrace& copies(StreamKind stream) {
    switch (stream) {
      case StreamKind::kUploadParameters: return weights;
      case StreamKind::kUploadActivations: return inputs;
      case StreamKind::kDownloadGradients: return own_gradients ? *own_gradients : downloads;
      case StreamKind::kDownload: return downloads;
      case StreamKind::kCompute: break;  // nothing is copied on the compute stream
    }
    RP_ASSERT(false);
  }
  void end_copy(StreamKind stream, const TraceRecord& record) {
    if (begun[stream] != nullptr) copies(stream).end(*begun[stream], record);
  }
};

WorkerTrace::WorkerTrace(TraceJournal& journal, const Catalogue& catalogue, int worker, Device& device)
    : catalogue_(catalogue), tracks_(std::make_unique<Tracks>(journal, worker, device)) {}

WorkerTrace::~WorkerTrace() = default;

TraceTrack& WorkerTrace::waits(WorkerThread thread) { return tracks_->waits[thread]; }

void WorkerTrace::copy_begun(StreamKind stream) { tracks_->begun[stream] = tracks_->copies(stream).begin(); }

void WorkerTrace::weights_piece_enqueued(const Command& command, UseId use, Version version, std::uint64_t bytes) {
  const UseRecord& of_use = catalogue_.uses()[use];
  TraceRecord record = use_of(TraceKind::kUploadWeights, command, of_use);
  record.numbers = {number(bytes), number(version.value()), of_use.group.value()};
  tracks_->end_copy(StreamKind::kUploadParameters, record);
}

void WorkerTrace::input_enqueued(const Command& command, const TaskInput& input, std::span<const std::byte> memory) {
  (void)memory;
  TraceRecord record = block_of(TraceKind::kUploadInput, command, input.row, input.microbatch);
  const BlockPlace& place = input.place();
  const std::int64_t maker = place.arena == kCoordinatorArena ? -1 : number(place.slot.value());
  record.numbers = {number(place.bytes), maker, static_cast<std::int64_t>(input.made_as.kind), input.made_as.index};
  tracks_->end_copy(StreamKind::kUploadActivations, record);
}

void WorkerTrace::output_enqueued(const Command& command, BlockRow row, int microbatch,
                                  std::span<const std::byte> block) {
  TraceRecord record = block_of(TraceKind::kDownloadOutput, command, row, microbatch);
  record.numbers = {number(block.size())};
  tracks_->end_copy(StreamKind::kDownload, record);
}

void WorkerTrace::gradient_piece_enqueued(const Command& command, UseId use, std::uint64_t bytes) {
  const UseRecord& of_use = catalogue_.uses()[use];
  TraceRecord record = use_of(TraceKind::kDownloadGradient, command, of_use);
  record.numbers = {number(bytes), of_use.group.value()};
  tracks_->end_copy(StreamKind::kDownloadGradients, record);
}

// The estimate of a device's clock improves over time, so a computation may seem to begin before
// the previous one ended.
void WorkerTrace::task_done(const Command& command, std::span<const MicrobatchTime> times) {
  for (const MicrobatchTime& time : times) {
    const TraceKind kind = time.is_recompute ? TraceKind::kRecompute : TraceKind::kCompute;
    const std::int64_t begin_ns = std::max(time.begin_ns, std::exchange(tracks_->last_compute_ns, time.end_ns));
    TraceRecord record = compute_of(kind, command, begin_ns, std::max(begin_ns, time.end_ns));
    record.microbatch = time.microbatch;
    tracks_->compute.add(record);
  }
  tracks_->compute.add(compute_of(TraceKind::kTask, command, times.front().begin_ns, times.back().end_ns));
}

}  // namespace rp
