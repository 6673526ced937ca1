// worker/observers/consistency_check.h
// Verifies in a run with --check-consistency that commands, weights and inputs are what the
// protocol promises (docs/design/consistency-checker.md). Without the option its methods do
// nothing.
//
// After an upload, the copied bytes are copied back and compared, in the order of the stream, so
// the check works on every device. Violations that are found in this way are reported through
// `fail`, in the thread that finds them, which may belong to a stream.
//
// Owned by the Worker; each method is called by one thread only. Store and Device must outlive it;
// the upload streams must be drained before it is destroyed.
#pragma once

#include <array>
#include <cstdint>
#include <exception>
#include <functional>
#include <span>
#include <vector>

#include "device/device.h"
#include "hoststore/data_checksum.h"
#include "hoststore/store.h"
#include "hoststore/task_rows.h"

namespace rp {

class ConsistencyCheck {
 public:
  ConsistencyCheck(Store& store, int worker, std::function<void(std::exception_ptr)> fail);

  // Called by the weight uploader for each command that it takes. Throws rp::Error if the command
  // is not of the worker's epoch, or does not come after the previous one.
  void command(const Command& command);

  // Called by the weight uploader before and after it enqueues the upload of a weight group for a
  // use of the task. The first verifies that the working copy has the version, and throws rp::Error
  // if not. The second verifies that `memory` gets the copy's bytes, and that the copy still has
  // the version then.
  void before_weights(const Command& command, UseId use, std::uint64_t version) const;
  void after_weights(Stream& stream, const Command& command, UseId use, std::uint64_t version, const std::byte* memory);

  // A block that the task reads: its place in the table of the round that made it.
  struct Input {
    const RoundTable* table = nullptr;
    BlockRow row;
    int microbatch = 0;
  };
  // Called by the input uploader before and after it enqueues the upload of a block. The first
  // verifies that an earlier slot made the block and that it has the checksum that its maker wrote,
  // and throws rp::Error if not. The second verifies that `memory`, the data of the block on the
  // device, gets the same bytes.
  void before_input(const Command& command, const Input& input);
  void after_input(Stream& stream, const Command& command, const Input& input, std::span<const std::byte> memory);

 private:
  class ReadBack;

  void read_back(Stream& stream, std::vector<std::byte>& piece, std::span<const std::byte> head,
                 std::span<const std::byte> memory, std::function<void(std::uint64_t)> judge);
  void compare_weights(const Command& command, UseId use, std::uint64_t version, std::uint64_t found);
  [[nodiscard]] std::string place_text(const Command& command) const;
  [[nodiscard]] std::string input_text(const Command& command, const Input& input) const;

  Store& store_;
  const int worker_;
  const bool is_on_;
  const std::function<void(std::exception_ptr)> fail_;
  std::uint64_t next_slot_ = 0;           // used by the weight uploader: the lowest slot that may come
  std::vector<std::byte> weights_piece_;  // the piece of an upload that is copied back; used by the upload streams
  std::vector<std::byte> input_piece_;
};

// Enqueues an operation on `stream` that sets `checksum` to the checksum of `bytes`, which are in
// the store. REQUIRES: both are valid until it is executed.
void enqueue_checksum(Stream& stream, std::span<const std::byte> bytes, std::uint64_t& checksum);

}  // namespace rp
