#include "planner/prediction/workload_file.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <string>

#include "common/bad_input.h"
#include "common/checked_files/json_file.h"
#include "common/text.h"

namespace rp {

namespace {

using nlohmann::json;

constexpr std::uint64_t kMaxWorkloadBytes = 4 << 20;
// In one list; the head may be a stage by itself.
constexpr std::size_t kMaxStages = static_cast<std::size_t>(kMaxWorkloadLayers) + 1;
const std::vector<std::string> kKeys = {
    "gpus",           "microbatches",    "round_microbatches", "hop_ms",       "layers",      "head",  "stages",
    "forward_stages", "backward_stages", "max_fused_layers",   "gpu_slowness", "fused_waits", "device"};
const std::vector<std::string> kLayerKeys = {"forward_ms",     "backward_ms", "weights_mib",
                                             "activation_mib", "saved_mib",   "upload_mib"};
constexpr std::ptrdiff_t kFirstMemoryKey = 2;
constexpr double kMiB = 1048576;

class Reader {
 public:
  explicit Reader(const std::filesystem::path& path) : path_(path), root_(read_json_file(path, kMaxWorkloadBytes)) {
    for (const auto& [key, value] : root_.items()) {
      if (std::find(kKeys.begin(), kKeys.end(), key) == kKeys.end()) {
        fail("has an unknown key ", quoted_name(key), did_you_mean(key, kKeys));
      }
    }
  }

  template <typename... Pieces>
  [[noreturn]] void fail(const Pieces&... pieces) const {
    throw bad_input(path_, pieces...);
  }

  [[nodiscard]] bool has(const std::string& key) const { return root_.contains(key); }
  [[nodiscard]] const json& at(const std::string& key) const {
    if (!has(key)) fail("lacks the key \"", key, "\"");
    return root_[key];
  }
  [[nodiscard]] int integer(const json& value, const std::string& name, std::int64_t least, std::int64_t most) const {
    if (!value.is_number_integer() || value < least || value > most) {
      fail(name, " is ", value.dump(), "; it must be a whole number from ", least, " to ", most);
    }
    return value.get<int>();
  }
  // `zero`: true if 0 is allowed.
  [[nodiscard]] double number(const json& value, const std::string& name, bool zero, const char* unit) const {
    const double most = 1e12;
    const double found = value.is_number() ? value.get<double>() : -1;
    if (!value.is_number() || found < 0 || found > most || (found == 0 && !zero)) {
      fail(name, " is ", value.dump(), "; it must be a number of ", unit, zero ? ", 0 or more" : " above 0");
    }
    return found;
  }
  [[nodiscard]] const json& list(const std::string& key, std::size_t least, std::size_t most) const {
    const json& value = at(key);
    if (!value.is_array()) fail("\"", key, "\" is not a list");
    if (value.size() < least || value.size() > most) {
      fail("\"", key, "\" has ", value.size(), " entries; it must have ", least == most ? "" : cat(least, " to "),
           most);
    }
    return value;
  }
  [[nodiscard]] LayerWork work(const json& value, const std::string& name) const {
    if (!value.is_object()) fail(name, " is ", value.dump(), "; it must be an object with forward_ms and backward_ms");
    for (const auto& [key, entry] : value.items()) {
      if (std::find(kLayerKeys.begin(), kLayerKeys.end(), key) == kLayerKeys.end()) {
        fail(name, " has an unknown key ", quoted_name(key), did_you_mean(key, kLayerKeys));
      }
    }
    const auto time = [&](const char* key) {
      if (!value.contains(key)) fail(name, " lacks the key \"", key, "\"");
      return number(value[key], cat(name, ".", key), false, "milliseconds");
    };
    return {.forward = time("forward_ms"), .backward = time("backward_ms")};
  }
  // Returns true if the layer has any key of memory.
  [[nodiscard]] static bool has_memory(const json& layer) {
    return std::any_of(kLayerKeys.begin() + kFirstMemoryKey, kLayerKeys.end(),
                       [&layer](const std::string& key) { return layer.contains(key); });
  }
  [[nodiscard]] LayerFootprint memory(const json& layer, const std::string& name) const {
    const auto bytes = [&](const char* key) {
      if (!layer.contains(key))
        fail(name, " lacks the key \"", key, "\"; where one has memory, all layers and the head have it");
      return std::round(number(layer[key], cat(name, ".", key), true, "MiB") * kMiB);
    };
    LayerFootprint memory{
        .weights = bytes("weights_mib"), .activation = bytes("activation_mib"), .saved = bytes("saved_mib")};
    memory.upload = layer.contains("upload_mib") ? bytes("upload_mib") : memory.weights;
    return memory;
  }
  [[nodiscard]] DeviceSection device() const {
    const json& value = at("device");
    if (!value.is_object()) fail("\"device\" is no object");
    DeviceSection section;
    const std::map<std::string, double*> figures = {
        {"upload_gbs", &section.upload_gbs},           {"download_gbs", &section.download_gbs},
        {"optimizer_gbs", &section.optimizer_gbs},     {"memory_gib", &section.memory_gib},
        {"host_memory_gib", &section.host_memory_gib}, {"time_scale", &section.time_scale}};
    std::vector<std::string> names;
    for (const auto& [name, figure] : figures) names.push_back(name);
    for (const auto& [key, entry] : value.items()) {
      const auto figure = figures.find(key);
      if (figure == figures.end()) fail("\"device\" has an unknown key ", quoted_name(key), did_you_mean(key, names));
      const bool is_scale = key == "time_scale";
      const char* unit = is_scale ? "times the given times" : "GB/s or GiB";
      *figure->second = number(entry, cat("\"device\".", key), !is_scale, unit);
    }
    return section;
  }
  [[nodiscard]] std::vector<int> listed_stages(const std::string& key) const {
    std::vector<int> counts;
    for (const json& value : list(key, 0, kMaxStages)) {
      counts.push_back(integer(value, cat("\"", key, "\"[", counts.size(), "]"), 0, kMaxWorkloadLayers));
    }
    return counts;
  }
  // Parses stages in the form that rp-plan prints.
  [[nodiscard]] std::vector<int> printed_stages(const std::string& key) const {
    const std::string text = at(key).get<std::string>();
    const std::optional<std::vector<int>> counts = parse_lengths(text, kMaxStages);
    if (!counts || std::any_of(counts->begin(), counts->end(), [](int count) { return count > kMaxWorkloadLayers; })) {
      fail("\"", key, "\" is ", quoted_name(text),
           "; it must be a list of numbers of layers, or a text such as \"2,1x4,0\", of at most ", kMaxStages,
           " stages");
    }
    return *counts;
  }
  // Returns the numbers of layers of the stages, whose sum must be `num_layers`.
  [[nodiscard]] std::vector<int> stages(const std::string& key, int num_layers) const {
    std::vector<int> counts = at(key).is_string() ? printed_stages(key) : listed_stages(key);
    if (const int sum = std::accumulate(counts.begin(), counts.end(), 0); sum != num_layers) {
      fail("\"", key, "\" has ", sum, " layers together; ", num_layers, " are needed");
    }
    return counts;
  }

 private:
  std::filesystem::path path_;
  json root_;
};

// "backward_stages" begins with the number of layers that the fused stage has in addition to the
// head. "forward_stages" covers the layers in front of the fused stage.
Plan read_plan(const Reader& reader, int num_layers) {
  if (!reader.has("forward_stages") || !reader.has("backward_stages")) {
    reader.fail("has one of \"forward_stages\" and \"backward_stages\"; a plan of RoundPipe needs both");
  }
  const std::vector<int> backward = reader.stages("backward_stages", num_layers);
  if (backward.empty())
    reader.fail("\"backward_stages\" is empty; it begins with the fused stage: its layers without the head, or 0");
  Plan plan;
  plan.fused_start = num_layers - backward.front();
  int layer = plan.fused_start;
  for (std::size_t i = 1; i < backward.size(); ++i) {
    if (backward[i] == 0)
      reader.fail("\"backward_stages\"[", i, "] is 0; only the first one, which has the head, may be");
    plan.backward.push_back({layer - backward[i], layer});
    layer -= backward[i];
  }
  layer = 0;
  for (const int count : reader.stages("forward_stages", plan.fused_start)) {
    if (count == 0) reader.fail("\"forward_stages\"[", plan.forward.size(), "] is 0; a stage has layers");
    plan.forward.push_back({layer, layer + count});
    layer += count;
  }
  return plan;
}

// Refuses a step that a user would have to wait for too long.
void check_size(const Reader& reader, const Workload& workload) {
  const std::int64_t num_layers = workload.num_layers(), num_microbatches = workload.num_microbatches;
  if (num_layers * num_microbatches > kMaxLayerMicrobatches) {
    reader.fail("has ", num_layers, " layers and ", num_microbatches, " microbatches; their product may be ",
                kMaxLayerMicrobatches, " at most: give at most ", kMaxLayerMicrobatches / num_layers,
                " \"microbatches\" (a step is its rounds one after the other)");
  }
  if (const int rounds = workload.num_microbatches / workload.round_microbatches; rounds > kMaxRounds) {
    reader.fail("cuts a step into ", rounds, " rounds; ", kMaxRounds,
                " are simulated at most: give \"round_microbatches\" of at least ",
                (num_microbatches + kMaxRounds - 1) / kMaxRounds, ", or fewer \"microbatches\"");
  }
}

}  // namespace

WorkloadFile read_workload_file(const std::filesystem::path& path) {
  const Reader reader(path);
  WorkloadFile file;
  Workload& workload = file.workload;
  workload.num_gpus = reader.integer(reader.at("gpus"), "\"gpus\"", 1, kMaxGpus);
  workload.num_microbatches = reader.integer(reader.at("microbatches"), "\"microbatches\"", 1, kMaxMicrobatches);
  workload.round_microbatches = workload.num_microbatches;
  if (reader.has("round_microbatches")) {
    file.gives_round = true;
    workload.round_microbatches =
        reader.integer(reader.at("round_microbatches"), "\"round_microbatches\"", 1, kMaxMicrobatches);
    if (workload.num_microbatches % workload.round_microbatches != 0) {
      reader.fail("\"round_microbatches\" is ", workload.round_microbatches, "; \"microbatches\", ",
                  workload.num_microbatches, ", must be a multiple of it");
    }
  }
  workload.hop = reader.has("hop_ms") ? reader.number(reader.at("hop_ms"), "\"hop_ms\"", true, "milliseconds") : 0;
  for (const json& layer : reader.list("layers", 1, static_cast<std::size_t>(kMaxWorkloadLayers))) {
    workload.layers.push_back(reader.work(layer, cat("\"layers\"[", workload.layers.size(), "]")));
  }
  workload.head = reader.work(reader.at("head"), "\"head\"");
  check_size(reader, workload);
  const json& layers = reader.at("layers");
  if (Reader::has_memory(reader.at("head")) || std::any_of(layers.begin(), layers.end(), Reader::has_memory)) {
    for (const json& layer : layers)
      file.memory.push_back(reader.memory(layer, cat("\"layers\"[", file.memory.size(), "]")));
    file.memory.push_back(reader.memory(reader.at("head"), "\"head\""));
  }
  if (reader.has("gpu_slowness")) {
    const auto num_gpus = static_cast<std::size_t>(workload.num_gpus);
    for (const json& factor : reader.list("gpu_slowness", num_gpus, num_gpus)) {
      workload.slowness.push_back(reader.number(factor, cat("\"gpu_slowness\"[", workload.slowness.size(), "]"), false,
                                                "times the layers' times"));
    }
  }
  workload.fused_waits = false;
  if (reader.has("fused_waits")) {
    if (!reader.at("fused_waits").is_boolean()) reader.fail("\"fused_waits\" is neither true nor false");
    workload.fused_waits = reader.at("fused_waits").get<bool>();
  }
  if (reader.has("max_fused_layers")) {
    file.max_fused_layers =
        reader.integer(reader.at("max_fused_layers"), "\"max_fused_layers\"", 0, kMaxWorkloadLayers);
  }
  if (reader.has("device")) file.device = reader.device();
  const int num_layers = workload.num_layers();
  if (reader.has("stages")) file.stages = reader.stages("stages", num_layers);
  if (reader.has("forward_stages") || reader.has("backward_stages")) file.plan = read_plan(reader, num_layers);
  return file;
}

}  // namespace rp
