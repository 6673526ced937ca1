// model_files/profile_file.h
// Profiles of GPUs and servers: those that are compiled into the program, and users' own files.
// Format: docs/formats/gpu_profile.md.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "scheduler/gpu_profile.h"

namespace rp {

// The source of a figure, as the file states it.
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

// Returns the text of a profile file. REQUIRES: a source for each figure, in the order of the
// format.
[[nodiscard]] std::string gpu_profile_text(const ProfileFile<GpuProfile>& file);

// Returns the profile that a user names: by the name of a profile that is compiled into the
// program, or by a path, which has a '/' or ends in ".json". Throws rp::Error (kUsage) for any
// other word, with the names of all profiles and the nearest one.
[[nodiscard]] ProfileFile<GpuProfile> gpu_profile(const std::string& name_or_path);
[[nodiscard]] ProfileFile<ServerProfile> server_profile(const std::string& name_or_path);

[[nodiscard]] std::vector<std::string> gpu_profile_names();
[[nodiscard]] std::vector<std::string> server_profile_names();

}  // namespace rp
