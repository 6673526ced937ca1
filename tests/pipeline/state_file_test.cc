#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "roundpipe/error.h"
#include "tests/pipeline/tiny_run.h"

namespace rp::test {
namespace {

using models::same_bits;

TEST(StateFile, ARunThatWasSavedAndResumedHasTheBitsOfOneThatWasNot) {
  const auto rounds = tiny_rounds(6);
  for (const bool asynchronous : {false, true}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      SCOPED_TRACE(testing::Message() << "asynchronous " << asynchronous << " " << at::toString(dtype));
      const TinySettings settings{.dtype = dtype, .options = {.num_microbatches = 3, .asynchronous = asynchronous}};
      const ScratchDirectory scratch;
      std::vector<double> whole, parts;
      std::vector<at::Tensor> masters;
      {
        TinyRun run(settings);
        run.train(rounds, 0, 6, whole);
        for (const ParameterState& parameter : run.pipeline().parameters()) masters.push_back(parameter.master.clone());
      }
      {
        TinyRun run(settings);
        run.train(rounds, 0, 3, parts);
        run.pipeline().save_state(scratch.path() / "state", "{\"cursor\": 24}");
      }
      TinyRun run(settings);
      EXPECT_EQ(run.pipeline().load_state(scratch.path() / "state"), "{\"cursor\": 24}");
      EXPECT_EQ(run.pipeline().num_steps(), 3);
      run.train(rounds, 3, 6, parts);
      EXPECT_EQ(parts, whole);
      const auto parameters = run.pipeline().parameters();
      for (std::size_t i = 0; i < parameters.size(); ++i) EXPECT_TRUE(same_bits(parameters[i].master, masters[i]));
    }
  }
}

TEST(StateFile, AStateOfAnotherKindOfRunIsRefusedWithTheDifference) {
  const ScratchDirectory scratch;
  {
    TinyRun run({});
    run.pipeline().save_state(scratch.path() / "state", "");
    EXPECT_THROW(run.pipeline().save_state(scratch.path() / "state", ""), Error) << "it exists already";
  }
  TinyRun run({.options = {.asynchronous = true}});
  try {
    (void)run.pipeline().load_state(scratch.path() / "state");
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadInput);
    EXPECT_THAT(error.what(), testing::HasSubstr("was saved by a synchronous run"));
  }
}

std::string refusal(Pipeline& pipeline, const std::filesystem::path& state) {
  try {
    (void)pipeline.load_state(state);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(StateFile, DamagedBytesAndAnotherDtypeAreRefused) {
  const ScratchDirectory scratch;
  const std::filesystem::path state = scratch.path() / "state";
  {
    TinyRun run({});
    run.pipeline().save_state(state, "");
  }
  EXPECT_THAT(refusal(TinyRun({.dtype = at::kBFloat16, .options = {}}).pipeline(), state), testing::HasSubstr("was saved with weights of Float"));
  TinyRun run({});
  std::fstream file(state / "state.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-5, std::ios::end);
  file.put('\x55');
  file.close();
  EXPECT_THAT(refusal(run.pipeline(), state), testing::HasSubstr("checksum"));
}

TEST(StateFile, AStateCanBeLoadedIntoARunThatHasTrained) {
  const ScratchDirectory scratch;
  const auto rounds = tiny_rounds(4);
  for (const bool asynchronous : {false, true}) {
    TinyRun run({.options = {.num_microbatches = 3, .asynchronous = asynchronous}});
    const std::filesystem::path state = scratch.path() / (asynchronous ? "async" : "sync");
    std::vector<double> first, second;
    run.pipeline().save_state(state, "");
    run.train(rounds, 0, 4, first);
    for (int i = 0; i < 2; ++i) {
      (void)run.pipeline().load_state(state);
      EXPECT_EQ(run.pipeline().num_steps(), 0);
      second.clear();
      run.train(rounds, 0, 4, second);
      EXPECT_EQ(second, first) << "asynchronous " << asynchronous;
    }
    (void)run.pipeline().forward_backward(rounds[0].inputs, rounds[0].arguments);
    EXPECT_THAT(refusal(run.pipeline(), state), testing::HasSubstr("1 rounds without step()"));
  }
}

}  // namespace
}  // namespace rp::test
