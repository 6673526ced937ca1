#include "train/run/run_state.h"

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "common/bad_input.h"
#include "common/checked_files/json_file.h"
#include "common/text.h"

namespace rp {
namespace {

constexpr int kVersion = 3;

constexpr const char* kThreads = "threads-per-worker";  // an option of rp-launch

std::string value_text(const std::string& value) { return value.empty() ? "the default" : value; }

// Settings that do not affect the results of a run: where its files are, when it is saved, and what
// is kept for a backward or computed again.
const std::set<std::string> kIgnored = {
    "model",           "data",        "output",    "resume",    "save-every", "save-total-limit",
    "recompute-grain", "save-merged", "eval-data", "log-every", "final-model"};
// Settings that may change when a run is resumed. The others decide which numbers a step works on.
const std::set<std::string> kMayDiffer = {"max-steps",         "learning-rate", "max-grad-norm", "weight-decay",
                                          "warmup-steps",      "lr-schedule",   "z-loss",        "router-aux-loss",
                                          "decay-all",         "adam-beta1",    "adam-beta2",    "adam-epsilon",
                                          "min-learning-rate", "decay-steps",   "eval-every",    "early-stop"};

// Returns whether a setting may change from `before` to `now` when a run is resumed. A checkpoint has the routers'
// corrections if they are trained, and only then.
bool may_differ(const std::string& name, const std::string& before, const std::string& now) {
  if (name == "router-bias-update-rate") return (before == "0") == (now == "0");
  return kMayDiffer.contains(name);
}

// JSON has no infinity, so the loss is written only if there is a best evaluation.
nlohmann::json evaluations_json(const EvaluationRecord& record) {
  nlohmann::json json = {
      {"last_step", record.last_step}, {"best_step", record.best_step}, {"num_since_best", record.num_since_best}};
  if (record.best_step >= 0) json["best_loss"] = record.best_loss;
  return json;
}

EvaluationRecord evaluations_of(const std::filesystem::path& checkpoint, const nlohmann::json& json) {
  EvaluationRecord record;
  record.last_step = whole_number(checkpoint, json, "last_step", -1);
  record.best_step = whole_number(checkpoint, json, "best_step", -1);
  record.num_since_best = whole_number(checkpoint, json, "num_since_best");
  if (record.best_step >= 0) record.best_loss = json.at("best_loss").get<double>();
  return record;
}

}  // namespace

std::string run_state_text(const RunState& state) {
  nlohmann::json settings = nlohmann::json::object();
  for (const SettingRow& row : setting_rows(state.settings)) {
    if (!kIgnored.contains(row.name)) settings[row.name] = row.value;
  }
  settings[kThreads] = std::to_string(state.threads_per_worker);
  const nlohmann::json text = {{"program", "train"},
                               {"version", kVersion},
                               {"step", state.step},
                               {"data_cursor", state.data_cursor},
                               {"data_checksum", state.data.checksum},
                               {"data_sequences", state.data.sequences},
                               {"model", {{"config", state.model.config}, {"weights", state.model.weights}}},
                               {"evaluations", evaluations_json(state.evaluations)},
                               {"keeps_all_checkpoints", state.settings.num_kept_checkpoints() == 0},
                               {"settings", settings}};
  return text.dump();
}

std::string shared_run_text(const RunState& state, std::uint32_t eval_checksum) {
  nlohmann::json text = nlohmann::json::parse(run_state_text(state));
  for (const SettingRow& row : setting_rows(state.settings)) {
    for (const char* name : {"save-every", "final-model"}) {
      if (row.name == name) text["settings"][row.name] = row.value;
    }
  }
  text["eval_data_checksum"] = eval_checksum;
  return text.dump();
}

void check_same_run(const std::string& own, const std::string& first, int node) {
  if (own == first) return;
  const auto flat = nlohmann::json::parse(own).flatten();
  const auto flat_first = nlohmann::json::parse(first).flatten();
  for (const auto& [path, value] : flat.items()) {
    const std::string first_value = flat_first.value(path, nlohmann::json()).dump();
    if (value.dump() == first_value) continue;
    throw Error(ExitCode::kUserError,
                cat("the nodes differ: ", path.substr(1), " is ", value.dump(), " on node ", node, ", and ",
                    first_value, " on node 0; give all nodes the same options, data and model"));
  }
  throw Error(ExitCode::kUserError, cat("the nodes differ: node ", node, " lacks a setting of node 0"));
}

SavedRun parse_run_state(const std::filesystem::path& checkpoint, const std::string& text) {
  SavedRun saved;
  try {
    const nlohmann::json object = nlohmann::json::parse(text);
    if (object.at("program") != "train" || object.at("version") != kVersion) {
      throw bad_input(checkpoint, "was not written by this version of train");
    }
    saved.step = whole_number(checkpoint, object, "step");
    saved.data_cursor = static_cast<std::uint64_t>(whole_number(checkpoint, object, "data_cursor"));
    saved.data.checksum = static_cast<std::uint32_t>(whole_number(checkpoint, object, "data_checksum", 0, UINT32_MAX));
    saved.data.sequences = static_cast<std::uint64_t>(whole_number(checkpoint, object, "data_sequences"));
    saved.model.config = object.at("model").at("config").get<std::map<std::string, std::string>>();
    saved.model.weights = object.at("model").at("weights").get<std::string>();
    saved.evaluations = evaluations_of(checkpoint, object.at("evaluations"));
    saved.keeps_all_checkpoints = object.at("keeps_all_checkpoints").get<bool>();
    saved.settings = object.at("settings").get<std::map<std::string, std::string>>();
  } catch (const nlohmann::json::exception& error) {
    throw bad_input(checkpoint, "is no checkpoint of train (", error.what(), ")");
  }
  return saved;
}

void check_model(const std::filesystem::path& checkpoint, const SavedRun& saved, const std::filesystem::path& model,
                 const ModelIdentity& identity, Problems& problems) {
  for (const std::string& difference : differences(saved.model, identity)) {
    problems.add(ExitCode::kUsage, cat("--model ", model.string(), " is not the model that ", checkpoint.string(),
                                       " was saved with: ", difference, "; give the same model"));
  }
}

std::vector<std::string> check_resume(const std::filesystem::path& checkpoint, const SavedRun& saved,
                                      const RunState& present, Problems& problems) {
  const TrainSettings& settings = present.settings;
  std::vector<std::string> notes;
  const auto threads = saved.settings.find(kThreads);
  if (threads != saved.settings.end() && threads->second != std::to_string(present.threads_per_worker)) {
    notes.push_back(cat(kThreads, " is ", present.threads_per_worker, " from here on; it was ", threads->second,
                        ", and the last bits of the results may depend on it"));
  }
  for (const SettingRow& row : setting_rows(settings)) {
    const auto before = saved.settings.find(row.name);
    if (before == saved.settings.end() || before->second == row.value) continue;
    if (may_differ(row.name, before->second, row.value)) {
      notes.push_back(cat(row.name, " is ", row.shown, " from here on; it was ", value_text(before->second)));
    } else {
      problems.add(ExitCode::kUsage, cat("--", row.name, " is ", row.shown, ", but ", checkpoint.string(),
                                         " was saved with ", value_text(before->second), "; give the same"));
    }
  }
  const DataIdentity& data = present.data;
  if (data.checksum != saved.data.checksum || data.sequences != saved.data.sequences) {
    problems.add(ExitCode::kUsage, cat("--data ", settings.data.string(), " is not the data that ", checkpoint.string(),
                                       " was saved with (", data.sequences, " sequences, then ", saved.data.sequences,
                                       "); give the same file"));
  }
  check_model(checkpoint, saved, settings.model, present.model, problems);
  if (saved.step > settings.max_steps) {
    problems.add(ExitCode::kUsage, cat("--max-steps ", settings.max_steps, " is passed: ", checkpoint.string(),
                                       " is of step ", saved.step, "; raise it to train on"));
  }
  return notes;
}

}  // namespace rp
