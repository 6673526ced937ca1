// Compares the host memory that a run plans to use with what the kernel reports as used.
#include <gtest/gtest.h>

#include "pipeline/memory_plan.h"
#include "roundpipe/roundpipe.h"
#include "tests/pipeline/residual_block.h"
#include "tests/pipeline/tiny_run.h"

namespace rp::test {
namespace {

constexpr int kSize = 1024;  // a million weights per block: a store of 50 MB, of which an arena's piece is 2 %

struct FrozenBlock : ResidualBlock {
  FrozenBlock() : ResidualBlock(kSize) {
    for (at::Tensor& parameter : parameters()) parameter.requires_grad_(false);
  }
};

Model blocks(at::ScalarType dtype) {
  Model model{layer<ResidualBlock>(kSize), layer<ResidualBlock>(kSize), layer<ResidualBlock>(kSize)};
  model.set_dtype(dtype);
  return model;
}

// The difference of a measured number from the planned one, as a fraction of the planned one.
double difference(std::uint64_t measured, std::uint64_t planned) {
  return (static_cast<double>(measured) - static_cast<double>(planned)) / static_cast<double>(planned);
}

struct Promise {
  at::ScalarType dtype;
  bool asynchronous;
  int rounds_per_step;
  double bytes_per_parameter;
};

TEST(MemoryPlan, HasThePromisedBytesPerParameterAndTheKernelAgrees) {
  for (const Promise& promise : {Promise{at::kBFloat16, false, 1, 16},
                                 {at::kBFloat16, true, 1, 18},
                                 {at::kBFloat16, false, 2, 20},
                                 {at::kFloat, false, 1, 16},
                                 {at::kFloat, true, 1, 20},
                                 {at::kFloat, true, 2, 24}}) {
    SCOPED_TRACE(promise.bytes_per_parameter);
    Session session(0, nullptr);
    Pipeline pipeline(
        session, blocks(promise.dtype), loss("mean square", mean_square<kSize>),
        {.num_microbatches = 2, .rounds_per_step = promise.rounds_per_step, .asynchronous = promise.asynchronous});
    EXPECT_TRUE(session.memory_plan().items.empty());
    EXPECT_TRUE(pipeline.memory_plan().items.empty());
    session.start();
    const MemoryPlan before = session.memory_plan();
    EXPECT_EQ(before.num_parameters, 3 * (kSize * kSize + kSize));
    EXPECT_NEAR(before.bytes_per_parameter, promise.bytes_per_parameter, 0.003 * promise.bytes_per_parameter);
    EXPECT_EQ(before.activation_bytes(), std::nullopt);
    for (const MemoryPlan::Item& item : before.items) EXPECT_EQ(item.measured_bytes, item.bytes) << item.purpose;

    const at::Tensor x = at::ones({64, kSize}, promise.dtype);
    for (int step = 0; step < 3; ++step) {
      for (int round = 0; round < promise.rounds_per_step; ++round) pipeline.forward_backward(x, x);
      pipeline.step({}, {.asynchronous = promise.asynchronous});
    }
    pipeline.synchronize();
    const MemoryPlan after = session.memory_plan();
    ASSERT_TRUE(after.activation_bytes().has_value());
    EXPECT_EQ(after.bytes(), before.bytes() + *after.activation_bytes());
    EXPECT_NEAR(difference(after.measured_bytes(), after.bytes()), 0, 0.03);
    EXPECT_EQ(pipeline.memory_plan().activation_bytes(), after.activation_bytes()) << "it is the only pipeline";
    EXPECT_EQ(pipeline.memory_plan().bytes_per_parameter, after.bytes_per_parameter);
  }
}

TEST(WorkerMemoryUse, IsThatOfWorkersOnGpusTheLargestPurposeFirst) {
  DeviceMemoryPeaks gpu{.limit_bytes = 1000, .peak_bytes = 600};
  gpu.peak_by_use[MemoryUse::kWeights] = 200;
  gpu.peak_by_use[MemoryUse::kTensors] = 500;
  const std::vector<WorkerMemoryUse> workers = worker_memory_of({DeviceMemoryPeaks{}, gpu});
  ASSERT_EQ(workers.size(), 1U) << "worker 0 reported none";
  EXPECT_EQ(workers[0].worker, 1);
  EXPECT_EQ(workers[0].limit_bytes, 1000U);
  EXPECT_EQ(workers[0].peak_bytes, 600U);
  ASSERT_EQ(workers[0].items.size(), 2U);
  EXPECT_EQ(workers[0].items[0].purpose, "saved activations and workspace");
  EXPECT_EQ(workers[0].items[1].peak_bytes, 200U);
}

TEST(MemoryPlan, OfSeveralPipelinesGivesEachItsOwnAndTheSessionTheSum) {
  Session session(0, nullptr);
  Model frozen{layer<FrozenBlock>(), layer<FrozenBlock>()};
  frozen.set_dtype(at::kBFloat16);
  Pipeline teacher(session, frozen, std::vector<Loss>{}, {.num_microbatches = 2});
  Pipeline student(session, blocks(at::kBFloat16), loss("mean square", mean_square<kSize>), {.num_microbatches = 2});
  session.start();
  EXPECT_NEAR(teacher.memory_plan().bytes_per_parameter, 2, 0.01);
  EXPECT_NEAR(student.memory_plan().bytes_per_parameter, 16, 0.05);
  EXPECT_EQ(teacher.memory_plan().num_parameters, 2 * (kSize * kSize + kSize));
  const at::Tensor x = at::ones({64, kSize}, at::kBFloat16);
  for (int step = 0; step < 3; ++step) {
    student.forward_backward(x, teacher.forward_packed(x));
    student.step({});
  }
  student.synchronize();
  const MemoryPlan all = session.memory_plan();
  std::uint64_t control = 0;
  for (const MemoryPlan::Item& item : all.items) control += item.purpose == "control" ? item.bytes : 0;
  const std::uint64_t weights = all.bytes() - control - all.activation_bytes().value();
  std::uint64_t sum = 0;
  for (const Pipeline* pipeline : {&teacher, &student}) {
    sum += pipeline->memory_plan().bytes() - pipeline->memory_plan().activation_bytes().value();
  }
  EXPECT_EQ(weights, sum);
  EXPECT_NEAR(difference(all.measured_bytes(), all.bytes()), 0, 0.03);
}

TEST(ParamsOn, ADirectoryGivesTheSameBitsAndSaysWhatIsStoredThere) {
  const TempDirectory scratch;
  std::vector<double> losses[2];
  for (const bool in_files : {false, true}) {
    SessionOptions options;
    if (in_files) options.params_on = scratch.path().string();
    Session session(0, nullptr, options);
    Pipeline pipeline(session, blocks(at::kBFloat16), loss("mean square", mean_square<kSize>), {.num_microbatches = 2});
    session.start();
    EXPECT_TRUE(std::filesystem::is_empty(scratch.path())) << "no crash may leave a file there";
    const at::Tensor x = at::ones({16, kSize}, at::kBFloat16);
    for (int step = 0; step < 3; ++step) {
      losses[in_files].push_back(pipeline.forward_backward(x, at::zeros_like(x)).loss());
      pipeline.step({.learning_rate = 1e-2});
    }
    for (const MemoryPlan::Item& item : session.memory_plan().items) {
      EXPECT_EQ(item.is_in_files, in_files && item.purpose != "control" && item.purpose != "activations")
          << item.purpose;
      EXPECT_NEAR(difference(item.measured_bytes.value(), item.bytes), 0, 0.03) << item.purpose;
    }
  }
  EXPECT_EQ(losses[0], losses[1]);
}

TEST(ParamsOn, AWrongDirectoryIsOneClearErrorOfStart) {
  const TempDirectory scratch;
  SessionOptions options;
  options.params_on = (scratch.path() / "missing").string();
  Session session(0, nullptr, options);
  Pipeline pipeline(session, blocks(at::kFloat), loss("mean square", mean_square<kSize>));
  try {
    session.start();
    FAIL() << "started";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kUsage);
    EXPECT_NE(std::string(error.what()).find("missing: No such file or directory; give a directory"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace rp::test
