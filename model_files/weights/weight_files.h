// model_files/weights/weight_files.h
// The weights of a Hugging Face directory, in one file or many shards, as one map of tensors.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "model_files/weights/safetensors.h"

namespace rp {

inline constexpr const char* kIndexFile = "model.safetensors.index.json";

// Opens model.safetensors, or else the shards that model.safetensors.index.json lists. No weights are read before
// read(); reads may come from several threads at once.
class WeightFiles {
 public:
  // Throws rp::Error (kBadInput) naming file, tensor and rule. Rules of an index: a shard is a plain file name ending
  // in .safetensors, in the same directory, and exists; each listed tensor is in the shard that the index names, and in
  // no other listed shard. Files and tensors that are not listed are ignored, and so is metadata.total_size.
  static WeightFiles open(const std::filesystem::path& directory);

  [[nodiscard]] const std::filesystem::path& directory() const { return directory_; }
  // The one file, or the shards in order of the first tensor that the index has of each.
  [[nodiscard]] const std::vector<SafetensorsFile>& files() const { return shards_; }
  // Whether there is an index: kIndexFile.
  [[nodiscard]] bool has_index() const { return has_index_; }
  // In order of name.
  [[nodiscard]] std::vector<std::string> names() const;
  [[nodiscard]] bool contains(std::string_view name) const { return shard_of_.contains(name); }

  // These three throw rp::Error (kBadInput) if there is no such tensor.
  [[nodiscard]] const TensorInfo& tensor(std::string_view name) const { return shard(name).tensor(name); }
  [[nodiscard]] const std::filesystem::path& file_of(std::string_view name) const { return shard(name).path(); }
  // As SafetensorsFile::read().
  void read(std::string_view name, void* destination, std::uint64_t bytes, std::uint64_t first = 0) const {
    shard(name).read(name, destination, bytes, first);
  }

 private:
  explicit WeightFiles(std::filesystem::path directory) : directory_(std::move(directory)) {}
  void open_single(const std::filesystem::path& path);
  void open_shards(const std::filesystem::path& index_path);
  [[nodiscard]] const SafetensorsFile& shard(std::string_view name) const;

  std::filesystem::path directory_;
  bool has_index_ = false;
  std::vector<SafetensorsFile> shards_;
  std::map<std::string, std::size_t, std::less<>> shard_of_;  // tensor -> place in shards_
};

}  // namespace rp
