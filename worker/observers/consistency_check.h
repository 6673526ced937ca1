// worker/observers/consistency_check.h
// What a worker verifies in a run with --check-consistency: that commands, weights and inputs are what the protocol
// says they are (docs/design/consistency-checker.md). Without the option its methods do nothing.
//
// What an upload has copied is copied back and compared, in stream order, so that it is verified whatever the device.
// What is found wrong is told by `fail`, in the thread that found it, possibly a stream's. Owned by the Worker; each
// method is one thread's. Store and Device must outlive it; the upload streams must be drained before it is destroyed.
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

  // WeightUploader: a command was taken. Throws rp::Error if it is not of the worker's epoch, or not behind the one
  // before.
  void command(const Command& command);

  // WeightUploader, before and after it enqueues the upload of a weight group, as a use of the task's: the working copy
  // has the version (throws rp::Error if not); `memory` has its bytes, and it still has the version.
  void before_weights(const Command& command, std::uint32_t use, std::uint64_t version) const;
  void after_weights(Stream& stream, const Command& command, std::uint32_t use, std::uint64_t version,
                     const std::byte* memory);

  // InputUploader: where a block lies that the task reads, and what it is in its own round's table.
  struct Input {
    const RoundTable* table = nullptr;
    BlockRow row;
    int microbatch = 0;
  };
  // InputUploader, before and after it enqueues the upload of a block: it was made by an earlier slot and has the
  // checksum that its maker gave it (throws rp::Error if not); `memory`, the end of it on the device, has these bytes
  // too.
  void before_input(const Command& command, const Input& input);
  void after_input(Stream& stream, const Command& command, const Input& input, std::span<const std::byte> memory);

 private:
  class ReadBack;

  void read_back(Stream& stream, std::vector<std::byte>& piece, std::span<const std::byte> head,
                 std::span<const std::byte> memory, std::function<void(std::uint64_t)> judge);
  void compare_weights(const Command& command, std::uint32_t use, std::uint64_t version, std::uint64_t found);
  [[nodiscard]] std::string place_text(const Command& command) const;
  [[nodiscard]] std::string input_text(const Command& command, const Input& input) const;

  Store& store_;
  const int worker_;
  const bool is_on_;
  const std::function<void(std::exception_ptr)> fail_;
  std::uint64_t next_slot_ = 0;           // weight uploader's: the least that may come
  std::vector<std::byte> weights_piece_;  // parts of an upload that come back; the upload streams'
  std::vector<std::byte> input_piece_;
};

// Once `stream` has done what is enqueued, `checksum` is that of the bytes in the store. REQUIRES: both live until
// then.
void enqueue_checksum(Stream& stream, std::span<const std::byte> bytes, std::uint64_t& checksum);

}  // namespace rp
