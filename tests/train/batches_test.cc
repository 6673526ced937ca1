#include "train/data/batches.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/common/temp_directory.h"
#include "tests/train/token_file_bytes.h"

namespace rp {
namespace {

using Tokens = std::vector<std::int64_t>;

// Thirty sequences, one chat each. Chat i consists of the context token i and the trained answer i
// + 50.
class BatchesTest : public ::testing::TestWithParam<bool> {
 protected:
  BatchesTest()
      : file_(TokenFile::open(directory_.write("data", content().bytes()), 100)),
        sequences_(file_, numbers(), 2, GetParam()) {}

  static std::vector<std::uint64_t> numbers() {
    std::vector<std::uint64_t> result(30);
    std::iota(result.begin(), result.end(), 0);
    return result;
  }
  static TokenFileContent content() {
    std::vector<TokenFileContent::Document> documents;
    for (std::uint32_t i = 0; i < 30; ++i) documents.push_back({{i, i + 50}, {0, 1}});
    return TokenFileContent(documents, 1);
  }

  const TempDirectory directory_;
  const TokenFile file_;
  const Sequences sequences_;
};

TEST_P(BatchesTest, EachEpochHasEverySequenceOnceInAnotherOrder) {
  const auto size = static_cast<std::int64_t>(sequences_.size());
  BatchSource source(sequences_, size, 5);
  const TokenBatch first = source.next();
  EXPECT_EQ(source.epoch(), 1U);
  const TokenBatch second = source.next();
  EXPECT_NE(first.tokens, second.tokens);
  auto a = first.tokens, b = second.tokens;
  std::sort(a.begin(), a.end());
  std::sort(b.begin(), b.end());
  EXPECT_EQ(a, b);
  BatchSource other_seed(sequences_, size, 6);
  EXPECT_NE(other_seed.next().tokens, first.tokens);
}

TEST_P(BatchesTest, ASourceGoesOnAtACursorAlsoInTheMiddleOfAnEpochAndWithAnotherBatchSize) {
  BatchSource source(sequences_, 7, 5);
  for (int i = 0; i < 3; ++i) (void)source.next();
  EXPECT_EQ(source.cursor(), 21U);
  BatchSource resumed(sequences_, 14, 5);
  resumed.seek(21);
  const TokenBatch both = resumed.next();  // spans two epochs
  Tokens one_by_one = source.next().tokens;
  const TokenBatch next = source.next();
  one_by_one.insert(one_by_one.end(), next.tokens.begin(), next.tokens.end());
  EXPECT_EQ(both.tokens, one_by_one);
  EXPECT_EQ(resumed.cursor(), source.cursor());
}

INSTANTIATE_TEST_SUITE_P(PaddedAndPacked, BatchesTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Packed" : "Padded"; });

}  // namespace
}  // namespace rp
