#include "launcher/supervisor.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "common/system/crash_point.h"
#include "common/text.h"
#include "launcher/process/control_signal.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

constexpr std::int64_t kEndNs = kNsPerSecond / 2;          // for a worker that has nothing left to do
constexpr std::int64_t kWatchedEndNs = 30 * kNsPerSecond;  // while a profiler or sanitizer writes its report

constexpr std::int64_t kWriteNs = 30 * kNsPerSecond;  // for a piece of a checkpoint on a slow disk

constexpr std::int64_t kOutputNs = 2 * kNsPerSecond;  // for queued output, once a signal has asked the run to end

}  // namespace

Supervisor::Supervisor(LaunchPlan plan)
    : run_(RunContext::create(std::move(plan), SignalReader::handled())),
      oom_(Cgroup::of_this_process()),
      hangs_(run_.plan.attaches_on_fault),
      lost_(run_.plan.on_worker_failure, run_.plan.max_restarts),
      restarts_(run_.plan.max_restarts) {
  signal(SIGPIPE, SIG_IGN);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
}

int Supervisor::run() {
  members_.reserve(run_.plan.processes.size());  // a message may start the workers while a loop visits the members
  if (run_.plan.time_limit_seconds > 0) time_limit_ = Deadline::after_ns(run_.plan.time_limit_seconds * kNsPerSecond);
  RP_CRASH_POINT("launcher.start.is_ready");
  members_.push_back(std::make_unique<Member>(run_, run_.plan.processes[0]));
  RP_CRASH_POINT("launcher.start.starts_coordinator");
  while (!phase_.is(RunPhase::kDone)) {
    PollSet set;
    add_to(set);
    set.wait(next_deadline());
    handle_deaths();
    coordinator().send_unsent();
    start_replacements();
    restart_program();
    has_been_stopped_ = false;
    if (all_dead() && !phase_.is(RunPhase::kRestarting) && !phase_.is(RunPhase::kDone)) move_to(RunPhase::kDone);
    if (deadline_.passed()) on_deadline();
    if (time_limit_.passed()) on_time_limit();
    if (hangs_.next_check().passed()) check_hangs();
    serve_debuggers();
    if (progress_.next_check().passed()) phase_.is(RunPhase::kRunning) ? progress_.check() : progress_.stop();
  }
  finish();
  return exit_code_of_run(end_);
}

Deadline Supervisor::next_deadline() const {
  Deadline next = deadline_;
  for (const Deadline& other :
       {progress_.next_check(), lost_.next_start(), hangs_.next_check(), visits_check_, restart_start_, time_limit_}) {
    if (other.left_ns() < next.left_ns()) next = other;
  }
  return next;
}

std::int64_t Supervisor::patience_ns(RunPhase phase) const {
  const bool is_watched =
      std::any_of(members_.begin(), members_.end(), [](const auto& m) { return m->alive() && m->is_watched(); });
  switch (phase) {
    case RunPhase::kWorkerLost: return kNsPerSecond;
    case RunPhase::kTerminating: return kNsPerSecond / 2;
    case RunPhase::kInterrupted: return 2 * kNsPerSecond;
    case RunPhase::kWorkersEnding: return tool_member() != nullptr ? 0 : is_watched ? kWatchedEndNs : kEndNs;
    case RunPhase::kRestarting:
    case RunPhase::kKilling: return 5 * kNsPerSecond;
    case RunPhase::kRunning:
    case RunPhase::kDone: break;
  }
  return 0;
}

void Supervisor::move_to(RunPhase to) {
  phase_.move_to(to);
  const std::int64_t ns = patience_ns(to);
  deadline_ = ns == 0 ? Deadline::never() : Deadline::after_ns(ns);
  if (to == RunPhase::kWorkerLost) (void)writes_state();  // discounts what has been written so far
  if (to == RunPhase::kTerminating) coordinator().process().send_signal(SIGTERM);
  if (to == RunPhase::kKilling) {
    for (const auto& member : members_) member->kill_on_purpose();
    (void)progress_.still_running();  // discounts the processor time used so far
  }
}

void Supervisor::on_deadline() {
  switch (phase_.state()) {
    case RunPhase::kWorkerLost:
      // Wait for a checkpoint that is being written: without it, all work since the previous one is
      // lost.
      if (writes_state()) {
        report_failure();
        deadline_ = Deadline::after_ns(kWriteNs);
        return;
      }
      return move_to(RunPhase::kTerminating);
    case RunPhase::kInterrupted: end_.cut_short = true; return move_to(RunPhase::kKilling);
    case RunPhase::kTerminating: progress_.dump("the coordinator does not end"); return move_to(RunPhase::kKilling);
    case RunPhase::kWorkersEnding:
      // A worker that is idle is merely slow to end. After a failure of the coordinator, workers
      // may be busy without being at fault.
      if (finished_ && any_worker_is_busy()) progress_.dump("a worker does not end");
      return move_to(RunPhase::kKilling);
    case RunPhase::kRestarting:
    case RunPhase::kKilling: return on_slow_deaths();
    case RunPhase::kRunning:
    case RunPhase::kDone: break;
  }
}

bool Supervisor::writes_state() {
  const std::uint64_t advances = run_.board.entry(coordinator().board_index()).num_advances();
  return advances != std::exchange(state_advances_, advances);
}

// The kernel needs a long time to free hundreds of GiB, longer if they are registered for GPUs. A
// process that waits for something that will never happen uses no processor time.
void Supervisor::on_slow_deaths() {
  const std::string names = progress_.still_running();
  if (!names.empty()) {
    if (!std::exchange(is_patience_told_, true))
      run_.say(cat("rp-launch: waiting until memory is given back by ", names, "\n"));
    deadline_ = Deadline::after_ns(patience_ns(phase_.state()));
    return;
  }
  for (const auto& member : members_) {
    if (!member->alive()) continue;
    run_.say(cat("rp-launch: ", member->name(), " (pid ", member->pid(),
                 ") does not end after SIGKILL: it hangs in the kernel; see /proc/", member->pid(), "/stack\n"));
  }
  move_to(RunPhase::kDone);
}

void Supervisor::on_time_limit() {
  time_limit_ = Deadline::never();
  run_.say(cat("rp-launch: the time limit of ", run_.plan.time_limit_seconds, " s is reached\n"));
  kill(getpid(), SIGUSR1);  // read_signals() gets it
}

void Supervisor::add_to(PollSet& set) {
  set.add(signals_.fd(), POLLIN, [this] { read_signals(); });
  add_output_to(set);
  for (const auto& owner : members_) {
    Member* member = owner.get();
    if (!member->channel().peer_gone())
      set.add(member->channel().fd(), POLLIN, [this, member] { read_messages(*member); });
    if (member->has_unsent()) set.add(member->channel().fd(), POLLOUT, [] {});  // send_unsent() follows each wait
    for (const auto& output : member->outputs()) {
      ProcessOutput* stream = output.get();
      if (stream->wants_more()) set.add(stream->fd(), POLLIN, [stream] { stream->read_available(); });
    }
    // The handler does nothing, because handle_deaths() follows each wait.
    if (member->alive()) set.add(member->end_fd(), POLLIN, [] {});
  }
}

void Supervisor::add_output_to(PollSet& set) {
  for (OutputSink* sink : run_.sinks()) {
    if (!sink->empty()) set.add(sink->fd(), POLLOUT, [sink] { sink->write_some(); });
  }
}

void Supervisor::read_signals() {
  while (const std::optional<signalfd_siginfo> signal = signals_.next()) {
    if (signal->ssi_signo == SIGCONT) {
      has_been_stopped_ = true;  // or CONT was sent to a process that was not stopped
      resume_tool();
    } else if (signal->ssi_signo == SIGTSTP) {
      // Like the kernel, do not stop on a key of the terminal if no shell could continue the run.
      if (signal->ssi_code != SI_KERNEL || !is_orphaned_group()) pause();
    } else if (signal->ssi_signo == SIGCHLD) {
      hangs_.check_soon();  // a process may have been stopped
      pause_with_tool();
    } else if (static_cast<int>(signal->ssi_signo) == add_worker_signal()) {
      add_worker(signal->ssi_int);
    } else {
      forward(*signal);
    }
  }
  std::vector<pid_t> own;
  for (const auto& member : members_) {
    if (member->alive()) own.push_back(member->process().pid());
  }
  reap_adopted_processes(own);
}

// One signal to the launcher must be one signal to the coordinator. A signal from the terminal
// driver (SI_KERNEL) has already reached the coordinator if that is in the launcher's process
// group.
void Supervisor::forward(const signalfd_siginfo& signal) {
  const int number = static_cast<int>(signal.ssi_signo);
  if (number == SIGINT && coordinator().alive()) {
    // In a healthy run the program itself prints what it still does and that a second INT ends it.
    num_interrupts_ == 0 ? progress_.start() : progress_.dump("interrupted");  // before the signal changes their state
  }
  const bool has_it =
      run_.terminal.exists() && signal.ssi_code == SI_KERNEL && getpgid(coordinator().process().pid()) == getpgrp();
  if (!has_it) coordinator().process().send_signal(number);
  end_.stop_signals.insert(number);
  for (OutputSink* sink : {&run_.out, &run_.err}) sink->drop_what_does_not_fit();
  if (number == SIGINT) on_interrupt();
}

void Supervisor::pause() {
  if (tool_member() != nullptr) run_.terminal.take_back();
  for (const auto& member : members_) member->process().send_signal_to_group(SIGSTOP);
  const std::int64_t since = now_ns();
  kill(getpid(), SIGSTOP);
  resume_tool();
  for (const auto& member : members_) member->process().send_signal_to_group(SIGCONT);
  const std::int64_t stopped_ns = now_ns() - since;
  deadline_ = deadline_.later_by_ns(stopped_ns);
  progress_.delay_by_ns(stopped_ns);
}

void Supervisor::on_interrupt() {
  ++num_interrupts_;
  if (num_interrupts_ < 2 || phase_.is(RunPhase::kKilling) || phase_.is(RunPhase::kDone)) return;
  const bool may_wait = phase_.is(RunPhase::kRunning) || phase_.is(RunPhase::kWorkerLost);
  if (num_interrupts_ == 2 && may_wait) return move_to(RunPhase::kInterrupted);
  if (coordinator().alive() || phase_.is(RunPhase::kRestarting)) end_.cut_short = true;
  move_to(RunPhase::kKilling);
}

void Supervisor::read_messages(Member& member) {
  while (std::optional<Message> message = member.channel().receive(Deadline::after_ns(0))) {
    on_message(member, std::move(*message));
  }
}

void Supervisor::on_message(Member& member, Message message) {
  if (member.is_worker()) {
    if (message.kind != MessageKind::kAttached) return;
    RP_CRASH_POINT("launcher.workers.has_attached");
    member.set_attached();
    if (message.status != 0) {
      member.set_watched();
      hangs_.expect_slow_tasks();
    }
    member.open_output();
    Message go;
    go.kind = MessageKind::kOutputOpen;
    (void)member.channel().send(go);
    send_attaches();
    return;
  }
  switch (message.kind) {
    case MessageKind::kStartWorkers: return start_workers(std::move(message));
    case MessageKind::kPreempted: end_.preempted = true; return;
    case MessageKind::kFinished:
      RP_CRASH_POINT("launcher.end.is_finished");
      finished_ = true;
      return;
    case MessageKind::kRestartable: is_restartable_ = !end_.set_aside; return;
    case MessageKind::kTaskSetAside: end_.set_aside = true; return;
    case MessageKind::kWaitTimeout:
      return hangs_.set_wait_timeout(message.status, run_.plan.on_worker_failure != WorkerFailurePolicy::kAbort);
    case MessageKind::kAttachTimeout: return hangs_.set_attach_timeout(message.status);
    case MessageKind::kWorkerDropped: return lost_.on_dropped(message.worker);
    default: return;
  }
}

void Supervisor::start_workers(Message store) {
  if (coordinator().is(MemberState::kAttached) || !phase_.is(RunPhase::kRunning)) return;
  coordinator().set_attached();
  store_ = std::move(store);
  store_->kind = MessageKind::kAttach;
  trace_ = RunTrace::copy_of(*store_);
  RP_CRASH_POINT("launcher.workers.has_store");
  for (std::size_t i = 1; i < run_.plan.processes.size(); ++i) {
    RP_CRASH_POINT("launcher.workers.starts");
    members_.push_back(std::make_unique<Member>(run_, run_.plan.processes[i]));
  }
  if (Member* member = tool_member(); member != nullptr) {
    hangs_.turn_off();
    run_.say(cat("rp-launch: ", member->name(), " runs under ", run_.plan.processes[member->board_index()].tool[0],
                 "; the others wait for it as long as it takes\n"));
  }
  send_attaches();
}

void Supervisor::send_attaches() {
  for (const auto& member : members_) member->send_store(*store_);
  RP_CRASH_POINT("launcher.workers.sends_store");
}

Member* Supervisor::tool_member() const {
  const auto found = std::find_if(members_.begin(), members_.end(),
                                  [](const auto& member) { return member->alive() && member->has_tool(); });
  return found == members_.end() ? nullptr : found->get();
}

// Does what a shell does when the terminal has stopped its foreground job: it stops, too. A shell that moves a job to
// the foreground which it has not seen stop sends no CONT; then the tool is stopped when it uses the terminal.
void Supervisor::pause_with_tool() {
  Member* const member = tool_member();
  siginfo_t info{};
  if (member == nullptr || waitid(P_PID, member->process().pid(), &info, WSTOPPED | WNOHANG) != 0) return;
  if (info.si_pid == 0 || info.si_status == SIGSTOP) return;
  const bool by_key = info.si_status == SIGTSTP;
  if (!by_key && run_.terminal.is_ours()) return resume_tool();
  if (!is_orphaned_group()) return pause();
  if (by_key) member->process().send_signal_to_group(SIGCONT);  // no shell could continue the run
}

// The tool gets the terminal before it runs: the terminal would stop it in the background.
void Supervisor::resume_tool() {
  Member* const member = tool_member();
  if (member == nullptr || !run_.terminal.is_ours()) return;
  run_.terminal.lend_to(member->process().pid());
  member->process().send_signal_to_group(SIGCONT);
}

bool Supervisor::any_worker_is_busy() const {
  return std::any_of(members_.begin(), members_.end(), [this](const auto& member) {
    return member->alive() && member->is_worker() && run_.board.entry(member->board_index()).task().slot >= 0;
  });
}

void Supervisor::kill_workers() {
  for (const auto& member : members_) {
    if (member->is_worker()) member->kill_on_purpose();
  }
}

bool Supervisor::all_dead() const {
  return std::none_of(members_.begin(), members_.end(), [](const auto& member) { return member->alive(); });
}

void Supervisor::finish() {
  run_.terminal.take_back();
  RP_CRASH_POINT("launcher.end.all_ended");
  end_adopted_processes(kNsPerSecond);
  for (const auto& member : members_) member->read_output();
  report_failure();
  if (trace_) run_.say(trace_->write_or_warn("rp-launch"));
  write_queued_output();
}

void Supervisor::write_queued_output() {
  deadline_ = end_.stop_signals.empty() ? Deadline::never() : Deadline::after_ns(kOutputNs);
  const std::vector<OutputSink*> sinks = run_.sinks();
  const auto is_empty = [](const OutputSink* sink) { return sink->empty(); };
  while (!std::all_of(sinks.begin(), sinks.end(), is_empty) && !deadline_.passed()) {
    PollSet set;
    add_output_to(set);
    set.add(signals_.fd(), POLLIN, [this] {
      read_signals();
      if (!end_.stop_signals.empty()) deadline_ = Deadline::after_ns(std::min(kOutputNs, deadline_.left_ns()));
    });
    set.wait(deadline_);
  }
  std::size_t dropped = 0;
  for (OutputSink* sink : sinks) {
    sink->drop_queued();
    dropped += sink->dropped_bytes();
  }
  if (dropped == 0) return;
  run_.say(cat("rp-launch: ", bytes_text(dropped),
               " of output could not be written by the end of the run and are dropped\n"));
  PollSet set;
  add_output_to(set);
  set.wait(Deadline::after_ns(0));  // written only if that is possible at once
}

}  // namespace rp
