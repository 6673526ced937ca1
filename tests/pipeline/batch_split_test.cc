#include "pipeline/batch_split.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pipeline/description/tensors.h"
#include "roundpipe/error.h"

namespace rp {
namespace {

std::string split_error(const Batch& inputs, const Batch& arguments, int num_microbatches) {
  try {
    const BatchSplit split(inputs, {}, arguments, {}, num_microbatches);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kUsage);
    return error.what();
  }
  return "accepted";
}

TEST(BatchSplit, PartsAreAsEqualAsPossibleAndScalarsGoToAll) {
  const BatchSplit split({at::arange(14).view({7, 2})}, {}, {at::arange(7), at::scalar_tensor(2.5)}, {}, 3);
  std::vector<std::int64_t> sizes;
  for (std::size_t m = 0; m < split.blocks().inputs.size(); ++m) {
    sizes.push_back(split.blocks().inputs[m].tensors[0].desc.shape[0]);
    const std::vector<TensorView>& arguments = split.blocks().arguments[m].tensors;
    EXPECT_EQ(arguments[0].desc.shape[0], sizes.back());
    EXPECT_EQ(tensor_over(arguments[1]).item<double>(), 2.5);
  }
  EXPECT_THAT(sizes, testing::ElementsAre(3, 2, 2));
  EXPECT_TRUE(at::equal(tensor_over(split.blocks().inputs[1].tensors[0]), at::arange(6, 10).view({2, 2})));
}

TEST(BatchSplit, TensorsThatAreNotDenseAreCopied) {
  const at::Tensor input = at::arange(12).view({3, 4}).t();  // [4, 3]
  const BatchSplit split({input}, {}, {}, {}, 2);
  EXPECT_TRUE(at::equal(tensor_over(split.blocks().inputs[1].tensors[0]), input.narrow(0, 2, 2)));
}

TEST(BatchSplit, WhatCannotBeSplitIsRefusedWithNumbers) {
  EXPECT_THAT(split_error({at::zeros({3, 2})}, {}, 4),
              testing::HasSubstr("a batch of 3 cannot be split into 4 microbatches"));
  EXPECT_THAT(split_error({at::zeros({4, 2})}, {at::zeros({5})}, 2), testing::HasSubstr("one has 4 and another 5"));
  EXPECT_THAT(split_error({at::zeros({4}, at::kComplexFloat)}, {}, 2), testing::HasSubstr("cannot travel"));
  EXPECT_THAT(split_error({at::scalar_tensor(1.0)}, {}, 2), testing::HasSubstr("no input has a dimension to cut"));
  EXPECT_THAT(split_error({at::zeros({4}), at::zeros({4}, at::kMeta)}, {}, 2),
              testing::HasSubstr("input 1 is on device meta"));
  Batch both(Value(Value::Map{{"labels", at::zeros({4})}}));
  both.tensors.push_back(at::zeros({4}));
  EXPECT_THAT(split_error({at::zeros({4})}, both, 2), testing::HasSubstr("one nested value, or a list of tensors"));
}

TEST(BatchSplit, CutsAlongTheDimensionsThatAreNamed) {
  const at::Tensor wide = at::arange(10).view({2, 5}), all = at::arange(3);
  const BatchSplit split({wide, all}, {.dimensions = {1, Split::kWhole}}, {}, {}, 2);
  EXPECT_TRUE(at::equal(tensor_over(split.blocks().inputs[0].tensors[0]), wide.narrow(1, 0, 3)));
  EXPECT_TRUE(at::equal(tensor_over(split.blocks().inputs[1].tensors[0]), wide.narrow(1, 3, 2)));
  EXPECT_TRUE(at::equal(tensor_over(split.blocks().inputs[1].tensors[1]), all));
  const auto error = [&](std::vector<int> dimensions) {
    try {
      const BatchSplit bad({wide, all}, {.dimensions = std::move(dimensions)}, {}, {}, 2);
    } catch (const Error& refused) {
      return std::string(refused.what());
    }
    return std::string("accepted");
  };
  EXPECT_THAT(error({0}), testing::HasSubstr("1 tensors, but there are 2 inputs"));
  EXPECT_THAT(error({0, 1}), testing::HasSubstr("input 1 along dimension 1, but it has 1"));
}

TEST(BatchSplit, AFunctionOfTheUsersMustGiveAListPerMicrobatch) {
  const auto by = [](std::vector<Tensors> parts) {
    return Split{.dimensions = {}, .function = [parts](const Tensors&, int) { return parts; }};
  };
  const at::Tensor one = at::ones({1}), two = at::ones({2});
  const BatchSplit split({one}, by({{one}, {two}}), {}, {}, 2);
  EXPECT_EQ(split.blocks().inputs[1].tensors[0].desc.shape[0], 2);
  const auto error = [&](std::vector<Tensors> parts) {
    try {
      const BatchSplit bad({one}, by(std::move(parts)), {}, {}, 2);
    } catch (const Error& refused) {
      return std::string(refused.what());
    }
    return std::string("accepted");
  };
  EXPECT_THAT(error({{one}}), testing::HasSubstr("gave 1 lists of inputs for 2 microbatches"));
  EXPECT_THAT(error({{one}, {one, two}}), testing::HasSubstr("lists of different lengths: 1 and 2"));
}

}  // namespace
}  // namespace rp
