#include "launcher/hosts_doctor/hosts_doctor.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>

#include <csignal>
#include <iostream>
#include <utility>

#include "common/program_main.h"
#include "common/system/kernel_file.h"
#include "common/text.h"
#include "launcher/events/poll_set.h"
#include "launcher/events/signal_reader.h"
#include "launcher/hosts/host_check.h"
#include "launcher/hosts/mpirun_process.h"
#include "launcher/hosts_doctor/hosts_report.h"
#include "launcher/machine/mpi_job.h"
#include "launcher/machine/program_path.h"
#include "nodes/network_library.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

// What the measurement may need, if no message arrives, and the start of all processes.
constexpr double kMeasuringSeconds = 50;

std::string text_in(const UniqueFd& file) { return kernel_file_text(cat("/proc/self/fd/", file.get())); }

class HostsDoctor {
 public:
  HostsDoctor(const DoctorOptions& options, const std::filesystem::path& own_directory)
      : options_(options), rp_launch_(own_directory / "rp-launch"), mpirun_(mpirun_spec()) {}

  int run() {
    ask_for_start();
    if (signal_ == 0) ask_for_facts();
    if (signal_ == 0) measure();
    if (signal_ != 0) return 128 + signal_;
    const int printed = print_output(options_.json ? hosts_json(report_) : hosts_text(report_));
    for (const HostAnswer& answer : report_.answers) {
      std::cerr << answer.text;
      if (code_ == 0) code_ = answer.code;
    }
    return printed != 0 ? printed : code_ != 0 ? code_ : network_code_;
  }

 private:
  [[nodiscard]] NodesCommand command_of(std::vector<Host> hosts, std::vector<std::string> options) const {
    return {.hosts = std::move(hosts),
            .rp_launch = rp_launch_,
            .options = std::move(options),
            .command = {},
            .uses_gpus = options_.gpus.has_value(),
            .variables = passed_variables()};
  }

  // Waits for the descriptors of `set` or a signal. Returns false after a signal that ends this program.
  bool wait(PollSet& set, const Deadline& deadline) {
    set.add(signals_.fd(), POLLIN, [this] {
      while (const auto signal = signals_.next()) {
        const auto number = static_cast<int>(signal->ssi_signo);
        if (signal_ == 0 && (number == SIGINT || number == SIGTERM || number == SIGHUP)) signal_ = number;
      }
    });
    set.wait(deadline);
    return signal_ == 0;
  }

  [[nodiscard]] std::vector<HostAnswer> ask(const NodesCommand& question) {
    return ask_each_host(question, mpirun_,
                         [this](PollSet& set, const Deadline& deadline) { return wait(set, deadline); });
  }

  // Whether the hosts have the program, and so many workers or GPUs.
  void ask_for_start() {
    NodesCommand question = command_of(options_.hosts, options_.options_of_node);
    question.options.emplace_back("--dry-run");
    question.command = options_.command;
    if (question.command.empty()) question.command = {rp_launch_.string()};
    report_.answers = ask(question);
    report_.facts.resize(report_.answers.size());
    for (std::size_t i = 0; i < report_.answers.size(); ++i) {
      if (report_.answers[i].is_reached) report_.nodes.push_back(i);
    }
  }

  // Without numbers of workers.
  [[nodiscard]] std::vector<Host> hosts_of_nodes() const {
    std::vector<Host> hosts;
    for (const std::size_t host : report_.nodes) hosts.push_back({.name = report_.answers[host].host.name});
    return hosts;
  }

  void ask_for_facts() {
    const std::vector<HostAnswer> answers = ask(command_of(hosts_of_nodes(), {"doctor", kHostFactsWord}));
    for (std::size_t i = 0; i < answers.size(); ++i) {
      HostAnswer& answer = report_.answers[report_.nodes[i]];
      try {
        if (answers[i].code == 0) {
          report_.facts[report_.nodes[i]] = parse_host_facts(answers[i].output);
        } else {
          answer = answers[i];
        }
      } catch (const Error& error) {
        answer.code = static_cast<int>(error.code());
        answer.text = cat("rp-launch: host ", answer.host.name, ": ", error.what(), "\n");
      }
    }
  }

  void measure() {
    // Only those that can load the library that connects them.
    std::erase_if(report_.nodes, [this](std::size_t host) {
      return !report_.facts[host] || !report_.facts[host]->network_problem.empty();
    });
    if (report_.answers.size() == 1) return;
    if (report_.nodes.size() < 2) {
      report_.unmeasured =
          cat("it was not measured, because that needs two hosts, and ", report_.nodes.size(), " can take part");
      return;
    }
    const UniqueFd nothing(open("/dev/null", O_RDWR | O_CLOEXEC));
    const UniqueFd output(memfd_create("rp-doctor-output", MFD_CLOEXEC));
    const UniqueFd errors(memfd_create("rp-doctor-errors", MFD_CLOEXEC));
    mpirun_.arguments = mpirun_arguments(command_of(hosts_of_nodes(), {"doctor", kHostNetworkWord}));
    mpirun_.stdio = {nothing.get(), output.get(), errors.get()};
    ChildProcess process = ChildProcess::start(mpirun_);
    const Deadline deadline = Deadline::after_seconds(kMeasuringSeconds);
    while (!process.try_reap() && !deadline.passed()) {
      PollSet set;
      set.add(process.pidfd(), POLLIN, [] {});
      if (!wait(set, deadline)) return;
    }
    process.kill_group();
    report_.measurement = parse_measurement(text_in(output));
    if (!report_.measurement) {
      report_.unmeasured = "the hosts answer, but cannot be connected with each other";
      std::cerr << text_in(errors);
    }
    const bool is_complete =
        report_.measurement &&
        std::ranges::all_of(report_.measurement->links, [](const auto& link) { return link.speed.has_value(); });
    if (!is_complete) network_code_ = static_cast<int>(ExitCode::kNodeLost);
  }

  const DoctorOptions& options_;
  const std::filesystem::path rp_launch_;
  ChildSpec mpirun_;
  SignalReader signals_;
  HostsReport report_;
  int signal_ = 0;
  int code_ = 0;
  int network_code_ = 0;
};

int measure_as_node(const std::filesystem::path& library) {
  const auto network = connect_nodes(num_nodes_of_job(), library.parent_path());
  const std::optional<NodesMeasurement> measurement = measure_nodes(*network, {});
  if (measurement) {
    const int printed = print_output(measurement_json(*measurement));
    const bool is_complete =
        std::ranges::all_of(measurement->links, [](const auto& link) { return link.speed.has_value(); });
    // The network cannot finish. mpirun ends the other nodes.
    if (!is_complete) return static_cast<int>(ExitCode::kNodeLost);
    if (printed != 0) return printed;
  }
  network->finish();
  return 0;
}

}  // namespace

int run_hosts_doctor(const DoctorOptions& options, const std::filesystem::path& own_directory) {
  if (num_nodes_of_job() > 1) {
    throw Error(ExitCode::kUsage,
                "--hosts inside a job of MPI: mpirun or srun has chosen the hosts; run this outside of it");
  }
  return HostsDoctor(options, own_directory).run();
}

int run_host_part(DoctorOptions::HostPart part, const std::filesystem::path& own_directory,
                  const std::string& library_path) {
  if (part == DoctorOptions::HostPart::kFacts)
    return print_output(host_facts_json(observe_host_facts(own_directory, library_path)));
  return measure_as_node(find_library(kNetworkLibraryFile, own_directory, library_path));
}

}  // namespace rp
