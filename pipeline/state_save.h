// pipeline/state_save.h
// A state on its way to a file: Pipeline::save_state() and begin_save_state().
//
// Owned by the caller of these, in a StateSave or on its stack; the Pipeline::Impl knows of it, and stops it when it
// ends first.
#pragma once

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
#include "pipeline/pipeline_impl.h"
#include "pipeline/state_description.h"
#include "roundpipe/pipeline.h"

namespace rp {

class StateSave::Impl {
 public:
  // The state after the last accepted step, which stays as it is in the store until it is written.
  Impl(Pipeline::Impl& pipeline, std::filesystem::path directory, const std::string& user_data);
  // Ends a thread that still writes; what was written without commit() is removed.
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  // Waits for the step and writes everything, beside the directory.
  void write();
  // Gives it its name: nothing is unfinished then. REQUIRES: written.
  void commit() {
    output_->commit();
    output_.reset();
  }

  // write() in a thread.
  void start();
  [[nodiscard]] bool is_written() const { return has_ended_.load(); }
  [[nodiscard]] double seconds() const { return static_cast<double>(written_ns_ - begun_ns_) / kNsPerSecond; }
  void wait_written() const { has_ended_.wait(false); }
  // Waits for the thread, throws what it threw, and commits.
  void finish();
  // The thread writes no more than the piece that it is at; updates do not wait for it.
  void give_up() { snapshot_->close(); }
  // give_up(), and waits for the thread.
  void stop();

 private:
  void run();
  // Until finish() or stop(): a second INT finds somebody who removes what was written.
  void wait_to_be_finished();

  Pipeline::Impl& pipeline_;
  const std::filesystem::path directory_;
  StateDescription description_;
  const std::vector<BufferState> buffers_;
  const std::vector<StateTensor> tensors_;
  const std::shared_ptr<StateSnapshot> snapshot_;
  std::optional<OutputDirectory> output_;

  const std::int64_t begun_ns_ = now_ns();
  std::int64_t written_ns_ = 0;  // before has_ended_
  std::atomic<bool> has_ended_{false};
  std::exception_ptr error_;  // the thread's, read after it
  std::binary_semaphore may_end_{0};
  std::thread thread_;
};

}  // namespace rp
