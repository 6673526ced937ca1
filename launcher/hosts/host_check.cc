#include "launcher/hosts/host_check.h"

#include <poll.h>
#include <sys/mman.h>

#include <utility>

#include "common/system/fd.h"
#include "common/system/kernel_file.h"
#include "common/text.h"

namespace rp {

namespace {

// One host, while it is asked.
struct Question {
  UniqueFd output;
  HostProcess run;
};

Question ask(const NodesCommand& run, const Host& host, const ChildSpec& mpirun) {
  UniqueFd output(memfd_create("rp-host-output", MFD_CLOEXEC));
  HostProcess process(run, host, mpirun, output.get());
  return {.output = std::move(output), .run = std::move(process)};
}

}  // namespace

std::vector<HostAnswer> ask_hosts(const NodesCommand& run, const ChildSpec& mpirun,
                                  const std::function<bool(PollSet&, const Deadline&)>& wait) {
  std::vector<Question> questions;
  questions.reserve(run.hosts.size());
  for (const Host& host : run.hosts) questions.push_back(ask(run, host, mpirun));
  const Deadline deadline = Deadline::after_ns(kHostStartSeconds * kNsPerSecond);
  bool goes_on = true;
  while (goes_on && !deadline.passed()) {
    PollSet set;
    bool all_have_ended = true;
    for (Question& question : questions) {
      if (question.run.process().try_reap()) continue;
      all_have_ended = false;
      set.add(question.run.process().pidfd(), POLLIN, [] {});
    }
    if (all_have_ended) break;
    goes_on = wait(set, deadline);
  }
  std::vector<HostAnswer> answers;
  for (Question& question : questions) {
    (void)question.run.process().try_reap();  // this process may have had no processor until the deadline
    HostAnswer& answer = answers.emplace_back(question.run.answer());
    answer.output = kernel_file_text(cat("/proc/self/fd/", question.output.get()));
  }
  return answers;  // those that have not ended are killed
}

}  // namespace rp
