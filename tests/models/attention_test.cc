#include "models/layers/attention/attention.h"

#include <gtest/gtest.h>

#include "kernels/blocked_attention.h"
#include "kernels/gpu_kernels.h"
#include "models/layers/attention/blocked_attention.h"
#include "tests/models/golden.h"

namespace rp::models {
namespace {

struct Inputs {
  at::Tensor q, k, v, grad_out;
};

// `e`: the size of a head of values; 0: d.
Inputs make_inputs(std::int64_t b, std::int64_t t, std::int64_t n, std::int64_t m, std::int64_t d, at::ScalarType dtype,
                   std::int64_t e = 0) {
  at::manual_seed(9);
  if (e == 0) e = d;
  const auto leaf = [&](std::int64_t heads, std::int64_t size) {
    return at::randn({b, t, heads, size}).to(dtype).requires_grad_(true);
  };
  return {leaf(n, d), leaf(m, d), leaf(m, e), at::randn({b, t, n, e}).to(dtype)};
}

// Computes the formula with complete scores, in fp64. Returns {out, grad q, grad k, grad v}, and
// the gradient of the sinks if there are any.
std::vector<at::Tensor> by_formula(const Inputs& in, const AttentionRule& rule = {}) {
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& x : {in.q, in.k, in.v}) leaves.push_back(x.detach().to(at::kDouble).requires_grad_(true));
  if (rule.sinks_n.defined()) leaves.push_back(rule.sinks_n.detach().to(at::kDouble).requires_grad_(true));
  const std::int64_t t = in.q.size(1), members = in.q.size(2) / in.k.size(2);
  const at::Tensor k = leaves[1].repeat_interleave(members, 2), v = leaves[2].repeat_interleave(members, 2);
  const at::Tensor products = at::einsum("btnd,bsnd->bnts", {leaves[0], k});
  at::Tensor hidden = at::ones({t, t}, at::kBool).triu(1);
  if (rule.window > 0) hidden = hidden.logical_or(at::ones({t, t}, at::kBool).tril(-rule.window));
  at::Tensor scores =
      (products * rule.scale.value_or(1 / std::sqrt(static_cast<double>(in.q.size(3))))).masked_fill(hidden, -INFINITY);
  if (rule.sinks_n.defined())
    scores = at::cat({scores, leaves[3].view({1, -1, 1, 1}).expand({in.q.size(0), -1, t, 1})}, -1);
  const at::Tensor out = at::einsum("bnts,bsnd->btnd", {scores.softmax(-1).narrow(-1, 0, t), v});
  torch::autograd::backward({out}, {in.grad_out.to(at::kDouble)});
  std::vector<at::Tensor> values = {out.detach()};
  for (const at::Tensor& leaf : leaves) values.push_back(leaf.grad());
  return values;
}

std::vector<at::Tensor> ours(const Inputs& in, const AttentionRule& rule = {}) {
  std::vector<at::Tensor> leaves = {in.q, in.k, in.v};
  if (rule.sinks_n.defined()) leaves.push_back(rule.sinks_n);
  for (const at::Tensor& leaf : leaves) leaf.mutable_grad() = at::Tensor();
  const at::Tensor out = causal_attention(in.q, in.k, in.v, rule);
  torch::autograd::backward({out}, {in.grad_out});
  std::vector<at::Tensor> values = {out.detach()};
  for (const at::Tensor& leaf : leaves) values.push_back(leaf.grad());
  return values;
}

// Like a layer's parameter, they have an fp32 gradient.
at::Tensor make_sinks(std::int64_t n, at::ScalarType dtype) {
  at::manual_seed(10);
  at::Tensor sinks = at::randn({n}).to(dtype).requires_grad_(true);
  sinks.set_grad_dtype(at::kFloat);
  return sinks;
}

class Attention : public testing::TestWithParam<at::ScalarType> {
 protected:
  static double tolerance() { return GetParam() == at::kFloat ? 3e-6 : GetParam() == at::kHalf ? 1.5e-3 : 1.5e-2; }
};

// The lengths are around the size of a tile, 64.
TEST_P(Attention, AgreesWithItsFormulaAtEveryBorderOfATile) {
  for (const std::int64_t t : {1, 2, 17, 63, 64, 65, 127, 128, 129, 200}) {
    for (const std::int64_t d : {8, 64}) {
      const Inputs in = make_inputs(2, t, 6, 2, d, GetParam());
      const std::vector<at::Tensor> actual = ours(in), expected = by_formula(in);
      for (std::size_t i = 0; i < actual.size(); ++i) {
        // With one position, only its value has a gradient.
        if (t == 1 && (i == 1 || i == 2)) continue;
        EXPECT_LE(relative_difference(actual[i], expected[i]), tolerance())
            << "t " << t << ", d " << d << ", value " << i;
      }
    }
  }
}

TEST_P(Attention, HeadsWithoutGroupsAndOneGroupForAllWorkToo) {
  for (const std::int64_t m : {1, 4}) {
    const Inputs in = make_inputs(1, 70, 4, m, 16, GetParam());
    const std::vector<at::Tensor> actual = ours(in), expected = by_formula(in);
    for (std::size_t i = 0; i < 4; ++i) EXPECT_LE(relative_difference(actual[i], expected[i]), tolerance()) << i;
  }
}

// The sizes are those of DeepSeek V3, others that need no padding of pairs, and odd ones, which LibTorch
// computes. On the code path of a GPU the smaller one is padded.
TEST_P(Attention, ValuesMayHaveAnotherSizeThanQueries) {
  const at::Tensor documents = at::tensor({64, 1, 30, 130, 0, 0}, at::kLong).view({2, 3});
  for (const auto& [d, e] : std::vector<std::pair<std::int64_t, std::int64_t>>{{192, 128}, {6, 16}, {7, 16}, {16, 5}}) {
    const Inputs in = make_inputs(2, 130, 4, 2, d, GetParam(), e);
    const std::vector<at::Tensor> expected = by_formula(in);
    const std::vector<at::Tensor> packed = ours(in, {.documents_bk = documents});
    GpuKernels table;
    table.takes_cpu_memory = true;
    for (const bool on_gpu : {false, true}) {
      set_gpu_kernels(on_gpu ? &table : nullptr);
      const std::vector<at::Tensor> actual = ours(in), by_document = ours(in, {.documents_bk = documents});
      set_gpu_kernels(nullptr);
      ASSERT_EQ(actual[0].sizes(), (std::vector<std::int64_t>{2, 130, 4, e}));
      for (std::size_t i = 0; i < actual.size(); ++i) {
        EXPECT_LE(relative_difference(actual[i], expected[i]), tolerance())
            << "d " << d << ", e " << e << ", value " << i << (on_gpu ? " as on a GPU" : "");
        EXPECT_LE(relative_difference(by_document[i], packed[i]), tolerance())
            << "d " << d << ", e " << e << ", value " << i << (on_gpu ? " as on a GPU" : "");
      }
    }
  }
}

// The windows have one position, about the size of a tile, or more than the sequence. Heads of
// size 7 are computed by LibTorch.
TEST_P(Attention, WindowsAgreeWithTheFormulaAtEveryBorderOfATile) {
  for (const std::int64_t window : {1, 2, 15, 63, 64, 65, 130, 500}) {
    for (const std::int64_t t : {1, 64, 65, 200}) {
      for (const std::int64_t d : {7, 16}) {
        const Inputs in = make_inputs(2, t, 4, 2, d, GetParam());
        const std::vector<at::Tensor> actual = ours(in, {.window = window}),
                                      expected = by_formula(in, {.window = window});
        for (std::size_t i = 0; i < actual.size(); ++i) {
          if ((t == 1 || window == 1) && (i == 1 || i == 2)) continue;
          EXPECT_LE(relative_difference(actual[i], expected[i]), tolerance())
              << "window " << window << ", t " << t << ", d " << d << ", value " << i;
        }
      }
    }
  }
}

TEST_P(Attention, SinksTakeProbabilityAndHaveGradients) {
  for (const std::int64_t window : {0, 20}) {
    for (const std::int64_t d : {7, 16}) {
      const Inputs in = make_inputs(3, 150, 4, 2, d, GetParam());
      const AttentionRule rule{.scale = 0.4, .window = window, .sinks_n = make_sinks(4, GetParam())};
      const std::vector<at::Tensor> actual = ours(in, rule), expected = by_formula(in, rule);
      ASSERT_EQ(actual.size(), 5U);
      EXPECT_EQ(actual[4].scalar_type(), at::kFloat);
      for (std::size_t i = 0; i < actual.size(); ++i) {
        EXPECT_LE(relative_difference(actual[i], expected[i]), tolerance())
            << "window " << window << ", d " << d << ", value " << i;
      }
    }
  }
}

TEST_P(Attention, ASinkFarAboveAllScoresLeavesNothing) {
  const Inputs in = make_inputs(1, 80, 2, 1, 16, GetParam());
  const std::vector<at::Tensor> actual =
      ours(in, {.sinks_n = at::full({2}, 300.0).to(GetParam()).requires_grad_(true)});
  for (const at::Tensor& value : actual) EXPECT_TRUE(value.abs().max().item<float>() < 1e-6F);
}

TEST_P(Attention, LargeScoresNeitherOverflowNorLoseTheLargest) {
  Inputs in = make_inputs(1, 80, 2, 1, 16, GetParam());
  in.q = (in.q.detach() * 100).requires_grad_(true);
  const std::vector<at::Tensor> actual = ours(in), expected = by_formula(in);
  EXPECT_LE(relative_difference(actual[0], expected[0]), GetParam() == at::kFloat ? 1e-4 : 2e-2);
}

TEST_P(Attention, GivesTheSameBitsWithAnyNumberOfThreads) {
  const Inputs in = make_inputs(2, 100, 6, 3, 16, GetParam());
  const AttentionRule rule{.window = 30, .sinks_n = make_sinks(6, GetParam())};
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  const std::vector<at::Tensor> one = ours(in, rule);
  at::set_num_threads(3);
  const std::vector<at::Tensor> three = ours(in, rule);
  at::set_num_threads(before);
  for (std::size_t i = 0; i < 5; ++i) EXPECT_TRUE(same_bits(one[i], three[i])) << i;
}

TEST_P(Attention, RestOfASequenceIsSeenByNoEarlierPosition) {
  const Inputs in = make_inputs(1, 90, 2, 2, 8, GetParam());
  const at::Tensor whole = causal_attention(in.q, in.k, in.v).detach();
  at::Tensor k = in.k.detach().clone();
  k.narrow(1, 70, 20).fill_(std::numeric_limits<float>::quiet_NaN());
  const at::Tensor damaged = causal_attention(in.q, k, in.v).detach();
  EXPECT_TRUE(same_bits(whole.narrow(1, 0, 70), damaged.narrow(1, 0, 70)));
}

// Returns `count` positions of one row, starting with `first`.
Inputs part_of(const Inputs& in, std::int64_t row, std::int64_t first, std::int64_t count) {
  const auto part = [&](const at::Tensor& x) { return x.detach().narrow(0, row, 1).narrow(1, first, count).clone(); };
  return {part(in.q).requires_grad_(true), part(in.k).requires_grad_(true), part(in.v).requires_grad_(true),
          part(in.grad_out)};
}

// The lengths are around the size of a tile. There are 200 positions, the last of which may belong
// to no listed document. Windows begin with each document.
TEST_P(Attention, DocumentsOfAPackedRowHaveTheBitsThatTheyHaveAlone) {
  for (const auto& [d, window] : {std::pair<std::int64_t, std::int64_t>{16, 0},
                                  {16, 33},
                                  {7, 0},
                                  {7, 33}}) {  // with size 7, LibTorch computes each document
    const Inputs in = make_inputs(3, 200, 4, 2, d, GetParam());
    const at::Tensor documents =
        at::tensor({64, 1, 0, 63, 65, 5, 130, 0, 0, 0, 0, 0, 0, 200, 0, 0, 0, 0}, at::kLong).view({3, 6});
    const std::vector<at::Tensor> packed = ours(in, {.window = window, .documents_bk = documents});
    const std::vector<std::vector<std::int64_t>> lengths = {{64, 1, 63, 65, 5, 2}, {130, 70}, {200}};
    for (std::size_t row = 0; row < 3; ++row) {
      std::int64_t first = 0;
      for (const std::int64_t length : lengths[row]) {
        const auto r = static_cast<std::int64_t>(row);
        const std::vector<at::Tensor> alone = ours(part_of(in, r, first, length), {.window = window});
        for (std::size_t i = 0; i < alone.size(); ++i) {
          EXPECT_TRUE(same_bits(packed[i].narrow(0, r, 1).narrow(1, first, length), alone[i]))
              << "row " << row << ", document at " << first << ", value " << i << ", d " << d << ", window " << window;
        }
        first += length;
      }
    }
    if (d == 7) continue;  // LibTorch's products of a whole batch may add in another order than those of one row
    const std::vector<at::Tensor> whole = ours(in, {.window = window});
    for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_TRUE(same_bits(packed[i][2], whole[i][2])) << i;
  }
}

// On the code path of a GPU heads of more than 256 elements are computed in blocks.
TEST_P(Attention, LargeHeadsAreComputedInBlocksOnAGpu) {
  GpuKernels table;
  table.takes_cpu_memory = true;
  const at::Tensor documents = at::tensor({30, 1, 39, 0, 0, 0}, at::kLong).view({2, 3});
  for (const auto& [d, e] : std::vector<std::pair<std::int64_t, std::int64_t>>{{264, 264}, {16, 260}, {257, 8}}) {
    const Inputs in = make_inputs(2, 70, 6, 2, d, GetParam(), e);
    for (const AttentionRule& rule : std::vector<AttentionRule>{
             {}, {.scale = 0.1, .window = 9}, {.documents_bk = documents}, {.window = 9, .documents_bk = documents}}) {
      const std::vector<at::Tensor> expected = rule.documents_bk.defined() ? ours(in, rule) : by_formula(in, rule);
      set_gpu_kernels(&table);
      const std::vector<at::Tensor> actual = ours(in, rule);
      set_gpu_kernels(nullptr);
      for (std::size_t i = 0; i < actual.size(); ++i)
        EXPECT_LE(relative_difference(actual[i], expected[i]), tolerance())
            << "d " << d << ", e " << e << ", value " << i;
    }
  }
}

TEST(BlockedAttention, BlocksOfQueriesMeetTheKeysThatTheySee) {
  constexpr std::int64_t kBatch = 4, kHeads = 16, kLength = 1100;
  static_assert(queries_of_a_block(kBatch, kHeads, kLength) * 4 < kLength);
  const Inputs in = make_inputs(kBatch, kLength, kHeads, 4, 6, at::kFloat);
  const at::Tensor documents = at::tensor({300, 700, 1100, 0, 1, 1000, 0, 0}, at::kLong).view({4, 2});
  for (const AttentionRule& rule : std::vector<AttentionRule>{
           {}, {.window = 250}, {.documents_bk = documents}, {.window = 600, .documents_bk = documents}}) {
    const std::vector<at::Tensor> expected = ours(in, rule);
    for (const at::Tensor& leaf : {in.q, in.k, in.v}) leaf.mutable_grad() = at::Tensor();
    const at::Tensor out = blocked_attention(in.q, in.k, in.v, rule);
    torch::autograd::backward({out}, {in.grad_out});
    EXPECT_LE(relative_difference(out, expected[0]), 3e-6) << rule.window;
    EXPECT_LE(relative_difference(in.q.grad(), expected[1]), 3e-6) << rule.window;
    EXPECT_LE(relative_difference(in.k.grad(), expected[2]), 3e-6) << rule.window;
    EXPECT_LE(relative_difference(in.v.grad(), expected[3]), 3e-6) << rule.window;
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, Attention, testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

}  // namespace
}  // namespace rp::models
