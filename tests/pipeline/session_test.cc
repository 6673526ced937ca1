#include "roundpipe/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pipeline/process/process_end.h"
#include "roundpipe/roundpipe.h"
#include "tests/common/expect_refusal.h"
#include "tests/pipeline/tiny_run.h"

namespace rp::test {
namespace {

Loss failing_loss() {
  return loss("failing",
              [](const at::Tensor&, const at::Tensor&) -> at::Tensor { throw std::runtime_error("out of luck"); });
}

TEST(Session, CallsInTheWrongOrderAreExplained) {
  Session session(0, nullptr);
  EXPECT_THAT(error_of([&] { session.start(); }), testing::HasSubstr("make a Pipeline before"));
  Pipeline pipeline(session, models::load(models::tiny_directory(), at::kFloat), models::causal_lm_loss());
  EXPECT_THAT(error_of([&] { (void)pipeline.num_steps(); }), testing::HasSubstr("call Session::start() first"));
  session.start();
  EXPECT_THAT(error_of([&] { session.start(); }), testing::HasSubstr("was called before"));
  EXPECT_THAT(error_of([&] { Pipeline second(session, {}, models::causal_lm_loss()); }),
              testing::HasSubstr("before Session::start()"));
  EXPECT_THAT(error_of([&] { pipeline.step({}); }), testing::HasSubstr("step() after 0 rounds"));
}

TEST(Session, ImpossibleOptionsAreRefusedWithTheirValue) {
  Session session(0, nullptr);
  const Model model = models::load(models::tiny_directory(), at::kFloat);
  EXPECT_THAT(error_of([&] { Pipeline p(session, model, models::causal_lm_loss(), {.num_microbatches = 0}); }),
              testing::HasSubstr("num_microbatches is 0"));
  EXPECT_THAT(error_of([&] { Pipeline p(session, model, Loss{}); }), testing::HasSubstr("has no function"));
}

TEST(Session, AnExceptionInALossReachesTheCallWithStageAndMicrobatch) {
  Session session(0, nullptr);
  Pipeline pipeline(session, models::load(models::tiny_directory(), at::kFloat), failing_loss(),
                    {.num_microbatches = 2});
  session.start();
  const auto round = tiny_rounds(1).front();
  try {
    (void)pipeline.forward_backward(round.inputs, round.arguments).loss();
    FAIL() << "no exception";
  } catch (const WorkerError& error) {
    EXPECT_EQ(error.place().layer, -1);
    EXPECT_EQ(error.place().microbatch, 0);
    EXPECT_EQ(error.place().step, 1);
    EXPECT_THAT(error.what(),
                testing::HasSubstr("the loss failed in the fused stage of layers 0-3, microbatch 0, step 1"));
    EXPECT_THAT(error.what(), testing::HasSubstr("out of luck"));
  }
  EXPECT_THAT(error_of([&] { pipeline.step({}); }), testing::HasSubstr("out of luck"));
  EXPECT_THAT(error_of([&] { pipeline.synchronize(); }), testing::HasSubstr("out of luck"));
}

TEST(Session, AnExceptionOfLibTorchIsDescribedWithoutItsBacktrace) {
  try {
    TORCH_CHECK(false, "the shapes differ");
  } catch (...) {
    const ExceptionDescription exception = describe_without_backtrace();
    EXPECT_EQ(exception.text, "the shapes differ");
    EXPECT_EQ(exception.code, ExitCode::kUserError);
    EXPECT_FALSE(exception.is_error);
  }
  try {
    throw Error(ExitCode::kNoResource, "no memory");
  } catch (...) {
    EXPECT_EQ(describe_without_backtrace().code, ExitCode::kNoResource) << "like all other exceptions";
  }
}

struct Refusing : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    if (!is_training()) throw std::runtime_error("not without training");
    return x;
  }
};

TEST(Session, AnExceptionInAnEvaluationHasNoRoundOfTraining) {
  Session session(0, nullptr);
  Pipeline pipeline(session, Model{layer<Refusing>()}, failing_loss(), {.num_microbatches = 1});
  session.start();
  try {
    (void)pipeline.forward(at::ones({2}), {.requires_grad = false});
    FAIL() << "no exception";
  } catch (const WorkerError& error) {
    EXPECT_EQ(error.place().round, -1);
    EXPECT_EQ(error.place().layer, 0);
    EXPECT_THAT(error.what(), testing::HasSubstr("not without training"));
  }
}

}  // namespace
}  // namespace rp::test
