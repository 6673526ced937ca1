#include "launcher/options/options.h"

#include <cxxopts.hpp>
#include <string_view>

#include "common/text.h"
#include "hoststore/control.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

constexpr int kMaxRestarts = 10'000;

const OptionSpec* find_spec(std::string_view name) {
  for (const OptionSpec& spec : launch_option_specs()) {
    if (name == spec.name) return &spec;
  }
  return nullptr;
}

const OptionSpec* find_letter(char letter) {
  for (const OptionSpec& spec : launch_option_specs()) {
    if (spec.letter[0] == letter && letter != '\0') return &spec;
  }
  return nullptr;
}

[[noreturn]] void throw_unknown(const std::string& word) {
  std::vector<std::string> names;
  for (const OptionSpec& spec : launch_option_specs()) names.push_back(cat("--", spec.name));
  const std::string name = word.substr(0, word.find('='));
  throw Error(ExitCode::kUsage,
              cat("unknown option ", name, did_you_mean(name, names),
                  "; rp-launch --help lists the options. The program's own options come after its name"));
}

// Returns the number of words that the option at arguments[place] occupies, including its value.
std::size_t option_length(const std::vector<std::string>& arguments, std::size_t place) {
  const std::string& word = arguments[place];
  const bool is_long = word.starts_with("--");
  const std::size_t equals = is_long ? word.find('=') : std::string::npos;
  const OptionSpec* spec = is_long ? find_spec(word.substr(2, equals - 2)) : find_letter(word[1]);
  if (spec == nullptr) throw_unknown(word);
  const bool has_argument = spec->argument[0] != '\0';
  if (!is_long && word.size() > 2 && !has_argument) throw_unknown(word);
  const bool value_follows = has_argument && (is_long ? equals == std::string::npos : word.size() == 2);
  if (value_follows && place + 1 == arguments.size()) {
    throw Error(ExitCode::kUsage, cat("option ", word, " needs a value: ", word, " ", spec->argument));
  }
  return value_follows ? 2 : 1;
}

// Returns the index of the first word that is not an option: the start of the program's command.
std::size_t command_start(const std::vector<std::string>& arguments) {
  std::size_t place = 0;
  while (place < arguments.size() && arguments[place].size() > 1 && arguments[place][0] == '-') {
    if (arguments[place] == "--") break;
    place += option_length(arguments, place);
  }
  return place;
}

cxxopts::Options make_parser() {
  return option_parser("rp-launch", "Runs a RoundPipe program: one coordinator and its workers.",
                       "[options] program [arguments]", launch_option_specs());
}

cxxopts::ParseResult parse_words(const std::vector<std::string>& arguments, std::size_t end) {
  std::vector<const char*> words{"rp-launch"};
  for (std::size_t i = 0; i < end; ++i) words.push_back(arguments[i].c_str());
  try {
    return make_parser().parse(static_cast<int>(words.size()), words.data());
  } catch (const cxxopts::exceptions::exception& error) {
    throw Error(ExitCode::kUsage, cat(error.what(), "; rp-launch --help lists the options"));
  }
}

// The value of a setting, and the name of the option or variable that set it.
struct Asked {
  std::string name;
  std::string value;
  bool by_option;
};

class AskedSettings {
 public:
  explicit AskedSettings(const cxxopts::ParseResult& words) : words_(words) {}

  // Returns the option if it was given, otherwise its variable if that is set, otherwise nullopt.
  [[nodiscard]] std::optional<Asked> value(const char* option) const {
    if (words_.count(option) > 0) {
      const bool is_switch = find_spec(option)->argument[0] == '\0';
      const std::string value = !is_switch ? words_[option].as<std::string>() : words_[option].as<bool>() ? "1" : "0";
      return Asked{cat("--", option), value, true};
    }
    const char* variable = find_spec(option)->variable;
    if (const auto text = environment_value(variable)) return Asked{variable, *text, false};
    return std::nullopt;
  }
  [[nodiscard]] std::optional<Asked> value(const RuntimeSetting& setting) const {
    if (*setting.option != '\0') return value(setting.option);
    const auto text = environment_value(setting.variable);
    return text ? std::optional(Asked{setting.variable, *text, false}) : std::nullopt;
  }

 private:
  const cxxopts::ParseResult& words_;
};

// Setting GPUs implies the device cuda. If the device cuda is set without GPUs, all GPUs are used, or
// one per worker if the number of workers is set.
void read_device(const AskedSettings& asked, LaunchOptions& options) {
  const auto device = asked.value("device");
  auto gpus = asked.value("gpus");
  const auto workers = asked.value("workers");
  if (workers) {
    options.workers =
        parse_count(workers->name, workers->value, 1, kMaxWorkers, "; for more cores raise --threads-per-worker");
  }
  if (gpus && device && options.settings.device != "cuda" && device->by_option >= gpus->by_option) {
    if (device->by_option == gpus->by_option) {
      throw Error(ExitCode::kUsage, cat(gpus->name, " and ", device->name, " ", device->value,
                                        " are both set, choose one: drop ", gpus->name));
    }
    gpus.reset();  // an option takes precedence over a variable
  }
  if (gpus) {
    options.gpus = parse_gpus(gpus->name, gpus->value);
    options.settings.device = "cuda";
  } else if (options.settings.device == "cuda") {
    options.gpus = GpuRequest{.asked = cat(device->name, " cuda")};
  } else {
    return;
  }
  const bool by_option = gpus ? gpus->by_option : device->by_option;
  if (workers && by_option && !workers->by_option) options.workers.reset();
  if (options.workers && !gpus) {
    options.gpus->asked += cat(" with ", workers->name, " ", workers->value);
    options.gpus->kind = GpuRequest::Kind::kCount;
    options.gpus->count = *options.workers;
  }
}

void read_hosts(const AskedSettings& asked, LaunchOptions& options) {
  const auto hosts = asked.value("hosts");
  const auto file = asked.value("hostfile");
  if (hosts && file && hosts->by_option == file->by_option)
    throw Error(ExitCode::kUsage, cat(hosts->name, " and ", file->name, " are both set, choose one"));
  if (hosts && (!file || hosts->by_option)) {
    options.hosts = parse_hosts(hosts->name, hosts->value);
  } else if (file) {
    options.hosts = read_hostfile(file->value);
  }
}

// Returns the words before `end` without the options that only concern the run as a whole.
std::vector<std::string> options_of_node(const std::vector<std::string>& arguments, std::size_t end) {
  std::vector<std::string> words;
  for (std::size_t place = 0; place < end;) {
    const std::size_t length = option_length(arguments, place);
    const std::string name = arguments[place].substr(0, arguments[place].find('='));
    if (name != "--hosts" && name != "--hostfile" && name != "--dry-run" && name != "--time-limit") {
      for (std::size_t i = 0; i < length; ++i) words.push_back(arguments[place + i]);
    }
    place += length;
  }
  return words;
}

void read_settings(const AskedSettings& asked, LaunchOptions& options) {
  for (const RuntimeSetting& setting : runtime_settings()) {
    if (const auto a = asked.value(setting)) read_setting(options.settings, setting, a->name, a->value);
  }
  read_device(asked, options);
  read_hosts(asked, options);
  if (const auto a = asked.value("bind")) options.bind = parse_choice(a->name, a->value, {"numa", "none"});
  if (const auto a = asked.value("tag-output")) options.tag_output = parse_switch(a->name, a->value);
  if (const auto a = asked.value("timestamp-output")) options.timestamp_output = parse_switch(a->name, a->value);
  if (const auto a = asked.value("log-dir")) options.log_dir = a->value;
  if (const auto a = asked.value("dry-run")) options.dry_run = parse_switch(a->name, a->value);
  if (const auto a = asked.value("on-coordinator-failure")) {
    options.restarts_coordinator = parse_choice(a->name, a->value, {"abort", "restart"}) == "restart";
  }
  if (const auto a = asked.value("on-node-failure")) {
    options.restarts_nodes = parse_choice(a->name, a->value, {"abort", "restart"}) == "restart";
  }
  if (const auto a = asked.value("time-limit")) options.time_limit_seconds = parse_seconds(a->name, a->value);
  if (const auto a = asked.value("on-worker-failure")) {
    const std::string policy = parse_choice(a->name, a->value, {"abort", "replay", "shrink"});
    options.on_worker_failure = policy == "replay"   ? WorkerFailurePolicy::kReplay
                                : policy == "shrink" ? WorkerFailurePolicy::kShrink
                                                     : WorkerFailurePolicy::kAbort;
    if (options.settings.reduce == "nccl" && options.on_worker_failure != WorkerFailurePolicy::kAbort)
      throw Error(ExitCode::kUsage,
                  cat(a->name, " ", a->value, ": with --reduce nccl a worker is not replaced; use abort"));
  }
  if (const auto a = asked.value("max-restarts")) {
    options.max_restarts = parse_count(a->name, a->value, 0, kMaxRestarts, "; --on-worker-failure abort does without");
  }
  if (const auto a = asked.value("debug-worker")) options.debug_tool = parse_debug_tool(a->name, a->value);
  if (options.tag_output && options.log_dir) {
    throw Error(ExitCode::kUsage, "--tag-output and --log-dir are both set; choose one, because files have no tags");
  }
}

}  // namespace

const std::vector<OptionSpec>& launch_option_specs() {
  static const std::vector<OptionSpec> specs = [] {
    std::vector<OptionSpec> list = {
        {.letter = "n",
         .name = "workers",
         .argument = "N",
         .variable = "RP_WORKERS",
         .default_text = "the usable cores, or the GPUs",
         .concerns = "rp-launch",
         .help = "Worker processes, 1 to 64",
         .details =
             "Worker processes, 1 to 64. Usable cores are those that the affinity mask and the cgroup quota (rounded "
             "up) allow, at most 64"},
        {.name = "gpus",
         .argument = "N|LIST|all",
         .variable = "RP_GPUS",
         .concerns = "rp-launch",
         .help = "Use N GPUs, or the GPUs in a list such as 0,2,5 or in a list of UUIDs: one worker for each",
         .details =
             "Device `cuda` with one worker for each GPU of the list: see [GPUs](#gpus). The option `--device cpu` "
             "takes precedence over this variable"},
    };
    for (const RuntimeSetting& setting : runtime_settings()) {
      if (*setting.option == '\0') continue;
      list.push_back({.name = setting.option,
                      .argument = setting.argument,
                      .variable = setting.variable,
                      .default_text = setting.shown_default(),
                      .concerns = setting.concerns,
                      .help = setting.help,
                      .details = setting.details});
    }
    const std::vector<OptionSpec> more = {
        {.name = "bind",
         .argument = "numa|none",
         .variable = "RP_BIND",
         .default_text = "numa if there are several nodes",
         .concerns = "rp-launch",
         .help = "Spread the workers over the NUMA nodes, each bound to its share of the cores"},
        {.name = "tag-output",
         .variable = "RP_TAG_OUTPUT",
         .default_text = "0",
         .concerns = "rp-launch",
         .help = "Prefix each line of output with the name of its process",
         .details = "Prefix each line of output with `[coordinator] `, `[worker 0] ` and so on"},
        {.name = "timestamp-output",
         .variable = "RP_TIMESTAMP_OUTPUT",
         .default_text = "0",
         .concerns = "rp-launch",
         .help = "Prefix the lines of all processes, and reports, with the local time, in log files too",
         .details = "Prefix the lines of all processes, and the reports of rp-launch, with the local time, such as "
                    "`2026-11-28T05:25:34.123 `, in log files too"},
        {.name = "log-dir",
         .argument = "DIR",
         .variable = "RP_LOG_DIR",
         .concerns = "rp-launch",
         .help = "Append each process's output to DIR/NAME.out and DIR/NAME.err instead of printing it",
         .details = "Append output to `DIR/coordinator.out`, `.err`, `DIR/worker-0.out` ... instead of printing it"},
        {.name = "on-worker-failure",
         .argument = "abort|replay|shrink",
         .variable = "RP_ON_WORKER_FAILURE",
         .default_text = "replay",
         .concerns = "rp-launch",
         .help = "After a worker was killed or hung: end the run, start another in its place, or go on with one less",
         .details =
             "After a worker was killed or hung: end the run (`abort`), start another in its place (`replay`), or go "
             "on with one less (`shrink`). The results are the same bits: see [Lost workers](#lost-workers)"},
        {.name = "on-coordinator-failure",
         .argument = "abort|restart",
         .variable = "RP_ON_COORDINATOR_FAILURE",
         .default_text = "restart",
         .concerns = "rp-launch",
         .help = "After the coordinator was killed or crashed: end the run, or start the program again, which goes on",
         .details =
             "After the coordinator was killed or crashed: end the run (`abort`), or start the program again, if it "
             "can go on (`restart`): see [A lost coordinator](#a-lost-coordinator)"},
        {.name = "max-restarts",
         .argument = "N",
         .variable = "RP_MAX_RESTARTS",
         .default_text = "3",
         .concerns = "rp-launch",
         .help = "Start at most N workers again in a run, then go on with fewer; and the program at most N times"},
        {.name = "on-node-failure",
         .argument = "abort|restart",
         .variable = "RP_ON_NODE_FAILURE",
         .default_text = "abort",
         .concerns = "rp-launch",
         .help =
             "With --hosts: after a node was lost, end the run, or start the program again on the hosts that answer",
         .details = "With `--hosts`: after a node was lost, end the run (`abort`), or start the program again on the "
                    "hosts that answer (`restart`), at most `--max-restarts` times: see [Lost "
                    "nodes](several-nodes.md#lost-nodes)"},
        {.name = "time-limit",
         .argument = "TIME",
         .variable = "RP_TIME_LIMIT",
         .default_text = "none",
         .concerns = "rp-launch",
         .help = "Ask the program to stop after 90s, 15m or 2h, as by the signal USR1: it ends with a checkpoint",
         .details = "Ask the program to stop after `90s`, `15m` or `2h`, as by the signal USR1: a program that writes "
                    "checkpoints writes one and ends with code 75"},
        {.name = "debug-worker",
         .argument = "N[=TOOL]",
         .variable = "RP_DEBUG_WORKER",
         .concerns = "rp-launch",
         .help = "Run worker N under gdb, cuda-gdb, compute-sanitizer, valgrind, nsys, or a command, in this terminal",
         .details = "Run worker N under `gdb` (the default), `cuda-gdb`, `compute-sanitizer`, `valgrind`, `nsys`, or a "
                    "command "
                    "that is split at spaces, in this terminal: see [Debugging one worker](#debugging-one-worker)"},
        {.name = "dry-run",
         .variable = "RP_DRY_RUN",
         .default_text = "0",
         .concerns = "rp-launch",
         .help = "Print what would be started, then exit"},
        {.name = "hosts",
         .argument = "LIST",
         .variable = "RP_HOSTS",
         .concerns = "rp-launch",
         .help = "Run on several hosts, such as a:8,b:8 with 8 workers (or GPUs) each, by means of Open MPI",
         .details = "Run on several hosts, such as `a:8,b:8` with 8 workers (or GPUs) each, by means of Open MPI: see "
                    "[Several nodes](several-nodes.md)"},
        {.name = "hostfile",
         .argument = "FILE",
         .variable = "RP_HOSTFILE",
         .concerns = "rp-launch",
         .help = "The same, with a host in each line of a file: a, a:8 or a slots=8"},
        {.letter = "h", .name = "help", .help = "Print this text"},
        {.name = "version", .help = "Print the version"},
    };
    list.insert(list.end(), more.begin(), more.end());
    return list;
  }();
  return specs;
}

LaunchOptions parse_launch_options(const std::vector<std::string>& arguments) {
  const std::size_t end = command_start(arguments);
  const cxxopts::ParseResult words = parse_words(arguments, end);
  LaunchOptions options;
  if (words.count("help") > 0) options.action = LaunchOptions::Action::kHelp;
  if (words.count("version") > 0) options.action = LaunchOptions::Action::kVersion;
  if (options.action != LaunchOptions::Action::kRun) return options;
  read_settings(AskedSettings(words), options);
  options.options_of_node = options_of_node(arguments, end);
  const std::size_t skipped = end < arguments.size() && arguments[end] == "--" ? 1 : 0;
  options.command.assign(arguments.begin() + static_cast<std::ptrdiff_t>(end + skipped), arguments.end());
  if (options.command.empty()) {
    throw Error(ExitCode::kUsage, "no program to run; usage: rp-launch [options] program [arguments]");
  }
  return options;
}

std::string launch_help() {
  return cat(
      make_parser().help(),
      "\nThe first word that is not an option is the program; everything after it is passed on to the program.\n"
      "A variable in brackets sets the default of its option.\n"
      "rp-launch doctor [options] checks this machine and reports what is wrong with it: rp-launch doctor --help\n"
      "rp-launch ps and rp-launch top show what your runs on this machine do: rp-launch ps --help\n"
      "rp-launch replay FILE computes one task again that has ended the workers of a run: rp-launch replay --help\n"
      "rp-launch ctl add-worker starts a worker again that a run goes on without: rp-launch ctl --help\n");
}

}  // namespace rp
