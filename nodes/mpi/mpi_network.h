// nodes/mpi/mpi_network.h
// A NodeNetwork over Open MPI: the coordinators are the processes of an MPI job.
//
// One thread makes all calls of MPI, from MPI_Init to MPI_Finalize. It begins what others ask for,
// tests all messages that are on their way, and looks at them more rarely the longer none of them
// ends.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "common/mutex.h"
#include "nodes/network.h"

namespace rp {

class MpiNetwork : public NodeNetwork {
 public:
  // Joins the job. Returns when all of its processes have. Throws rp::Error (kNoResource).
  MpiNetwork();
  // Leaves messages that are not complete behind; they end with the process.
  ~MpiNetwork() override;
  MpiNetwork(const MpiNetwork&) = delete;
  MpiNetwork& operator=(const MpiNetwork&) = delete;

  [[nodiscard]] NodePlace place() const override { return place_; }
  void send(int to, NodeMessageTag tag, std::span<const std::byte> memory, Done done) override;
  void receive(int from, NodeMessageTag tag, std::span<std::byte> memory, Done done) override;
  void finish() override;
  void stop() override;

 private:
  // A message that the thread has not begun yet.
  struct Message {
    bool is_received = false;  // not sent
    int node = 0;
    int tag = 0;
    void* memory = nullptr;
    int bytes = 0;
    Done done;
  };
  enum class State : std::uint8_t { kStarting, kRunning, kFinishing, kStopping, kEnded };

  void run();
  // Returns an error of MPI as text; empty if there is none.
  [[nodiscard]] std::string join();
  void exchange_until_end();
  void add(bool is_received, int node, NodeMessageTag tag, void* memory, std::size_t bytes, Done done);
  void begin(std::vector<Message> messages);
  // Calls the functions of the messages that have ended, and returns how many have.
  int test();
  void fail(int code, const char* what);

  NodePlace place_;  // set when the constructor returns

  Mutex mutex_;
  CondVar changed_;
  State state_ RP_GUARDED_BY(mutex_) = State::kStarting;
  std::string start_error_ RP_GUARDED_BY(mutex_);
  std::exception_ptr error_ RP_GUARDED_BY(mutex_);  // of a message
  std::vector<Message> new_messages_ RP_GUARDED_BY(mutex_);

  // Used by the thread: messages on their way, in the same order.
  std::vector<MPI_Request> requests_;
  std::vector<Done> done_;
  std::vector<int> ended_;  // results of MPI_Testsome
  std::vector<MPI_Status> statuses_;
  bool has_failed_ = false;

  std::thread thread_;
};

}  // namespace rp
