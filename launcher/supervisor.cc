#include "launcher/supervisor.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "common/text.h"
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
      cgroup_(Cgroup::of_this_process()),
      lost_(run_.plan.on_worker_failure, run_.plan.max_restarts),
      restarts_(run_.plan.max_restarts) {
  signal(SIGPIPE, SIG_IGN);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  oom_kills_before_ = cgroup_.num_oom_kills().value_or(0);
}

int Supervisor::run() {
  members_.reserve(run_.plan.processes.size());  // a message may start the workers while a loop visits the members
  members_.push_back(std::make_unique<Member>(run_, run_.plan.processes[0]));
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
    if (hangs_.next_check().passed()) check_hangs();
    if (progress_.next_check().passed()) phase_.is(RunPhase::kRunning) ? progress_.check() : progress_.stop();
  }
  finish();
  return exit_code_of_run(end_);
}

Deadline Supervisor::next_deadline() const {
  Deadline next = deadline_;
  for (const Deadline& other : {progress_.next_check(), lost_.next_start(), hangs_.next_check(), restart_start_}) {
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
    case RunPhase::kWorkersEnding: return is_watched ? kWatchedEndNs : kEndNs;
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
      run_.err.add(cat("rp-launch: waiting until memory is given back by ", names, "\n"));
    deadline_ = Deadline::after_ns(patience_ns(phase_.state()));
    return;
  }
  for (const auto& member : members_) {
    if (!member->alive()) continue;
    run_.err.add(cat("rp-launch: ", member->name(), " (pid ", member->process().pid(),
                     ") does not end after SIGKILL: it hangs in the kernel; see /proc/", member->process().pid(),
                     "/stack\n"));
  }
  move_to(RunPhase::kDone);
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
    if (member->alive()) set.add(member->process().pidfd(), POLLIN, [] {});
  }
}

void Supervisor::add_output_to(PollSet& set) {
  for (OutputSink* sink : {&run_.out, &run_.err}) {
    if (!sink->empty()) set.add(sink->fd(), POLLOUT, [sink] { sink->write_some(); });
  }
}

void Supervisor::read_signals() {
  while (const std::optional<signalfd_siginfo> signal = signals_.next()) {
    if (signal->ssi_signo == SIGCONT) {
      has_been_stopped_ = true;  // or CONT was sent to a process that was not stopped
    } else if (signal->ssi_signo == SIGTSTP) {
      // Like the kernel, do not stop on a key of the terminal if no shell could continue the run.
      if (signal->ssi_code != SI_KERNEL || !is_orphaned_group()) pause();
    } else if (signal->ssi_signo == SIGCHLD) {
      hangs_.check_soon();  // a process may have been stopped
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
      run_.has_terminal && signal.ssi_code == SI_KERNEL && getpgid(coordinator().process().pid()) == getpgrp();
  if (!has_it) coordinator().process().send_signal(number);
  end_.stop_signals.insert(number);
  for (OutputSink* sink : {&run_.out, &run_.err}) sink->drop_what_does_not_fit();
  if (number == SIGINT) on_interrupt();
}

void Supervisor::pause() {
  for (const auto& member : members_) member->process().send_signal_to_group(SIGSTOP);
  const std::int64_t since = now_ns();
  kill(getpid(), SIGSTOP);
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
  if (coordinator().alive()) end_.cut_short = true;
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
    case MessageKind::kFinished: finished_ = true; return;
    case MessageKind::kRestartable: is_restartable_ = true; return;
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
  members_.resize(1);  // the workers of a coordinator that has died
  store_ = std::move(store);
  store_->kind = MessageKind::kAttach;
  trace_ = RunTrace::copy_of(*store_);
  for (std::size_t i = 1; i < run_.plan.processes.size(); ++i) {
    members_.push_back(std::make_unique<Member>(run_, run_.plan.processes[i]));
  }
  send_attaches();
}

void Supervisor::send_attaches() {
  for (const auto& member : members_) member->send_store(*store_);
}

void Supervisor::handle_deaths() {
  std::vector<Member*> dead;
  for (const auto& member : members_) {
    if (!member->try_reap()) continue;
    read_messages(*member);
    member->read_output();
    dead.push_back(member.get());
  }
  // First read a message that the coordinator may have sent before a worker ended (kFinished).
  if (!dead.empty()) read_messages(coordinator());
  // A process without a fault record counts as failing now. One whose wait timed out comes after
  // all others, since the cause of such a wait is elsewhere. Workers come before the coordinator,
  // which may have ended because of them.
  const auto fault_time = [this](const Member* member) -> std::int64_t {
    const std::optional<Fault> fault = run_.board.entry(member->board_index()).fault();
    if (!fault) return INT64_MAX - 1;
    return fault->code == static_cast<int>(ExitCode::kHang) ? INT64_MAX : fault->time_ns;
  };
  std::stable_sort(dead.begin(), dead.end(), [&fault_time](const Member* a, const Member* b) {
    return std::pair(fault_time(a), !a->is_worker()) < std::pair(fault_time(b), !b->is_worker());
  });
  for (Member* member : dead) {
    member->process().kill_group();
    member->is_worker() ? on_worker_death(*member) : on_coordinator_death(*member);
  }
}

void Supervisor::on_coordinator_death(Member& coordinator) {
  const int status = *coordinator.process().status();
  end_.coordinator_status = status;
  if (go_on_without_coordinator()) return;
  if (coordinator.hang()) end_.hung = true;
  const bool asked = WIFSIGNALED(status) && end_.stop_signals.contains(WTERMSIG(status));
  // With an exit code other than 0 the program has ended on its own and has reported the reason.
  if (WIFSIGNALED(status) && !asked && coordinator.is(MemberState::kEnded)) note_failure(coordinator);
  const std::optional<Failure> lost = lost_.end();
  if (status != 0 && lost && !failure_) {  // it did not go on without that worker
    failure_ = lost;
    end_.failed_worker_status = lost->status;
  }
  constexpr int kNotLoaded = 127;  // set by the dynamic loader, which has printed the library's name
  if (WIFEXITED(status) && WEXITSTATUS(status) == kNotLoaded &&
      run_.board.entry(coordinator.board_index()).state() == ProcessState::kNotStarted) {
    run_.err.add(
        "rp-launch: the program was not loaded; where a library of LibTorch is missing, give its folder: "
        "LD_LIBRARY_PATH="
        "$(python3 -c 'import torch; print(torch.__path__[0])')/lib, or link it once (docs/library.md)\n");
  }
  if (!phase_.is(RunPhase::kKilling)) move_to(RunPhase::kWorkersEnding);
}

void Supervisor::on_worker_death(Member& worker) {
  if (phase_.is(RunPhase::kRestarting)) return;  // all workers end
  const int status = *worker.process().status();
  const bool told_to_end = finished_ || phase_.is(RunPhase::kWorkersEnding);
  if (worker.is(MemberState::kEndedOnPurpose) || failure_ || (told_to_end && status == 0)) return;
  if (phase_.is(RunPhase::kWorkersEnding) && end_.coordinator_status != 0) return;
  if (go_on_without(worker)) return;
  note_failure(worker);
  end_.failed_worker_status = status;
  end_.hung = worker.hang().has_value();
  failure_->said = worker.release_output();
  report_death(worker, MessageKind::kWorkerGone);
  kill_workers();
  if (phase_.is(RunPhase::kRunning)) move_to(RunPhase::kWorkerLost);
}

bool Supervisor::go_on_without_coordinator() {
  const bool is_crash = WIFSIGNALED(*coordinator().process().status());
  if (!phase_.is(RunPhase::kRunning) || !is_crash || !is_restartable_ || finished_ || !end_.stop_signals.empty())
    return false;
  const BoardProgress progress = run_.board.entry(coordinator().board_index()).progress();
  if (!restarts_.decide(progress.committed > 0)) return false;
  Failure failure = failure_of(coordinator());
  failure.crash_notice = "";  // nothing is lost
  run_.err.add(failure_text(failure) +
               "rp-launch: the program is started again and goes on behind its last step, with the same results\n");
  restart_start_ = Deadline::after_ns(restarts_.delay_ns());
  (void)lost_.end();
  kill_workers();
  move_to(RunPhase::kRestarting);
  return true;
}

// A worker of the coordinator that has died might still write to what the next one reads.
void Supervisor::restart_program() {
  if (!phase_.is(RunPhase::kRestarting)) return;
  if (!end_.stop_signals.empty()) {
    end_.cut_short = end_.stop_signals.contains(SIGINT);
    return move_to(RunPhase::kKilling);
  }
  if (!all_dead() || !restart_start_.passed()) return;
  restart_start_ = Deadline::never();
  hangs_ = HangWatch();
  members_.front() = std::make_unique<Member>(run_, run_.plan.processes[0], /*takes_over=*/true);
  store_->kind = MessageKind::kRestart;
  const bool is_sent = coordinator().channel().send(*store_);
  store_->kind = MessageKind::kAttach;
  move_to(RunPhase::kRunning);
  if (!is_sent) coordinator().kill_on_purpose();
}

bool Supervisor::go_on_without(Member& worker) {
  if (!phase_.is(RunPhase::kRunning) || finished_ || !end_.stop_signals.empty()) return false;
  const auto num_alive = static_cast<int>(std::count_if(
      members_.begin(), members_.end(), [](const auto& member) { return member->is_worker() && member->alive(); }));
  const FaultBoardEntry entry = run_.board.entry(worker.board_index());
  const int status = *worker.process().status();
  const Replacements::Decision decision = lost_.decide({.worker = worker.worker(),
                                                        .status = status,
                                                        .slot = entry.task().slot,
                                                        .has_served = entry.num_advances() > 0,
                                                        .out_of_memory = is_out_of_memory(status),
                                                        .hung = worker.hang() && worker.hang()->thread != 0},
                                                       num_alive);
  if (decision == Replacements::Decision::kEndRun) return false;
  Failure failure = failure_of(worker);
  failure.said = worker.release_output();
  run_.err.add(lost_.lose(worker.worker(), decision, std::move(failure), num_alive));
  report_death(worker,
               decision == Replacements::Decision::kReplace ? MessageKind::kWorkerLost : MessageKind::kWorkerLeft);
  return true;
}

void Supervisor::report_death(Member& worker, MessageKind kind) {
  Message message;
  message.kind = kind;
  message.worker = worker.worker();
  message.status = *worker.process().status();
  coordinator().send(std::move(message));
}

void Supervisor::start_replacements() {
  if (!phase_.is(RunPhase::kRunning)) return;
  while (const std::optional<int> worker = lost_.take_due()) {
    const auto index = static_cast<std::size_t>(*worker) + 1;
    members_[index] = std::make_unique<Member>(run_, run_.plan.processes[index]);
    send_attaches();
  }
}

void Supervisor::check_hangs() {
  for (const auto& member : members_) member->end_if_overdue();
  std::string notes;
  const std::optional<Hang> hang = hangs_.check(progress_.snapshots(), now_ns(), notes);
  if (!phase_.is(RunPhase::kRunning) || finished_) return;
  run_.err.add(notes);
  if (!hang) return;
  Member& member = *members_[hang->process];
  const bool ends_run = !member.is_worker() || run_.plan.on_worker_failure == WorkerFailurePolicy::kAbort;
  if (ends_run) progress_.dump("no progress", true);
  member.end_hung(*hang);
}

bool Supervisor::is_out_of_memory(int status) const {
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL && cgroup_.num_oom_kills().value_or(0) > oom_kills_before_;
}

Failure Supervisor::failure_of(Member& member) const {
  const FaultBoardEntry entry = run_.board.entry(member.board_index());
  const int status = *member.process().status();
  return {.process = member.name(),
          .pid = member.process().pid(),
          .status = status,
          .fault = entry.fault(),
          .state = entry.state(),
          .task = entry.task(),
          .crash_notice = entry.crash_notice(),
          .hang = member.hang() ? member.hang()->what : "",
          .seen_late = has_been_stopped_,
          .out_of_memory = is_out_of_memory(status),
          .log_file = member.log_file()};
}

void Supervisor::note_failure(Member& member) {
  if (!failure_) failure_ = failure_of(member);
}

void Supervisor::report_failure() {
  if (failure_ && !std::exchange(is_failure_told_, true)) run_.err.add(failure_text(*failure_));
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
  end_adopted_processes(kNsPerSecond);
  for (const auto& member : members_) member->read_output();
  report_failure();
  if (trace_) run_.err.add(trace_->write_or_warn("rp-launch"));
  write_queued_output();
}

void Supervisor::write_queued_output() {
  deadline_ = end_.stop_signals.empty() ? Deadline::never() : Deadline::after_ns(kOutputNs);
  while (!(run_.out.empty() && run_.err.empty()) && !deadline_.passed()) {
    PollSet set;
    add_output_to(set);
    set.add(signals_.fd(), POLLIN, [this] {
      read_signals();
      if (!end_.stop_signals.empty()) deadline_ = Deadline::after_ns(std::min(kOutputNs, deadline_.left_ns()));
    });
    set.wait(deadline_);
  }
  run_.out.drop_queued();
  run_.err.drop_queued();
  const std::size_t dropped = run_.out.dropped_bytes() + run_.err.dropped_bytes();
  if (dropped == 0) return;
  run_.err.add(cat("rp-launch: ", bytes_text(dropped),
                   " of output could not be written by the end of the run and are dropped\n"));
  PollSet set;
  add_output_to(set);
  set.wait(Deadline::after_ns(0));  // written only if that is possible at once
}

}  // namespace rp
