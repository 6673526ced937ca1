#include "model_files/weights/weight_files.h"

#include "common/bad_input.h"
#include "common/checked_files/json_file.h"

namespace rp {
namespace {

namespace fs = std::filesystem;
constexpr std::uint64_t kMaxIndexBytes = std::uint64_t{32} << 20;

// Other names could lead out of the directory.
bool is_plain_shard_name(const std::string& name) {
  return name.size() <= 255 && name.ends_with(".safetensors") && name.front() != '.' &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
}

// Returns the file name of the shard of each tensor.
std::map<std::string, std::string> read_index(const fs::path& index_path) {
  const nlohmann::json index = read_json_file(index_path, kMaxIndexBytes);
  const auto weight_map = index.find("weight_map");
  if (weight_map == index.end() || !weight_map->is_object()) throw bad_input(index_path, "has no object weight_map");
  if (weight_map->empty()) throw bad_input(index_path, "weight_map is empty");
  std::map<std::string, std::string> shard_names;
  for (const auto& [tensor, shard] : weight_map->items()) {
    if (!shard.is_string()) throw bad_input(index_path, "tensor ", quoted_name(tensor), ": its shard is not a string");
    const auto& name = shard.get_ref<const std::string&>();
    if (!is_plain_shard_name(name)) {
      throw bad_input(index_path, "tensor ", quoted_name(tensor), ": its shard ", quoted_name(name),
                      " is not a plain name of a .safetensors file in this directory");
    }
    shard_names.emplace(tensor, name);
  }
  return shard_names;
}

}  // namespace

WeightFiles WeightFiles::open(const fs::path& directory) {
  std::error_code ignored;
  if (!fs::is_directory(directory, ignored)) throw bad_input(directory, "is not a directory");
  WeightFiles files(directory);
  const fs::path single = directory / "model.safetensors";
  const fs::path index = directory / kIndexFile;
  // symlink_status(): a dangling link is a broken file, not an absent one.
  if (fs::exists(fs::symlink_status(single, ignored))) {
    files.open_single(single);
  } else if (fs::exists(fs::symlink_status(index, ignored))) {
    files.open_shards(index);
  } else {
    throw bad_input(directory, "has neither model.safetensors nor model.safetensors.index.json");
  }
  return files;
}

void WeightFiles::open_single(const fs::path& path) {
  shards_.push_back(SafetensorsFile::open(path));
  for (const auto& entry : shards_[0].tensors()) shard_of_.emplace(entry.first, 0);
}

void WeightFiles::open_shards(const fs::path& index_path) {
  has_index_ = true;
  const std::map<std::string, std::string> shard_names = read_index(index_path);
  std::map<std::string, std::size_t> places;
  for (const auto& [tensor, name] : shard_names) {
    const auto [place, is_new] = places.emplace(name, shards_.size());
    if (is_new) shards_.push_back(SafetensorsFile::open(directory_ / name));
    if (!shards_[place->second].tensors().contains(tensor)) {
      throw bad_input(index_path, "tensor ", quoted_name(tensor), ": is not in ", quoted_name(name),
                      ", where the index has it");
    }
    shard_of_.emplace(tensor, place->second);
  }
  for (const auto& [name, place] : places) {
    for (const auto& entry : shards_[place].tensors()) {
      const auto listed = shard_names.find(entry.first);
      if (listed != shard_names.end() && listed->second != name) {
        throw bad_input(index_path, "tensor ", quoted_name(entry.first), ": is in two shards, ",
                        quoted_name(listed->second), " and ", quoted_name(name));
      }
    }
  }
}

std::vector<std::string> WeightFiles::names() const {
  std::vector<std::string> names;
  names.reserve(shard_of_.size());
  for (const auto& entry : shard_of_) names.push_back(entry.first);
  return names;
}

const SafetensorsFile& WeightFiles::shard(std::string_view name) const {
  const auto found = shard_of_.find(name);
  if (found == shard_of_.end()) throw bad_input(directory_, "has no tensor ", quoted_name(name));
  return shards_[found->second];
}

}  // namespace rp
