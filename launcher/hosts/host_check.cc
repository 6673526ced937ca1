#include "launcher/hosts/host_check.h"

#include <poll.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <list>
#include <utility>

#include "common/system/fd.h"
#include "common/system/kernel_file.h"
#include "common/text.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

// Each mpirun keeps a processor busy for 0.1 s, and a host has kHostStartSeconds to answer.
constexpr std::size_t kMaxAtOnce = 16;

// One host, while it is asked.
struct Question {
  std::size_t place = 0;  // of the host in the list
  Deadline deadline;
  UniqueFd output;
  HostProcess run;
};

Question ask(const NodesCommand& run, std::size_t place, const ChildSpec& mpirun) {
  UniqueFd output(memfd_create("rp-host-output", MFD_CLOEXEC));
  HostProcess process(run, run.hosts[place], mpirun, output.get());
  return {.place = place,
          .deadline = Deadline::after_ns(kHostStartSeconds * kNsPerSecond),
          .output = std::move(output),
          .run = std::move(process)};
}

std::string text_in(const UniqueFd& file) { return kernel_file_text(cat("/proc/self/fd/", file.get())); }

std::size_t count_of(const std::string& part, const std::string& text) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++count;
  return count;
}

}  // namespace

std::string ask_hosts_together(const NodesCommand& run, const ChildSpec& mpirun, const std::string& answer,
                               const Deadline& deadline, const HostsWait& wait) {
  const TemporaryFolder files;
  const UniqueFd output(memfd_create("rp-hosts-output", MFD_CLOEXEC));
  const UniqueFd errors(memfd_create("rp-hosts-errors", MFD_CLOEXEC));
  // Without this, mpirun needs some seconds to end after a host that cannot start the run. With it, its code is 0.
  ChildProcess process =
      start_mpirun(run, mpirun, {"--mca", "orte_abort_on_non_zero_status", "0"}, files, output.get(), errors.get());
  while (!process.try_reap() && !deadline.passed()) {
    PollSet set;
    set.add(process.pidfd(), POLLIN, [] {});
    if (!wait(set, deadline)) break;
  }
  if (!process.try_reap()) return "mpirun has not ended in time\n";
  const int status = *process.status();
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) return cat("mpirun has failed:\n", text_in(errors));
  if (count_of(answer, text_in(output)) != run.hosts.size()) return cat("not all have answered:\n", text_in(errors));
  return {};
}

std::vector<HostAnswer> ask_each_host(const NodesCommand& run, const ChildSpec& mpirun, const HostsWait& wait) {
  std::vector<HostAnswer> answers;
  for (const Host& host : run.hosts) {
    answers.push_back({.host = host, .code = static_cast<int>(ExitCode::kNoResource), .text = {}, .output = {}});
  }
  std::list<Question> questions;
  std::size_t num_asked = 0;
  for (bool goes_on = true; goes_on;) {
    questions.remove_if([&](Question& question) {
      // This process may have had no processor until the deadline.
      if (!question.run.process().try_reap() && !question.deadline.passed()) return false;
      answers[question.place] = question.run.answer();
      answers[question.place].output = text_in(question.output);
      return true;  // kills a process that has not ended
    });
    while (questions.size() < kMaxAtOnce && num_asked < run.hosts.size())
      questions.push_back(ask(run, num_asked++, mpirun));
    if (questions.empty()) break;
    PollSet set;
    for (Question& question : questions) set.add(question.run.process().pidfd(), POLLIN, [] {});
    goes_on = wait(set, questions.front().deadline);  // the first one to pass
  }
  return answers;
}

}  // namespace rp
