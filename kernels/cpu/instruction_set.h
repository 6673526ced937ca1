// kernels/cpu/instruction_set.h
// Chooses among the tables of kernels that are compiled once per instruction set. All tables
// compute the same bits.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace rp {

enum class InstructionSet : std::uint8_t {
  kPortable,
  kAvx2,    // AVX2 and F16C
  kAvx512,  // also AVX-512 F, BW, DQ and VL
};

// Returns the largest set that this processor supports.
[[nodiscard]] InstructionSet best_instruction_set();

// Returns the tables that this processor can run. `tables` has one table for each instruction set,
// in the order of InstructionSet, or only the portable one if the compiler's target is not x86-64.
template <typename Table, std::size_t kNumTables>
[[nodiscard]] std::span<const Table* const> usable_of(const std::array<const Table*, kNumTables>& tables) {
  return std::span(tables).first(static_cast<std::size_t>(best_instruction_set()) + 1);
}

}  // namespace rp
