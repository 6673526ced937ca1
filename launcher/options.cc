#include "launcher/options.h"

#include <algorithm>
#include <cxxopts.hpp>
#include <string_view>

#include "common/text.h"
#include "hoststore/control.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

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
                  "; rp-launch --help lists the options. Options of the program come after its name"));
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
  cxxopts::Options parser("rp-launch", "Runs a RoundPipe program: one coordinator and its workers.");
  parser.custom_help("[options] program [arguments]").set_width(110);
  for (const OptionSpec& spec : launch_option_specs()) {
    const std::string names = spec.letter[0] == '\0' ? spec.name : cat(spec.letter, ",", spec.name);
    const std::string help = spec.variable[0] == '\0' ? spec.help : cat(spec.help, " [", spec.variable, "]");
    if (spec.argument[0] == '\0') {
      parser.add_options()(names, help);
    } else {
      parser.add_options()(names, help, cxxopts::value<std::string>(), spec.argument);
    }
  }
  return parser;
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

 private:
  const cxxopts::ParseResult& words_;
};

// Setting GPUs implies the device cuda. The device cuda without a list means all GPUs, or as many
// as there are workers.
void read_device(const AskedSettings& asked, LaunchOptions& options) {
  const auto device = asked.value("device");
  auto gpus = asked.value("gpus");
  const auto workers = asked.value("workers");
  if (workers) {
    options.workers =
        parse_count(workers->name, workers->value, 1, kMaxWorkers, "; for more cores raise --threads-per-worker");
  }
  if (device) options.settings.device = parse_device(device->name, device->value);
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

void read_settings(const AskedSettings& asked, LaunchOptions& options) {
  read_device(asked, options);
  if (const auto a = asked.value("threads-per-worker")) {
    options.settings.threads_per_worker = parse_count(a->name, a->value, 1, kMaxThreadsPerWorker);
  }
  if (const auto a = asked.value("wait-timeout")) {
    options.settings.wait_timeout_seconds = parse_count(a->name, a->value, 1, kMaxWaitTimeoutSeconds);
  }
  if (const auto a = asked.value("attach-timeout")) {
    options.settings.attach_timeout_seconds = parse_count(a->name, a->value, 1, kMaxWaitTimeoutSeconds);
  }
  if (const auto a = asked.value("store")) options.settings.store = parse_store(a->name, a->value);
  if (const auto a = asked.value("params-on")) options.settings.params_on = parse_directory(a->name, a->value);
  if (const auto a = asked.value("plan")) options.settings.plan = parse_plan(a->name, a->value);
  if (const auto a = asked.value("prefetch")) options.settings.prefetch = parse_switch(a->name, a->value);
  if (const auto a = asked.value("warm-up")) options.settings.warm_up = parse_switch(a->name, a->value);
  if (const auto a = asked.value("give-way")) options.settings.give_way = parse_give_way(a->name, a->value);
  if (const auto a = asked.value("signals")) options.settings.signals = parse_signals(a->name, a->value);
  if (const auto a = asked.value("gpu-memory")) options.settings.gpu_memory = parse_memory(a->name, a->value);
  if (const auto a = asked.value("allow-nondeterminism")) {
    options.settings.allow_nondeterminism = parse_switch(a->name, a->value);
  }
  if (const auto a = asked.value("fp16-accumulation"))
    options.settings.fp16_accumulation = parse_switch(a->name, a->value);
  if (const auto a = asked.value("check-consistency"))
    options.settings.check_consistency = parse_switch(a->name, a->value);
  if (const auto a = asked.value("trace")) options.settings.trace = parse_file(a->name, a->value);
  if (const auto a = asked.value("gpu-profile")) options.settings.gpu_profile = parse_gpu_profile(a->name, a->value);
  if (const auto a = asked.value("bind")) options.bind = parse_choice(a->name, a->value, {"numa", "none"});
  if (const auto a = asked.value("tag-output")) options.tag_output = parse_switch(a->name, a->value);
  if (const auto a = asked.value("log-dir")) options.log_dir = a->value;
  if (const auto a = asked.value("dry-run")) options.dry_run = parse_switch(a->name, a->value);
  if (options.tag_output && options.log_dir) {
    throw Error(ExitCode::kUsage, "--tag-output and --log-dir are both set; files have no tags, choose one");
  }
}

}  // namespace

const std::vector<OptionSpec>& launch_option_specs() {
  static const std::vector<OptionSpec> specs = {
      {"n", "workers", "N", "RP_WORKERS", "Worker processes (default: the cores that may be used, or the GPUs)"},
      {"", "device", "cpu|cuda|sim:NAME", "RP_DEVICE", "Device of the workers (default: cpu)"},
      {"", "gpus", "N|LIST|all", "RP_GPUS",
       "Use N GPUs, or those of a list such as 0,2,5 or of UUIDs: one worker for each entry"},
      {"", "signals", "memops|events", "RP_SIGNALS",
       "How the GPUs of different workers wait for each other (default: memops)"},
      {"", "gpu-memory", "SIZE", "RP_GPU_MEMORY",
       "How much of a GPU's memory a worker takes, as 24G (default: what is free)"},
      {"", "allow-nondeterminism", "", "RP_ALLOW_NONDETERMINISM",
       "Let GPUs use kernels whose sums have no fixed order"},
      {"", "fp16-accumulation", "", "RP_FP16_ACCUMULATION",
       "Let GPUs add up products of fp16 matrices in fp16: faster, less exact"},
      {"", "threads-per-worker", "K", "RP_THREADS_PER_WORKER", "CPU threads of each worker (default: 1)"},
      {"", "store", "shm|memfd", "RP_STORE", "Memory behind the host store (default: shm where it is large enough)"},
      {"", "params-on", "DIR", "RP_PARAMS_ON",
       "Keep weights, gradients and optimizer state in files in DIR (default: memory)"},
      {"", "plan", "auto|FILE", "RP_PLAN", "How layers are cut into stages (default: auto)"},
      {"", "prefetch", "0|1", "RP_PREFETCH", "Upload the next stage while one computes (default: 1)"},
      {"", "warm-up", "0|1", "RP_WARM_UP",
       "Run each kind of layer once before the first step (default: 1 on GPUs, else 0)"},
      {"", "give-way", "all|weights|gradients|none", "RP_GIVE_WAY",
       "Which bulk copies let inputs and outputs pass on a GPU's link (default: all)"},
      {"", "wait-timeout", "SECONDS", "RP_WAIT_TIMEOUT", "Fail when nothing computes for so long (default: 600)"},
      {"", "attach-timeout", "SECONDS", "RP_ATTACH_TIMEOUT",
       "Fail when a worker has not started after so long (default: 120)"},
      {"", "check-consistency", "", "RP_CHECK_CONSISTENCY",
       "Verify every upload and gradient by version and checksum (slow; finds errors of the runtime)"},
      {"", "trace", "FILE", "RP_TRACE",
       "Write what every process did and when to FILE, for Perfetto and chrome://tracing"},
      {"", "gpu-profile", "NAME|FILE", "RP_GPU_PROFILE",
       "Predict with this profile what a step takes (train prints it in the end)"},
      {"", "bind", "numa|none", "RP_BIND", "Bind workers to cores (default: numa where there are several nodes)"},
      {"", "tag-output", "", "RP_TAG_OUTPUT", "Prefix each line of output with the name of its process"},
      {"", "log-dir", "DIR", "RP_LOG_DIR", "Append each process's output to DIR/NAME.out and DIR/NAME.err instead"},
      {"", "dry-run", "", "RP_DRY_RUN", "Print what would be started, then exit"},
      {"h", "help", "", "", "Print this text"},
      {"", "version", "", "", "Print the version"},
  };
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
      "\nThe options end at the first word that is none; all after it is the program's.\n"
      "A variable in brackets sets the default of its option.\n"
      "rp-launch doctor [options] looks at this machine and says what is wrong with it: rp-launch doctor --help\n");
}

}  // namespace rp
