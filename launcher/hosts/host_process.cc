#include "launcher/hosts/host_process.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstdlib>
#include <optional>
#include <system_error>

#include "common/system/kernel_file.h"
#include "common/text.h"
#include "roundpipe/error.h"

namespace rp {

TemporaryFolder::TemporaryFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "rp-launch-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr)
    throw Error(ExitCode::kOutputFailed, cat("cannot make a folder like ", name, ": ", errno_text(errno)));
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code failed;
  if (!path_.empty()) std::filesystem::remove_all(path_, failed);
}

ChildProcess start_mpirun(const NodesCommand& run, ChildSpec mpirun, const std::vector<std::string>& options,
                          const TemporaryFolder& files, int output, int errors) {
  std::vector<std::string> words = {"--mca", "orte_local_tmpdir_base", files.path().string()};
  words.insert(words.end(), options.begin(), options.end());
  mpirun.arguments = mpirun_arguments(run);
  mpirun.arguments.insert(mpirun.arguments.begin() + 1, words.begin(), words.end());
  const UniqueFd nothing(open("/dev/null", O_RDONLY | O_CLOEXEC));
  mpirun.stdio = {nothing.get(), output, errors};
  return ChildProcess::start(mpirun);
}

HostProcess::HostProcess(const NodesCommand& run, const Host& host, const ChildSpec& mpirun, int output)
    : host_(host), errors_(memfd_create("rp-host-errors", MFD_CLOEXEC)), process_(start(run, mpirun, output)) {}

ChildProcess HostProcess::start(NodesCommand run, const ChildSpec& mpirun, int output) const {
  run.hosts = {host_};
  return start_mpirun(run, mpirun, {}, files_, output, errors_.get());
}

HostAnswer HostProcess::answer() const {
  HostAnswer answer{.host = host_, .text = kernel_file_text(cat("/proc/self/fd/", errors_.get())), .output = {}};
  const std::optional<int> status = process_.status();
  if (!status || !WIFEXITED(*status)) {
    answer.code = static_cast<int>(ExitCode::kNoResource);
    answer.text +=
        cat("rp-launch: host ", host_.name, " does not answer: mpirun reaches it, but no connection comes back within ",
            kHostStartSeconds, " s; does a firewall block TCP connections from it to this machine?\n");
    return answer;
  }
  answer.code = WEXITSTATUS(*status);
  answer.is_reached = mpirun_failure(answer.code) == nullptr;
  if (answer.code == 0) {
    answer.text.clear();  // warnings, which the run will print as well
  } else if (const MpirunFailure* failure = mpirun_failure(answer.code)) {
    answer.code = static_cast<int>(failure->means);
    answer.text += cat("rp-launch: host ", host_.name, " ", failure->text, "\n");
  } else {
    answer.text += cat("rp-launch: host ", host_.name, " cannot start the run (exit code ", answer.code, ")\n");
  }
  return answer;
}

}  // namespace rp
