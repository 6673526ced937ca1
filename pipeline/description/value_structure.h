// pipeline/description/value_structure.h
// Splits a nested value into its tensors and the structure around them, as a block stores it. Byte
// format: docs/formats/blocks.md.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "roundpipe/value.h"

namespace rp {

// Returns the tensors in the order of the structure: lists in order, maps by key.
[[nodiscard]] Tensors tensors_of(const Value& value);

// Returns the encoded structure. It is empty for a list of tensors and nothing else.
[[nodiscard]] std::vector<std::byte> structure_of(const Value& value);

// Joins structure and tensors again. REQUIRES: structure_of() returned the structure, and there are
// as many tensors.
[[nodiscard]] Value value_of(std::span<const std::byte> structure, const Tensors& tensors);

}  // namespace rp
