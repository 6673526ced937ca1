#include "worker/output_writer.h"

#include <utility>

#include "common/system/crash_point.h"

namespace rp {

OutputWriter::OutputWriter(Store& store, int worker, Device& device, OutputSignals& signals, WorkerObservers& observers)
    : store_(store),
      worker_(worker),
      stream_(device.stream(StreamKind::kDownload)),
      compute_(device.stream(StreamKind::kCompute)),
      signals_(signals),
      observers_(observers),
      frees_(store.free_reader(worker)),
      allocator_(store.arena(static_cast<std::uint64_t>(worker)), store.live_blocks(worker)),
      computed_(device.make_event()) {}

void OutputWriter::take_back_freed(Epoch epoch) {
  FreeRecord record;
  while (frees_.try_pop(record)) {
    if (record.epoch == epoch) allocator_.free(record.offset);
    RP_CRASH_POINT("worker.outputs.takes_back");
  }
}

void OutputWriter::write_block(const Command& command, int microbatch, const OutputBlock& block) {
  const BlockLayout layout = lay_out_block(block.tensors);
  take_back_freed(command.slot.epoch());
  const std::uint64_t offset = allocator_.allocate(layout.bytes);
  std::byte* memory = store_.arena(static_cast<std::uint64_t>(worker_)).data(offset, layout.bytes);
  RP_CRASH_POINT("worker.outputs.allocates");
  write_block_head(memory, layout);
  RP_CRASH_POINT("worker.outputs.writes_head");
  observers_.copy_begun(StreamKind::kDownload);
  for (std::size_t i = 0; i < block.tensors.size(); ++i) {
    const TensorView& tensor = block.tensors[i];
    if (!tensor.desc.is_absent()) {
      stream_.copy(memory + layout.tensors[i].offset, tensor.data, tensor.desc.bytes());
    }
  }
  // All microbatches together make one block of buffers.
  const int place = block.kind == BlockKind::kBuffers ? 0 : microbatch;
  store_.round_table(command).place(block.kind, block.index, place) = {
      .slot = command.slot, .arena = static_cast<std::uint64_t>(worker_), .offset = offset, .bytes = layout.bytes};
  RP_CRASH_POINT("worker.outputs.writes_place");
  observers_.output_enqueued(command, {block.kind, block.index}, microbatch, {memory, layout.bytes});
}

void OutputWriter::write(const Command& command, int microbatch, MicrobatchOutputs outputs) {
  compute_.record(*computed_);
  stream_.wait_event(*computed_);
  // First, so that the tensors live until they are copied even if an operation cannot be enqueued.
  Place& place = places_[num_written_ % kOutputPlaces];
  place = {.blocks = std::move(outputs.blocks), .writer = this, .number = ++num_written_};
  for (const OutputBlock& block : place.blocks) write_block(command, microbatch, block);
  RP_CRASH_POINT("worker.outputs.signals");
  signals_.signal(EventInEpoch(command.slot.epoch(), command.first_event + microbatch + 1), stream_);
  RP_CRASH_POINT("worker.outputs.has_signalled");
  stream_.call(&OutputWriter::free_place, &place);
}

// Called in a thread of the stream. The number is published last, because the place may be filled
// again from then on.
void OutputWriter::free_place(void* argument) {
  Place& place = *static_cast<Place*>(argument);
  place.blocks.clear();
  place.writer->copied_.publish(place.number);
}

}  // namespace rp
