#include "model_files/weights/exported_files.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "common/files/input_file.h"
#include "model_files/weights/stored_tensors.h"

namespace rp {
namespace {

using nlohmann::ordered_json;

constexpr std::uint64_t kMaxTextBytes = std::uint64_t{32} << 20;

std::string read_text(const std::filesystem::path& path) { return InputFile::open(path).read_all(kMaxTextBytes); }

// The index in the list of tensors, by the name of each stored tensor. A quantised tensor is listed by
// the name of its codes; the names of its other tensors, which are not written, are separate.
struct Places {
  std::map<std::string, std::size_t> of;
  std::set<std::string> left_out;
};

Places places_of(const std::vector<CheckpointTensor>& read) {
  Places places;
  for (std::size_t i = 0; i < read.size(); ++i) {
    const std::vector<StoredTensor> stored = stored_tensors(read[i]);
    places.of.emplace(stored.front().name, i);
    for (std::size_t other = 1; other < stored.size(); ++other) places.left_out.insert(stored[other].name);
    for (std::string& name : activation_scales(read[i])) places.left_out.insert(std::move(name));
  }
  return places;
}

std::map<std::string, std::string> metadata_of(const std::string& header) {
  const ordered_json entries = ordered_json::parse(header);
  return entries.contains("__metadata__") ? entries.at("__metadata__").get<std::map<std::string, std::string>>()
                                          : std::map<std::string, std::string>{};
}

struct Entry {
  TensorDeclaration declaration;
  std::optional<std::size_t> checkpoint;
};

ExportedFile exported_file(const SafetensorsFile& source, const Places& places,
                           const std::vector<CheckpointTensor>& read, const std::vector<CheckpointTensor>& written) {
  std::vector<Entry> entries;
  bool is_changed = false;
  for (const std::string& name : source.names_in_order()) {
    if (places.left_out.contains(name)) {
      is_changed = true;
      continue;
    }
    const TensorInfo& info = source.tensor(name);
    Entry& entry = entries.emplace_back(Entry{{name, info.dtype, info.shape}, std::nullopt});
    const auto found = places.of.find(name);
    if (found == places.of.end()) continue;
    entry.checkpoint = found->second;
    if (!read[found->second].format) continue;
    entry.declaration = {written[found->second].name, DType::kBFloat16, written[found->second].shape};
    is_changed = true;
  }
  if (is_changed) {
    std::ranges::stable_sort(entries, std::ranges::greater{},
                             [](const Entry& entry) { return dtype_bytes(entry.declaration.dtype); });
  }
  ExportedFile file{.name = source.path().filename().string(), .header = source.header()};
  for (Entry& entry : entries) {
    file.declarations.push_back(std::move(entry.declaration));
    file.checkpoint.push_back(entry.checkpoint);
  }
  if (is_changed) file.header = safetensors_header(file.declarations, metadata_of(file.header));
  return file;
}

// Returns the source's index with the names of tensors that are no longer quantised, and their new
// totals.
std::string index_without_codes(const std::string& source, const Places& places, const ExportedFiles& files) {
  ordered_json index = ordered_json::parse(source);
  ordered_json names = ordered_json::object();
  for (const auto& [name, shard] : index.at("weight_map").items()) {
    if (places.left_out.contains(name)) continue;
    const auto found = places.of.find(name);
    names[found == places.of.end() ? name : files.tensors[found->second].name] = shard;
  }
  std::uint64_t bytes = 0, elements = 0;
  for (const ExportedFile& file : files.files) {
    for (const TensorDeclaration& tensor : file.declarations) {
      if (!names.contains(tensor.name)) continue;
      bytes += tensor.bytes();
      elements += tensor.bytes() / dtype_bytes(tensor.dtype);
    }
  }
  index["metadata"]["total_size"] = bytes;
  if (index["metadata"].contains("total_parameters")) index["metadata"]["total_parameters"] = elements;
  index["weight_map"] = std::move(names);
  return index.dump(2) + "\n";
}

}  // namespace

std::uint64_t ExportedFiles::bytes() const {
  std::uint64_t bytes = 0;
  for (const ExportedFile& file : files) {
    for (const TensorDeclaration& tensor : file.declarations) bytes += tensor.bytes();
  }
  return bytes;
}

std::size_t ExportedFiles::num_carried() const {
  std::size_t carried = 0;
  for (const ExportedFile& file : files) {
    for (const auto& place : file.checkpoint) carried += place ? 0 : 1;
  }
  return carried;
}

ExportedFiles exported_files(const ModelConfig& config, const WeightFiles& weights) {
  const ExpertLayout layout = find_expert_layout(config, weights);
  std::vector<CheckpointTensor> read = checkpoint_tensors(config, layout);
  ModelConfig expanded = config;
  expanded.quantised_format.reset();
  ExportedFiles exported{.tensors = checkpoint_tensors(expanded, written_layout(layout))};
  // Some exporters also write a tied LM head, and programs that read such a file may rely on it.
  if (config.tied_head) {
    const CheckpointTensor head{.name = head_in_checkpoint(config),
                                .shape = {config.vocabulary, config.hidden},
                                .parts = {{.layer = 0, .parameter = "weight"}}};
    for (auto* tensors : {&read, &exported.tensors}) tensors->push_back(head);
  }
  Places places = places_of(read);
  if (!places.left_out.empty()) {
    // They are quantised, too, and the exported config.json would not say so.
    for (std::string& name : weights.names()) {
      if (is_of_unused_keys(config, name)) places.left_out.insert(std::move(name));
    }
  }
  for (const SafetensorsFile& file : weights.files())
    exported.files.push_back(exported_file(file, places, read, exported.tensors));
  const bool is_quantised = !places.left_out.empty();
  if (weights.has_index()) {
    exported.index = read_text(weights.directory() / kIndexFile);
    if (is_quantised) exported.index = index_without_codes(exported.index, places, exported);
  }
  exported.config = read_text(weights.directory() / kConfigFile);
  if (is_quantised) {
    ordered_json json = ordered_json::parse(exported.config);
    json.erase("quantization_config");
    if (!config.wrapper.empty()) json.at("text_config").erase("quantization_config");
    exported.config = json.dump(2) + "\n";
  }
  return exported;
}

}  // namespace rp
