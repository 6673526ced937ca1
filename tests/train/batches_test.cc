#include "train/batches.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "tests/common/expect_refusal.h"
#include "tests/common/temp_directory.h"
#include "tests/train/token_file_bytes.h"

namespace rp {
namespace {

using Tokens = std::vector<std::int64_t>;
constexpr std::int64_t kNo = kNotTrained;

class BatchesTest : public ::testing::Test {
 protected:
  TokenFile open(const TokenFileContent& content) {
    return TokenFile::open(directory_.write("data", content.bytes()), 100);
  }

  // Thirty chats of one context token, i, and its trained answer, i + 50.
  TokenFile thirty_chats() {
    std::vector<TokenFileContent::Document> documents;
    for (std::uint32_t i = 0; i < 30; ++i) documents.push_back({{i, i + 50}, {0, 1}});
    return open(TokenFileContent(documents, 1));
  }

  const TempDirectory directory_;
};

TEST_F(BatchesTest, AShortDocumentIsPaddedAndItsLabelsAreTheNextTokensThatAreTrained) {
  const TokenFile file = open(TokenFileContent({{{5, 6, 7, 8}, {0, 0, 1, 1}}}, 1));
  BatchSource source(file, 6, 1, 1);
  const TokenBatch batch = source.next();
  EXPECT_EQ(batch.tokens, (Tokens{5, 6, 7, 8, 0, 0}));
  EXPECT_EQ(batch.labels, (Tokens{kNo, 7, 8, kNo, kNo, kNo}));
  EXPECT_EQ(batch.num_trained, 2);
}

TEST_F(BatchesTest, ALongChatIsTruncatedAndCountedAndOneWithoutATrainedLabelIsDropped) {
  const TokenFile file = open(TokenFileContent({{{1, 2, 3, 4, 5}, {0, 0, 1, 1, 1}},
                                                {{6, 7, 8, 9, 10}, {0, 0, 0, 0, 1}},
                                                {{11}, {1}},
                                                {{12, 13, 14, 15}, {0, 1, 1, 1}}},
                                               1));
  BatchSource source(file, 3, 2, 1);
  EXPECT_EQ(source.counts().sequences, 2U);
  EXPECT_EQ(source.counts().truncated, 2U);
  EXPECT_EQ(source.counts().dropped, 2U);
  TokenBatch batch = source.next();
  std::map<std::int64_t, Tokens> labels_of = {{batch.tokens[0], Tokens(batch.labels.begin(), batch.labels.begin() + 3)},
                                              {batch.tokens[3], Tokens(batch.labels.begin() + 3, batch.labels.end())}};
  EXPECT_EQ(labels_of[1], (Tokens{kNo, 3, 4}));
  EXPECT_EQ(labels_of[12], (Tokens{13, 14, 15}));
}

TEST_F(BatchesTest, LongTextIsCutSoThatEveryTokenButTheFirstIsALabelOnce) {
  for (std::uint32_t length = 2; length < 12; ++length) {
    TokenFileContent::Document document;
    for (std::uint32_t i = 0; i < length; ++i) document.tokens.push_back(i + 1);
    document.mask.assign(length, 1);
    const TokenFile file = open(TokenFileContent({document}, 0));
    const BatchSource counted(file, 3, 1, 1);
    BatchSource source(file, 3, static_cast<std::int64_t>(counted.counts().sequences), 1);
    TokenBatch batch = source.next();
    EXPECT_EQ(batch.num_trained, length - 1);
    std::sort(batch.labels.begin(), batch.labels.end());
    Tokens expected;
    for (std::int64_t label = 2; label <= length; ++label) expected.push_back(label);
    EXPECT_EQ(Tokens(batch.labels.end() - (length - 1), batch.labels.end()), expected) << length;
    EXPECT_EQ(source.counts().dropped, 0U);
  }
}

TEST_F(BatchesTest, EachEpochHasEverySequenceOnceInAnotherOrder) {
  const TokenFile file = thirty_chats();
  BatchSource source(file, 2, 30, 5);
  const TokenBatch first = source.next();
  EXPECT_EQ(source.epoch(), 1U);
  const TokenBatch second = source.next();
  EXPECT_NE(first.tokens, second.tokens);
  auto a = first.tokens, b = second.tokens;
  std::sort(a.begin(), a.end());
  std::sort(b.begin(), b.end());
  EXPECT_EQ(a, b);
  BatchSource other_seed(file, 2, 30, 6);
  EXPECT_NE(other_seed.next().tokens, first.tokens);
}

TEST_F(BatchesTest, ASourceGoesOnAtACursorAlsoInTheMiddleOfAnEpochAndWithAnotherBatchSize) {
  const TokenFile file = thirty_chats();
  BatchSource source(file, 2, 7, 5);
  for (int i = 0; i < 3; ++i) (void)source.next();
  EXPECT_EQ(source.cursor(), 21U);
  BatchSource resumed(file, 2, 14, 5);
  resumed.seek(21);
  const TokenBatch both = resumed.next();  // spans two epochs
  Tokens one_by_one = source.next().tokens;
  const TokenBatch next = source.next();
  one_by_one.insert(one_by_one.end(), next.tokens.begin(), next.tokens.end());
  EXPECT_EQ(both.tokens, one_by_one);
  EXPECT_EQ(resumed.cursor(), source.cursor());
}

TEST_F(BatchesTest, DataWithoutOneTrainedLabelInReachIsRefused) {
  const TokenFile file = open(TokenFileContent({{{1, 2, 3, 4, 5}, {1, 0, 0, 0, 1}}}, 1));
  expect_refusal({"data", "first 3", "raise the sequence length"}, [&] { BatchSource(file, 3, 1, 1); });
}

}  // namespace
}  // namespace rp
