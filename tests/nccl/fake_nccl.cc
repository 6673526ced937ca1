#include "tests/nccl/fake_nccl.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <set>

#include "common/check.h"
#include "common/system/clock.h"
#include "common/text.h"

namespace {

struct FakeCall {
  bool is_send = false;
  int peer = 0;
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  bool is_done = false;
};

struct FakeGroup {
  std::uint64_t number = 0;  // of its communicator, from 0
  CUstream_st* stream = nullptr;
  bool is_enqueued = false;
  rp::test::FakeTicket* ticket = nullptr;
  std::vector<FakeCall> calls{};
};

}  // namespace

// The object that NCCL's handle points to. Guarded by the lock of the FakeNccl, except `num_callers`.
struct ncclComm {
  std::string id{};
  int num_ranks = 0;
  int rank = 0;
  bool is_connected = false;
  bool is_aborted = false;
  bool is_finalizing = false;
  bool is_finalized = false;
  bool is_destroyed = false;
  rp::NcclResult error = rp::NcclResult::kSuccess;
  std::uint64_t num_groups = 0;
  std::deque<FakeGroup> groups{};  // not yet executed
  std::atomic<int> num_callers{0};
};

namespace rp::test {

struct FakeNccl::State {
  explicit State(const FakeNcclSettings& of) : settings(of), random(of.seed) {}

  const FakeNcclSettings settings;
  Mutex mutex;
  CondVar changed;
  std::mt19937 random RP_GUARDED_BY(mutex);
  int num_ids RP_GUARDED_BY(mutex) = 0;
  std::vector<std::unique_ptr<ncclComm>> comms RP_GUARDED_BY(mutex);
  std::vector<std::unique_ptr<FakeTicket>> tickets RP_GUARDED_BY(mutex);
  std::set<int> hanging_ranks RP_GUARDED_BY(mutex);
  std::map<std::string, NcclResult> failures RP_GUARDED_BY(mutex);
  std::string held_function RP_GUARDED_BY(mutex);
  std::map<std::string, int> calls RP_GUARDED_BY(mutex);
  std::vector<std::string> mistakes RP_GUARDED_BY(mutex);
  int num_groups RP_GUARDED_BY(mutex) = 0;
  bool has_ended RP_GUARDED_BY(mutex) = false;
  std::thread machine{};

  void run();
  [[nodiscard]] std::vector<std::function<void()>> possible() RP_REQUIRES(mutex);
  void enqueue(FakeGroup& group) RP_REQUIRES(mutex);
  void add_transfers(ncclComm& comm, std::vector<std::function<void()>>& actions) RP_REQUIRES(mutex);
  [[nodiscard]] ncclComm* find(const std::string& id, int rank) RP_REQUIRES(mutex);
  [[nodiscard]] FakeGroup* running(ncclComm& comm) RP_REQUIRES(mutex);
  void note_mistake(const ncclComm& comm, const std::string& text) RP_REQUIRES(mutex);
  [[nodiscard]] int draw_delay_us() RP_REQUIRES(mutex) {
    return settings.max_delay_us == 0 ? 0 : static_cast<int>(random() % static_cast<unsigned>(settings.max_delay_us));
  }
};

namespace {

std::atomic<FakeNccl::State*> g_state{nullptr};

// The group that the calling thread has started.
struct OpenGroup {
  bool is_open = false;
  ncclComm* comm = nullptr;
  FakeGroup group{};
};
thread_local OpenGroup t_open;

FakeNccl::State& state() { return *g_state.load(std::memory_order_acquire); }

void sleep_us(int us) {
  if (us > 0) std::this_thread::sleep_for(std::chrono::microseconds(us));
}

// Counts a call. For a communicator that is no longer there, or that another thread uses, notes a
// mistake.
class Call {
 public:
  explicit Call(const char* function, ncclComm* comm = nullptr) : comm_(comm) {
    FakeNccl::State& all = state();
    int delay_us = 0;
    {
      MutexLock lock(all.mutex);
      ++all.calls[function];
      if (comm != nullptr && (comm->is_aborted || comm->is_destroyed))
        all.mistakes.push_back(cat(function, " after the end of the communicator of rank ", comm->rank));
      if (comm != nullptr && comm->num_callers.fetch_add(1) != 0)
        all.mistakes.push_back(cat(function, " while another thread uses the communicator of rank ", comm->rank));
      const auto failure = all.failures.find(function);
      if (failure != all.failures.end()) {
        error_ = failure->second;
        all.failures.erase(failure);
      }
      delay_us = all.draw_delay_us();
      while (all.held_function == function) all.changed.wait(all.mutex);
    }
    sleep_us(delay_us);
  }
  ~Call() {
    if (comm_ != nullptr) comm_->num_callers.fetch_sub(1);
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  // What the call must return instead of succeeding.
  [[nodiscard]] NcclResult error() const { return error_; }

 private:
  ncclComm* comm_;
  NcclResult error_ = NcclResult::kSuccess;
};

#define RP_RETURN_FAILURE(call) \
  if ((call).error() != NcclResult::kSuccess) return (call).error()

NcclResult get_version(int* version) {
  *version = 22'809;
  return NcclResult::kSuccess;
}

NcclResult get_unique_id(NcclId* id) {
  const Call call("ncclGetUniqueId");
  RP_RETURN_FAILURE(call);
  MutexLock lock(state().mutex);
  const std::string text = cat("id ", state().num_ids++);
  std::memcpy(id->bytes.data(), text.c_str(), text.size() + 1);
  return NcclResult::kSuccess;
}

NcclResult comm_init_rank_config(ncclComm** comm, int num_ranks, NcclId id, int rank, NcclConfig* config) {
  const Call call("ncclCommInitRankConfig");
  RP_RETURN_FAILURE(call);
  RP_ASSERT(config->blocking == 0 && config->size == sizeof(NcclConfig) && rank >= 0 && rank < num_ranks);
  MutexLock lock(state().mutex);
  state().comms.push_back(std::make_unique<ncclComm>());
  *comm = state().comms.back().get();
  (*comm)->id = id.bytes.data();
  (*comm)->num_ranks = num_ranks;
  (*comm)->rank = rank;
  state().changed.notify_all();
  return NcclResult::kInProgress;
}

NcclResult comm_get_async_error(ncclComm* comm, NcclResult* error) {
  const Call call("ncclCommGetAsyncError", comm);
  RP_RETURN_FAILURE(call);
  MutexLock lock(state().mutex);
  const bool is_busy = !comm->is_connected || (comm->is_finalizing && !comm->is_finalized) ||
                       std::ranges::any_of(comm->groups, [](const FakeGroup& group) { return !group.is_enqueued; });
  *error = comm->error != NcclResult::kSuccess ? comm->error : is_busy ? NcclResult::kInProgress : NcclResult::kSuccess;
  return NcclResult::kSuccess;
}

NcclResult comm_finalize(ncclComm* comm) {
  const Call call("ncclCommFinalize", comm);
  RP_RETURN_FAILURE(call);
  MutexLock lock(state().mutex);
  comm->is_finalizing = true;
  state().changed.notify_all();
  return NcclResult::kInProgress;
}

NcclResult comm_destroy(ncclComm* comm) {
  const Call call("ncclCommDestroy", comm);
  MutexLock lock(state().mutex);
  if (!comm->is_finalized) state().mistakes.push_back("ncclCommDestroy before the end of ncclCommFinalize");
  comm->is_destroyed = true;
  return NcclResult::kSuccess;
}

NcclResult comm_abort(ncclComm* comm) {
  const Call call("ncclCommAbort", comm);
  MutexLock lock(state().mutex);
  comm->is_aborted = true;
  for (const FakeGroup& group : comm->groups) {
    if (group.ticket != nullptr) group.ticket->done.store(1, std::memory_order_release);
  }
  comm->groups.clear();
  for (const auto& peer : state().comms) {
    if (state().settings.notices_loss && peer->id == comm->id && peer->error == NcclResult::kSuccess)
      peer->error = NcclResult::kRemoteError;
  }
  state().changed.notify_all();
  return NcclResult::kSuccess;
}

NcclResult group_start() {
  const Call call("ncclGroupStart");
  RP_RETURN_FAILURE(call);
  RP_ASSERT(!t_open.is_open);
  t_open = {.is_open = true};
  return NcclResult::kSuccess;
}

NcclResult add_to_group(const char* function, FakeCall what, ncclComm* comm, CUstream_st* stream) {
  const Call call(function, comm);
  RP_RETURN_FAILURE(call);
  MutexLock lock(state().mutex);
  if (!t_open.is_open) {
    state().mistakes.push_back(cat(function, " outside of a group"));
    return NcclResult::kInvalidUsage;
  }
  if (t_open.comm != nullptr && (t_open.comm != comm || t_open.group.stream != stream))
    state().mistakes.push_back(cat(function, ": a group with two communicators or streams"));
  if (what.bytes == 0) state().mistakes.push_back(cat(function, " of nothing"));
  t_open.comm = comm;
  t_open.group.stream = stream;
  t_open.group.calls.push_back(what);
  return NcclResult::kSuccess;
}

NcclResult send(const void* data, std::size_t count, NcclType type, int peer, ncclComm* comm, CUstream_st* stream) {
  RP_ASSERT(type == NcclType::kUint8);
  auto* const bytes = static_cast<std::byte*>(const_cast<void*>(data));
  return add_to_group("ncclSend", {.is_send = true, .peer = peer, .data = bytes, .bytes = count}, comm, stream);
}

NcclResult recv(void* data, std::size_t count, NcclType type, int peer, ncclComm* comm, CUstream_st* stream) {
  RP_ASSERT(type == NcclType::kUint8);
  return add_to_group("ncclRecv", {.peer = peer, .data = static_cast<std::byte*>(data), .bytes = count}, comm, stream);
}

NcclResult group_end() {
  ncclComm* const comm = t_open.comm;
  const Call call("ncclGroupEnd", comm);
  MutexLock lock(state().mutex);
  if (!t_open.is_open) {
    state().mistakes.push_back("ncclGroupEnd outside of a group");
    return NcclResult::kInvalidUsage;
  }
  t_open.is_open = false;
  RP_RETURN_FAILURE(call);
  if (comm == nullptr) return NcclResult::kSuccess;
  t_open.group.number = comm->num_groups++;
  comm->groups.push_back(std::move(t_open.group));
  state().changed.notify_all();
  return NcclResult::kInProgress;
}

const char* get_error_string(NcclResult result) {
  return result == NcclResult::kRemoteError ? "remote process exited or there was a network error"
                                            : "an error that a test asked for";
}

const char* get_last_error(ncclComm*) { return ""; }

}  // namespace

const NcclTable& FakeNccl::table() {
  static const NcclTable table{.get_version = get_version,
                               .get_unique_id = get_unique_id,
                               .comm_init_rank_config = comm_init_rank_config,
                               .comm_get_async_error = comm_get_async_error,
                               .comm_finalize = comm_finalize,
                               .comm_destroy = comm_destroy,
                               .comm_abort = comm_abort,
                               .group_start = group_start,
                               .group_end = group_end,
                               .send = send,
                               .recv = recv,
                               .get_error_string = get_error_string,
                               .get_last_error = get_last_error};
  return table;
}

// The thread that does what NCCL and the GPUs do

ncclComm* FakeNccl::State::find(const std::string& id, int rank) {
  const auto found = std::ranges::find_if(
      comms, [&](const auto& comm) { return comm->id == id && comm->rank == rank && !comm->is_aborted; });
  return found == comms.end() ? nullptr : found->get();
}

// Returns the group that the rank's GPU executes.
FakeGroup* FakeNccl::State::running(ncclComm& comm) {
  if (comm.is_aborted || hanging_ranks.contains(comm.rank)) return nullptr;
  if (comm.groups.empty() || !comm.groups.front().is_enqueued) return nullptr;
  FakeGroup& first = comm.groups.front();
  return first.ticket->is_reached.load(std::memory_order_acquire) ? &first : nullptr;
}

void FakeNccl::State::enqueue(FakeGroup& group) {
  tickets.push_back(std::make_unique<FakeTicket>());
  group.ticket = tickets.back().get();
  group.is_enqueued = true;
  if (settings.enqueue) {
    settings.enqueue(group.stream, *group.ticket);
  } else {
    group.ticket->is_reached.store(true, std::memory_order_release);
  }
}

void FakeNccl::State::note_mistake(const ncclComm& comm, const std::string& text) {
  mistakes.push_back(text);
  for (const auto& each : comms) {
    if (each->id == comm.id) each->error = NcclResult::kInternalError;
  }
}

// Adds the transfers from this rank to others that can take place now.
void FakeNccl::State::add_transfers(ncclComm& comm, std::vector<std::function<void()>>& actions) {
  FakeGroup* const group = running(comm);
  if (group == nullptr) return;
  for (FakeCall& call : group->calls) {
    if (call.is_done) continue;
    ncclComm* const peer = find(comm.id, call.peer);
    FakeGroup* const theirs = peer == nullptr ? nullptr : running(*peer);
    if (theirs == nullptr) continue;
    const auto partner = std::ranges::find_if(theirs->calls, [&](const FakeCall& each) {
      return !each.is_done && each.is_send != call.is_send && each.peer == comm.rank;
    });
    const std::string names = cat("group ", group->number, " of rank ", comm.rank, " and group ", theirs->number,
                                  " of rank ", peer->rank, ": ");
    if (theirs->number != group->number) {
      // The slower of the two may still be on its way.
      if (partner != theirs->calls.end()) note_mistake(comm, names + "groups of different numbers meet");
    } else if (partner == theirs->calls.end()) {
      note_mistake(comm, names + (call.is_send ? "a send without a receive" : "a receive without a send"));
    } else if (partner->bytes != call.bytes) {
      note_mistake(comm, cat(names, call.bytes, " and ", partner->bytes, " bytes"));
    } else if (call.is_send) {
      FakeCall& received = *partner;
      actions.push_back([&call, &received] {
        std::memcpy(received.data, call.data, call.bytes);
        call.is_done = received.is_done = true;
      });
    }
    if (comm.error == NcclResult::kInternalError) return;
  }
}

std::vector<std::function<void()>> FakeNccl::State::possible() {
  std::vector<std::function<void()>> actions;
  for (const auto& each : comms) {
    ncclComm& comm = *each;
    if (comm.is_aborted || comm.is_destroyed || comm.error != NcclResult::kSuccess) continue;
    const auto all_ranks = [&](auto&& is_true) RP_REQUIRES(mutex) {
      for (int rank = 0; rank < comm.num_ranks; ++rank) {
        const ncclComm* const peer = find(comm.id, rank);
        if (peer == nullptr || !is_true(*peer)) return false;
      }
      return true;
    };
    if (!comm.is_connected && all_ranks([](const ncclComm&) { return true; }))
      actions.push_back([&comm] { comm.is_connected = true; });
    if (comm.is_finalizing && !comm.is_finalized &&
        all_ranks([](const ncclComm& peer) { return peer.is_finalizing && peer.groups.empty(); }))
      actions.push_back([&comm] { comm.is_finalized = true; });
    for (FakeGroup& group : comm.groups) {
      if (group.is_enqueued) continue;
      actions.push_back([this, &group]() RP_REQUIRES(mutex) { enqueue(group); });
      break;
    }
    add_transfers(comm, actions);
    const FakeGroup* const group = running(comm);
    if (group != nullptr && std::ranges::all_of(group->calls, [](const FakeCall& call) { return call.is_done; })) {
      actions.push_back([this, &comm]() RP_REQUIRES(mutex) {
        comm.groups.front().ticket->done.store(1, std::memory_order_release);
        comm.groups.pop_front();
        ++num_groups;
      });
    }
  }
  return actions;
}

void FakeNccl::State::run() {
  MutexLock lock(mutex);
  while (!has_ended) {
    const int delay_us = draw_delay_us();
    if (delay_us > 0) changed.wait_for_ns(mutex, delay_us * std::int64_t{1000});
    const std::vector<std::function<void()>> actions = possible();
    if (actions.empty()) {
      changed.wait_for_ns(mutex, kNsPerMs);
      continue;
    }
    actions[random() % actions.size()]();
    changed.notify_all();
  }
}

// FakeNccl

FakeNccl::FakeNccl(const FakeNcclSettings& settings) : state_(std::make_unique<State>(settings)) {
  RP_ASSERT(g_state.exchange(state_.get(), std::memory_order_acq_rel) == nullptr);
  state_->machine = std::thread([this] { state_->run(); });
}

FakeNccl::~FakeNccl() {
  {
    MutexLock lock(state_->mutex);
    state_->has_ended = true;
    state_->changed.notify_all();
  }
  state_->machine.join();
  g_state.store(nullptr, std::memory_order_release);
}

bool FakeNccl::wait_done(CUstream_st* stream, std::int64_t timeout_ns) {
  const Deadline deadline = Deadline::after_ns(timeout_ns);
  MutexLock lock(state_->mutex);
  while (true) {
    bool has_work = false;
    for (const auto& comm : state_->comms) {
      for (const FakeGroup& group : comm->groups) has_work = has_work || group.stream == stream;
    }
    if (!has_work) return true;
    if (deadline.passed()) return false;
    state_->changed.wait_for_ns(state_->mutex, deadline.left_ns());
  }
}

void FakeNccl::hang(int rank) {
  MutexLock lock(state_->mutex);
  state_->hanging_ranks.insert(rank);
}

void FakeNccl::report(int rank, NcclResult error) {
  MutexLock lock(state_->mutex);
  for (const auto& comm : state_->comms) {
    if (comm->rank == rank) comm->error = error;
  }
}

void FakeNccl::fail_next(const std::string& function, NcclResult error) {
  MutexLock lock(state_->mutex);
  state_->failures[function] = error;
}

void FakeNccl::hold(const std::string& function) {
  MutexLock lock(state_->mutex);
  state_->held_function = function;
}

void FakeNccl::let_go() {
  MutexLock lock(state_->mutex);
  state_->held_function.clear();
  state_->changed.notify_all();
}

std::vector<std::string> FakeNccl::mistakes() {
  MutexLock lock(state_->mutex);
  return state_->mistakes;
}

int FakeNccl::num_calls(const std::string& function) {
  MutexLock lock(state_->mutex);
  return state_->calls[function];
}

int FakeNccl::num_groups() {
  MutexLock lock(state_->mutex);
  return state_->num_groups;
}

}  // namespace rp::test
