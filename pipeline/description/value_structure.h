// pipeline/description/value_structure.h
// A nested value as a block carries it: its tensors, and the structure around them. Byte format:
// docs/formats/blocks.md.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "roundpipe/value.h"

namespace rp {

// The tensors in the order of the structure: lists in order, maps by key.
[[nodiscard]] Tensors tensors_of(const Value& value);

// Empty for a list of tensors and nothing else.
[[nodiscard]] std::vector<std::byte> structure_of(const Value& value);

// REQUIRES: structure_of() gave the structure, with as many tensors.
[[nodiscard]] Value value_of(std::span<const std::byte> structure, const Tensors& tensors);

}  // namespace rp
