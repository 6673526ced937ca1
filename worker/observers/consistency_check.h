// worker/observers/consistency_check.h
// Verifies in a run with --check-consistency that commands, weights and inputs are what the
// protocol promises, and writes the checksums of outputs and gradients that others will verify
// (docs/design/consistency-checker.md).
//
// After an upload, the copied bytes are copied back and compared, in the order of the stream, so
// the check works on every device. Violations that are found in this way are reported through
// `fail`, in the thread that finds them, which may belong to a stream.
//
// Owned by the WorkerObservers of a run with --check-consistency.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/mutex.h"
#include "device/device.h"
#include "hoststore/store.h"
#include "worker/observers/worker_observer.h"

namespace rp {

class ConsistencyCheck final : public WorkerObserver {
 public:
  // Store and device must outlive it; the device's streams must be drained before it is destroyed.
  ConsistencyCheck(Store& store, int worker, Device& device, std::function<void(std::exception_ptr)> fail);

  // Throws rp::Error if the command is not of the worker's epoch, or does not come after the
  // previous one.
  void command_taken(const Command& command) override;

  // Verifies that the working copy has the version. Throws rp::Error if not.
  void weights_published(const Command& command, UseId use, Version version) override;
  // Verifies that `memory` gets the copy's bytes, and that the copy still has the version then.
  void weights_enqueued(const Command& command, UseId use, Version version, const std::byte* memory) override;

  // Verifies that an earlier slot made the block and that it has the checksum that its maker wrote.
  // Throws rp::Error if not.
  void input_published(const Command& command, const TaskInput& input) override;
  // Verifies that `memory` gets the same bytes.
  void input_enqueued(const Command& command, const TaskInput& input, std::span<const std::byte> memory) override;

  // Enqueue operations that write the checksum of the data to the round's table.
  void output_enqueued(const Command& command, BlockRow row, int microbatch, std::span<const std::byte> block) override;
  void gradient_enqueued(const Command& command, UseId use) override;

 private:
  // The argument of operations on a stream. Owned by the check, because a stream that is stopped drops operations.
  struct Operation {
    virtual ~Operation() = default;
    ConsistencyCheck* check = nullptr;
  };
  struct ReadBack;
  struct Checksum;
  [[nodiscard]] void* keep(std::unique_ptr<Operation> operation);
  // Called by the last operation on the stream.
  [[nodiscard]] std::unique_ptr<Operation> give_up(Operation* operation);

  void enqueue_checksum(Stream& stream, std::span<const std::byte> bytes, std::uint64_t& checksum);
  void read_back(Stream& stream, std::vector<std::byte>& piece, std::span<const std::byte> head,
                 std::span<const std::byte> memory, std::function<void(std::uint64_t)> judge);
  void compare_weights(const Command& command, UseId use, Version version, std::uint64_t found);
  [[nodiscard]] std::string place_text(const Command& command) const;
  [[nodiscard]] std::string input_text(const Command& command, const TaskInput& input) const;

  Store& store_;
  const int worker_;
  Device& device_;
  const std::function<void(std::exception_ptr)> fail_;
  std::optional<SlotInEpoch> last_slot_;  // used by the weight uploader: of the last command
  std::vector<std::byte> weights_piece_;  // the piece of an upload that is copied back; used by the upload streams
  std::vector<std::byte> input_piece_;
  Mutex mutex_;
  std::map<const Operation*, std::unique_ptr<Operation>> operations_ RP_GUARDED_BY(mutex_);
};

}  // namespace rp
