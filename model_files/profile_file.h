// model_files/profile_file.h
// Profiles of GPUs and servers: those that come with the program, and files of one's own. Format:
// docs/formats/gpu_profile.md.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "scheduler/gpu_profile.h"

namespace rp {

// Where a figure comes from, as the file says.
struct FigureSource {
  std::string key{};
  std::string source{};
  bool operator==(const FigureSource&) const = default;
};

template <typename Profile>
struct ProfileFile {
  Profile profile{};
  std::vector<FigureSource> sources{};  // in the order of docs/formats/gpu_profile.md
};

// Throws rp::Error (kBadInput) naming the file, the figure and what it must be.
[[nodiscard]] ProfileFile<GpuProfile> read_gpu_profile(const std::filesystem::path& path);
[[nodiscard]] ProfileFile<ServerProfile> read_server_profile(const std::filesystem::path& path);

// The text of such a file. REQUIRES: a source for each figure, in order.
[[nodiscard]] std::string gpu_profile_text(const ProfileFile<GpuProfile>& file);

// What a person gives: the name of a profile that comes with the program, or a path, which has a '/' or ends in
// ".json". Throws rp::Error (kUsage) for another word, with the names that there are and the nearest.
[[nodiscard]] ProfileFile<GpuProfile> gpu_profile(const std::string& name_or_path);
[[nodiscard]] ProfileFile<ServerProfile> server_profile(const std::string& name_or_path);

[[nodiscard]] std::vector<std::string> gpu_profile_names();
[[nodiscard]] std::vector<std::string> server_profile_names();

}  // namespace rp
