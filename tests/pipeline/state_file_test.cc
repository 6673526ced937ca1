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

}  // namespace
}  // namespace rp::test
