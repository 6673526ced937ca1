// pipeline/state_save.h
// Writes a saved state to a directory, for Pipeline::save_state() and begin_save_state().
//
// Owned by the caller of these functions, in a StateSave or on its stack. The Pipeline::Impl has a
// reference to it, and stops it if the pipeline ends first.
#pragma once

#include <array>
#include <atomic>
#include <exception>
#include <filesystem>
#include <memory>
#include <optional>
#include <semaphore>
#include <string>
#include <thread>
#include <vector>

#include "common/checked_files/output_directory.h"
#include "common/system/clock.h"
#include "coordinator/updates/state_snapshot.h"
#include "nodes/pending_messages.h"
#include "pipeline/pipeline_impl.h"
#include "pipeline/state_description.h"
#include "roundpipe/pipeline.h"

namespace rp {

// The checksum of the file that a node has written.
struct PartMessage {
  std::array<char, 64> checksum{};  // ends with a zero
};

class StateSave::Impl {
 public:
  // Prepares to save the state after the last accepted step. The store preserves this state until
  // it is written.
  Impl(Pipeline::Impl& pipeline, std::filesystem::path directory, const std::string& user_data);
  // Stops a thread that is still writing. Removes what was written if commit() was not called.
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  // Waits until the step is applied, then writes all files to a temporary directory next to the
  // target.
  void write();
  // Renames the temporary directory to the target; then nothing unfinished is left. On several
  // nodes, the first one does so. REQUIRES: write() has returned.
  void commit();

  // Runs write() in a thread.
  void start();
  [[nodiscard]] bool is_written() const { return has_ended_.load(); }
  [[nodiscard]] double seconds() const { return static_cast<double>(written_ns_ - begun_ns_) / kNsPerSecond; }
  void wait_written() const { has_ended_.wait(false); }
  // Waits for the thread, rethrows its exception if there was one, and commits.
  void finish();
  // Makes the thread stop after the piece that it is writing. Updates no longer wait for it.
  void give_up();
  // Calls give_up(), and waits for the thread.
  void stop();

 private:
  void run();
  // On several nodes: the first one creates the directory, and the others join it.
  void share_directory();
  // On several nodes: tells the first one the checksum of this node's file; the first one lists
  // those of the others.
  void share_checksums(const std::string& own_file);
  // Blocks until finish() or stop(), so that a second INT is handled by a thread that removes what
  // was written.
  void wait_to_be_finished();

  Pipeline::Impl& pipeline_;
  const std::filesystem::path directory_;
  StateDescription description_;
  const std::vector<BufferState> buffers_;
  const std::vector<StateTensor> tensors_;
  const std::shared_ptr<StateSnapshot> snapshot_;
  std::optional<OutputDirectory> output_;
  PendingMessages parts_of_others_;                  // on several nodes
  std::vector<std::shared_ptr<PartMessage>> parts_;  // by node: at the first one, those of the others

  const std::int64_t begun_ns_ = now_ns();
  std::int64_t written_ns_ = 0;  // written before has_ended_
  std::atomic<bool> has_ended_{false};
  std::exception_ptr error_;  // written by the thread, read once it has ended
  std::binary_semaphore may_end_{0};
  std::thread thread_;
};

}  // namespace rp
