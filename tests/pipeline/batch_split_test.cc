#include "pipeline/batch_split.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pipeline/tensors.h"
#include "roundpipe/error.h"

namespace rp {
namespace {

std::string error_of(const Tensors& inputs, const Tensors& arguments, int num_microbatches) {
  try {
    const BatchSplit split(inputs, arguments, num_microbatches);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kUsage);
    return error.what();
  }
  return "accepted";
}

TEST(BatchSplit, PartsAreAsEqualAsPossibleAndScalarsGoToAll) {
  const BatchSplit split({at::arange(14).view({7, 2})}, {at::arange(7), at::scalar_tensor(2.5)}, 3);
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
  const BatchSplit split({input}, {}, 2);
  EXPECT_TRUE(at::equal(tensor_over(split.blocks().inputs[1].tensors[0]), input.narrow(0, 2, 2)));
}

TEST(BatchSplit, WhatCannotBeSplitIsRefusedWithNumbers) {
  EXPECT_THAT(error_of({at::zeros({3, 2})}, {}, 4), testing::HasSubstr("a batch of 3 cannot be split into 4 microbatches"));
  EXPECT_THAT(error_of({at::zeros({4, 2})}, {at::zeros({5})}, 2), testing::HasSubstr("one has 4 and another 5"));
  EXPECT_THAT(error_of({at::zeros({4}, at::kComplexFloat)}, {}, 2), testing::HasSubstr("cannot travel"));
}

}  // namespace
}  // namespace rp
