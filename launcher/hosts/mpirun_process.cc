#include "launcher/hosts/mpirun_process.h"

#include <pthread.h>
#include <unistd.h>

#include "launcher/events/signal_reader.h"
#include "launcher/hosts/mpirun_command.h"
#include "launcher/machine/program_path.h"
#include "launcher/process/runtime_settings.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

std::filesystem::path find_mpirun() try {
  return find_program("mpirun", {}, environment_value("PATH").value_or(""));
} catch (const Error&) {
  throw Error(ExitCode::kNotFound, "--hosts needs Open MPI 4, and there is no mpirun in PATH: install openmpi-bin");
}

}  // namespace

ChildSpec mpirun_spec() {
  ChildSpec spec;
  spec.program = find_mpirun();
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (!concerns_whole_run(text.substr(0, text.find('=')))) spec.environment.push_back(text);
  }
  const sigset_t handled = SignalReader::handled();
  pthread_sigmask(SIG_BLOCK, &handled, &spec.signal_mask);
  getrlimit(RLIMIT_NOFILE, &spec.open_files);
  return spec;
}

}  // namespace rp
