#include "train/data/sequences.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "tests/common/expect_refusal.h"
#include "tests/common/temp_directory.h"
#include "tests/train/token_file_bytes.h"

namespace rp {
namespace {

using Tokens = std::vector<std::int64_t>;
constexpr std::int64_t kNo = kNotTrained;
constexpr bool kPacked = true;
constexpr bool kPadded = false;

std::vector<std::uint64_t> all_documents(const TokenFile& file) {
  std::vector<std::uint64_t> documents(file.num_documents());
  std::iota(documents.begin(), documents.end(), 0);
  return documents;
}

TokenBatch all_of(const Sequences& sequences) { return sequences.batch(sequences.in_order(), 0, sequences.size()); }

class SequencesTest : public ::testing::Test {
 protected:
  TokenFile open(const TokenFileContent& content) {
    return TokenFile::open(directory_.write("data", content.bytes()), 100);
  }
  // Opens a file of chats with the given numbers of tokens. All tokens of document i are i. All of
  // them are trained; the first one has no label.
  TokenFile chats(const std::vector<std::uint32_t>& lengths) {
    std::vector<TokenFileContent::Document> documents;
    for (std::uint32_t i = 0; i < lengths.size(); ++i) {
      documents.push_back({std::vector<std::uint32_t>(lengths[i], i), std::vector<std::uint8_t>(lengths[i], 1)});
    }
    return open(TokenFileContent(documents, 1));
  }

  const TempDirectory directory_;
};

TEST_F(SequencesTest, AShortDocumentIsPaddedAndItsLabelsAreTheNextTokensThatAreTrained) {
  const TokenFile file = open(TokenFileContent({{{5, 6, 7, 8}, {0, 0, 1, 1}}}, 1));
  const TokenBatch batch = all_of(Sequences(file, {0}, 6, kPadded));
  EXPECT_EQ(batch.tokens, (Tokens{5, 6, 7, 0, 0, 0}));
  EXPECT_EQ(batch.labels, (Tokens{kNo, 7, 8, kNo, kNo, kNo}));
  EXPECT_TRUE(batch.documents.empty());
  EXPECT_EQ(batch.num_trained, 2);
  EXPECT_EQ(batch.num_tokens, 3);
}

TEST_F(SequencesTest, PackedDocumentsFollowEachOtherWithLengthsThatKeepThemApart) {
  const TokenFile file = open(TokenFileContent(
      {{{5, 6, 7, 8}, {0, 0, 1, 1}}, {{9, 10, 11}, {0, 1, 1}}, {{12, 13, 14, 15, 16}, {1, 1, 1, 1, 1}}}, 1));
  const Sequences sequences(file, all_documents(file), 6, kPacked);
  ASSERT_EQ(sequences.size(), 2U);
  const TokenBatch batch = all_of(sequences);
  EXPECT_EQ(batch.tokens, (Tokens{12, 13, 14, 15, 9, 10, 5, 6, 7, 0, 0, 0}));
  EXPECT_EQ(batch.labels, (Tokens{13, 14, 15, 16, 10, 11, kNo, 7, 8, kNo, kNo, kNo}));
  EXPECT_EQ(batch.documents, (Tokens{4, 2, 3, 0}));
  EXPECT_EQ(batch.num_tokens, 9);
  EXPECT_EQ(batch.num_trained, 8);
  EXPECT_EQ(sequences.counts().tokens, 9U);
  EXPECT_EQ(sequences.counts().trained, 8U);
  EXPECT_EQ(sequences.counts().pieces, 3U);
}

TEST_F(SequencesTest, ALongChatIsTruncatedAndCountedAndOneWithoutATrainedLabelIsDropped) {
  const TokenFile file = open(TokenFileContent({{{1, 2, 3, 4, 5}, {0, 0, 1, 1, 1}},
                                                {{6, 7, 8, 9, 10}, {0, 0, 0, 0, 1}},
                                                {{11}, {1}},
                                                {{12, 13, 14, 15}, {0, 1, 1, 1}}},
                                               1));
  for (const bool is_packed : {kPadded, kPacked}) {
    const Sequences sequences(file, all_documents(file), 3, is_packed);
    EXPECT_EQ(sequences.counts().sequences, 2U);
    EXPECT_EQ(sequences.counts().truncated, 2U);
    EXPECT_EQ(sequences.counts().dropped, 2U);
    const TokenBatch batch = all_of(sequences);
    EXPECT_EQ(batch.labels, (Tokens{kNo, 3, 4, 13, 14, 15}));
  }
}

TEST_F(SequencesTest, LongTextIsCutSoThatEveryTokenButTheFirstIsALabelOnce) {
  for (const bool is_packed : {kPadded, kPacked}) {
    for (std::uint32_t length = 2; length < 12; ++length) {
      TokenFileContent::Document document;
      for (std::uint32_t i = 0; i < length; ++i) document.tokens.push_back(i + 1);
      document.mask.assign(length, 1);
      const TokenFile file = open(TokenFileContent({document}, 0));
      const Sequences sequences(file, {0}, 3, is_packed);
      TokenBatch batch = all_of(sequences);
      EXPECT_EQ(batch.num_trained, length - 1);
      EXPECT_EQ(batch.num_tokens, length - 1);
      std::sort(batch.labels.begin(), batch.labels.end());
      Tokens expected;
      for (std::int64_t label = 2; label <= length; ++label) expected.push_back(label);
      EXPECT_EQ(Tokens(batch.labels.end() - (length - 1), batch.labels.end()), expected) << length;
      EXPECT_EQ(sequences.counts().dropped, 0U);
    }
  }
}

TEST_F(SequencesTest, SequencesBehindTheLastOneAreEmpty) {
  const TokenFile file = chats({4, 4, 3});
  const Sequences sequences(file, all_documents(file), 3, kPacked);
  ASSERT_EQ(sequences.size(), 3U);
  const TokenBatch batch = sequences.batch(sequences.in_order(), 2, 2);
  EXPECT_EQ(batch.labels, (Tokens{2, 2, kNo, kNo, kNo, kNo}));
  EXPECT_EQ(batch.documents, (Tokens{2, 0}));
  EXPECT_EQ(batch.num_tokens, 2);
}

TEST_F(SequencesTest, EachEpochPacksAllDocumentsAgainIntoAsManySequences) {
  std::vector<std::uint32_t> lengths;
  for (std::uint32_t i = 0; i < 60; ++i) lengths.push_back(2 + i % 9);
  const TokenFile file = chats(lengths);
  const Sequences sequences(file, all_documents(file), 20, kPacked);
  std::set<Tokens> seen;
  for (std::uint64_t epoch = 0; epoch < 5; ++epoch) {
    const Packs order = sequences.shuffled(3, epoch);
    EXPECT_EQ(order.size(), sequences.size());
    std::vector<std::uint64_t> items = order.items;
    std::sort(items.begin(), items.end());
    EXPECT_EQ(items, all_documents(file));
    const TokenBatch batch = sequences.batch(order, 0, sequences.size());
    EXPECT_EQ(batch.num_tokens, static_cast<std::int64_t>(sequences.counts().tokens));
    EXPECT_EQ(batch.num_trained, static_cast<std::int64_t>(sequences.counts().trained));
    seen.insert(batch.tokens);
    EXPECT_EQ(sequences.batch(sequences.shuffled(3, epoch), 0, sequences.size()).tokens, batch.tokens);
  }
  EXPECT_EQ(seen.size(), 5U);
}

TEST_F(SequencesTest, PackingFillsNearlyAllOfTheSequences) {
  std::vector<std::uint32_t> lengths;
  for (std::uint32_t i = 0; i < 90; ++i) lengths.push_back(2 + i * 37 % 61);
  const TokenFile file = chats(lengths);
  const SequenceCounts packed = Sequences(file, all_documents(file), 128, kPacked).counts();
  EXPECT_GT(static_cast<double>(packed.tokens), 0.95 * 128.0 * static_cast<double>(packed.sequences));
  EXPECT_EQ(Sequences(file, all_documents(file), 128, kPadded).counts().tokens, packed.tokens);
}

TEST_F(SequencesTest, DataWithoutOneTrainedLabelInReachIsRefused) {
  const TokenFile file = open(TokenFileContent({{{1, 2, 3, 4, 5}, {1, 0, 0, 0, 1}}}, 1));
  expect_refusal({"data", "first 3", "raise the sequence length"}, [&] { Sequences(file, {0}, 3, kPacked); });
}

TEST(DocumentSplitTest, HoldsOutAShareThatDependsOnTheSeedAlone) {
  const DocumentSplit split = split_documents(1000, 0.05, 1);
  EXPECT_EQ(split.held_out.size(), 50U);
  EXPECT_EQ(split.trained.size(), 950U);
  std::vector<std::uint64_t> all = split.trained;
  all.insert(all.end(), split.held_out.begin(), split.held_out.end());
  std::sort(all.begin(), all.end());
  for (std::uint64_t i = 0; i < 1000; ++i) EXPECT_EQ(all[i], i);
  EXPECT_EQ(split_documents(1000, 0.05, 1).held_out, split.held_out);
  EXPECT_NE(split_documents(1000, 0.05, 2).held_out, split.held_out);
}

TEST(DocumentSplitTest, NeverHoldsOutAllNorNoneOfWhatIsAskedFor) {
  EXPECT_EQ(split_documents(3, 0.001, 1).held_out.size(), 1U);
  EXPECT_EQ(split_documents(3, 0.999, 1).trained.size(), 1U);
  EXPECT_EQ(split_documents(3, 0, 1).held_out.size(), 0U);
  EXPECT_EQ(split_documents(1, 0.5, 1).trained.size(), 1U);
}

}  // namespace
}  // namespace rp
