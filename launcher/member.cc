#include "launcher/member.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "common/files/output_file.h"
#include "common/text.h"
#include "launcher/machine/mpi_job.h"
#include "launcher/machine/watchdog.h"
#include "launcher/process/process_role.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

constexpr int kWorkerOomScore = 500;
constexpr std::array kRestartWords = {"possible", "now", "save"};  // kRestartVariable, by Member::Restart

UniqueFd open_log(const std::filesystem::path& file) {
  // Appends, so that a job that is queued again keeps the log of its first run.
  return open_kept_file(file, O_WRONLY | O_APPEND, 0644, "choose another --log-dir");
}

std::pair<UniqueFd, UniqueFd> make_output_pipe() {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) {
    throw Error(ExitCode::kNoResource,
                cat("cannot make a pipe (", errno_text(errno), "); raise the limit on open files (ulimit -n)"));
  }
  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

std::string file_stem(std::string name) {
  std::replace(name.begin(), name.end(), ' ', '-');
  return name;
}

}  // namespace

Member::Member(RunContext& run, const PlannedProcess& planned, Restart restart)
    : planned_(planned),
      restart_(restart),
      channel_(UniqueFd()),
      entry_(run.board.entry(board_index())),
      process_(start(run)) {}

ChildProcess Member::start(RunContext& run) {
  auto [ours, theirs] = Channel::create_pair();
  channel_ = std::move(ours);
  child_end_ = std::move(theirs);
  ChildSpec spec;
  spec.program = run.plan.program;
  spec.arguments = run.plan.command;
  if (is_under_tool()) {
    spec.program = planned_.tool[0];
    spec.arguments = planned_.tool;
    spec.arguments.push_back(run.plan.program);
    spec.arguments.insert(spec.arguments.end(), run.plan.command.begin() + 1, run.plan.command.end());
    if (run.terminal.is_ours()) spec.terminal = run.terminal.lend();
  }
  spec.environment = environment(run);
  spec.inherited = {child_end_->fd(), run.liveness_read.get(), run.board.fd()};
  spec.cpus = planned_.cpus;
  spec.own_group = is_worker() || !run.terminal.exists();
  spec.ignores_stop_signals = is_worker();
  spec.oom_score_added = is_worker() ? kWorkerOomScore : 0;
  spec.signal_mask = run.signal_mask;
  spec.open_files = run.open_files;
  if (!is_under_tool()) {
    if (is_worker()) spec.stdio[0] = run.no_input.get();
    redirect_output(run, spec);
  }
  run.board.entry(board_index()).prepare_start();
  ChildProcess process = ChildProcess::start(spec);
  child_end_.reset();
  child_stdio_.clear();
  return process;
}

void Member::redirect_output(RunContext& run, ChildSpec& spec) {
  if (!run.plan.log_dir.empty()) {
    const std::string stem = run.plan.log_dir / file_stem(name());
    for (const std::string& path : {stem + ".out", stem + ".err"}) {
      UniqueFd file = open_log(path);
      if (!run.plan.timestamp_output) {
        child_stdio_.push_back(std::move(file));
      } else {
        const int fd = file.get();
        auto& log = run.logs.try_emplace(path, RunContext::LogFile{std::move(file), OutputSink(fd)}).first->second;
        pass_output_on(run, /*held=*/false, &log.sink);
      }
    }
    log_file_ = stem + ".err";
  } else if (is_worker() || run.plan.tag_output || run.plan.timestamp_output) {
    for (OutputSink* sink : {&run.out, &run.err}) pass_output_on(run, /*held=*/is_worker(), sink);
  }
  for (std::size_t i = 0; i < child_stdio_.size(); ++i) spec.stdio[1 + i] = child_stdio_[i].get();
}

void Member::pass_output_on(const RunContext& run, bool held, OutputSink* sink) {
  auto [read_end, write_end] = make_output_pipe();
  LineAssembler lines(run.plan.tag_output ? "[" + name() + "] " : "", run.plan.timestamp_output);
  outputs_.push_back(std::make_unique<ProcessOutput>(std::move(read_end), std::move(lines), held, sink));
  child_stdio_.push_back(std::move(write_end));
}

std::vector<std::string> Member::environment(const RunContext& run) const {
  Variables added = planned_.variables;
  added.emplace_back(kChannelVariable, std::to_string(child_end_->fd()));
  added.emplace_back(kLivenessVariable, std::to_string(run.liveness_read.get()));
  added.emplace_back(kRunVariable, run.number);
  added.emplace_back(kFaultBoardVariable, std::to_string(run.board.fd()));
  if (!is_worker() && run.plan.restarts_coordinator)
    added.emplace_back(kRestartVariable, kRestartWords[static_cast<std::size_t>(restart_)]);
  std::vector<std::string> list;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::string name = text.substr(0, text.find('='));
    if (is_worker() && is_job_variable(name)) continue;
    const bool replaced = name == kWorkerVariable || name == kGpuVariable || name == kRestartVariable ||
                          std::any_of(added.begin(), added.end(), [&name](const auto& v) { return v.first == name; });
    if (!replaced) list.push_back(text);
  }
  for (const auto& [name, value] : added) list.push_back(cat(name, "=", value));
  return list;
}

void Member::send(Message message) {
  unsent_.push_back(std::move(message));
  send_unsent();
}

void Member::send_unsent() {
  while (!unsent_.empty() && channel_.send(unsent_.front())) unsent_.pop_front();
}

void Member::send_store(Message& store) {
  if (!is_worker() || !is(MemberState::kStarting)) return;
  store.worker = worker();
  if (channel_.send(store)) move_to(MemberState::kAttaching);
}

void Member::set_attached() {
  if (is(MemberState::kStarting) || is(MemberState::kAttaching)) move_to(MemberState::kAttached);
  if (pid() != process_.pid()) tool_child_ = UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid(), 0)));
}

pid_t Member::pid() const {
  const pid_t recorded = is_under_tool() ? entry_.pid() : 0;
  return recorded != 0 ? recorded : process_.pid();
}

int Member::end_fd() const { return process_.status() && tool_child_ ? tool_child_.get() : process_.pidfd(); }

bool Member::outlives_tool() const {
  if (!tool_child_) return false;
  pollfd ended{.fd = tool_child_.get(), .events = POLLIN, .revents = 0};
  return poll(&ended, 1, 0) == 0;
}

void Member::kill_on_purpose() {
  if (alive() && !is(MemberState::kKilled)) move_to(MemberState::kKilled);
  process_.kill_group();
  // It may lead a group of its own, and the tool may have let it go.
  if (tool_child_) syscall(SYS_pidfd_send_signal, tool_child_.get(), SIGKILL, nullptr, 0);
}

void Member::end_hung(const Hang& hang) {
  if (!alive() || hang_) return;
  hang_ = hang;
  if (hang.thread == 0) return process_.kill_group();
  constexpr std::int64_t kAbortNs = 3 * kNsPerSecond;  // longer than the record of a backtrace may take
  abort_deadline_ = Deadline::after_ns(kAbortNs);
  process_.send_signal_to_thread(hang.thread, SIGABRT);
}

void Member::end_if_overdue(bool keeps_crashed) {
  if (!alive() || !abort_deadline_.passed() || (keeps_crashed && entry_.observe_fault_ready())) return;
  abort_deadline_ = Deadline::never();
  process_.kill_group();
}

bool Member::try_reap() {
  if (!alive() || !process_.try_reap() || outlives_tool()) return false;
  move_to(is(MemberState::kKilled) ? MemberState::kEndedOnPurpose : MemberState::kEnded);
  return true;
}

void Member::read_output() {
  for (const auto& output : outputs_) output->read_available();
}

void Member::open_output() {
  for (const auto& output : outputs_) output->open();
}

std::string Member::release_output() {
  std::string held;
  for (const auto& output : outputs_) held += output->release();
  return held;
}

}  // namespace rp
