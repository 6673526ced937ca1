#include "cuda/out_of_memory_report.h"

#include <algorithm>
#include <numeric>

#include "common/text.h"

namespace rp {

namespace {

std::string budget_text(const BytesByUse& by_use) {
  auto uses = by_use.indices();
  std::stable_sort(uses.begin(), uses.end(), [&](MemoryUse a, MemoryUse b) { return by_use[a] > by_use[b]; });
  std::string text;
  for (const MemoryUse use : uses) {
    if (by_use[use] == 0) continue;
    text += cat(text.empty() ? "" : ", ", memory_use_name(use), " ", bytes_text(by_use[use]));
  }
  return text.empty() ? "nothing" : text;
}

std::string origin_text(const MemoryLimit& limit) {
  if (limit.is_asked) return "--gpu-memory";
  const std::string margin = bytes_text(limit.margin_bytes);
  if (limit.num_sharers == 1) return cat("what was free at the start but for ", margin);
  return cat("the part of one of ", limit.num_sharers, " workers that share the GPU, but for ", margin);
}

// The memory of microbatches grows with their tokens, that of weights with the layers of a stage.
std::string advice_text(const MemoryLimit& limit, BytesByUse by_use, std::uint64_t wanted_bytes, MemoryUse wanted) {
  by_use[wanted] += wanted_bytes;
  const auto sum_of = [&](std::initializer_list<MemoryUse> uses) {
    return std::accumulate(uses.begin(), uses.end(), std::uint64_t{0},
                           [&](std::uint64_t sum, MemoryUse use) { return sum + by_use[use]; });
  };
  const std::uint64_t of_stages = sum_of({MemoryUse::kWeights, MemoryUse::kAccumulators, MemoryUse::kGradients});
  const std::uint64_t of_microbatches = sum_of({MemoryUse::kInputs, MemoryUse::kOutputs, MemoryUse::kTensors});
  const std::string shorter = "stages of fewer layers (--plan)";
  const std::string fewer =
      "fewer sequences in a microbatch (more microbatches a round, --num-microbatches), recompute by layer "
      "(--recompute-grain layer)";
  const std::string more = limit.is_asked ? "a larger --gpu-memory" : "ending what else runs on the GPU (nvidia-smi)";
  return cat("What would help: ", of_stages > of_microbatches ? cat(shorter, ", ", fewer) : cat(fewer, ", ", shorter),
             ", shorter sequences, ", more);
}

}  // namespace

std::uint64_t MemoryState::used_bytes() const {
  return std::accumulate(bytes_by_use.begin(), bytes_by_use.end(), std::uint64_t{0});
}

std::string spent_text(const MemoryLimit& limit, const MemoryState& state, std::uint64_t wanted_bytes,
                       MemoryUse wanted) {
  const std::uint64_t used = state.used_bytes(), free = state.limit_bytes - std::min(state.limit_bytes, used);
  std::string text = cat("GPU memory is spent: ", bytes_text(wanted_bytes), " are wanted for ", memory_use_name(wanted),
                         ", and of ", bytes_text(state.limit_bytes), " (", origin_text(limit), ") of ", limit.owner,
                         " are taken ", bytes_text(used), ": ", budget_text(state.bytes_by_use), ". ");
  if (free >= wanted_bytes) {
    text += cat(bytes_text(free), " are free, but no part of them is longer than ",
                bytes_text(state.largest_free_bytes), ". ");
  }
  return text + advice_text(limit, state.bytes_by_use, wanted_bytes, wanted);
}

}  // namespace rp
