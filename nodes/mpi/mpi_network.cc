#include "nodes/mpi/mpi_network.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <utility>

#include "common/check.h"
#include "common/text.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

// Kinds are in the high bits of a tag. MPI guarantees only 15 bits; Open MPI has 31 (checked in join()).
constexpr int kKindShift = 27;

// The longest pause between two looks at messages that are on their way. Sockets hold what arrives
// meanwhile. A thread that pauses so long whenever nothing has ended uses 4 % of a core.
constexpr unsigned kLongestPauseUs = 200;

std::string text_of(int code) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  return {text.data(), static_cast<std::size_t>(length)};
}

int mpi_tag(NodeMessageTag tag) {
  RP_ASSERT(tag.number < std::uint32_t{1} << kKindShift);
  return static_cast<int>(tag.kind) << kKindShift | static_cast<int>(tag.number);
}

}  // namespace

MpiNetwork::MpiNetwork() {
  // Workers are never forked from this process, but user programs may start others.
  setenv("OMPI_MCA_mpi_warn_on_fork", "0", /*overwrite=*/0);
  // Open MPI and UCX otherwise replace the functions that allocate and release memory.
  setenv("OMPI_MCA_memory", "^patcher", /*overwrite=*/0);
  setenv("UCX_MEM_EVENTS", "no", /*overwrite=*/0);
  thread_ = std::thread([this] { run(); });
  MutexLock lock(mutex_);
  while (state_ == State::kStarting) changed_.wait(mutex_);
  if (start_error_.empty()) return;
  mutex_.unlock();
  thread_.join();
  mutex_.lock();
  throw Error(ExitCode::kNoResource, start_error_);
}

MpiNetwork::~MpiNetwork() {
  stop();
  if (thread_.joinable()) thread_.join();
}

void MpiNetwork::add(bool is_received, int node, NodeMessageTag tag, void* memory, std::size_t bytes, Done done) {
  RP_ASSERT(bytes <= static_cast<std::size_t>(std::numeric_limits<int>::max()));
  MutexLock lock(mutex_);
  RP_ASSERT(state_ != State::kFinishing || std::this_thread::get_id() == thread_.get_id());
  if (state_ != State::kRunning && state_ != State::kFinishing) return;
  new_messages_.push_back({.is_received = is_received,
                           .node = node,
                           .tag = mpi_tag(tag),
                           .memory = memory,
                           .bytes = static_cast<int>(bytes),
                           .done = std::move(done)});
  changed_.notify_all();
}

void MpiNetwork::send(int to, NodeMessageTag tag, std::span<const std::byte> memory, Done done) {
  add(false, to, tag, const_cast<std::byte*>(memory.data()), memory.size(), std::move(done));
}

void MpiNetwork::receive(int from, NodeMessageTag tag, std::span<std::byte> memory, Done done) {
  add(true, from, tag, memory.data(), memory.size(), std::move(done));
}

void MpiNetwork::finish() {
  MutexLock lock(mutex_);
  if (state_ == State::kRunning) state_ = State::kFinishing;
  changed_.notify_all();
  while (state_ != State::kEnded) changed_.wait(mutex_);
  if (error_) std::rethrow_exception(error_);
}

void MpiNetwork::stop() {
  MutexLock lock(mutex_);
  if (state_ != State::kEnded) state_ = State::kStopping;
  changed_.notify_all();
  while (state_ != State::kEnded) changed_.wait(mutex_);
}

// The thread

void MpiNetwork::run() {
  pthread_setname_np(pthread_self(), "rp-nodes");
  const std::string error = join();
  {
    MutexLock lock(mutex_);
    start_error_ = error;
    state_ = error.empty() ? State::kRunning : State::kEnded;
    changed_.notify_all();
  }
  if (!error.empty()) return;
  exchange_until_end();
  bool finishes = false;
  {
    MutexLock lock(mutex_);
    finishes = state_ == State::kFinishing;
  }
  if (finishes && !has_failed_) MPI_Finalize();
  MutexLock lock(mutex_);
  state_ = State::kEnded;
  changed_.notify_all();
}

std::string MpiNetwork::join() {
  int provided = 0;
  // Errors before MPI_Comm_set_errhandler() end the process: Open MPI explains them on stderr.
  if (const int code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided); code != MPI_SUCCESS)
    return cat("Open MPI cannot start: ", text_of(code));
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_rank(MPI_COMM_WORLD, &place_.node);
  MPI_Comm_size(MPI_COMM_WORLD, &place_.num_nodes);
  if (place_.num_nodes > kMaxNodes) return cat(place_.num_nodes, " nodes: at most ", kMaxNodes, " are possible");
  int* largest_tag = nullptr;
  int is_set = 0;
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &largest_tag, &is_set);
  if (is_set == 0 || *largest_tag < std::numeric_limits<int>::max())
    return "Open MPI's transport has tags of fewer than 31 bits; choose another one, e.g. OMPI_MCA_pml=ob1";
  return "";
}

void MpiNetwork::exchange_until_end() {
  unsigned pause_us = 0;
  while (true) {
    std::vector<Message> messages;
    {
      MutexLock lock(mutex_);
      while (state_ == State::kRunning && new_messages_.empty() && requests_.empty()) changed_.wait(mutex_);
      if (state_ == State::kStopping || (state_ == State::kFinishing && has_failed_)) return;
      // Whatever the functions that test() has called have added is there: only they may add messages now.
      if (state_ == State::kFinishing && new_messages_.empty() && requests_.empty()) return;
      messages = std::exchange(new_messages_, {});
    }
    if (!messages.empty()) pause_us = 0;
    begin(std::move(messages));
    if (test() > 0) {
      pause_us = 0;  // MPI_Testsome() moves no data if a message has ended
    } else {
      if (pause_us > 0) usleep(pause_us);
      pause_us = std::min(pause_us + 10, kLongestPauseUs);
    }
  }
}

void MpiNetwork::begin(std::vector<Message> messages) {
  if (has_failed_) return;
  for (Message& message : messages) {
    MPI_Request request = MPI_REQUEST_NULL;
    const int code =
        message.is_received
            ? MPI_Irecv(message.memory, message.bytes, MPI_BYTE, message.node, message.tag, MPI_COMM_WORLD, &request)
            : MPI_Isend(message.memory, message.bytes, MPI_BYTE, message.node, message.tag, MPI_COMM_WORLD, &request);
    if (code != MPI_SUCCESS) return fail(code, message.is_received ? "receive" : "send");
    requests_.push_back(request);
    done_.push_back(std::move(message.done));
  }
}

int MpiNetwork::test() {
  if (requests_.empty() || has_failed_) return 0;
  ended_.resize(requests_.size());
  statuses_.resize(requests_.size());
  int num_ended = 0;
  const int code =
      MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &num_ended, ended_.data(), statuses_.data());
  if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS) {
    fail(code, "test");
    return 0;
  }
  for (int i = 0; code == MPI_ERR_IN_STATUS && i < num_ended; ++i) {
    if (statuses_[static_cast<std::size_t>(i)].MPI_ERROR == MPI_SUCCESS) continue;
    fail(statuses_[static_cast<std::size_t>(i)].MPI_ERROR, "transfer");
    return 0;
  }
  for (int i = 0; i < num_ended; ++i)
    std::exchange(done_[static_cast<std::size_t>(ended_[static_cast<std::size_t>(i)])], nullptr)();
  std::erase(requests_, MPI_REQUEST_NULL);
  std::erase_if(done_, [](const Done& done) { return !done; });
  return num_ended;
}

void MpiNetwork::fail(int code, const char* what) {
  has_failed_ = true;
  const auto failure = std::make_exception_ptr(
      Error(ExitCode::kNodeLost, cat("the network between the nodes has failed: Open MPI cannot ", what,
                                     " a message: ", text_of(code), "; is another node gone?")));
  {
    MutexLock lock(mutex_);
    error_ = failure;
  }
  report_failure(failure);
}

}  // namespace rp
