// tests/nccl/fake_nccl.h
// NCCL without GPUs, for tests: the ranks of its communicators are threads of one process, and
// "device memory" is this process's memory. One thread does everything that NCCL and the GPUs would
// do, each time something random of what can be done. So everything that may happen in any order
// happens here sooner or later.
//
// It keeps these rules. Communicators do not block: a call returns kInProgress, and
// comm_get_async_error() reports when it is done. A communicator is connected when all ranks have
// joined with the same id. A group is first enqueued on its stream, then executed: after all groups
// before it in that stream, and only together with the groups of the same number of the ranks that
// it sends to or receives from. A group whose peers do not come stays there. An abort ends what is
// enqueued, and the other ranks may never learn of it.
//
// It notes as mistakes what NCCL would answer with a wait that does not end, or with wrong data: a
// send and a receive of different lengths or in groups of different numbers, a send without its
// receive in the other rank's group, calls outside of a group, calls of two threads at the same
// time, and calls with a communicator that was aborted or destroyed. After a mistake between two
// ranks all ranks get an error, so that the test ends.
//
// A stream is any address that the test chooses, and executes nothing but groups. With `enqueue`, the
// groups take their place among what other code enqueues on it. Only one FakeNccl may exist in a
// process at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "common/mutex.h"
#include "nccl/nccl_table.h"

namespace rp::test {

// Connects a group with a stream that other code uses.
struct FakeTicket {
  std::atomic<bool> is_reached{false};  // everything before the group is executed
  std::atomic<std::uint64_t> done{0};   // 1: the group is executed, and what comes after it may be
};

struct FakeNcclSettings {
  unsigned seed = 1;
  int max_delay_us = 0;      // before whatever happens, and within each call, at random
  bool notices_loss = true;  // the peers of a rank that aborts get kRemoteError
  // Enqueues on the stream what sets `is_reached`, and after it a wait for `done`. The ticket exists as
  // long as the FakeNccl. Empty: a group is reached at once.
  std::function<void(CUstream_st* stream, FakeTicket& ticket)> enqueue{};
};

class FakeNccl {
 public:
  explicit FakeNccl(const FakeNcclSettings& settings = {});
  ~FakeNccl();
  FakeNccl(const FakeNccl&) = delete;
  FakeNccl& operator=(const FakeNccl&) = delete;

  [[nodiscard]] static const NcclTable& table();

  // Waits until everything enqueued on the stream is executed, or ended by an abort. Returns false if
  // that takes longer.
  [[nodiscard]] bool wait_done(CUstream_st* stream, std::int64_t timeout_ns);

  // From now on the groups that this rank enqueues are not executed, as if its GPU hung.
  void hang(int rank);
  // Lets this rank's communicators meet an error, or the next call of the function with this name.
  void report(int rank, NcclResult error);
  void fail_next(const std::string& function, NcclResult error);

  // Lets calls of this function wait until let_go(), as if NCCL needed long for them.
  void hold(const std::string& function);
  void let_go();

  [[nodiscard]] std::vector<std::string> mistakes();
  // Returns how often a function was called: "ncclCommAbort".
  [[nodiscard]] int num_calls(const std::string& function);
  // Returns how many groups of all ranks were executed.
  [[nodiscard]] int num_groups();

  struct State;  // defined by the implementation

 private:
  std::unique_ptr<State> state_;
};

}  // namespace rp::test
