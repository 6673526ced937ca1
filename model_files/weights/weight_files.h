// model_files/weights/weight_files.h
// Presents the weights of a Hugging Face directory, in one file or several shards, as one map of
// tensors.
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

// Opens model.safetensors or, if that does not exist, the shards that model.safetensors.index.json
// lists. Weights are read only by read(). Several threads may read at once.
class WeightFiles {
 public:
  // Throws rp::Error (kBadInput) naming the file, the tensor and the rule. Rules of an index: a
  // shard is a plain file name that ends in .safetensors, and it exists in the same directory; each
  // listed tensor is in the shard that the index names, and in no other listed shard. Files and
  // tensors that are not listed are ignored, and so is metadata.total_size.
  static WeightFiles open(const std::filesystem::path& directory);

  [[nodiscard]] const std::filesystem::path& directory() const { return directory_; }
  // Returns the single file, or the shards in the order of their first tensors in the index.
  [[nodiscard]] const std::vector<SafetensorsFile>& files() const { return shards_; }
  // Returns true if the directory has an index (kIndexFile) and no model.safetensors.
  [[nodiscard]] bool has_index() const { return has_index_; }
  // Returns the names of all tensors, sorted.
  [[nodiscard]] std::vector<std::string> names() const;
  [[nodiscard]] bool contains(std::string_view name) const { return shard_of_.contains(name); }

  // tensor(), file_of() and read() throw rp::Error (kBadInput) if there is no such tensor.
  [[nodiscard]] const TensorInfo& tensor(std::string_view name) const { return shard(name).tensor(name); }
  [[nodiscard]] const std::filesystem::path& file_of(std::string_view name) const { return shard(name).path(); }
  // The same as SafetensorsFile::read().
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
  std::map<std::string, std::size_t, std::less<>> shard_of_;  // tensor -> index in shards_
};

}  // namespace rp
