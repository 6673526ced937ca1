#include "launcher/view/ps.h"

#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <chrono>
#include <cxxopts.hpp>
#include <thread>
#include <utility>

#include "common/program_main.h"
#include "common/text.h"
#include "launcher/hosts/mpi_parent.h"
#include "launcher/view/hosts_view.h"
#include "launcher/view/run_report.h"
#include "launcher/view/runs.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

const char* name_of(bool repeats) { return repeats ? "rp-launch top" : "rp-launch ps"; }

cxxopts::Options make_parser(bool repeats) {
  return option_parser(name_of(repeats),
                       repeats ? "Shows again and again what the processes of your runs on this machine do."
                               : "Shows what the processes of your runs on this machine do.",
                       "[options]", view_option_specs(repeats));
}

// Takes the cursor to the upper left corner and clears what is below, so that the new view replaces the last one.
constexpr const char* kClearScreen = "\x1b[H\x1b[J";

// Returns the view as it replaces the last one on a terminal, without what would scroll.
std::string on_screen(const std::string& text) {
  winsize size{};
  const bool is_known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0;
  return kClearScreen + (is_known ? fitted_text(text, size.ws_col, size.ws_row) : text);
}

double parse_interval(const std::string& text) {
  std::size_t used = 0;
  double seconds = 0;
  try {
    seconds = std::stod(text, &used);
  } catch (const std::exception&) {
    used = 0;
  }
  if (used == 0 || used != text.size() || !(seconds >= 0.1 && seconds <= 3600))
    throw Error(ExitCode::kUsage, cat("--interval is \"", text, "\"; it must be a number of seconds from 0.1 to 3600"));
  return seconds;
}

int parse_count(const std::string& text) {
  constexpr std::size_t kMaxDigits = 9;
  const bool is_number =
      !text.empty() && text.size() <= kMaxDigits && text.find_first_not_of("0123456789") == std::string::npos;
  if (!is_number || std::stoi(text) == 0)
    throw Error(ExitCode::kUsage, cat("--count is \"", text, "\"; it must be a whole number from 1 to 999999999"));
  return std::stoi(text);
}

void read_hosts(const cxxopts::ParseResult& parsed, ViewOptions& options) {
  options.shows_all_nodes = parsed.count("all-nodes") > 0;
  const bool has_hosts = parsed.count("hosts") > 0;
  const bool has_file = parsed.count("hostfile") > 0;
  if (static_cast<int>(options.shows_all_nodes) + static_cast<int>(has_hosts) + static_cast<int>(has_file) > 1)
    throw Error(ExitCode::kUsage, "choose one of --hosts, --hostfile and --all-nodes");
  if (has_hosts) options.hosts = parse_hosts("--hosts", parsed["hosts"].as<std::string>());
  if (has_file) options.hosts = read_hostfile(parsed["hostfile"].as<std::string>());
}

// Returns the runs as text or JSON, as the options say.
std::string text_of(const ViewOptions& options, const RunsReport& report) {
  if (options.json) return runs_json(report);
  return options.shows_waits ? runs_waits_text(report) : runs_text(report);
}

}  // namespace

const std::vector<OptionSpec>& view_option_specs(bool repeats) {
  static const std::vector<OptionSpec> hosts = {
      {.name = "all-nodes", .help = "Look at all hosts of the runs on this machine that rp-launch --hosts has started"},
      {.name = "hostfile", .argument = "FILE", .help = "Read the hosts from a file, with one in each line"},
      {.name = "hosts", .argument = "LIST", .help = "Look at these hosts, such as a,b"},
  };
  static const auto with_hosts = [](std::vector<OptionSpec> specs) {
    specs.insert(specs.begin(), hosts.begin(), hosts.end());
    return specs;
  };
  static const std::vector<OptionSpec> ps = with_hosts({
      {.name = "waits", .help = "Also show what each thread waits for, and what to do if a run makes no progress"},
      {.name = "json", .help = "Print JSON"},
      {.letter = "h", .name = "help", .help = "Print this text"},
  });
  static const std::vector<OptionSpec> top = with_hosts({
      {.name = "interval", .argument = "S", .default_text = "2", .help = "Seconds between two views: 0.1 to 3600"},
      {.name = "count", .argument = "N", .default_text = "until Ctrl-C", .help = "End after N views"},
      {.name = "waits", .help = "Also show what each thread waits for, and what to do if a run makes no progress"},
      {.name = "json", .help = "Print a line of JSON for each view"},
      {.letter = "h", .name = "help", .help = "Print this text"},
  });
  return repeats ? top : ps;
}

ViewOptions parse_view_options(bool repeats, const std::vector<std::string>& arguments) {
  std::vector<const char*> words{name_of(repeats)};
  for (const std::string& argument : arguments) words.push_back(argument.c_str());
  ViewOptions options{.repeats = repeats};
  try {
    const cxxopts::ParseResult parsed = make_parser(repeats).parse(static_cast<int>(words.size()), words.data());
    options.is_for_other_host = parsed.unmatched() == std::vector<std::string>{kHostViewWord};
    if (!parsed.unmatched().empty() && !options.is_for_other_host) {
      const char* command = repeats ? "top" : "ps";
      throw Error(ExitCode::kUsage, cat(command, " takes options only, not \"", parsed.unmatched()[0],
                                        "\"; a program of that name is started with rp-launch -- ", command));
    }
    options.help = parsed.count("help") > 0;
    options.shows_waits = parsed.count("waits") > 0;
    options.json = parsed.count("json") > 0;
    if (repeats && parsed.count("interval") > 0)
      options.interval_seconds = parse_interval(parsed["interval"].as<std::string>());
    if (repeats && parsed.count("count") > 0) options.count = parse_count(parsed["count"].as<std::string>());
    read_hosts(parsed, options);
  } catch (const cxxopts::exceptions::exception& error) {
    throw Error(ExitCode::kUsage, cat(error.what(), "; ", name_of(repeats), " --help lists the options"));
  }
  return options;
}

int run_view(const ViewOptions& options, const std::filesystem::path& own_directory) {
  if (options.help) return print_output(make_parser(options.repeats).help());
  const bool clears = options.repeats && !options.json && isatty(STDOUT_FILENO) == 1;
  const auto show = [&](const std::string& text) { return print_output(clears ? on_screen(text) : text); };
  if (options.shows_all_nodes || !options.hosts.empty()) return run_hosts_view(options, own_directory, show);
  if (options.is_for_other_host) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // also while it waits for the next view
    end_mpi_parent(0);
  }
  RunsReport report{.now = find_runs(geteuid())};
  for (int shown = 1;; ++shown) {
    const std::string text = text_of(options, report);
    const int failed = options.is_for_other_host ? print_output(host_view_line(text)) : show(text);
    if (failed != 0) return failed;
    if (!options.repeats || shown == options.count) return 0;
    std::this_thread::sleep_for(std::chrono::duration<double>(options.interval_seconds));
    report.before = std::exchange(report.now, find_runs(geteuid()));
  }
}

}  // namespace rp
