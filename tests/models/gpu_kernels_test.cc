// Tests the operations' path through gpu_kernels.h, with the kernels emulated on the CPU:
// everything except LibTorch's own CUDA code.
#include "kernels/gpu_kernels.h"

#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include "kernels/cuda/kernels.h"
#include "models/layers/attention/attention.h"
#include "models/layers/embedding.h"
#include "models/layers/grouped_linear.h"
#include "models/layers/ops.h"
#include "models/layers/quantised_weights.h"
#include "models/layers/rotary.h"
#include "models/layers/strict_determinism.h"
#include "roundpipe/models.h"
#include "tests/models/expected_values.h"
#include "tests/models/gpu_way.h"

namespace rp::models {
namespace {

// Installs the emulated table for one test.
class EmulatedGpu : public testing::Test {
 protected:
  EmulatedGpu() {
    table_.takes_cpu_memory = true;
    table_.current_stream = []() -> void* { return nullptr; };
    set_gpu_kernels(&table_);
    at::manual_seed(3);
  }
  ~EmulatedGpu() override { set_gpu_kernels(nullptr); }

  GpuKernels table_ = cuda::kernel_table();
};

// Calls `run` on leaves with the values of `leaves`, in fp32 on the code path of the CPU and in
// `dtype` on that of the GPU, and compares outputs and gradients.
template <typename Run>
void expect_the_cpus_values(const std::vector<at::Tensor>& leaves, at::ScalarType dtype, double tolerance,
                            const Run& run) {
  const GpuKernels* emulated = &gpu_kernels();
  std::vector<std::vector<at::Tensor>> results;
  for (const bool on_gpu : {false, true}) {
    set_gpu_kernels(on_gpu ? emulated : nullptr);
    std::vector<at::Tensor> copies;
    for (const at::Tensor& value : leaves) {
      copies.push_back(value.detach().to(dtype).to(on_gpu ? dtype : at::kFloat).clone().requires_grad_(true));
    }
    const std::vector<at::Tensor> outputs = run(copies);
    std::vector<at::Tensor> grads;
    for (const at::Tensor& output : outputs) {
      grads.push_back(at::linspace(-1, 1, output.numel()).view(output.sizes()).to(output.scalar_type()));
    }
    torch::autograd::backward(outputs, grads);
    results.emplace_back();
    for (const at::Tensor& output : outputs) results.back().push_back(output.detach());
    for (const at::Tensor& copy : copies) results.back().push_back(copy.grad());
  }
  ASSERT_EQ(results[0].size(), results[1].size());
  for (std::size_t i = 0; i < results[0].size(); ++i) {
    EXPECT_LE(relative_difference(results[1][i], results[0][i]), tolerance) << c10::toString(dtype) << ", value " << i;
  }
}

constexpr std::pair<at::ScalarType, double> kDtypes[] = {{at::kFloat, 3e-6}, {at::kBFloat16, 2e-2}, {at::kHalf, 3e-3}};

TEST_F(EmulatedGpu, NormsGiveTheCpusValues) {
  for (const auto& [dtype, tolerance] : kDtypes) {
    for (const NormKind kind : {NormKind::kRounded, NormKind::kUnrounded, NormKind::kOffset}) {
      expect_the_cpus_values({leaf({3, 7, 40}), leaf({40})}, dtype, tolerance, [&](const auto& in) {
        return std::vector<at::Tensor>{rms_norm(in[0], in[1], 1e-5, kind)};
      });
      expect_the_cpus_values({leaf({3, 7, 40}), leaf({3, 7, 40}), leaf({40})}, dtype, tolerance, [&](const auto& in) {
        const NormalisedSum result = add_rms_norm(in[0], in[1], in[2], 1e-5, kind);
        return std::vector<at::Tensor>{result.sum, result.y};
      });
    }
  }
}

TEST_F(EmulatedGpu, RotationAndGluGiveTheCpusValues) {
  const RotaryTable table = {at::rand({7, 8}), at::rand({7, 8})};
  for (const auto& [dtype, tolerance] : kDtypes) {
    expect_the_cpus_values({leaf({2, 7, 3, 16})}, dtype, tolerance,
                           [&](const auto& in) { return std::vector<at::Tensor>{rotate_heads(in[0], table)}; });
    expect_the_cpus_values({leaf({2, 7, 3, 40})}, dtype, tolerance,  // of which 16 elements are rotated
                           [&](const auto& in) { return std::vector<at::Tensor>{rotate_heads(in[0], table)}; });
    for (const Activation activation :
         {Activation::kSilu, Activation::kGeluTanh, Activation::kClampedSwish, Activation::kSigmoid}) {
      expect_the_cpus_values({(leaf({3, 11, 13}).detach() * 4).requires_grad_(true),
                              (leaf({3, 11, 13}).detach() * 4).requires_grad_(true)},
                             dtype, tolerance,
                             [&](const auto& in) { return std::vector<at::Tensor>{glu(in[0], in[1], activation)}; });
    }
  }
}

TEST_F(EmulatedGpu, AttentionGivesTheCpusValuesWithGroupsAndWithout) {
  for (const auto& [dtype, tolerance] : kDtypes) {
    for (const std::int64_t groups : {1, 2, 6}) {
      expect_the_cpus_values(
          {leaf({2, 9, 6, 16}), leaf({2, 9, groups, 16}), leaf({2, 9, groups, 16})}, dtype, tolerance,
          [](const auto& in) { return std::vector<at::Tensor>{causal_attention(in[0], in[1], in[2])}; });
    }
  }
}

// Computed from complete scores, because the flash kernel needs a GPU.
TEST_F(EmulatedGpu, AttentionWithWindowsAndSinksGivesTheCpusValues) {
  for (const auto& [dtype, tolerance] : kDtypes) {
    expect_the_cpus_values(
        {leaf({2, 9, 6, 16}), leaf({2, 9, 2, 16}), leaf({2, 9, 2, 16}), leaf({6})}, dtype, tolerance,
        [](const auto& in) {
          return std::vector<at::Tensor>{causal_attention(in[0], in[1], in[2], {.window = 4, .sinks_n = in[3]})};
        });
  }
}

// Computed with one call per document, because the flash kernel, which computes all of them, needs
// a GPU.
TEST_F(EmulatedGpu, AttentionWithinDocumentsGivesTheCpusValues) {
  const at::Tensor documents = at::tensor({4, 0, 3, 9, 0, 0}, at::kLong).view({2, 3});
  for (const auto& [dtype, tolerance] : kDtypes) {
    expect_the_cpus_values(
        {leaf({2, 9, 6, 16}), leaf({2, 9, 2, 16}), leaf({2, 9, 2, 16})}, dtype, tolerance, [&](const auto& in) {
          return std::vector<at::Tensor>{causal_attention(in[0], in[1], in[2], {.documents_bk = documents})};
        });
  }
}

// LibTorch's kernel, if there is one, is used for rows of 16 elements of bf16; our kernel for all
// others.
TEST_F(EmulatedGpu, GroupedProductsGiveTheCpusValuesByOurKernelAndByLibtorchs) {
  const at::Tensor counts = at::tensor({0, 5, 0, 11, 1, 0}, at::kLong);
  for (const bool libtorch_groups : {false, true}) {
    table_.libtorch_groups_bf16 = libtorch_groups;
    for (const auto& [dtype, tolerance] : kDtypes) {
      for (const std::int64_t width : {16, 12}) {
        expect_the_cpus_values({leaf({17, width}), leaf({6, 8, width})}, dtype, tolerance, [&](const auto& in) {
          return std::vector<at::Tensor>{grouped_linear(in[0], in[1], counts)};
        });
      }
    }
  }
}

void expect_gradient_in_place(at::ScalarType dtype, std::int64_t width, const std::vector<std::int64_t>& counts) {
  SCOPED_TRACE(testing::Message() << c10::toString(dtype) << " width " << width << " first expert " << counts[0]);
  const at::Tensor x = leaf({17, width}, dtype), weight = bound({7, 8, width}, dtype), in_place = weight.grad();
  const at::Tensor rows = at::tensor(counts, at::kLong), grad = at::randn({17, 8}).to(dtype);
  const AutogradsShare of_weight(weight);
  torch::autograd::backward({grouped_linear(x, weight, rows)}, {grad});
  EXPECT_FALSE(of_weight.is_there());
  at::Tensor expected = at::ones({7, 8, width}, at::kDouble);
  for (std::int64_t expert = 0, first = 0; expert < 7; ++expert) {
    const std::int64_t count = counts[expert];
    const auto of_expert = [&](const at::Tensor& all) { return all.detach().narrow(0, first, count).to(at::kDouble); };
    expected[expert] += of_expert(grad).t().mm(of_expert(x));
    first += count;
    if (count == 0) {
      EXPECT_TRUE(in_place[expert].eq(1).all().item<bool>()) << expert;
    }
  }
  EXPECT_LE(relative_difference(in_place, expected), dtype == at::kFloat ? 1e-6 : dtype == at::kHalf ? 1e-3 : 8e-3);
  EXPECT_EQ(x.grad().scalar_type(), dtype);
}

TEST_F(EmulatedGpu, QuantisedWeightsAreExpandedToTheCpusBits) {
  const at::Tensor values = at::randn({3, 40, 96});
  for (const WeightFormat format : {WeightFormat::kNf4Double, WeightFormat::kMxfp4, WeightFormat::kFp8Blocks}) {
    const QuantisedShape shape{.format = format, .matrices = 3, .rows = 40, .columns = 96};
    const at::Tensor bytes = at::zeros({static_cast<std::int64_t>(QuantisedLayout(shape).num_bytes)}, at::kByte);
    for (std::int64_t matrix = 0; matrix < 3; ++matrix) ASSERT_TRUE(quantise(values[matrix], shape, matrix, bytes));
    const at::Tensor on_gpu = expanded(bytes, shape, values.sizes(), at::kBFloat16);
    set_gpu_kernels(nullptr);
    EXPECT_TRUE(same_bits(on_gpu, expanded(bytes, shape, values.sizes(), at::kBFloat16)));
    set_gpu_kernels(&table_);
  }
}

TEST_F(EmulatedGpu, GradientsOfExpertsAreAddedToTheLeafInPlace) {
  for (const bool libtorch_groups : {false, true}) {
    table_.libtorch_groups_bf16 = libtorch_groups;
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const std::int64_t width : {16, 12}) {
        // Experts without rows at the beginning, in the middle and at the end; and one expert with
        // all rows.
        expect_gradient_in_place(dtype, width, {0, 5, 0, 0, 11, 1, 0});
        expect_gradient_in_place(dtype, width, {17, 0, 0, 0, 0, 0, 0});
        expect_gradient_in_place(dtype, width, {3, 2, 4, 1, 2, 3, 2});
      }
    }
  }
}

int num_plans = 0, num_products = 0;

// LibTorch's product would copy the numbers of rows to the host, and wait for them.
TEST_F(EmulatedGpu, ExpertsOnACardWithoutLibtorchsKernelAreOneCallAProductAndOnePlanForAll) {
  num_plans = num_products = 0;
  table_.plan_experts = [](const ExpertRows& call, void* stream) { ++num_plans, cuda::plan_experts(call, stream); };
  table_.grouped_linear = [](DType dtype, const GroupedProduct& call, void* stream) {
    ++num_products, cuda::grouped_linear(dtype, call, stream);
  };
  table_.grouped_linear_grad = [](DType dtype, const GroupedProduct& call, void* stream) {
    ++num_products, cuda::grouped_linear_grad(dtype, call, stream);
  };
  table_.grouped_weight_grad = [](DType dtype, const GroupedProduct& call, void* stream) {
    ++num_products, cuda::grouped_weight_grad(dtype, call, stream);
  };
  const at::Tensor x = leaf({6, 16}, at::kBFloat16), weight = bound({3, 8, 16}, at::kBFloat16);
  torch::autograd::backward({grouped_linear(x, weight, at::tensor({4, 0, 2}, at::kLong)).sum()});
  EXPECT_EQ(num_plans, 1);
  EXPECT_EQ(num_products, 3);
}

TEST_F(EmulatedGpu, AttentionsGradientsReachOnlyWhatAsksForThemAndOnlyOnce) {
  const at::Tensor q = leaf({1, 5, 2, 8}), k = leaf({1, 5, 1, 8}).detach(), v = leaf({1, 5, 1, 8});
  const at::Tensor out = causal_attention(q, k, v);
  torch::autograd::backward({out.sum()}, {}, /*retain_graph=*/true);
  EXPECT_TRUE(q.grad().defined());
  EXPECT_TRUE(v.grad().defined());
  EXPECT_THROW(torch::autograd::backward({out.sum()}), c10::Error);
  const c10::AutoGradMode without_grad(false);
  EXPECT_TRUE(same_bits(causal_attention(q, k, v), out.detach()));
}

TEST(StrictDeterminism, TurnsWarnOnlyOffForATimeWhereDeterminismIsAskedFor) {
  at::Context& context = at::globalContext();
  for (const bool warns_only : {true, false}) {
    context.setDeterministicAlgorithms(true, warns_only);
    {
      const StrictDeterminism strict;
      EXPECT_TRUE(context.deterministicAlgorithms());
      EXPECT_FALSE(context.deterministicAlgorithmsWarnOnly());
    }
    EXPECT_EQ(context.deterministicAlgorithmsWarnOnly(), warns_only);
  }
  context.setDeterministicAlgorithms(false, false);
  const StrictDeterminism strict;
  EXPECT_FALSE(context.deterministicAlgorithms());
}

TEST_F(EmulatedGpu, RotaryTableIsTheCpus) {
  const at::Tensor frequencies = at::pow(1e-4, at::arange(0, 1, 0.125, at::kFloat));
  const RotaryTable ours = make_rotary_table(frequencies, 50, at::kBFloat16, 1.25);
  set_gpu_kernels(nullptr);
  const RotaryTable theirs = make_rotary_table(frequencies, 50, at::kBFloat16, 1.25);
  EXPECT_LE(relative_difference(ours.cosine_tr2, theirs.cosine_tr2), 4e-3);
  EXPECT_LE(relative_difference(ours.sine_tr2, theirs.sine_tr2), 4e-3);
}

TEST_F(EmulatedGpu, AGrowingRotaryTableIsTheCpus) {
  const at::Tensor frequencies = at::pow(1e-4, at::arange(0, 1, 0.125, at::kFloat));
  const RotaryTable ours = *growing_table(make_rotary_table(frequencies, 50, at::kBFloat16, 1), 0.5, 16, at::kBFloat16);
  set_gpu_kernels(nullptr);
  const RotaryTable theirs =
      *growing_table(make_rotary_table(frequencies, 50, at::kBFloat16, 1), 0.5, 16, at::kBFloat16);
  EXPECT_LE(relative_difference(ours.cosine_tr2, theirs.cosine_tr2), 4e-3);
  EXPECT_LE(relative_difference(ours.sine_tr2, theirs.sine_tr2), 4e-3);
}

// Rows are added to the gradient of a leaf that has one. Any other weight gets a dense gradient.
TEST_F(EmulatedGpu, EmbeddingAddsRowsToTheLeafsGradientInPlace) {
  const at::Tensor ids = at::tensor({4, 1, 4, 4, 0, 2}, at::kLong).view({2, 3});
  const at::Tensor weight = leaf({6, 5}, at::kBFloat16), grad = at::randn({2, 3, 5}).to(at::kBFloat16);
  weight.set_grad_dtype(at::kFloat);
  const at::Tensor accumulator = at::ones({6, 5});
  weight.mutable_grad() = accumulator;
  torch::autograd::backward({embed(weight, ids, /*padding_id=*/2)}, {grad});
  EXPECT_TRUE(weight.grad().is_alias_of(accumulator));
  at::Tensor rows = at::zeros({6, 5});
  for (const std::int64_t place : {0, 1, 2, 3, 4})
    rows[ids.view({-1})[place].item<std::int64_t>()].add_(grad.view({6, 5})[place]);
  EXPECT_TRUE(same_bits(accumulator, rows + 1));

  const at::Tensor other = leaf({6, 5});
  torch::autograd::backward({embed(other * 1.0, ids, 2)}, {grad.to(at::kFloat)});
  EXPECT_LE(relative_difference(other.grad(), rows), 1e-6);
}

TEST_F(EmulatedGpu, IdsOutsideTheVocabularyBecomeNotANumber) {
  const at::Tensor y = embed(leaf({6, 5}), at::tensor({1, 6, -1}, at::kLong).view({1, 3})).detach();
  EXPECT_TRUE(y[0][0].isfinite().all().item<bool>());
  EXPECT_TRUE(y.narrow(1, 1, 2).isnan().all().item<bool>());
}

// Loss

LossCase loss_case(at::ScalarType dtype) {
  LossCase c = {leaf({3, 17, 24}, dtype), leaf({101, 24}, dtype), at::randint(101, {3, 17}, at::kLong)};
  c.labels_bt.narrow(1, 3, 6).fill_(-100);
  return c;
}

TEST_F(EmulatedGpu, LossAgreesWithWholeLogitsForAnyChunkAndFactor) {
  for (const auto& [dtype, tolerance] : kDtypes) {
    for (const std::int64_t chunk_tokens : {0, 51, 20, 8, 1}) {
      for (const double factor : {1.0, -2.5}) {
        const LossCase c = loss_case(dtype);
        const std::vector<at::Tensor> expected = plain_loss(c, 33, factor);
        const at::Tensor loss = our_loss(c, 33, chunk_tokens);
        torch::autograd::backward({factor == 1.0 ? loss : loss * factor});
        EXPECT_LE(relative_difference(loss.detach(), expected[0]), tolerance) << chunk_tokens;
        EXPECT_LE(relative_difference(c.hidden_bth.grad(), expected[1]), tolerance) << chunk_tokens;
        EXPECT_LE(relative_difference(c.weight_vh.grad(), expected[2]), tolerance) << chunk_tokens;
      }
    }
  }
}

// The weight of the head is bound as in the runtime.
TEST_F(EmulatedGpu, LossAddsToAGradientThatTheHeadsWeightHas) {
  for (const auto& [dtype, tolerance] : kDtypes) {
    for (const std::int64_t chunk_tokens : {51, 20}) {
      const LossCase c = loss_case(dtype);
      const std::vector<at::Tensor> expected = plain_loss(c, 33, 2);
      const at::Tensor accumulator = at::ones(c.weight_vh.sizes());
      c.weight_vh.set_grad_dtype(at::kFloat);
      c.weight_vh.mutable_grad() = accumulator;
      torch::autograd::backward({our_loss(c, 33, chunk_tokens) * 2});
      EXPECT_TRUE(c.weight_vh.grad().is_alias_of(accumulator));
      EXPECT_LE(relative_difference(accumulator - 1, expected[2]), tolerance) << chunk_tokens;
      EXPECT_LE(relative_difference(c.hidden_bth.grad(), expected[1]), tolerance) << chunk_tokens;
    }
  }
}

TEST_F(EmulatedGpu, LossWithZLossAndCappedLogitsGivesTheValuesOfWholeLogits) {
  const CausalLmLossSettings settings{.logit_softcap = 3, .z_loss = 0.1};
  for (const auto& [dtype, tolerance] : kDtypes) {
    for (const std::int64_t chunk_tokens : {7, 2048}) {
      const LossCase c = loss_case(dtype);
      const std::vector<at::Tensor> expected = plain_loss(c, 33, 1, settings);
      const Tensors losses = causal_lm_loss_of({c.hidden_bth, c.weight_vh}, {c.labels_bt, at::scalar_tensor(33.0)},
                                               settings, chunk_tokens);
      torch::autograd::backward({losses.at(0) + losses.at(1)});
      EXPECT_LE(relative_difference(losses[0].detach(), expected[0]), tolerance);
      EXPECT_LE(relative_difference(losses[1], expected[3]), tolerance);
      EXPECT_LE(relative_difference(c.hidden_bth.grad(), expected[1]), 2 * tolerance);
      EXPECT_LE(relative_difference(c.weight_vh.grad(), expected[2]), 2 * tolerance);
    }
  }
}

// A probability divided by the divisor would be 0 in fp16, and the loss scale is applied only in
// the backward pass.
TEST_F(EmulatedGpu, Fp16GradientsOfManyTokensKeepTheirSmallProbabilities) {
  const LossCase c = loss_case(at::kHalf);
  c.hidden_bth.detach().mul_(0.01);  // all tokens are almost equally probable, and 1 / 101 / 65536 is 0 in fp16
  const std::vector<at::Tensor> expected = plain_loss(c, 65536, 65536);
  torch::autograd::backward({our_loss(c, 65536) * 65536});
  EXPECT_LE(relative_difference(c.hidden_bth.grad(), expected[1]), 3e-3);
  EXPECT_LE(relative_difference(c.weight_vh.grad(), expected[2]), 3e-3);
}

TEST_F(EmulatedGpu, LossOfAFrozenHeadMakesNoGradientForIt) {
  LossCase c = loss_case(at::kFloat);
  c.weight_vh.requires_grad_(false);
  torch::autograd::backward({our_loss(c, 33)});
  EXPECT_FALSE(c.weight_vh.grad().defined());
  c.weight_vh.requires_grad_(true);
  EXPECT_LE(relative_difference(c.hidden_bth.grad(), plain_loss(c, 33, 1)[1]), 3e-6);
}

TEST_F(EmulatedGpu, WrongLabelsAndDivisorsMakeTheLossNotANumberAndHarmNoGradient) {
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf}) {
    LossCase c = loss_case(dtype);
    c.labels_bt[1][14] = 101;
    const at::Tensor loss = our_loss(c, 33);
    EXPECT_TRUE(loss.isnan().item<bool>());
    torch::autograd::backward({loss});
    c.labels_bt[1][14] = -100;
    EXPECT_LE(relative_difference(c.hidden_bth.grad(), plain_loss(c, 33, 1)[1]), 3e-3);
    c = loss_case(dtype);
    const at::Tensor undivided = our_loss(c, 0);
    EXPECT_TRUE(undivided.isnan().item<bool>());
    torch::autograd::backward({undivided});
    EXPECT_EQ(c.hidden_bth.grad().abs().max().item<double>(), 0);
  }
}

TEST_F(EmulatedGpu, SecondBackwardThroughALossIsRefused) {
  const at::Tensor loss = our_loss(loss_case(at::kFloat), 33);
  torch::autograd::backward({loss}, {}, /*retain_graph=*/true);
  EXPECT_THROW(torch::autograd::backward({loss}), c10::Error);
}

TEST_F(EmulatedGpu, EvaluationHasTheTrainingsLoss) {
  const LossCase c = loss_case(at::kFloat);
  const at::Tensor with = our_loss(c, 33).detach();
  const c10::AutoGradMode without_grad(false);
  EXPECT_TRUE(same_bits(our_loss(c, 33), with));
}

TEST_F(EmulatedGpu, TinyLlamaAgreesWithTransformers) {
  const std::map<std::string, at::Tensor> golden = read_safetensors(golden_directory() / "tiny_values.safetensors");
  std::vector<BoundLayer> layers = bound_layers(load(tiny_directory(), at::kFloat));
  const at::Tensor loss = run_layer_by_layer(layers, {golden.at("ids")}, {golden.at("labels"), golden.at("divisor")});
  EXPECT_LE(relative_difference(loss, golden.at("loss")), 2e-6);
  EXPECT_LE(relative_difference(layers.back().parameters()[1].value.grad(), golden.at("grad.lm_head.weight")), 1e-5);
  EXPECT_LE(relative_difference(layers[0].parameters()[0].value.grad(), golden.at("grad.model.embed_tokens.weight")),
            1e-5);
}

TEST_F(EmulatedGpu, PackedTinyLlamaHasTheLossOfItsDocumentsApartAndWrongLengthsMakeItNotANumber) {
  const std::map<std::string, at::Tensor> golden = read_safetensors(golden_directory() / "tiny_values.safetensors");
  const at::Tensor ids = golden.at("ids"), labels = golden.at("labels").view({1, -1});
  for (const bool wrong : {false, true}) {
    std::vector<BoundLayer> layers = bound_layers(load(tiny_directory(), at::kFloat));
    const at::Tensor documents = at::full({1, ids.size(0)}, ids.size(1) + (wrong ? 1 : 0), at::kLong);
    if (wrong) {
      // Stops where a GPU would differ: here the layers above would read the lengths and throw.
      EXPECT_TRUE(layers[0]({ids.view({1, -1}), documents})[0].isnan().all().item<bool>());
      continue;
    }
    const at::Tensor loss = run_layer_by_layer(layers, {ids.view({1, -1}), documents}, {labels, golden.at("divisor")});
    EXPECT_LE(relative_difference(loss, golden.at("loss")), 2e-6);
    EXPECT_LE(relative_difference(layers.back().parameters()[1].value.grad(), golden.at("grad.lm_head.weight")), 1e-5);
  }
}

}  // namespace
}  // namespace rp::models
