#include "worker/input_uploader.h"

#include "common/check.h"
#include "common/system/crash_point.h"

namespace rp {

InputUploader::InputUploader(WorkerParts& worker, InputBuffers& inputs)
    : worker_(worker),
      stream_(worker.device.stream(StreamKind::kUploadActivations)),
      inputs_(inputs),
      waits_(worker.waits(WorkerThread::kInputUploader)) {}

void InputUploader::run() {
  std::uint64_t n = 0;
  while (const auto task = waits_.next_task(worker_.flow.to_fetch)) {
    const Command command = (*task)->command;
    const std::vector<BlockRow> rows = input_rows(command, worker_.store.catalogue());
    for (int microbatch = 0; microbatch < command.num_microbatches; ++microbatch, ++n) {
      if (!fetch(command, rows, microbatch, n)) return;
    }
  }
}

bool InputUploader::fetch(const Command& command, const std::vector<BlockRow>& rows, int microbatch, std::uint64_t n) {
  if (!waits_.wait(command, {.kind = WaitKind::kOwnInputBuffer},
                   [&](const WaitLimits& limits) { return inputs_.wait_free(n, limits); })) {
    return false;
  }
  RP_CRASH_POINT("worker.inputs.has_buffer");
  inputs_.clear(n, stream_);
  for (const BlockRow& row : rows) {
    if (is_once_a_task(row.kind) && microbatch > 0) continue;
    if (row.kind == BlockKind::kGradient) inputs_.publish_recomputable(n, stream_);
    if (!fetch_block(command, row, microbatch, n)) return false;
  }
  inputs_.publish_uploaded(n, stream_);
  return true;
}

bool InputUploader::fetch_block(const Command& command, const BlockRow& wanted, int microbatch, std::uint64_t n) {
  Store& store = worker_.store;
  const auto [row, table] = made_row(store, command, wanted);
  const InputSource& source = table.source(row.kind, row.index);
  if (source.worker >= 0 && source.first_event.epoch() == command.slot.epoch()) {
    const EventInEpoch event(command.slot.epoch(), source.first_event.number() + microbatch + 1);
    const int maker = static_cast<int>(source.worker);
    const auto may_go_on = [&](const WaitLimits& limits) { return worker_.signals.wait(maker, event, limits); };
    const Wait what{.kind = WaitKind::kInputs,
                    .numbers = {microbatch, static_cast<std::int64_t>(row.kind), row.index, source.worker}};
    if (!waits_.wait(command, what, may_go_on)) return false;
    RP_CRASH_POINT("worker.inputs.are_there");
    worker_.signals.enqueue_wait(maker, event, stream_);
  }
  const TaskInput input{.row = wanted, .made_as = row, .table = &table, .microbatch = microbatch};
  worker_.observers.input_published(command, input);
  const BlockPlace& place = input.place();
  if (place.bytes == 0) {  // the layer saved nothing
    RP_ASSERT(row.kind == BlockKind::kRecompute);
    return true;
  }
  worker_.observers.copy_begun(StreamKind::kUploadActivations);
  const auto memory = inputs_.upload(n, wanted.kind, wanted.index, store.block_data(place), place.bytes, stream_);
  RP_CRASH_POINT("worker.inputs.are_enqueued");
  worker_.observers.input_enqueued(command, input, memory);
  return true;
}

}  // namespace rp
