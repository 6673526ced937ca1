#include "launcher/doctor/probe_process.h"

#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <memory>

#include "common/text.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

constexpr std::size_t kLongestLine = 1 << 16;

std::vector<std::string> environment_of_probe(const Gpu& gpu) {
  const std::string name = "CUDA_VISIBLE_DEVICES=";
  std::vector<std::string> list;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (!std::string(*entry).starts_with(name)) list.emplace_back(*entry);
  }
  list.push_back(name + gpu.uuid);
  return list;
}

std::string first_line_of(int fd) {
  std::string text(1024, '\0');
  const ssize_t got = pread(fd, text.data(), text.size(), 0);
  text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  return text.substr(0, text.find('\n'));
}

std::string end_text(int status) {
  return WIFSIGNALED(status) ? cat("was killed by signal ", WTERMSIG(status))
                             : cat("ended with exit code ", WEXITSTATUS(status));
}

int milliseconds_left(const Deadline& deadline) {
  const std::int64_t left = std::max<std::int64_t>(0, deadline.left_ns()) / kNsPerMs + 1;
  return static_cast<int>(std::min<std::int64_t>(left, std::numeric_limits<int>::max()));
}

}  // namespace

ProbeProcess::ProbeProcess(const std::filesystem::path& program, const Gpu& gpu, const CpuList& cpus,
                           bool with_products)
    : errors_(memfd_create("rp-probe", MFD_CLOEXEC)),
      process_(ChildProcess::start(spec(program, gpu, cpus, with_products))) {
  child_end_.reset();
}

ChildSpec ProbeProcess::spec(const std::filesystem::path& program, const Gpu& gpu, const CpuList& cpus,
                             bool with_products) {
  std::array<int, 2> ends{};
  if (!errors_ || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    throw Error(ExitCode::kNoResource, cat("cannot start rp-probe (", errno_text(errno), "); raise ulimit -n"));
  }
  socket_ = UniqueFd(ends[0]);
  child_end_ = UniqueFd(ends[1]);
  ChildSpec spec;
  spec.program = program;
  spec.arguments = {program.string(), "--wait"};
  if (with_products) spec.arguments.emplace_back("--products");
  spec.environment = environment_of_probe(gpu);
  spec.stdio = {child_end_.get(), child_end_.get(), errors_.get()};
  spec.cpus = cpus;
  sigprocmask(SIG_SETMASK, nullptr, &spec.signal_mask);
  getrlimit(RLIMIT_NOFILE, &spec.open_files);
  return spec;
}

void ProbeProcess::start_measuring() {
  if (failure_.empty()) (void)send(socket_.get(), "measure\n", 8, MSG_NOSIGNAL);
}

std::optional<std::string> ProbeProcess::read_line(const Deadline& deadline) {
  while (true) {
    const std::size_t end = received_.find('\n');
    if (end != std::string::npos) {
      const std::string line = received_.substr(0, end);
      received_.erase(0, end + 1);
      return line;
    }
    pollfd ready{.fd = socket_.get(), .events = POLLIN, .revents = 0};
    if (deadline.passed() || received_.size() > kLongestLine) return std::nullopt;
    if (poll(&ready, 1, milliseconds_left(deadline)) <= 0) continue;
    std::array<char, 4096> piece{};
    const ssize_t got = recv(socket_.get(), piece.data(), piece.size(), 0);
    if (got <= 0) return std::nullopt;
    received_.append(piece.data(), static_cast<std::size_t>(got));
  }
}

std::optional<ProbeFigures> ProbeProcess::figures(const Deadline& deadline) {
  if (!failure_.empty()) return std::nullopt;
  const std::optional<std::string> line = read_line(deadline);
  if (line) {
    try {
      return parse_probe_line(*line);
    } catch (const Error& error) {
      failure_ = error.what();
    }
  } else {
    fail(deadline);
  }
  process_.kill_group();
  return std::nullopt;
}

void ProbeProcess::fail(const Deadline& deadline) {
  if (!deadline.passed()) {
    // The child's output has ended, so the child is about to end as well.
    pollfd ended{.fd = process_.pidfd(), .events = POLLIN, .revents = 0};
    (void)poll(&ended, 1, milliseconds_left(deadline));
    if (process_.try_reap()) {
      const std::string said = first_line_of(errors_.get());
      failure_ = said.empty() ? cat("rp-probe ", end_text(*process_.status())) : said;
      return;
    }
  }
  failure_ =
      "rp-probe did not answer in time: the GPU or its driver hangs, or another program keeps it busy; see nvidia-smi, "
      "dmesg";
}

std::vector<GpuBandwidth> measure_bandwidths(const std::filesystem::path& program, const std::vector<Gpu>& gpus,
                                             const std::vector<CpuList>& cpus, double seconds, bool with_products) {
  std::vector<GpuBandwidth> found;
  std::vector<std::unique_ptr<ProbeProcess>> probes;
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    found.push_back({.gpu = gpus[i]});
    try {
      probes.push_back(std::make_unique<ProbeProcess>(program, gpus[i], cpus[i], with_products));
    } catch (const Error& error) {
      probes.push_back(nullptr);
      found[i].failure = error.what();
      continue;
    }
    probes[i]->start_measuring();
    found[i].alone = probes[i]->figures(Deadline::after_seconds(seconds));
    found[i].failure = probes[i]->failure();
  }
  const auto able =
      std::count_if(found.begin(), found.end(), [](const GpuBandwidth& gpu) { return gpu.alone.has_value(); });
  if (able < 2) return found;
  for (std::size_t i = 0; i < probes.size(); ++i) {
    if (found[i].alone) probes[i]->start_measuring();
  }
  const Deadline deadline = Deadline::after_seconds(seconds);
  for (std::size_t i = 0; i < probes.size(); ++i) {
    if (!found[i].alone) continue;
    found[i].together = probes[i]->figures(deadline);
    found[i].failure = probes[i]->failure();
  }
  return found;
}

}  // namespace rp
