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

HostProcess::HostProcess(const NodesCommand& run, const Host& host, ChildSpec mpirun, int output)
    : host_(host), errors_(memfd_create("rp-host-errors", MFD_CLOEXEC)), process_(start(run, mpirun, output)) {}

ChildProcess HostProcess::start(const NodesCommand& run, ChildSpec& mpirun, int output) const {
  NodesCommand command = run;
  command.hosts = {host_};
  mpirun.arguments = mpirun_arguments(command);
  // Several at the same time would get in each other's way when they make and remove their files.
  mpirun.arguments.insert(mpirun.arguments.begin() + 1, {"--mca", "orte_local_tmpdir_base", files_.path().string()});
  const UniqueFd nothing(open("/dev/null", O_RDONLY | O_CLOEXEC));
  mpirun.stdio = {nothing.get(), output, errors_.get()};
  return ChildProcess::start(mpirun);
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
