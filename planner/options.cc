#include "planner/options.h"

#include <algorithm>
#include <charconv>
#include <cxxopts.hpp>
#include <memory>
#include <string_view>
#include <utility>

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
const std::vector<std::string> kCommands = {"plan", "simulate", "compare", "timeline"};

constexpr const char* kHelp =
    "rp-plan: predicts how a model would train, on GPUs that need not be present\n"
    "\n"
    "  rp-plan plan --model MODEL --gpus N --gpu NAME        whether a model fits, its plan, and how fast it trains\n"
    "  rp-plan simulate --schedule NAME --input FILE.json    a step of given layer times, by any schedule\n"
    "  rp-plan compare --input FILE.json --html PAGE.html    the same by every schedule, side by side, with timelines\n"
    "  rp-plan compare --published                           RoundPipe's published runs next to what is predicted for "
    "them\n"
    "  rp-plan timeline TRACE.json --html PAGE.html          what a run did, from its trace\n"
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

std::shared_ptr<cxxopts::Value> text() { return cxxopts::value<std::string>(); }

constexpr const char* kInputHelp = "times of layers, and stages if they are given (docs/planning.md)";

// The options of a command, without --help.
struct CommandParser {
  std::string name;   // "simulate"
  std::string usage;  // what follows the name
  cxxopts::Options parser;
  std::vector<std::string> options;   // such as "--input"; to propose a known option for an unknown one
  std::vector<std::string> required;  // such as "input"
  std::size_t num_files = 0;          // number of words that are not options
};

CommandParser simulate_parser() {
  CommandParser command{
      .name = "simulate",
      .usage = "--schedule NAME --input FILE.json",
      .parser = cxxopts::Options("rp-plan simulate", "Simulates a training step from the times of its layers."),
      .options = {"--schedule", "--input", "--effort", "--json"},
      .required = {"schedule", "input"}};
  command.parser.add_options()("schedule", joined(names_of(kSchedules)), text(), "NAME")("input", kInputHelp, text(),
                                                                                         "FILE")(
      "effort", "search for plans: fast (10 ms), thorough (5 s), or forever (until Ctrl-C)",
      text()->default_value("thorough"), "EFFORT")("json", "print one JSON object");
  return command;
}

CommandParser compare_parser() {
  CommandParser command{.name = "compare",
                        .usage = "--input FILE.json | --published",
                        .parser = cxxopts::Options("rp-plan compare", "Simulates a training step by every schedule."),
                        .options = {"--input", "--published", "--html", "--effort", "--json"},
                        .required = {}};
  command.parser.add_options()("input", kInputHelp, text(), "FILE")(
      "published", "instead of a FILE: RoundPipe's published runs next to what is predicted for them")(
      "html", "write a page of timelines", text(), "PAGE")(
      "effort", "search for RoundPipe's plans: fast (10 ms) or thorough (5 s each)", text()->default_value("thorough"),
      "EFFORT")("json", "print one JSON object");
  return command;
}

CommandParser timeline_parser() {
  CommandParser command{
      .name = "timeline",
      .usage = "TRACE.json",
      .parser = cxxopts::Options("rp-plan timeline", "Prints and draws what the workers of a traced run did."),
      .options = {"--html", "--from", "--to", "--steps"},
      .required = {},
      .num_files = 1};
  command.parser.add_options()("html", "write a page with the timeline", text(), "PAGE")(
      "from", "begin there; default: the trace's beginning, which is 0", text(), "MS")(
      "to", "end there; default: the trace's end", text(), "MS")(
      "steps", "from the beginning of step A to the end of step B", text(), "A-B");
  return command;
}

CommandParser plan_parser() {
  CommandParser command{.name = "plan",
                        .usage = "--model MODEL",
                        .parser = cxxopts::Options("rp-plan plan", "Predicts how a model trains: memory, plan, speed."),
                        .options = {"--model",
                                    "--gpus",
                                    "--gpu",
                                    "--server",
                                    "--host-memory",
                                    "--sequence-length",
                                    "--batch-size",
                                    "--microbatches",
                                    "--rounds-per-step",
                                    "--lora-rank",
                                    "--lora-targets",
                                    "--lora-experts",
                                    "--freeze",
                                    "--train",
                                    "--async",
                                    "--fp16-accumulate",
                                    "--pageable-weights",
                                    "--max-fused-layers",
                                    "--recompute-grain",
                                    "--html",
                                    "--effort",
                                    "--json"},
                        .required = {"model"}};
  const auto with_default = [](const char* value) { return text()->default_value(value); };
  command.parser.add_options()("model", "a preset, as qwen3-32b, or the folder of a model", text(), "MODEL")(
      "gpus", "how many", with_default("8"), "N")("gpu", "profile of the GPUs: a name, as rtx4090, or a file",
                                                  with_default("rtx4090"), "NAME")(
      "server", "profile of the machine: a name or a file", with_default("xeon6330-8gpu"), "NAME")(
      "host-memory", "memory for the run, as 768G; default: all of the server's", text(), "SIZE")(
      "sequence-length", "tokens of a sequence", with_default("2048"), "N")("batch-size", "sequences of a step",
                                                                            with_default("128"), "N")(
      "microbatches", "of a round; default: proposed", text(), "N")("rounds-per-step", "default: proposed", text(),
                                                                    "N")(
      "lora-rank", "train LoRA pairs of this rank in addition to frozen weights; 0: all weights", with_default("0"),
      "N")("lora-targets", "which linear layers have pairs: all-linear, a list, or a regular expression",
           with_default("all-linear"), "NAMES")("lora-experts", "experts and routers have pairs, too")(
      "freeze", "weights that are not trained: a regular expression", text(), "REGEX")(
      "train", "weights that are trained in any case", text(), "REGEX")(
      "async", "asynchronous steps, with weights one step old")(
      "fp16-accumulate", "matrix products that add up in fp16")("pageable-weights",
                                                                "weights in memory that is not pinned")(
      "max-fused-layers", "layers in the fused stage in addition to the head", with_default("2"), "N")(
      "recompute-grain", "a backward stage recomputes all of it, or layer by layer: stage or layer; default: chosen",
      text(), "GRAIN")("html", "write a page with the timeline of two steps, copies and updates", text(), "PAGE")(
      "effort", "search for plans: fast (10 ms each) or thorough (5 s)", with_default("thorough"), "EFFORT")(
      "json", "print one JSON object");
  return command;
}

// Throws an error about the option that cxxopts does not know.
[[noreturn]] void refuse_unknown(const CommandParser& command, const std::vector<std::string>& arguments) {
  for (const std::string& word : arguments) {
    const std::string name = word.substr(0, word.find('='));
    std::vector<std::string> known = command.options;
    known.push_back("--help");
    if (!name.starts_with("-") || std::find(known.begin(), known.end(), name) != known.end() || name == "-h") continue;
    throw Error(ExitCode::kUsage, cat("unknown option ", name, did_you_mean(name, known), "; rp-plan ", command.name,
                                      " --help lists the options"));
  }
  throw Error(ExitCode::kUsage, cat("an option is unknown; rp-plan ", command.name, " --help lists them"));
}

void check_counts(const CommandParser& command, const cxxopts::ParseResult& given) {
  const std::string usage = cat("; usage: rp-plan ", command.name, " ", command.usage);
  for (const std::string& option : command.options) {
    const std::string name = option.substr(2);
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
PlanOptions parse_command(CommandParser command, const std::vector<std::string>& arguments, const Read& read) {
  command.parser.custom_help(command.usage + " [options]").set_width(110);
  command.parser.add_options()("h,help", "print this");
  const std::string name = "rp-plan " + command.name;
  std::vector<const char*> words{name.c_str()};
  for (const std::string& word : arguments) words.push_back(word.c_str());
  try {
    const cxxopts::ParseResult given = command.parser.parse(static_cast<int>(words.size()), words.data());
    if (given.count("help") > 0) return {.action = PlanOptions::Action::kHelp, .help = command.parser.help()};
    check_counts(command, given);
    return read(given);
  } catch (const cxxopts::exceptions::no_such_option&) {
    refuse_unknown(command, arguments);
  } catch (const cxxopts::exceptions::exception& error) {
    throw Error(ExitCode::kUsage, cat(error.what(), "; ", name, " --help lists the options"));
  }
}

std::string text_of(const cxxopts::ParseResult& given, const std::string& name) {
  return given.count(name) > 0 ? given[name].as<std::string>() : "";
}

PlanOptions read_simulate(const cxxopts::ParseResult& given) {
  PlanOptions options{.action = PlanOptions::Action::kSimulate};
  options.schedule = chosen("schedule", text_of(given, "schedule"), kSchedules);
  options.input = text_of(given, "input");
  options.effort = chosen("effort", given["effort"].as<std::string>(), kEfforts);
  options.json = given.count("json") > 0;
  return options;
}

// Returns the value of --html; empty if it is not given.
std::filesystem::path html_of(const cxxopts::ParseResult& given) {
  const std::string html = text_of(given, "html");
  if (html.empty() && given.count("html") > 0)
    throw Error(ExitCode::kUsage, "--html is empty; it names the page to write");
  return html;
}

PlanOptions read_compare(const cxxopts::ParseResult& given) {
  PlanOptions options{.action = PlanOptions::Action::kCompare};
  options.published = given.count("published") > 0;
  const std::string usage = "; usage: rp-plan compare --input FILE.json | --published";
  if (!options.published && given.count("input") == 0) throw Error(ExitCode::kUsage, cat("--input is missing", usage));
  for (const char* other : {"input", "html"}) {
    if (options.published && given.count(other) > 0)
      throw Error(ExitCode::kUsage, cat("--published and --", other, " are given", usage));
  }
  options.input = text_of(given, "input");
  options.html = html_of(given);
  options.effort = chosen("effort", given["effort"].as<std::string>(), kBriefEfforts);
  options.json = given.count("json") > 0;
  return options;
}

template <typename Number>
std::optional<Number> number_of(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

TraceWindow window_of(const cxxopts::ParseResult& given) {
  TraceWindow window;
  const auto time = [&](const char* name) -> std::optional<double> {
    if (given.count(name) == 0) return std::nullopt;
    const std::string word = text_of(given, name);
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
  if (given.count("steps") == 0) return window;
  if (window.from_ms || window.to_ms)
    throw Error(ExitCode::kUsage, "--steps and --from or --to are given; one of them says what is drawn");
  const std::string word = text_of(given, "steps");
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

int count_of(const cxxopts::ParseResult& given, const std::string& name, int least, int most) {
  const std::string word = given[name].as<std::string>();
  const std::optional<int> number = number_of<int>(word);
  if (number && *number >= least && *number <= most) return *number;
  throw Error(ExitCode::kUsage, cat("--", name, " ", word, ": not a whole number from ", least, " to ", most));
}

std::uint64_t size_of(const std::string& option, const std::string& word) {
  if (const auto bytes = bytes_of(word)) return *bytes;
  throw Error(ExitCode::kUsage, cat("--", option, " ", word, ": not a size, as 768G or 1.5T"));
}

PlanOptions read_plan(const cxxopts::ParseResult& given) {
  constexpr int kMax = 1'000'000;
  PlanOptions options{.action = PlanOptions::Action::kPlan};
  options.effort = chosen("effort", given["effort"].as<std::string>(), kBriefEfforts);
  options.html = html_of(given);
  options.json = given.count("json") > 0;
  ModelQuestion& question = options.question;
  question.model = text_of(given, "model");
  question.num_gpus = count_of(given, "gpus", 1, 64);
  question.gpu = given["gpu"].as<std::string>();
  question.server = given["server"].as<std::string>();
  if (given.count("host-memory") > 0) question.host_bytes = size_of("host-memory", text_of(given, "host-memory"));
  question.sequence_length = count_of(given, "sequence-length", 1, 100 * kMax);
  question.batch = count_of(given, "batch-size", 1, kMax);
  if (given.count("microbatches") > 0) question.round_microbatches = count_of(given, "microbatches", 1, kMax);
  if (given.count("rounds-per-step") > 0) question.rounds_per_step = count_of(given, "rounds-per-step", 1, kMax);
  question.parts.lora.rank = count_of(given, "lora-rank", 0, 65536);
  question.parts.lora.targets = given["lora-targets"].as<std::string>();
  question.parts.lora.on_experts = given.count("lora-experts") > 0;
  if (given.count("freeze") > 0) question.parts.freeze = given["freeze"].as<std::string>();
  if (given.count("train") > 0) question.parts.train = given["train"].as<std::string>();
  question.asynchronous = given.count("async") > 0;
  question.fp16_accumulate = given.count("fp16-accumulate") > 0;
  question.pageable_weights = given.count("pageable-weights") > 0;
  question.max_fused_layers = count_of(given, "max-fused-layers", 0, 1000);
  if (given.count("recompute-grain") > 0)
    question.recompute = chosen("recompute-grain", text_of(given, "recompute-grain"), kGrains);
  return options;
}

PlanOptions read_timeline(const cxxopts::ParseResult& given) {
  PlanOptions options{.action = PlanOptions::Action::kTimeline};
  options.input = given.unmatched().front();
  options.html = html_of(given);
  options.window = window_of(given);
  return options;
}

}  // namespace

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
  if (command == "plan") return parse_command(plan_parser(), rest, read_plan);
  if (command == "simulate") return parse_command(simulate_parser(), rest, read_simulate);
  if (command == "compare") return parse_command(compare_parser(), rest, read_compare);
  if (command == "timeline") return parse_command(timeline_parser(), rest, read_timeline);
  throw Error(ExitCode::kUsage,
              cat("no command ", command, did_you_mean(command, kCommands), "; there are ", joined(kCommands)));
}

}  // namespace rp
