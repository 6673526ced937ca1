#include "roundpipe/session.h"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <iostream>
#include <utility>

#include "common/interrupted.h"
#include "common/system/crash_point.h"
#include "common/text.h"
#include "hoststore/records/crash_handler.h"
#include "launcher/process/run_dump.h"
#include "launcher/process/watching_tool.h"
#include "launcher/process/worker_attach.h"
#include "model_files/profile_file.h"
#include "nodes/network_library.h"
#include "pipeline/memory_plan.h"
#include "pipeline/pipeline_impl.h"
#include "pipeline/process/process_end.h"
#include "pipeline/session_impl.h"

namespace rp {

namespace {

// The fault board entry of this process. It is global because the terminate handler gets no
// argument.
std::optional<FaultBoardEntry> g_board_entry;

// The trace of a process without rp-launch. It is global because an exception that leaves main()
// destroys no Session.
const RunTrace* g_own_trace = nullptr;

// Leaves the network between the nodes; empty if there is one node. It is global for the same reason.
std::function<void()> g_leave_network;

// The process that made the Session. A process that the program forked has copies of all objects,
// but threads, channel and store belong to the parent.
pid_t g_pid = 0;

bool is_forked_child() { return g_pid != 0 && getpid() != g_pid; }

// Ends a forked child. The destructors of its copies would end the parent's run.
[[noreturn]] void leave_forked_child() {
  std::fputs(
      "roundpipe: error: a process that the program forked returned from main(); let it end with _exit(). The run goes "
      "on\n",
      stderr);
  _exit(static_cast<int>(ExitCode::kUserError));
}

void write_own_trace() {
  if (g_own_trace == nullptr) return;
  std::fputs(std::exchange(g_own_trace, nullptr)->write_or_warn("roundpipe").c_str(), stderr);
}

void record_for_launcher() {
  if (is_forked_child()) return;
  write_own_trace();
  if (!g_board_entry) return;
  try {
    throw;
  } catch (const Interrupted&) {  // a requested end
    if (g_leave_network) g_leave_network();
  } catch (const WorkerGone&) {
    return;  // the worker's own record contains more
  } catch (...) {
    record_exception(*g_board_entry, describe_without_backtrace());
  }
}

// Returns the role of the process. The terminate handler is installed first, so that errors in the
// role are reported like all others.
ProcessRole find_role(const char* program) {
  g_pid = getpid();
  install_terminate_handler(program, record_for_launcher);
  return ProcessRole::from_environment();
}

// Sets the name of this process in ps and top: "train:worker3", "train:coord". The kernel keeps 15
// characters.
void name_process(const char* program, const ProcessRole& role) {
  if (role.role == Role::kAlone || program == nullptr) return;
  const std::string suffix = role.role == Role::kWorker ? cat(":worker", role.worker) : ":coord";
  const std::string name = std::filesystem::path(program).filename().string();
  prctl(PR_SET_NAME, cat(name.substr(0, 15 - suffix.size()), suffix).c_str());
}

// Ends the process. A tool that watches it writes its report in exit handlers, which _exit() does
// not call.
[[noreturn]] void leave(int code) {
  std::cout.flush();
  std::fflush(nullptr);
  if (!watching_tool().empty()) std::exit(code);
  _exit(code);
}

}  // namespace

Session::Impl::Impl(int argc, char** argv, const SessionOptions& options)
    : role_(find_role(argc > 0 ? argv[0] : nullptr)), num_exceptions_(std::uncaught_exceptions()) {
  name_process(argc > 0 ? argv[0] : nullptr, role_);
  settings_ = role_.settings.completed(options);
  role_.check_device(*settings_.device);
  auto backend = make_backend(settings_, role_.gpu, role_.num_workers);
  if (role_.role != Role::kCoordinator) backend->load();
  wait_timeout_seconds_ = settings_.wait_timeout_seconds.value_or(0);
  if (role_.role != Role::kAlone) settings_.wait_timeout_seconds = kMaxWaitTimeoutSeconds;  // rp-launch detects hangs
  if (is_coordinator() && role_.num_nodes > 1) {
    network_ = connect_nodes(role_.num_nodes);
    agreement_ = std::make_unique<NodeAgreement>(*network_);
    g_leave_network = [this] {
      if (!has_agreed_to_stop_) return;
      Coordinator* const coordinator = runtime_->coordinator_if_started();
      if (coordinator != nullptr && coordinator->finish()) return;
      try {
        leave_network();
      } catch (const Error&) {  // reported by the node where it happened
      }
    };
  }
  runtime_ = std::make_shared<Runtime>(settings_, std::move(backend), role_.num_workers, network_.get());
  if (is_coordinator()) {
    if (settings_.gpu_profile) (void)rp::gpu_profile(*settings_.gpu_profile);  // reports a wrong one now
    if (settings_.trace) open_trace(argc > 0 ? argv[0] : nullptr);
  }
  if (role_.fault_board) {
    // Never unmapped, because faults may be recorded until the end of the process.
    board_ = new FaultBoard(FaultBoard::attach(std::move(role_.fault_board)));
    g_board_entry = board_entry();
    g_board_entry->publish_start(getpid());
    install_crash_handler(*g_board_entry, *settings_.attach_on_fault);
  } else {
    own_board_.emplace(FaultBoard::create(2));
    board_ = &*own_board_;
    for (int i = 0; i < board_->num_entries(); ++i) board_->entry(i).publish_start(getpid());
  }
  if (network_) heartbeats_.emplace(*network_, *settings_.node_timeout_seconds * kNsPerSecond, standstill());
  if (role_.liveness) liveness_.emplace(std::move(role_.liveness));
  if (role_.is_restarted) take_remains();
  is_coordinator() ? RP_CRASH_POINT("coordinator.start.session") : RP_CRASH_POINT("worker.start.session");
  if (!is_coordinator()) {
    signal(SIGXFSZ, SIG_IGN);  // activations are files: exceeding `ulimit -f` must be a plain error
  } else if (!replays_task()) {
    rp::set_stop_notice("no further round is begun");
    install_stop_handlers();
  }
}

void Session::Impl::take_remains() {
  Patience patience(*settings_.attach_timeout_seconds * kNsPerSecond);
  Message message = receive_restart(*role_.channel, patience);
  (void)RunTrace::take_from(message);  // the trace of this process begins with it
  remains_ = StoreRemains::of(std::move(message.descriptors));
}

Session::Impl::~Impl() {
  g_leave_network = nullptr;
  end();
  write_own_trace();
}

int Session::Impl::agreed_stop_signal() {
  if (!agreement_) return rp::stop_signal();
  if (place().node > 0) user_waits().publish({.kind = WaitKind::kNodeDecision});
  const Coordinator* const coordinator = runtime_->coordinator_if_started();
  const bool is_within_group = coordinator != nullptr && coordinator->round_group().is_open();
  const int signal = agreement_->stop_signal(rp::stop_signal(), !is_within_group);
  user_waits().publish_none();
  has_agreed_to_stop_ = has_agreed_to_stop_ || signal != 0;
  return signal;
}

std::string Session::Impl::from_first_node(const std::string& own) {
  if (!agreement_) return own;
  if (place().node > 0) user_waits().publish({.kind = WaitKind::kNodeDecision});
  std::string decision = agreement_->from_first(own);
  user_waits().publish_none();
  return decision;
}

NodeStandstill Session::Impl::standstill() {
  const int limit = wait_timeout_seconds_ == 0 ? kDefaultWaitTimeoutSeconds : wait_timeout_seconds_;
  return {.wait_ns = [entry = board_entry()] { return entry.observe_node_wait_ns(); },
          .wait_text = [this] { return node_wait_text(*board_); },
          .limit_ns = limit * kNsPerSecond};
}

void Session::Impl::leave_network() {
  (void)from_first_node("");  // the others wait here while the first one writes, and not in MPI, which spins
  agreement_->finish();
  heartbeats_->finish();
  network_->finish();
}

void Session::Impl::open_trace(const char* program) {
  const std::filesystem::path name = program == nullptr ? "program" : program;
  std::filesystem::path file = *settings_.trace;
  if (const int node = place().node; node > 0)  // the nodes may share the directory
    file.replace_filename(cat(file.stem().string(), "-node-", node, file.extension().string()));
  trace_.emplace(RunTrace::open(
      file, {.program = name.filename().string(), .device = *settings_.device, .num_workers = role_.num_workers}));
}

void Session::Impl::end() {
  if (is_forked_child()) leave_forked_child();
  if (state_.is(SessionState::kEnded)) return;
  runtime_->give_up_saves();  // first, because updates may wait for them
  Coordinator* coordinator = runtime_->coordinator_if_started();
  std::exception_ptr error;
  const bool was_started = state_.is(SessionState::kRunning);
  // An exception on its way out of main() ends the run immediately. But if all nodes have agreed to end, none goes
  // before the others have what it has sent.
  const bool is_normal = std::uncaught_exceptions() <= num_exceptions_;
  const bool finishes = was_started && (is_normal || (has_agreed_to_stop_ && interrupted_exists()));
  if (finishes) {
    state_.move_to(SessionState::kFinishing);
    RP_CRASH_POINT("coordinator.end.finishes");
    error = coordinator->finish();
  }
  state_.move_to(SessionState::kEnding);
  if (watch_) watch_->expect_ends();
  RP_CRASH_POINT("coordinator.end.synchronized");
  if (role_.role == Role::kCoordinator && was_started && !error) send(MessageKind::kFinished);
  RP_CRASH_POINT("coordinator.end.is_finished");
  if (watch_) watch_->stop();  // must end before the coordinator, which it uses
  if (finishes && is_normal && !error) runtime_->report_run();
  if (error) end_process(error);  // not reported yet, and a destructor cannot throw it
  try {
    if (finishes && network_) leave_network();
  } catch (const Error&) {
    end_process(std::current_exception());
  }
  if (coordinator != nullptr) coordinator->end();
  if (worker_.joinable()) worker_.join();  // must end before the coordinator, to which it reports its end
  runtime_->end_coordinator();
  state_.move_to(was_started ? SessionState::kEnded : SessionState::kDescribing);
}

FaultBoardEntry Session::Impl::board_entry() {
  return board_->entry(role_.role == Role::kWorker ? 1 + role_.worker : 0);
}

void Session::Impl::set_crash_notice(const std::string& text) {
  if (role_.role == Role::kCoordinator) board_entry().publish_crash_notice(text);
}

bool Session::Impl::send(MessageKind kind, int worker) {
  MutexLock lock(send_mutex_);
  return role_.channel->send({.kind = kind, .worker = worker, .blob = {}, .descriptors = {}});
}

void Session::Impl::report_hang() {
  if (hang_reported_.exchange(true)) return;
  std::vector<ProcessSnapshot> processes;
  for (int i = 0; i < board_->num_entries(); ++i) {
    processes.push_back(snapshot_of(i == 0 ? "coordinator" : "worker 0", i, getpid(), std::nullopt, board_->entry(i)));
  }
  std::fputs(dump_text("roundpipe", "a wait ran out", processes, now_ns()).c_str(), stderr);
}

std::vector<FinishedStep> Session::Impl::restarted(int pipeline) {
  if (!state_.is(SessionState::kDescribing)) throw Error(ExitCode::kUsage, "call restarted() before Session::start()");
  handles_restarts_ = true;
  std::vector<FinishedStep> steps;
  if (!remains_ || pipeline < 0 || pipeline >= remains_->journal->num_pipelines()) return steps;
  const StepJournal& journal = *remains_->journal;
  const std::optional<Version> newest = journal.newest(pipeline);
  if (!newest) return steps;
  for (const std::uint64_t steps_ago : {1U, 0U}) {
    if (newest->value() < steps_ago) continue;
    std::optional<StepRecord> record = StepRecord::from_bytes(journal.record(pipeline, *newest - steps_ago));
    if (!record) continue;
    steps.push_back({.step = static_cast<std::int64_t>(record->steps),
                     .restart_data = std::move(record->restart_data),
                     .losses = std::move(record->results.losses),
                     .grad_norm = record->outcome.grad_norm,
                     .skipped = record->outcome.skipped,
                     .loss_scale = record->outcome.loss_scale});
  }
  return steps;
}

int Session::Impl::add(Pipeline::Impl* pipeline) {
  if (!state_.is(SessionState::kDescribing))
    throw Error(ExitCode::kUsage, "a pipeline must be made before Session::start()");
  return runtime_->add(pipeline);
}

void Session::Impl::remove(Pipeline::Impl* pipeline) {
  if (!runtime_->has(pipeline)) return;
  end();
  runtime_->clear();
}

void Session::Impl::start(const std::function<void(const LoadProgress&)>& tell) {
  if (!state_.is(SessionState::kDescribing)) throw Error(ExitCode::kUsage, "Session::start() was called before");
  if (runtime_->is_empty()) throw Error(ExitCode::kUsage, "make a Pipeline before Session::start()");
  if (role_.role == Role::kWorker) serve_as_worker();
  if (replays_task()) replay_task();
  if (is_alone() && trace_) g_own_trace = &*trace_;
  if (role_.may_restart && handles_restarts_) runtime_->record_steps(std::move(remains_));
  runtime_->create_store(tell);
  RP_CRASH_POINT("coordinator.start.creates_store");
  // Starts first, because the ends of workers are reported to the coordinator from now on.
  runtime_->start_coordinator(
      board_entry(), [this] { report_hang(); }, [this](const Command& command) { end_for(command); }, journal());
  RP_CRASH_POINT("coordinator.start.creates_coordinator");
  if (runtime_->records_steps()) runtime_->recover();
  RP_CRASH_POINT("coordinator.start.recovers");
  if (is_alone()) {
    start_own_worker();
  } else {
    start_workers(worker_handlers(), [this](const std::exception_ptr& error) { runtime_->coordinator().fail(error); });
  }
  RP_CRASH_POINT("coordinator.start.starts_workers");
  runtime_->wait_for_nodes();
  if (runtime_->records_steps()) send(MessageKind::kRestartable);
  RP_CRASH_POINT("coordinator.runs.is_restartable");
  state_.move_to(SessionState::kRunning);
  board_entry().publish_state(ProcessState::kAttached);
  if (role_.only_saves) {
    rp::set_stop_notice("");
    raise(SIGTERM);
  }
}

void Session::Impl::preempted() {
  set_preempted();
  if (role_.role == Role::kCoordinator) send(MessageKind::kPreempted);
}

Session::Session(int argc, char** argv, SessionOptions options) : impl_(std::make_unique<Impl>(argc, argv, options)) {}
Session::~Session() = default;
bool Session::is_coordinator() const { return impl_->is_coordinator() && !impl_->replays_task(); }
std::vector<FinishedStep> Session::restarted(int pipeline) { return impl_->restarted(pipeline); }
void Session::start(const std::function<void(const LoadProgress&)>& tell) { impl_->start(tell); }
bool Session::stop_requested() const { return rp::stop_signal() != 0; }
int Session::stop_signal() const { return rp::stop_signal(); }
void Session::set_stop_notice(const std::string& text) {
  rp::set_stop_notice(node() == 0 ? text : "");  // of several nodes, the first one prints it
}
void Session::set_crash_notice(const std::string& text) { impl_->set_crash_notice(text); }
void Session::preempted() { impl_->preempted(); }
int Session::threads_per_worker() const { return *impl_->settings().threads_per_worker; }
std::string Session::device() const { return *impl_->settings().device; }
bool Session::is_emulated() const { return !impl_->runtime()->backend().has_weights(); }
std::string Session::network() const { return impl_->settings().network.value_or(""); }
std::string Session::gpu_profile() const { return impl_->settings().gpu_profile.value_or(""); }
bool Session::fp16_accumulation() const { return *impl_->settings().fp16_accumulation; }
std::string Session::from_first_node(const std::string& own) { return impl_->from_first_node(own); }
int Session::num_workers_of_all_nodes() const { return impl_->runtime()->num_workers_of_all_nodes(); }
int Session::node() const { return impl_->place().node; }
int Session::num_nodes() const { return impl_->place().num_nodes; }
int Session::num_workers() const { return impl_->num_workers(); }
MemoryPlan Session::memory_plan() const {
  Runtime& runtime = *impl_->runtime();
  if (runtime.store_if_created() == nullptr) return {};
  return memory_plan_of_all(runtime.store(), runtime.coordinator_if_started(), runtime.is_in_files());
}
double Session::warm_up_seconds() const {
  Runtime& runtime = *impl_->runtime();
  if (runtime.store_if_created() == nullptr) return 0;
  double seconds = 0;
  for (int worker = 0; worker < num_workers(); ++worker) {
    WorkerWords& words = runtime.store().worker_words(worker);
    if (words.acknowledged.observe() > 0)
      seconds = std::max(seconds, static_cast<double>(words.warm_up_ns) / kNsPerSecond);
  }
  return seconds;
}
std::vector<WorkerMemoryUse> Session::worker_memory() const {
  Coordinator* const coordinator = impl_->runtime()->coordinator_if_started();
  return coordinator == nullptr ? std::vector<WorkerMemoryUse>() : worker_memory_of(coordinator->device_memory());
}

}  // namespace rp
