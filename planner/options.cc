#include "planner/options.h"

#include <algorithm>
#include <charconv>
#include <cxxopts.hpp>
#include <string_view>
#include <utility>

#include "common/command_line/option_spec.h"
#include "common/nodes.h"
#include "common/text.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

const std::vector<std::pair<std::string, std::optional<BoundSchedule>>> kSchedules = {
    {"gpipe", BoundSchedule::kGPipe},
    {"1f1b", BoundSchedule::k1F1B},
    {"interleaved", BoundSchedule::kInterleaved},
    {"looped-bfs", BoundSchedule::kLoopedBfs},
    {"zb-h1", BoundSchedule::kZbH1},
    {"roundpipe", std::nullopt},
};
const std::vector<std::pair<std::string, Effort>> kEfforts = {
    {"fast", Effort::kFast}, {"thorough", Effort::kThorough}, {"forever", Effort::kForever}};
const std::vector<std::pair<std::string, Effort>> kBriefEfforts = {kEfforts.begin(), kEfforts.begin() + 2};
const std::vector<std::pair<std::string, RecomputeGrain>> kGrains = {{"stage", RecomputeGrain::kStage},
                                                                     {"layer", RecomputeGrain::kLayer}};
const std::vector<std::pair<std::string, FrozenWeights>> kFrozenWeights = {{"nf4", FrozenWeights::kNf4},
                                                                           {"mxfp4", FrozenWeights::kMxfp4},
                                                                           {"fp8", FrozenWeights::kFp8},
                                                                           {"none", FrozenWeights::kNone}};
const std::vector<std::string> kCommands = {"plan", "simulate", "compare", "timeline"};

constexpr const char* kHelp =
    "rp-plan: predicts how a model would train, on GPUs that need not be present\n"
    "\n"
    "  rp-plan plan --model MODEL --gpus N --gpu NAME        whether a model fits, its plan, and how fast it trains\n"
    "  rp-plan simulate --schedule NAME --input FILE.json    a step of given layer times, by any schedule\n"
    "  rp-plan compare --input FILE.json --html PAGE.html    the same by every schedule, side by side, with timelines\n"
    "  rp-plan compare --published                           RoundPipe's published runs next to what is predicted for "
    "them\n"
    "  rp-plan timeline TRACE.json                           how long a run's workers computed, from its trace\n"
    "\n"
    "rp-plan COMMAND --help lists a command's options; docs/planning.md explains them.\n";

template <typename Value>
std::vector<std::string> names_of(const std::vector<std::pair<std::string, Value>>& list) {
  std::vector<std::string> names;
  for (const auto& entry : list) names.push_back(entry.first);
  return names;
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

template <typename Value>
Value chosen(const std::string& option, const std::string& name,
             const std::vector<std::pair<std::string, Value>>& list) {
  for (const auto& [known, value] : list) {
    if (known == name) return value;
  }
  throw Error(ExitCode::kUsage, cat("--", option, " ", name, ": unknown", did_you_mean(name, names_of(list)),
                                    "; there are ", joined(names_of(list))));
}

constexpr const char* kInputHelp = "times of layers, and stages if they are given (docs/planning.md)";
constexpr const char* kJsonHelp = "print one JSON object";

// A command and its options, --help among them.
struct Command {
  const char* name;     // "simulate"
  const char* purpose;  // the first line of its help
  const char* usage;    // what follows the name
  std::vector<OptionSpec> options;
  std::vector<std::string> required;  // "input"
  std::size_t num_files = 0;          // words that are no options
};

OptionSpec option(const char* name, const char* argument, const char* default_text, const char* help) {
  return {.name = name, .argument = argument, .default_text = default_text, .help = help};
}

constexpr OptionSpec kHelpOption{.letter = "h", .name = "help", .help = "print this"};

const std::string kScheduleNames = joined(names_of(kSchedules));

const Command kSimulate = {
    .name = "simulate",
    .purpose = "Simulates a training step from the times of its layers.",
    .usage = "--schedule NAME --input FILE.json",
    .options = {option("schedule", "NAME", "", kScheduleNames.c_str()), option("input", "FILE", "", kInputHelp),
                option("effort", "EFFORT", "thorough",
                       "search for plans: fast (10 ms), thorough (5 s), or forever (until Ctrl-C)"),
                option("json", "", "", kJsonHelp), kHelpOption},
    .required = {"schedule", "input"}};

const Command kCompare = {
    .name = "compare",
    .purpose = "Simulates a training step by every schedule.",
    .usage = "--input FILE.json | --published",
    .options = {option("input", "FILE", "", kInputHelp),
                option("published", "", "",
                       "instead of a FILE: RoundPipe's published runs next to what is predicted for them"),
                option("html", "PAGE", "", "write a page of timelines"),
                option("effort", "EFFORT", "thorough",
                       "search for RoundPipe's plans: fast (10 ms) or thorough (5 s each)"),
                option("json", "", "", kJsonHelp), kHelpOption},
    .required = {}};

const Command kTimeline = {
    .name = "timeline",
    .purpose = "Prints how long the workers of a traced run computed and waited.",
    .usage = "TRACE.json",
    .options = {option("from", "MS", "", "begin there; default: the trace's beginning, which is 0"),
                option("to", "MS", "", "end there; default: the trace's end"),
                option("steps", "A-B", "", "from the beginning of step A to the end of step B"), kHelpOption},
    .required = {},
    .num_files = 1};

const Command kPlan = {
    .name = "plan",
    .purpose = "Predicts how a model trains: memory, plan, speed.",
    .usage = "--model MODEL",
    .options = {option("model", "MODEL", "", "a preset, as qwen3-32b, or the folder of a model"),
                option("gpus", "N", "8", "how many, in each node"),
                option("gpu", "NAME", "rtx4090", "profile of the GPUs: a name, as rtx4090, or a file"),
                option("server", "NAME", "xeon6330-8gpu", "profile of the machine: a name or a file"),
                option("host-memory", "SIZE", "", "memory for the run, as 768G; default: all of the server's"),
                option("nodes", "N", "1", "equal machines that share the rounds of each step"),
                option(
                    "network", "RATE", "25gbit",
                    "of each node's link, in each direction: 25gbit or 3.1GB/s; with a message's latency: 25gbit,70us"),
                option("sequence-length", "N", "2048", "tokens of a sequence"),
                option("batch-size", "N", "128", "sequences of a step"),
                option("microbatches", "N", "", "of a round; default: proposed"),
                option("rounds-per-step", "N", "", "default: proposed"),
                option("lora-rank", "N", "0", "train LoRA pairs of this rank next to frozen weights; 0: all weights"),
                option("lora-targets", "NAMES", "all-linear",
                       "which linear layers have pairs: all-linear, a list, or a regular expression"),
                option("lora-experts", "", "", "experts and routers have pairs, too"),
                option("quantize", "FORMAT", "",
                       "of frozen weights in host memory and uploads: nf4, mxfp4, fp8, none; default: as in the files"),
                option("freeze", "REGEX", "", "weights that are not trained: a regular expression"),
                option("train", "REGEX", "", "weights that are trained in any case"),
                option("corrections", "", "", "routers' corrections are trained, by the loads of their experts"),
                option("async", "", "", "asynchronous steps, with weights one step old"),
                option("fp16-accumulate", "", "", "matrix products that add up in fp16"),
                option("pageable-weights", "", "", "weights in memory that is not pinned"),
                option("max-fused-layers", "N", "2", "in the fused stage, in addition to the head"),
                option("recompute-grain", "GRAIN", "",
                       "a backward stage recomputes all of it, or layer by layer: stage or layer; default: chosen"),
                option("html", "PAGE", "", "write a page with the timeline of two steps, copies and updates"),
                option("effort", "EFFORT", "thorough", "search for plans: fast (10 ms each) or thorough (5 s)"),
                option("json", "", "", kJsonHelp),
                kHelpOption},
    .required = {"model"}};

// The options of a command as they were given.
class GivenOptions {
 public:
  GivenOptions(const Command& command, const cxxopts::ParseResult& words) : command_(command), words_(words) {}

  [[nodiscard]] bool has(const std::string& name) const { return words_.count(name) > 0; }
  // Returns the given value, or else the default, or else "".
  [[nodiscard]] std::string text(const std::string& name) const {
    if (has(name)) return words_[name].as<std::string>();
    const auto spec = std::find_if(command_.options.begin(), command_.options.end(),
                                   [&name](const OptionSpec& option) { return option.name == name; });
    return spec->default_text;
  }
  [[nodiscard]] const std::vector<std::string>& files() const { return words_.unmatched(); }

 private:
  const Command& command_;
  const cxxopts::ParseResult& words_;
};

// Finds the word that cxxopts does not know.
[[noreturn]] void refuse_unknown(const Command& command, const std::vector<std::string>& arguments) {
  std::vector<std::string> known;
  for (const OptionSpec& option : command.options) known.push_back(cat("--", option.name));
  for (const std::string& word : arguments) {
    const std::string name = word.substr(0, word.find('='));
    if (!name.starts_with("-") || std::find(known.begin(), known.end(), name) != known.end() || name == "-h") continue;
    throw Error(ExitCode::kUsage, cat("unknown option ", name, did_you_mean(name, known), "; rp-plan ", command.name,
                                      " --help lists the options"));
  }
  throw Error(ExitCode::kUsage, cat("an option is unknown; rp-plan ", command.name, " --help lists them"));
}

void check_counts(const Command& command, const cxxopts::ParseResult& given) {
  const std::string usage = cat("; usage: rp-plan ", command.name, " ", command.usage);
  for (const OptionSpec& option : command.options) {
    const std::string name = option.name;
    const bool is_required =
        std::find(command.required.begin(), command.required.end(), name) != command.required.end();
    if (given.count(name) == 0 && is_required) throw Error(ExitCode::kUsage, cat("--", name, " is missing", usage));
    if (given.count(name) > 1) throw Error(ExitCode::kUsage, cat("--", name, " is given twice", usage));
  }
  const std::vector<std::string>& words = given.unmatched();
  if (words.size() < command.num_files) throw Error(ExitCode::kUsage, cat("a file is missing", usage));
  if (words.size() > command.num_files) {
    throw Error(ExitCode::kUsage, cat("unexpected word ", words[command.num_files], "; rp-plan ", command.name,
                                      " --help lists the options"));
  }
}

// Parses the arguments of a command. `read(given)` converts them to PlanOptions.
template <typename Read>
PlanOptions parse_command(const Command& command, const std::vector<std::string>& arguments, const Read& read) {
  const std::string name = cat("rp-plan ", command.name);
  cxxopts::Options parser = option_parser(name, command.purpose, cat(command.usage, " [options]"), command.options);
  std::vector<const char*> words{name.c_str()};
  for (const std::string& word : arguments) words.push_back(word.c_str());
  try {
    const cxxopts::ParseResult given = parser.parse(static_cast<int>(words.size()), words.data());
    if (given.count("help") > 0) return {.action = PlanOptions::Action::kHelp, .help = parser.help()};
    check_counts(command, given);
    return read(GivenOptions(command, given));
  } catch (const cxxopts::exceptions::no_such_option&) {
    refuse_unknown(command, arguments);
  } catch (const cxxopts::exceptions::exception& error) {
    throw Error(ExitCode::kUsage, cat(error.what(), "; ", name, " --help lists the options"));
  }
}

PlanOptions read_simulate(const GivenOptions& given) {
  PlanOptions options{.action = PlanOptions::Action::kSimulate};
  options.schedule = chosen("schedule", given.text("schedule"), kSchedules);
  options.input = given.text("input");
  options.effort = chosen("effort", given.text("effort"), kEfforts);
  options.json = given.has("json");
  return options;
}

// Returns the value of --html; empty if it is not given.
std::filesystem::path html_of(const GivenOptions& given) {
  const std::string html = given.text("html");
  if (html.empty() && given.has("html")) throw Error(ExitCode::kUsage, "--html is empty; it names the page to write");
  return html;
}

PlanOptions read_compare(const GivenOptions& given) {
  PlanOptions options{.action = PlanOptions::Action::kCompare};
  options.published = given.has("published");
  const std::string usage = "; usage: rp-plan compare --input FILE.json | --published";
  if (!options.published && !given.has("input")) throw Error(ExitCode::kUsage, cat("--input is missing", usage));
  for (const char* other : {"input", "html"}) {
    if (options.published && given.has(other))
      throw Error(ExitCode::kUsage, cat("--published and --", other, " are given", usage));
  }
  options.input = given.text("input");
  options.html = html_of(given);
  options.effort = chosen("effort", given.text("effort"), kBriefEfforts);
  options.json = given.has("json");
  return options;
}

template <typename Number>
std::optional<Number> number_of(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

TraceWindow window_of(const GivenOptions& given) {
  TraceWindow window;
  const auto time = [&](const char* name) -> std::optional<double> {
    if (!given.has(name)) return std::nullopt;
    const std::string word = given.text(name);
    const std::optional<double> ms = number_of<double>(word);
    if (!ms || !(*ms >= 0) || *ms > 1e12)
      throw Error(ExitCode::kUsage, cat("--", name, " ", word, ": not a time in milliseconds, as 1500 or 0.5"));
    return ms;
  };
  window.from_ms = time("from");
  window.to_ms = time("to");
  if (window.from_ms && window.to_ms && *window.to_ms <= *window.from_ms) {
    throw Error(ExitCode::kUsage, cat("--to ", *window.to_ms, " is not after --from ", *window.from_ms));
  }
  if (!given.has("steps")) return window;
  if (window.from_ms || window.to_ms)
    throw Error(ExitCode::kUsage, "--steps and --from or --to are given; one of them says what is counted");
  const std::string word = given.text("steps");
  const std::size_t dash = word.find('-');
  const std::optional<std::int64_t> first = number_of<std::int64_t>(std::string_view(word).substr(0, dash));
  const std::optional<std::int64_t> last =
      dash == std::string::npos ? first : number_of<std::int64_t>(std::string_view(word).substr(dash + 1));
  if (!first || !last || *first < 0 || *last < *first) {
    throw Error(ExitCode::kUsage, cat("--steps ", word, ": not steps of a run, as 6 or 6-7"));
  }
  window.steps = {*first, *last};
  return window;
}

int count_of(const GivenOptions& given, const std::string& name, int least, int most) {
  const std::string word = given.text(name);
  const std::optional<int> number = number_of<int>(word);
  if (number && *number >= least && *number <= most) return *number;
  throw Error(ExitCode::kUsage, cat("--", name, " ", word, ": not a whole number from ", least, " to ", most));
}

std::uint64_t size_of(const std::string& option, const std::string& word) {
  if (const auto bytes = bytes_of(word)) return *bytes;
  throw Error(ExitCode::kUsage, cat("--", option, " ", word, ": not a size, as 768G or 1.5T"));
}

NetworkProfile network_option(const std::string& word) {
  if (const auto network = network_of(word)) return *network;
  throw Error(ExitCode::kUsage, cat("--network ", word, ": not ", kNetworkWords));
}

PlanOptions read_plan(const GivenOptions& given) {
  constexpr int kMax = 1'000'000;
  PlanOptions options{.action = PlanOptions::Action::kPlan};
  options.effort = chosen("effort", given.text("effort"), kBriefEfforts);
  options.html = html_of(given);
  options.json = given.has("json");
  ModelQuestion& question = options.question;
  question.model = given.text("model");
  question.num_gpus = count_of(given, "gpus", 1, 64);
  question.num_nodes = count_of(given, "nodes", 1, kMaxNodes);
  question.network = network_option(given.text("network"));
  if (question.num_nodes == 1 && given.has("network"))
    throw Error(ExitCode::kUsage, "--network is given, but one node needs no network: give --nodes, too");
  question.gpu = given.text("gpu");
  question.server = given.text("server");
  if (given.has("host-memory")) question.host_bytes = size_of("host-memory", given.text("host-memory"));
  question.sequence_length = count_of(given, "sequence-length", 1, 100 * kMax);
  question.batch = count_of(given, "batch-size", 1, kMax);
  if (given.has("microbatches")) question.round_microbatches = count_of(given, "microbatches", 1, kMax);
  if (given.has("rounds-per-step")) question.rounds_per_step = count_of(given, "rounds-per-step", 1, kMax);
  question.parts.lora.rank = count_of(given, "lora-rank", 0, 65536);
  question.parts.lora.targets = given.text("lora-targets");
  question.parts.lora.on_experts = given.has("lora-experts");
  if (given.has("quantize")) question.parts.frozen_weights = chosen("quantize", given.text("quantize"), kFrozenWeights);
  if (given.has("freeze")) question.parts.freeze = given.text("freeze");
  if (given.has("train")) question.parts.train = given.text("train");
  question.parts.corrections = given.has("corrections");
  question.asynchronous = given.has("async");
  question.fp16_accumulate = given.has("fp16-accumulate");
  question.pageable_weights = given.has("pageable-weights");
  question.max_fused_layers = count_of(given, "max-fused-layers", 0, 1000);
  if (given.has("recompute-grain"))
    question.recompute = chosen("recompute-grain", given.text("recompute-grain"), kGrains);
  return options;
}

PlanOptions read_timeline(const GivenOptions& given) {
  PlanOptions options{.action = PlanOptions::Action::kTimeline};
  options.input = given.files().front();
  options.window = window_of(given);
  return options;
}

}  // namespace

std::string frozen_weights_name(FrozenWeights format) {
  const auto named = std::ranges::find(kFrozenWeights, format, &std::pair<std::string, FrozenWeights>::second);
  return named == kFrozenWeights.end() ? "" : named->first;
}

std::string schedule_name(std::optional<BoundSchedule> schedule) {
  return std::find_if(kSchedules.begin(), kSchedules.end(), [&](const auto& entry) { return entry.second == schedule; })
      ->first;
}

PlanOptions parse_plan_options(const std::vector<std::string>& arguments) {
  const std::string command = arguments.empty() ? "" : arguments.front();
  if (command.empty() || command == "--help" || command == "-h" || command == "help") {
    if (command.empty())
      throw Error(ExitCode::kUsage, cat("a command is missing; there are ", joined(kCommands), " (rp-plan --help)"));
    return {.action = PlanOptions::Action::kHelp, .help = kHelp};
  }
  if (command == "--version") return {.action = PlanOptions::Action::kVersion};
  const std::vector<std::string> rest(arguments.begin() + 1, arguments.end());
  if (command == "plan") return parse_command(kPlan, rest, read_plan);
  if (command == "simulate") return parse_command(kSimulate, rest, read_simulate);
  if (command == "compare") return parse_command(kCompare, rest, read_compare);
  if (command == "timeline") return parse_command(kTimeline, rest, read_timeline);
  throw Error(ExitCode::kUsage,
              cat("no command ", command, did_you_mean(command, kCommands), "; there are ", joined(kCommands)));
}

}  // namespace rp
