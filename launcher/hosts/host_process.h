// launcher/hosts/host_process.h
// Runs an rp-launch on one host, through an mpirun of its own. So a host that is lost does not concern the others.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "common/system/fd.h"
#include "launcher/hosts/mpirun_command.h"
#include "launcher/machine/child_process.h"

namespace rp {

struct HostAnswer {
  Host host;
  int code = 0;             // with which a run on this host would end; 0: it can start
  std::string text;         // for the user, ends with a new line; empty if it can start
  std::string output;       // that the program has written to its standard output
  bool is_reached = false;  // the code is that of its rp-launch
};

// What mpirun may need to start a program on a busy host.
inline constexpr std::int64_t kHostStartSeconds = 10;

// A new folder for temporary files, which is removed with what is in it.
class TemporaryFolder {
 public:
  // Throws rp::Error (kOutputFailed).
  TemporaryFolder();
  TemporaryFolder(TemporaryFolder&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  TemporaryFolder& operator=(TemporaryFolder&&) = delete;
  ~TemporaryFolder();
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// Starts the mpirun of a run, with additional `options`. `files`: a folder for its files, because several mpirun at the
// same time would remove each other's. `output`, `errors`: descriptors to which it writes.
// Throws rp::Error as ChildProcess::start() does.
[[nodiscard]] ChildProcess start_mpirun(const NodesCommand& run, ChildSpec mpirun,
                                        const std::vector<std::string>& options, const TemporaryFolder& files,
                                        int output, int errors);

// The destructor kills mpirun, which ends the processes on the host.
class HostProcess {
 public:
  // `run`: what the host runs; its other hosts are ignored. `mpirun`: how to start it. `output`: where what the program
  // writes to its standard output goes. Throws rp::Error as ChildProcess::start() does.
  HostProcess(const NodesCommand& run, const Host& host, const ChildSpec& mpirun, int output);

  [[nodiscard]] const Host& host() const { return host_; }
  [[nodiscard]] ChildProcess& process() { return process_; }
  // Returns what the end of the process says about the host, except the program's output. If it has not ended, the host
  // does not answer.
  [[nodiscard]] HostAnswer answer() const;

 private:
  [[nodiscard]] ChildProcess start(NodesCommand run, const ChildSpec& mpirun, int output) const;

  Host host_;
  TemporaryFolder files_;  // removed when the process has ended
  UniqueFd errors_;
  ChildProcess process_;
};

}  // namespace rp
