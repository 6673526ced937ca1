#include "launcher/view/hosts_view.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <utility>

#include "common/printable.h"
#include "common/system/clock.h"
#include "common/system/kernel_file.h"
#include "common/text.h"
#include "launcher/events/poll_set.h"
#include "launcher/events/signal_reader.h"
#include "launcher/hosts/host_process.h"
#include "launcher/hosts/mpirun_process.h"
#include "launcher/view/runs.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

using Json = nlohmann::ordered_json;

// The lines of one host.
class HostStream {
 public:
  HostStream(const NodesCommand& command, const Host& host, const ChildSpec& mpirun) : host_(host) {
    std::array<int, 2> ends{};
    if (pipe2(ends.data(), O_CLOEXEC) != 0)
      throw Error(ExitCode::kNoResource, cat("cannot make a pipe: ", errno_text(errno)));
    input_ = UniqueFd(ends[0]);
    const UniqueFd output(ends[1]);
    fcntl(input_.get(), F_SETFL, O_NONBLOCK);
    run_ = std::make_unique<HostProcess>(command, host, mpirun, output.get());
  }

  void add_to(PollSet& set) {
    if (input_) set.add(input_.get(), POLLIN, [this] { read_views(); });
    if (!has_ended_) set.add(run_->process().pidfd(), POLLIN, [this] { has_ended_ = run_->process().try_reap(); });
  }

  [[nodiscard]] bool has_ended() const { return has_ended_ && !input_; }
  [[nodiscard]] bool has_view_since(std::int64_t time_ns) const { return !text_.empty() && seen_ns_ > time_ns; }
  [[nodiscard]] bool was_seen() const { return !text_.empty(); }
  [[nodiscard]] HostAnswer answer() const { return run_->answer(); }

  // `late_ns`: a view that is older is a problem.
  [[nodiscard]] HostView view(std::int64_t late_ns) const {
    HostView view{.host = host_.name, .text = text_, .problem = {}};
    const std::int64_t age_ns = now_ns() - seen_ns_;
    if (text_.empty()) {
      view.problem = answer().text;
    } else if (has_ended() && !is_only_view_) {
      view.problem = "its connection has ended; this was seen last\n";
    } else if (!has_ended() && age_ns > late_ns) {
      view.problem = cat("does not answer; this was seen ", age_ns / kNsPerSecond, " s ago\n");
    }
    return view;
  }

  // The host was to send one view only.
  void expect_one_view() { is_only_view_ = true; }

 private:
  void read_views() {
    std::array<char, 65536> bytes{};
    const ssize_t length = read(input_.get(), bytes.data(), bytes.size());
    if (length < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (length <= 0) {
      input_ = UniqueFd();
      return;
    }
    received_.append(bytes.data(), static_cast<std::size_t>(length));
    for (std::size_t end = received_.find('\n'); end != std::string::npos; end = received_.find('\n')) {
      const std::string text = text_of_host_view(received_.substr(0, end));
      received_.erase(0, end + 1);
      if (text.empty()) continue;
      text_ = text;
      seen_ns_ = now_ns();
    }
  }

  Host host_;
  UniqueFd input_;
  std::unique_ptr<HostProcess> run_;
  std::string received_;  // what is not yet a whole line
  std::string text_;
  std::int64_t seen_ns_ = 0;
  bool has_ended_ = false;
  bool is_only_view_ = false;
};

// Returns the hosts of the runs of this user on this machine.
std::vector<Host> hosts_of_runs() {
  std::vector<Host> hosts;
  for (const RunView& run : find_runs(geteuid())) {
    std::istringstream variables(kernel_file_text(cat("/proc/", run.launcher, "/environ")));
    const std::string begin = cat(kNodeHostsVariable, "=");
    for (std::string variable; std::getline(variables, variable, '\0');) {
      if (!variable.starts_with(begin)) continue;
      for (const Host& host : parse_hosts(kNodeHostsVariable, variable.substr(begin.size()))) {
        if (std::ranges::find(hosts, host) == hosts.end()) hosts.push_back(host);
      }
    }
  }
  if (hosts.empty()) {
    throw Error(ExitCode::kUsage,
                "--all-nodes: no run of this user on this machine was started by rp-launch --hosts; name the hosts: "
                "--hosts a,b");
  }
  return hosts;
}

class HostsView {
 public:
  HostsView(const ViewOptions& options, const std::filesystem::path& own_directory) : options_(options) {
    signal(SIGPIPE, SIG_IGN);
    NodesCommand command{.hosts = options.shows_all_nodes ? hosts_of_runs() : options.hosts,
                         .rp_launch = own_directory / "rp-launch",
                         .options = {options.repeats ? "top" : "ps", kHostViewWord},
                         .command = {},
                         .uses_gpus = false,
                         .variables = passed_variables()};
    if (options.repeats) {
      command.options.insert(command.options.end(), {"--interval", cat(options.interval_seconds)});
    }
    if (options.json) command.options.emplace_back("--json");
    if (options.shows_waits) command.options.emplace_back("--waits");
    const ChildSpec mpirun = mpirun_spec();
    signals_ = std::make_unique<SignalReader>();
    for (Host host : command.hosts) {
      host.num_workers.reset();
      streams_.push_back(std::make_unique<HostStream>(command, host, mpirun));
      if (!options.repeats) streams_.back()->expect_one_view();
    }
  }

  int run(const std::function<int(const std::string&)>& show) {
    std::int64_t shown_ns = now_ns();
    for (int shown = 1;; ++shown) {
      wait_for_views(shown_ns, shown == 1 ? kHostStartSeconds * kNsPerSecond : interval_ns() + kNsPerSecond);
      if (signal_ != 0) return 128 + signal_;
      shown_ns = now_ns();
      if (const int failed = show(text()); failed != 0) return failed;
      if (!options_.repeats || shown == options_.count || have_all_ended()) return code();
    }
  }

 private:
  [[nodiscard]] std::int64_t interval_ns() const { return static_cast<std::int64_t>(options_.interval_seconds * 1e9); }

  [[nodiscard]] bool have_all_ended() const {
    return std::ranges::all_of(streams_, [](const auto& stream) { return stream->has_ended(); });
  }

  // Waits until each host that has not ended has a view that is newer, or for so long.
  void wait_for_views(std::int64_t since_ns, std::int64_t limit_ns) {
    const Deadline deadline = Deadline::after_ns(limit_ns);
    const auto is_ready = [since_ns](const auto& stream) {
      return stream->has_ended() || stream->has_view_since(since_ns);
    };
    // Reads what has come even if this process got no processor until the deadline.
    do {
      PollSet set;
      set.add(signals_->fd(), POLLIN, [this] { read_signals(); });
      for (const auto& stream : streams_) stream->add_to(set);
      set.wait(deadline);
    } while (signal_ == 0 && !deadline.passed() && !std::ranges::all_of(streams_, is_ready));
  }

  void read_signals() {
    while (const auto signal = signals_->next()) {
      const auto number = static_cast<int>(signal->ssi_signo);
      if (number == SIGTSTP) kill(getpid(), SIGSTOP);
      if (signal_ == 0 && (number == SIGINT || number == SIGTERM || number == SIGHUP)) signal_ = number;
    }
  }

  [[nodiscard]] std::string text() const {
    std::vector<HostView> views;
    for (const auto& stream : streams_) views.push_back(stream->view(2 * interval_ns() + 2 * kNsPerSecond));
    return options_.json ? host_views_json(views) : host_views_text(views);
  }

  [[nodiscard]] int code() const {
    for (const auto& stream : streams_) {
      if (!stream->was_seen()) return stream->answer().code;
    }
    return 0;
  }

  const ViewOptions& options_;
  std::unique_ptr<SignalReader> signals_;
  std::vector<std::unique_ptr<HostStream>> streams_;
  int signal_ = 0;
};

}  // namespace

std::string host_views_text(const std::vector<HostView>& views) {
  std::string text;
  for (const HostView& view : views) {
    text += cat(text.empty() ? "" : "\n", "host ", view.host, "\n");
    std::istringstream lines(printable(view.problem));
    for (std::string line; std::getline(lines, line);) text += cat("  ", line, "\n");
    text += view.text;
  }
  return text;
}

std::string host_views_json(const std::vector<HostView>& views) {
  Json hosts = Json::array();
  for (const HostView& view : views) {
    Json host{{"host", view.host}, {"problem", view.problem}, {"runs", Json::array()}};
    const Json seen = Json::parse(view.text, nullptr, /*allow_exceptions=*/false);
    if (seen.is_object() && seen.contains("runs")) host["runs"] = seen["runs"];
    hosts.push_back(std::move(host));
  }
  return Json{{"hosts", std::move(hosts)}}.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string host_view_line(const std::string& text) {
  return Json{{"view", text}}.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string text_of_host_view(const std::string& line) {
  const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  return json.is_object() && json.contains("view") && json["view"].is_string() ? json["view"].get<std::string>() : "";
}

int run_hosts_view(const ViewOptions& options, const std::filesystem::path& own_directory,
                   const std::function<int(const std::string&)>& show) {
  return HostsView(options, own_directory).run(show);
}

}  // namespace rp
