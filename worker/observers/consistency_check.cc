#include "worker/observers/consistency_check.h"

#include <algorithm>
#include <memory>

#include "common/text.h"
#include "hoststore/data_checksum.h"
#include "hoststore/protocol_rule.h"

namespace rp {

namespace {

constexpr std::uint64_t kPieceBytes = std::uint64_t{1} << 20;

std::string stamp_text(const WeightStamp::Contents& stamp) {
  if (stamp == WeightStamp::Contents{}) return "nothing";
  return cat("version ", stamp.version, stamp.is_complete ? "" : ", being written");
}

bool has_version(const WeightStamp::Contents& stamp, Version version) {
  return stamp.is_complete && stamp.version == version;
}

std::string row_text(const BlockRow& row) {
  switch (row.kind) {
    case BlockKind::kActivation: return cat("the activation at boundary ", row.index);
    case BlockKind::kGradient: return cat("the gradient at boundary ", row.index);
    case BlockKind::kRecompute: return cat("what layer ", row.index, " saved for its recompute");
    case BlockKind::kBuffers: return cat("the buffers of layer ", row.index);
    case BlockKind::kArguments: return "the arguments of the loss";
    case BlockKind::kInputImport: return cat("imported input ", row.index);
    case BlockKind::kArgumentImport: return cat("imported argument ", row.index);
  }
  return "?";
}

}  // namespace

// Compares the bytes of one upload that are copied back.
struct ConsistencyCheck::ReadBack : Operation {
  std::span<const std::byte> piece;
  std::uint64_t bytes_left = 0;
  std::function<void(std::uint64_t)> judge;
  DataChecksum sum;

  static void add_piece(void* operation) {
    auto& self = static_cast<ReadBack&>(*static_cast<Operation*>(operation));
    const std::uint64_t bytes = std::min<std::uint64_t>(self.bytes_left, self.piece.size());
    self.sum.add(self.piece.first(bytes));
    self.bytes_left -= bytes;
  }

  static void finish(void* operation) {
    auto& self = static_cast<ReadBack&>(*static_cast<Operation*>(operation));
    const auto kept = self.check->give_up(&self);
    try {
      self.judge(self.sum.value());
    } catch (...) {
      self.check->fail_(std::current_exception());
    }
  }
};

// Sets `checksum` to the checksum of `bytes`, which are in the store.
struct ConsistencyCheck::Checksum : Operation {
  std::span<const std::byte> bytes;
  std::uint64_t* checksum = nullptr;

  static void run(void* operation) {
    auto& self = static_cast<Checksum&>(*static_cast<Operation*>(operation));
    const auto kept = self.check->give_up(&self);
    *self.checksum = DataChecksum::of(self.bytes);
  }
};

void* ConsistencyCheck::keep(std::unique_ptr<Operation> operation) {
  Operation* const kept = operation.get();
  kept->check = this;
  MutexLock lock(mutex_);
  operations_.emplace(kept, std::move(operation));
  return kept;
}

std::unique_ptr<ConsistencyCheck::Operation> ConsistencyCheck::give_up(Operation* operation) {
  MutexLock lock(mutex_);
  return std::move(operations_.extract(operation).mapped());
}

ConsistencyCheck::ConsistencyCheck(Store& store, int worker, Device& device,
                                   std::function<void(std::exception_ptr)> fail)
    : store_(store),
      worker_(worker),
      device_(device),
      fail_(std::move(fail)),
      weights_piece_(kPieceBytes),
      input_piece_(kPieceBytes) {}

std::string ConsistencyCheck::place_text(const Command& command) const {
  return cat("worker ", worker_, ", slot ", command.slot.number(), " of epoch ", command.slot.epoch(), " (",
             phase_name(command.phase), " of layers ", command.first_layer, "-", command.end_layer - 1, " of pipeline ",
             command.pipeline, ", round ", command.round, ", step ", command.step, ")");
}

void ConsistencyCheck::command_taken(const Command& command) {
  const Epoch epoch(store_.worker_words(worker_).takes_part - 1);
  if (command.slot.epoch() != epoch) {
    throw violation_of(ProtocolRule::kEpoch, cat(place_text(command), ": a command came in epoch ", epoch));
  }
  if (last_slot_ && command.slot <= *last_slot_) {
    throw violation_of(ProtocolRule::kSlotOrder,
                       cat(place_text(command), ": the command came after that of slot ", last_slot_->number()));
  }
  last_slot_ = command.slot;
}

void ConsistencyCheck::weights_published(const Command& command, UseId use, Version version) {
  const GroupId group = store_.catalogue().uses()[use].group;
  const std::uint64_t copy = store_.catalogue().weight_groups()[group].copy_of(version);
  const WeightStamp::Contents stamp = store_.stamp(group, copy).observe();
  if (has_version(stamp, version)) return;
  throw violation_of(ProtocolRule::kPublishedWeights,
                     cat(place_text(command), ": weight group ", group, " was published as version ",
                         store_.published(group).observe(), " and version ", version, " is wanted, but working copy ",
                         copy, " holds ", stamp_text(stamp)));
}

void ConsistencyCheck::weights_enqueued(const Command& command, UseId use, Version version, const std::byte* memory) {
  const std::uint64_t bytes = store_.catalogue().weight_groups()[store_.catalogue().uses()[use].group].bytes();
  read_back(device_.stream(StreamKind::kUploadParameters), weights_piece_, {}, {memory, bytes},
            [this, command, use, version](std::uint64_t found) { compare_weights(command, use, version, found); });
}

void ConsistencyCheck::compare_weights(const Command& command, UseId use, Version version, std::uint64_t found) {
  const GroupId group = store_.catalogue().uses()[use].group;
  const std::uint64_t copy = store_.catalogue().weight_groups()[group].copy_of(version);
  const WeightStamp::Contents stamp = store_.stamp(group, copy).observe();
  if (!has_version(stamp, version)) {
    throw violation_of(ProtocolRule::kWeightsStay,
                       cat(place_text(command), ": while version ", version, " of weight group ", group,
                           " was uploaded, working copy ", copy, " became ", stamp_text(stamp)));
  }
  if (stamp.checksum != found) {
    throw violation_of(
        ProtocolRule::kWeightsStay,
        cat(place_text(command), ": the bytes that were uploaded as version ", version, " of weight group ", group,
            " have checksum ", found, ", working copy ", copy, " had ", stamp.checksum, " when it was written"));
  }
  store_.round_table(command).weights_seen(use, command.phase != Phase::kForward) = {.checksum = found,
                                                                                     .version = version};
}

std::string ConsistencyCheck::input_text(const Command& command, const TaskInput& input) const {
  const BlockPlace& place = input.place();
  return cat(place_text(command), ": ", row_text(input.made_as), ", microbatch ", input.microbatch, ", at ",
             place.offset, " of ",
             place.arena == kCoordinatorArena ? "the coordinator's arena" : cat("the arena of worker ", place.arena));
}

void ConsistencyCheck::input_published(const Command& command, const TaskInput& input) {
  const BlockPlace& place = input.place();
  if (place.bytes == 0) {
    if (input.made_as.kind == BlockKind::kRecompute) return;  // the layer saved nothing
    throw violation_of(ProtocolRule::kDataBeforeEvent, cat(input_text(command, input), ", was not written yet"));
  }
  if (place.arena != kCoordinatorArena) {
    // A block of an earlier epoch was committed then.
    const InputSource& source = input.table->source(input.made_as.kind, input.made_as.index);
    if (place.slot.epoch() != source.first_event.epoch() || place.slot.epoch() > command.slot.epoch()) {
      throw violation_of(ProtocolRule::kEpoch, cat(input_text(command, input), ", was written in epoch ",
                                                   place.slot.epoch(), " and not ", source.first_event.epoch()));
    }
    if (place.slot >= command.slot) {
      throw violation_of(ProtocolRule::kWaitsPointBackwards,
                         cat(input_text(command, input), ", was written by slot ", place.slot.number()));
    }
  }
  const std::uint64_t wanted = input.table->checksum(input.made_as.kind, input.made_as.index, input.microbatch);
  if (wanted == 0) {
    throw violation_of(ProtocolRule::kDataBeforeEvent,
                       cat(input_text(command, input), ", has a place and no data yet"));
  }
  // The whole block is verified before any of its contents are used.
  const std::uint64_t found = DataChecksum::of({store_.block_data(place), place.bytes});
  if (found == wanted) return;
  throw violation_of(ProtocolRule::kBlocksStay, cat(input_text(command, input), ", was written with checksum ", wanted,
                                                    " by slot ", place.slot.number(), " and has now ", found));
}

void ConsistencyCheck::input_enqueued(const Command& command, const TaskInput& input,
                                      std::span<const std::byte> memory) {
  const BlockPlace place = input.place();
  const std::uint64_t wanted = input.table->checksum(input.made_as.kind, input.made_as.index, input.microbatch);
  const std::string text = input_text(command, input);
  read_back(device_.stream(StreamKind::kUploadActivations), input_piece_,
            {store_.block_data(place), place.bytes - memory.size()}, memory, [wanted, text](std::uint64_t found) {
              if (found == wanted) return;
              throw violation_of(ProtocolRule::kBlocksStay, cat(text, ", changed while it was uploaded: checksum ",
                                                                wanted, " before, ", found, " after"));
            });
}

void ConsistencyCheck::read_back(Stream& stream, std::vector<std::byte>& piece, std::span<const std::byte> head,
                                 std::span<const std::byte> memory, std::function<void(std::uint64_t)> judge) {
  auto operation = std::make_unique<ReadBack>();
  operation->piece = piece;
  operation->bytes_left = memory.size();
  operation->judge = std::move(judge);
  operation->sum.add(head);
  void* const argument = keep(std::move(operation));
  for (std::uint64_t at = 0; at < memory.size(); at += piece.size()) {
    stream.copy(piece.data(), memory.data() + at, std::min<std::uint64_t>(piece.size(), memory.size() - at));
    stream.call_in_order(&ReadBack::add_piece, argument);
  }
  stream.call_in_order(&ReadBack::finish, argument);
}

// Enqueues an operation that sets `checksum`. REQUIRES: `bytes` and `checksum` are valid until it is executed.
void ConsistencyCheck::enqueue_checksum(Stream& stream, std::span<const std::byte> bytes, std::uint64_t& checksum) {
  auto operation = std::make_unique<Checksum>();
  operation->bytes = bytes;
  operation->checksum = &checksum;
  stream.call_in_order(&Checksum::run, keep(std::move(operation)));
}

void ConsistencyCheck::output_enqueued(const Command& command, BlockRow row, int microbatch,
                                       std::span<const std::byte> block) {
  enqueue_checksum(
      device_.stream(StreamKind::kDownload), block,
      store_.round_table(command).checksum(row.kind, row.index, is_once_a_task(row.kind) ? 0 : microbatch));
}

void ConsistencyCheck::gradient_enqueued(const Command& command, UseId use) {
  enqueue_checksum(device_.stream(StreamKind::kDownloadGradients), store_.gradient(use),
                   store_.round_table(command).gradient_checksum(use));
}

}  // namespace rp
