// tests/models/golden.h
// Finds the golden values that tools/make_llama_golden.py made.
#pragma once

#include <ATen/Parallel.h>

#include <filesystem>

#include "tests/models/bound_layers.h"

namespace rp::models {

inline std::filesystem::path golden_directory() { return RP_GOLDEN_DIRECTORY; }
inline std::filesystem::path tiny_directory() { return golden_directory() / "tiny"; }

}  // namespace rp::models
