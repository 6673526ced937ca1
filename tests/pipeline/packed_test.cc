// Tests Llama in a pipeline: packed documents, fp16, and calls that are refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "roundpipe/roundpipe.h"
#include "tests/common/expect_refusal.h"
#include "tests/pipeline/tiny_run.h"

namespace rp::test {
namespace {

constexpr std::int64_t kLength = 12;

// Documents of one to twelve tokens with their labels. The last token of each document is not
// trained.
struct TestDocument {
  at::Tensor ids, labels;
};

std::vector<std::vector<TestDocument>> documents_of(const std::vector<std::vector<std::int64_t>>& lengths) {
  std::vector<std::vector<TestDocument>> rows;
  for (const auto& row : lengths) {
    rows.emplace_back();
    for (const std::int64_t length : row) {
      const at::Tensor labels = at::randint(61, {length}, at::kLong);
      labels[length - 1] = -100;
      rows.back().push_back({at::randint(61, {length}, at::kLong), labels});
    }
  }
  return rows;
}

// `rows` are tensors of at most kLength elements each, which are filled up with `filling`.
at::Tensor rows_of(const std::vector<at::Tensor>& rows, std::int64_t filling) {
  const at::Tensor result = at::full({static_cast<std::int64_t>(rows.size()), kLength}, filling, at::kLong);
  for (std::size_t i = 0; i < rows.size(); ++i)
    result[static_cast<std::int64_t>(i)].narrow(0, 0, rows[i].numel()).copy_(rows[i]);
  return result;
}

// The same round in two forms: several documents per row, and one document per row.
struct TwoRounds {
  reference::Round packed, apart;
};

TwoRounds rounds_of(const std::vector<std::vector<std::int64_t>>& lengths) {
  std::vector<at::Tensor> ids, labels, packed_ids, packed_labels;
  const at::Tensor documents = at::zeros({static_cast<std::int64_t>(lengths.size()), 4}, at::kLong);
  const auto rows = documents_of(lengths);
  for (std::size_t row = 0; row < rows.size(); ++row) {
    std::vector<at::Tensor> row_ids, row_labels;
    for (std::size_t i = 0; i < rows[row].size(); ++i) {
      row_ids.push_back(rows[row][i].ids);
      row_labels.push_back(rows[row][i].labels);
      documents[static_cast<std::int64_t>(row)][static_cast<std::int64_t>(i)] = lengths[row][i];
    }
    ids.insert(ids.end(), row_ids.begin(), row_ids.end());
    labels.insert(labels.end(), row_labels.begin(), row_labels.end());
    packed_ids.push_back(at::cat(row_ids));
    packed_labels.push_back(at::cat(row_labels));
  }
  const at::Tensor divisor = at::scalar_tensor(30.0);
  return {.packed = {{rows_of(packed_ids, 7), documents}, {rows_of(packed_labels, -100), divisor}},
          .apart = {{rows_of(ids, 7)}, {rows_of(labels, -100), divisor}}};
}

struct TrainedPacked {
  std::vector<double> losses;
  std::vector<at::Tensor> masters;
};

TrainedPacked train(const TinySettings& settings, const std::vector<reference::Round>& rounds) {
  at::set_num_threads(1);
  TinyRun run(settings);
  TrainedPacked result;
  run.train(rounds, 0, rounds.size(), result.losses);
  for (const ParameterState& parameter : run.pipeline().parameters())
    result.masters.push_back(parameter.master.clone());
  return result;
}

TEST(PackedDocuments, TrainAsTheDocumentsApartDo) {
  at::manual_seed(8);
  std::vector<reference::Round> packed, apart;
  for (const auto& lengths :
       std::vector<std::vector<std::vector<std::int64_t>>>{{{5, 7}, {12}, {3, 1, 4, 2}, {11, 1}},
                                                           {{1, 11}, {6, 6}, {2, 2}, {12}},
                                                           {{4, 4, 4}, {9}, {10, 2}, {7, 3, 1}}}) {
    const TwoRounds rounds = rounds_of(lengths);
    packed.push_back(rounds.packed);
    apart.push_back(rounds.apart);
  }
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    // The model is cut into several stages, so the documents travel with the activations.
    const TinySettings settings{
        .dtype = dtype, .options = {.num_microbatches = 3}, .plan = "forward 0-0 1-1 | fused 2-3 | backward 1-1 0-0"};
    const TrainedPacked ours = train(settings, packed), expected = train(settings, apart);
    for (std::size_t i = 0; i < packed.size(); ++i) {
      EXPECT_NEAR(ours.losses[i], expected.losses[i], (dtype == at::kFloat ? 2e-6 : 2e-3) * expected.losses[i]) << i;
    }
    // AdamW changes each weight by about the learning rate, however small the gradient is. A weight
    // whose gradient's sign depends on rounding therefore differs.
    double difference = 0, moved = 0;
    for (std::size_t i = 0; i < ours.masters.size(); ++i) {
      difference += (ours.masters[i] - expected.masters[i]).abs().sum().item<double>();
      moved += static_cast<double>(ours.masters[i].numel()) * 3e-3;
    }
    EXPECT_LE(difference, (dtype == at::kFloat ? 1e-3 : 0.1) * moved);
  }
}

TEST(PackedDocuments, AreSeenByAttention) {
  at::manual_seed(8);
  const TwoRounds rounds = rounds_of({{5, 7}, {6, 6}});
  const reference::Round blind{{rounds.packed.inputs[0]}, rounds.packed.arguments};
  EXPECT_GT(std::abs(train({.options = {.num_microbatches = 2}}, {rounds.packed}).losses[0] -
                     train({.options = {.num_microbatches = 2}}, {blind}).losses[0]),
            1e-3);
}

TEST(Fp16, WithLossScalingTrainsAsFp32) {
  const std::vector<reference::Round> rounds(8, tiny_rounds(1)[0]);
  const TrainedPacked expected = train({.options = {.num_microbatches = 3}}, rounds);
  const TrainedPacked ours = train(
      {.dtype = at::kHalf, .options = {.num_microbatches = 3, .loss_scaling = LossScaling{.initial_scale = 1024}}},
      rounds);
  EXPECT_LT(ours.losses.back(), ours.losses.front() - 0.05);
  for (std::size_t i = 0; i < rounds.size(); ++i)
    EXPECT_NEAR(ours.losses[i], expected.losses[i], 2e-3 * expected.losses[i]) << i;
}

TEST(WrongTokens, AreRefusedByTheCallAndTheNextOneGoesOn) {
  TinyRun run({.options = {.num_microbatches = 2}});
  const reference::Round good = tiny_rounds(1)[0];
  const at::Tensor ids = good.inputs[0].clone(), labels = good.arguments[0].clone();
  ids[6][1] = 61;
  labels[2][5] = -7;
  const auto call = [&](const at::Tensor& i, const at::Tensor& l) {
    return error_of([&] { (void)run.pipeline().forward_backward({i}, {l, good.arguments[1]}); });
  };
  EXPECT_THAT(call(ids, good.arguments[0]), testing::HasSubstr("token id 61 of sequence 6, position 1, is outside"));
  EXPECT_THAT(call(good.inputs[0], labels), testing::HasSubstr("label -7 of sequence 2, position 5, is neither -100"));
  EXPECT_THAT(error_of([&] { (void)run.pipeline().forward_packed({ids}); }), testing::HasSubstr("token id 61"));
  EXPECT_GT(run.pipeline().forward_backward(good.inputs, good.arguments).loss(), 0);
}

}  // namespace
}  // namespace rp::test
