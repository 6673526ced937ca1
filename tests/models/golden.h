// tests/models/golden.h
// The golden values of tools/make_llama_golden.py.
#pragma once

#include <ATen/Parallel.h>

#include <filesystem>

#include "tests/models/bound_layers.h"

namespace rp::models {

inline std::filesystem::path golden_directory() { return RP_GOLDEN_DIRECTORY; }
inline std::filesystem::path tiny_directory() { return golden_directory() / "tiny"; }

}  // namespace rp::models
