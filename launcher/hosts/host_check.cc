#include "launcher/hosts/host_check.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <utility>

#include "common/system/fd.h"
#include "common/system/kernel_file.h"
#include "common/text.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

constexpr std::int64_t kStartSeconds = 10;  // which mpirun may need to start a program on a busy host

// A new folder for temporary files, which is removed with what is in it.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "rp-launch-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr)
      throw Error(ExitCode::kOutputFailed, cat("cannot make a folder like ", name, ": ", errno_text(errno)));
    path_ = name;
  }
  TemporaryFolder(TemporaryFolder&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  TemporaryFolder& operator=(TemporaryFolder&&) = delete;
  ~TemporaryFolder() {
    std::error_code failed;
    if (!path_.empty()) std::filesystem::remove_all(path_, failed);
  }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// One host, while it is asked.
struct Question {
  TemporaryFolder files;  // removed when the process has ended
  UniqueFd output;
  UniqueFd errors;
  ChildProcess process;
};

Question ask(const NodesCommand& run, const Host& host, ChildSpec& mpirun, int nothing) {
  UniqueFd output(memfd_create("rp-host-output", MFD_CLOEXEC));
  UniqueFd errors(memfd_create("rp-host-errors", MFD_CLOEXEC));
  NodesCommand command = run;
  command.hosts = {host};
  TemporaryFolder files;
  mpirun.arguments = mpirun_arguments(command);
  // Several at the same time would get in each other's way when they make and remove their files.
  mpirun.arguments.insert(mpirun.arguments.begin() + 1, {"--mca", "orte_local_tmpdir_base", files.path().string()});
  mpirun.stdio = {nothing, output.get(), errors.get()};
  ChildProcess process = ChildProcess::start(mpirun);
  return {.files = std::move(files),
          .output = std::move(output),
          .errors = std::move(errors),
          .process = std::move(process)};
}

HostAnswer answer_of(const Host& host, const Question& question) {
  const auto written = [](const UniqueFd& file) { return kernel_file_text(cat("/proc/self/fd/", file.get())); };
  HostAnswer answer{.host = host, .text = written(question.errors), .output = written(question.output)};
  const std::optional<int> status = question.process.status();
  if (!status || !WIFEXITED(*status)) {
    answer.code = static_cast<int>(ExitCode::kNoResource);
    answer.text +=
        cat("rp-launch: host ", host.name, " does not answer: mpirun reaches it, but no connection comes back within ",
            kStartSeconds, " s; does a firewall block TCP connections from it to this machine?\n");
    return answer;
  }
  answer.code = WEXITSTATUS(*status);
  answer.is_reached = mpirun_failure(answer.code) == nullptr;
  if (answer.code == 0) {
    answer.text.clear();  // warnings, which the run will print as well
  } else if (const MpirunFailure* failure = mpirun_failure(answer.code)) {
    answer.code = static_cast<int>(failure->means);
    answer.text += cat("rp-launch: host ", host.name, " ", failure->text, "\n");
  } else {
    answer.text += cat("rp-launch: host ", host.name, " cannot start the run (exit code ", answer.code, ")\n");
  }
  return answer;
}

}  // namespace

std::vector<HostAnswer> ask_hosts(const NodesCommand& run, ChildSpec mpirun,
                                  const std::function<bool(PollSet&, const Deadline&)>& wait) {
  const UniqueFd nothing(open("/dev/null", O_RDWR | O_CLOEXEC));
  std::vector<Question> questions;
  for (const Host& host : run.hosts) questions.push_back(ask(run, host, mpirun, nothing.get()));
  const Deadline deadline = Deadline::after_ns(kStartSeconds * kNsPerSecond);
  bool goes_on = true;
  while (goes_on && !deadline.passed()) {
    PollSet set;
    bool all_have_ended = true;
    for (Question& question : questions) {
      if (question.process.try_reap()) continue;
      all_have_ended = false;
      set.add(question.process.pidfd(), POLLIN, [] {});
    }
    if (all_have_ended) break;
    goes_on = wait(set, deadline);
  }
  std::vector<HostAnswer> answers;
  for (std::size_t i = 0; i < questions.size(); ++i) answers.push_back(answer_of(run.hosts[i], questions[i]));
  return answers;  // those that have not ended are killed
}

}  // namespace rp
