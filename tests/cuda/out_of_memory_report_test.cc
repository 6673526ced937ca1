#include "cuda/out_of_memory_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace rp {
namespace {

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

MemoryState state_of(std::vector<std::pair<MemoryUse, std::uint64_t>> uses, std::uint64_t largest_free) {
  MemoryState state{.limit_bytes = 24 * kGiB, .bytes_by_use = {}, .largest_free_bytes = largest_free};
  for (const auto& [use, bytes] : uses) state.bytes_by_use[use] = bytes;
  return state;
}

std::size_t place_of(const std::string& text, const std::string& part) {
  EXPECT_THAT(text, testing::HasSubstr(part));
  return text.find(part);
}

TEST(OutOfMemoryReport, IsItemisedByPurposeTheLargestFirst) {
  const MemoryState state = state_of(
      {{MemoryUse::kWeights, 2 * kGiB}, {MemoryUse::kTensors, 15 * kGiB}, {MemoryUse::kInputs, 6 * kGiB}}, kGiB);
  EXPECT_EQ(state.used_bytes(), 23 * kGiB);
  EXPECT_EQ(
      spent_text({.owner = "GPU-7", .is_asked = true}, state, 4 * kGiB, MemoryUse::kTensors),
      "GPU memory is spent: 4.00 GiB are wanted for saved activations and workspace, and of 24.0 GiB (--gpu-memory) of "
      "GPU-7 are taken 23.0 GiB: saved activations and workspace 15.0 GiB, inputs 6.00 GiB, weights 2.00 GiB. What "
      "would help: fewer sequences in a microbatch (more microbatches a round, --num-microbatches), recompute by layer "
      "(--recompute-grain layer), stages of fewer layers (--plan), shorter sequences, a larger --gpu-memory");
}

TEST(OutOfMemoryReport, IsToBeSavedFirstWhereMostOfItIs) {
  const MemoryState weights = state_of(
      {{MemoryUse::kWeights, 12 * kGiB}, {MemoryUse::kGradients, 8 * kGiB}, {MemoryUse::kTensors, 2 * kGiB}}, 2 * kGiB);
  const std::string text = spent_text({.owner = "GPU-7"}, weights, 4 * kGiB, MemoryUse::kAccumulators);
  EXPECT_LT(place_of(text, "stages of fewer layers"), place_of(text, "fewer sequences"));
  // The wanted memory counts too.
  const std::string tensors = spent_text({.owner = "GPU-7"}, weights, 30 * kGiB, MemoryUse::kTensors);
  EXPECT_LT(place_of(tensors, "fewer sequences"), place_of(tensors, "stages of fewer layers"));
}

TEST(OutOfMemoryReport, SaysWhereItsLimitComesFrom) {
  const MemoryState state = state_of({{MemoryUse::kWeights, 24 * kGiB}}, 0);
  const MemoryLimit shared{.owner = "GPU-7", .num_sharers = 4, .margin_bytes = kGiB};
  EXPECT_THAT(spent_text(shared, state, kGiB, MemoryUse::kInputs),
              testing::AllOf(testing::HasSubstr("(the part of one of 4 workers that share the GPU, but for 1.00 GiB)"),
                             testing::HasSubstr("ending what else runs on the GPU"),
                             testing::Not(testing::HasSubstr("--gpu-memory"))));
}

TEST(OutOfMemoryReport, IsSaidToBeInPiecesWhereThatIsTheCause) {
  const auto text = [](std::uint64_t wanted) {
    return spent_text({.owner = "GPU-7"}, state_of({{MemoryUse::kTensors, 20 * kGiB}}, kGiB), wanted,
                      MemoryUse::kTensors);
  };
  EXPECT_THAT(text(2 * kGiB), testing::HasSubstr("4.00 GiB are free, but no part of them is longer than 1.00 GiB"));
  EXPECT_THAT(text(5 * kGiB), testing::Not(testing::HasSubstr("are free")));
}

}  // namespace
}  // namespace rp
