#include "planner/options.h"

#include <algorithm>
#include <cxxopts.hpp>
#include <utility>

#include "common/text.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

const std::vector<std::pair<std::string, std::optional<BoundSchedule>>> kSchedules = {
    {"gpipe", BoundSchedule::kGPipe},           {"1f1b", BoundSchedule::k1F1B},       {"interleaved", BoundSchedule::kInterleaved},
    {"looped-bfs", BoundSchedule::kLoopedBfs},  {"zb-h1", BoundSchedule::kZbH1},      {"roundpipe", std::nullopt},
};
const std::vector<std::pair<std::string, Effort>> kEfforts = {
    {"fast", Effort::kFast}, {"thorough", Effort::kThorough}, {"forever", Effort::kForever}};
const std::vector<std::string> kCommands = {"simulate"};

constexpr const char* kHelp =
    "rp-plan: how a model would train, on GPUs that one need not have\n"
    "\n"
    "  rp-plan simulate --schedule NAME --input FILE.json    a step of given layer times, by any schedule\n"
    "\n"
    "rp-plan COMMAND --help tells a command's options; docs/planning.md explains them.\n";

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
Value chosen(const std::string& option, const std::string& name, const std::vector<std::pair<std::string, Value>>& list) {
  for (const auto& [known, value] : list) {
    if (known == name) return value;
  }
  throw Error(ExitCode::kUsage, cat("--", option, " ", name, ": unknown", did_you_mean(name, names_of(list)), "; there are ",
                                    joined(names_of(list))));
}

cxxopts::Options simulate_parser() {
  cxxopts::Options parser("rp-plan simulate", "Simulates a training step from the times of its layers.");
  parser.custom_help("--schedule NAME --input FILE.json [options]").set_width(110);
  const auto text = [] { return cxxopts::value<std::string>(); };
  parser.add_options()("schedule", joined(names_of(kSchedules)), text(), "NAME")(
      "input", "times of layers, and stages if they are given (docs/planning.md)", text(), "FILE")(
      "effort", "search for plans: fast (10 ms), thorough (5 s), or forever (until Ctrl-C)", text()->default_value("thorough"),
      "EFFORT")("json", "print one JSON object")("h,help", "print this");
  return parser;
}

PlanOptions parse_simulate(const std::vector<std::string>& arguments) {
  cxxopts::Options parser = simulate_parser();
  std::vector<const char*> words{"rp-plan simulate"};
  for (const std::string& word : arguments) words.push_back(word.c_str());
  try {
    const cxxopts::ParseResult given = parser.parse(static_cast<int>(words.size()), words.data());
    if (given.count("help") > 0) return {.action = PlanOptions::Action::kHelp, .help = parser.help()};
    if (!given.unmatched().empty()) {
      throw Error(ExitCode::kUsage, cat("unexpected word ", given.unmatched().front(), "; rp-plan simulate --help lists the options"));
    }
    for (const char* name : {"schedule", "input"}) {
      if (given.count(name) != 1) {
        throw Error(ExitCode::kUsage, cat("--", name, given.count(name) == 0 ? " is missing" : " is given twice",
                                          "; usage: rp-plan simulate --schedule NAME --input FILE.json"));
      }
    }
    PlanOptions options{.action = PlanOptions::Action::kSimulate};
    options.schedule = chosen("schedule", given["schedule"].as<std::string>(), kSchedules);
    options.input = given["input"].as<std::string>();
    options.effort = chosen("effort", given["effort"].as<std::string>(), kEfforts);
    options.json = given.count("json") > 0;
    return options;
  } catch (const cxxopts::exceptions::no_such_option&) {
    for (const std::string& word : arguments) {
      const std::string name = word.substr(0, word.find('='));
      const std::vector<std::string> known = {"--schedule", "--input", "--effort", "--json", "--help"};
      if (!name.starts_with("-") || std::find(known.begin(), known.end(), name) != known.end() || name == "-h") continue;
      throw Error(ExitCode::kUsage, cat("unknown option ", name, did_you_mean(name, known), "; rp-plan simulate --help lists the options"));
    }
    throw Error(ExitCode::kUsage, "an option is unknown; rp-plan simulate --help lists them");
  } catch (const cxxopts::exceptions::exception& error) {
    throw Error(ExitCode::kUsage, cat(error.what(), "; rp-plan simulate --help lists the options"));
  }
}

}  // namespace

std::string schedule_name(std::optional<BoundSchedule> schedule) {
  return std::find_if(kSchedules.begin(), kSchedules.end(), [&](const auto& entry) { return entry.second == schedule; })->first;
}

PlanOptions parse_plan_options(const std::vector<std::string>& arguments) {
  const std::string command = arguments.empty() ? "" : arguments.front();
  if (command.empty() || command == "--help" || command == "-h" || command == "help") {
    if (command.empty()) throw Error(ExitCode::kUsage, cat("a command is missing; there is ", joined(kCommands), " (rp-plan --help)"));
    return {.action = PlanOptions::Action::kHelp, .help = kHelp};
  }
  if (command == "--version") return {.action = PlanOptions::Action::kVersion};
  if (command == "simulate") return parse_simulate({arguments.begin() + 1, arguments.end()});
  throw Error(ExitCode::kUsage, cat("no command ", command, did_you_mean(command, kCommands), "; there is ", joined(kCommands)));
}

}  // namespace rp
