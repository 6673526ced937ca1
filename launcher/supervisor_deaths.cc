// Implements the part of Supervisor that looks for hangs, handles the ends of processes, and starts others in their
// place.
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "common/system/crash_point.h"
#include "common/text.h"
#include "launcher/process/process_stat.h"
#include "launcher/supervisor.h"
#include "roundpipe/error.h"

namespace rp {

void Supervisor::handle_deaths() {
  std::vector<Member*> dead;
  for (const auto& member : members_) {
    const bool is_dead = member->try_reap();
    if (member->is_under_tool() && !member->has_tool()) run_.terminal.take_back();
    if (!is_dead) continue;
    member->set_out_of_memory(oom_.explain_death(*member->process().status()));
    read_messages(*member);
    member->read_output();
    RP_CRASH_POINT("launcher.loss.reaps");
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
    run_.say(
        "rp-launch: the program was not loaded; where a library of LibTorch is missing, give its folder: "
        "LD_LIBRARY_PATH="
        "$(python3 -c 'import torch; print(torch.__path__[0])')/lib, or link it once (docs/library.md)\n");
  }
  if (phase_.is(RunPhase::kKilling)) return;
  move_to(RunPhase::kWorkersEnding);
  if (const Member* member = tool_member(); member != nullptr)
    run_.say(cat("rp-launch: the coordinator has ended; waiting for the tool of ", member->name(), "\n"));
}

void Supervisor::on_worker_death(Member& worker) {
  if (phase_.is(RunPhase::kRestarting)) return;  // all workers end
  const int status = *worker.process().status();
  const bool told_to_end = finished_ || phase_.is(RunPhase::kWorkersEnding);
  if (worker.is(MemberState::kEndedOnPurpose) || failure_ || (told_to_end && status == 0)) return;
  if (phase_.is(RunPhase::kWorkersEnding) && end_.coordinator_status != 0) return;
  const bool is_harmless = !has_reported_error(status) || (worker.replaces() && !has_served(worker));
  if (told_to_end && is_harmless && run_.plan.on_worker_failure != WorkerFailurePolicy::kAbort) {
    Failure failure = failure_of(worker);
    failure.said = worker.release_output();
    failure.crash_notice = "";
    run_.say(failure_text(failure) + "rp-launch: the run did not need it any more, so nothing is lost\n");
    return;
  }
  if (!go_on_without(worker)) end_run_for(worker);
}

void Supervisor::end_run_for(Member& worker) {
  note_failure(worker);
  end_.failed_worker_status = *worker.process().status();
  end_.hung = worker.hang().has_value();
  failure_->said = worker.release_output();
  report_death(worker, MessageKind::kWorkerGone);
  kill_workers();
  if (phase_.is(RunPhase::kRunning)) move_to(RunPhase::kWorkerLost);
}

bool Supervisor::go_on_without_coordinator() {
  if (!phase_.is(RunPhase::kRunning) || !is_restartable_ || finished_ || !end_.stop_signals.empty()) return false;
  if (end_.set_aside) {
    is_restartable_ = false;
    run_.say("rp-launch: the program is started again to save its state\n");
    start_program_again(Deadline::after_ns(0));
    return true;
  }
  if (!WIFSIGNALED(*coordinator().process().status())) return false;
  const BoardProgress progress = run_.board.entry(coordinator().board_index()).progress();
  if (!restarts_.decide(progress.committed > 0)) return false;
  Failure failure = failure_of(coordinator());
  failure.crash_notice = "";  // nothing is lost
  run_.say(failure_text(failure) +
           "rp-launch: the program is started again and continues after its last step, with the same results\n");
  start_program_again(Deadline::after_ns(restarts_.delay_ns()));
  return true;
}

void Supervisor::start_program_again(const Deadline& start) {
  restart_start_ = start;
  (void)lost_.end();
  kill_workers();
  RP_CRASH_POINT("launcher.restart.kills");
  move_to(RunPhase::kRestarting);
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
  hangs_ = HangWatch(run_.plan.attaches_on_fault);
  members_.resize(1);
  members_.front() = std::make_unique<Member>(run_, run_.plan.processes[0],
                                              end_.set_aside ? Member::Restart::kOnlySaves : Member::Restart::kGoesOn);
  store_->kind = MessageKind::kRestart;
  RP_CRASH_POINT("launcher.restart.starts");
  const bool is_sent = coordinator().channel().send(*store_);
  RP_CRASH_POINT("launcher.restart.sends_store");
  store_->kind = MessageKind::kAttach;
  move_to(RunPhase::kRunning);
  if (!is_sent) coordinator().kill_on_purpose();
}

bool Supervisor::go_on_without(Member& worker) {
  if (!phase_.is(RunPhase::kRunning) || finished_ || !end_.stop_signals.empty()) return false;
  const int num_alive = num_alive_workers();
  const FaultBoardEntry entry = run_.board.entry(worker.board_index());
  const int status = *worker.process().status();
  const Replacements::Decision decision = lost_.decide({.worker = worker.worker(),
                                                        .status = status,
                                                        .slot = entry.task().slot,
                                                        .has_served = has_served(worker),
                                                        .replaces = worker.replaces(),
                                                        .out_of_memory = !worker.out_of_memory().empty(),
                                                        .hung = worker.hang() && worker.hang()->thread != 0},
                                                       num_alive);
  if (decision == Replacements::Decision::kEndRun) return false;
  RP_CRASH_POINT("launcher.loss.decides");
  Failure failure = failure_of(worker);
  failure.said = worker.release_output();
  run_.say(lost_.lose(worker.worker(), decision, std::move(failure), num_alive));
  if (decision == Replacements::Decision::kSetAside) {
    Message message{
        .kind = MessageKind::kSetAside, .blob = std::vector<std::byte>(sizeof(std::uint64_t)), .descriptors = {}};
    const auto slot = static_cast<std::uint64_t>(entry.task().slot);
    std::memcpy(message.blob.data(), &slot, sizeof slot);
    coordinator().send(std::move(message));
  }
  RP_CRASH_POINT("launcher.loss.reports");
  report_death(worker,
               decision == Replacements::Decision::kShrink ? MessageKind::kWorkerLeft : MessageKind::kWorkerLost);
  return true;
}

bool Supervisor::has_served(const Member& worker) const {
  return run_.board.entry(worker.board_index()).num_advances() > 0;
}

int Supervisor::num_alive_workers() const {
  return static_cast<int>(std::count_if(members_.begin(), members_.end(),
                                        [](const auto& member) { return member->is_worker() && member->alive(); }));
}

void Supervisor::report_death(Member& worker, MessageKind kind) {
  Message message;
  message.kind = kind;
  message.worker = worker.worker();
  message.status = *worker.process().status();
  coordinator().send(std::move(message));
}

void Supervisor::start_replacements() {
  if (!phase_.is(RunPhase::kRunning) || finished_) return;
  while (const std::optional<int> worker = lost_.take_due()) {
    const auto index = static_cast<std::size_t>(*worker) + 1;
    try {
      members_[index] = std::make_unique<Member>(run_, run_.plan.processes[index]);
    } catch (const Error& error) {  // for example because of a limit on processes
      const int left = lost_.num_left(num_alive_workers());
      run_.say(cat("rp-launch: ", error.what(), "\nrp-launch: worker ", *worker, " cannot be replaced; the run ",
                   left == 0 ? "ends" : cat("goes on with ", left, left == 1 ? " worker" : " workers"), "\n"));
      if (left == 0) return end_run_for(*members_[index]);
      report_death(*members_[index], MessageKind::kWorkerLeft);  // so that the start of the run does not wait for it
      continue;
    }
    RP_CRASH_POINT("launcher.loss.replaces");
    members_[index]->set_replaces();
    send_attaches();
  }
}

void Supervisor::add_worker(int worker) {
  const bool is_worker = worker >= 0 && worker + 1 < static_cast<int>(run_.plan.processes.size());
  const bool may_start = is_worker && phase_.is(RunPhase::kRunning) && !finished_ && end_.stop_signals.empty() &&
                         members_.size() == run_.plan.processes.size() && !members_[worker + 1]->alive();
  if (may_start) lost_.bring_back(worker);
  run_.say(cat("rp-launch: worker ", worker,
               may_start ? " is started again, as rp-launch ctl has asked\n" : " cannot be started now\n"));
}

// The report follows when the process has ended.
void Supervisor::serve_debuggers() {
  constexpr std::int64_t kIntervalNs = kNsPerSecond / 20;  // a debugger needs longer to attach
  if (!visits_check_.passed()) return;
  visits_check_ = run_.plan.attaches_on_fault ? Deadline::after_ns(kIntervalNs) : Deadline::never();
  if (!run_.plan.attaches_on_fault) return;
  for (const auto& member : members_) {
    FaultBoardEntry entry = run_.board.entry(member->board_index());
    if (!member->alive() || !entry.observe_fault_ready()) continue;
    const pid_t pid = member->pid();
    Visit& visit = visits_[pid];
    if (!std::exchange(visit.is_told, true)) {
      run_.say(cat("rp-launch: ", member->name(), " (pid ", pid, ") has crashed and waits for a debugger: gdb -p ", pid,
                   "; it ends when the debugger leaves it, or with kill -KILL ", pid, "\n"));
    }
    const bool is_traced = tracer_of(pid) != 0;
    if (visit.has_begun && !is_traced) entry.publish_debugger_left();
    visit.has_begun |= is_traced;
  }
}

void Supervisor::check_hangs() {
  for (const auto& member : members_) member->end_if_overdue(run_.plan.attaches_on_fault);
  std::string notes;
  const std::optional<Hang> hang = hangs_.check(progress_.snapshots(), now_ns(), notes);
  // Also when the coordinator has finished: it still waits for those of other nodes.
  run_.board.entry(coordinator().board_index()).publish_node_wait_ns(hangs_.node_wait_ns());
  if (!phase_.is(RunPhase::kRunning) || finished_) return;
  run_.say(notes);
  if (!hang) return;
  Member& member = *members_[hang->process];
  const bool ends_run = !member.is_worker() || run_.plan.on_worker_failure == WorkerFailurePolicy::kAbort;
  if (ends_run) progress_.dump("no progress", true);
  member.end_hung(*hang);
}

Failure Supervisor::failure_of(Member& member) const {
  const FaultBoardEntry entry = run_.board.entry(member.board_index());
  const int status = *member.process().status();
  return {.process = member.name(),
          .pid = member.pid(),
          .status = status,
          .fault = entry.fault(),
          .state = entry.state(),
          .task = entry.task(),
          .layer_inputs = entry.layer_inputs(),
          .crash_notice = entry.crash_notice(),
          .hang = member.hang() ? member.hang()->what : "",
          .under_tool = member.is_under_tool(),
          .seen_late = has_been_stopped_,
          .out_of_memory = member.out_of_memory(),
          .log_file = member.log_file()};
}

void Supervisor::note_failure(Member& member) {
  if (!failure_) failure_ = failure_of(member);
}

void Supervisor::report_failure() {
  if (failure_ && !std::exchange(is_failure_told_, true)) run_.say(failure_text(*failure_));
}

}  // namespace rp
