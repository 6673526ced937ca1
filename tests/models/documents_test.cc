#include "models/layers/documents.h"

#include <gtest/gtest.h>

#include "roundpipe/error.h"
#include "tests/common/expect_refusal.h"
#include "tests/models/expected_values.h"

namespace rp::models {
namespace {

at::Tensor lengths(std::initializer_list<std::int64_t> values, std::int64_t rows) {
  return at::tensor(std::vector<std::int64_t>(values), at::kLong).view({rows, -1});
}

TEST(Documents, WhatIsLeftOfARowIsOneMoreAndEmptyOnesAreNone) {
  const auto rows = documents_of_rows(lengths({3, 0, 2, 7, 0, 0, 0, 0, 0}, 3), 7);
  const auto as_pairs = [](const std::vector<Document>& row) {
    std::vector<std::pair<std::int64_t, std::int64_t>> result;
    for (const Document& document : row) result.emplace_back(document.first, document.length);
    return result;
  };
  using Pairs = std::vector<std::pair<std::int64_t, std::int64_t>>;
  EXPECT_EQ(as_pairs(rows[0]), (Pairs{{0, 3}, {3, 2}, {5, 2}}));
  EXPECT_EQ(as_pairs(rows[1]), (Pairs{{0, 7}}));
  EXPECT_EQ(as_pairs(rows[2]), (Pairs{{0, 7}}));
}

TEST(Documents, PositionsCountFromTheBeginningOfEach) {
  const at::Tensor positions = document_positions(lengths({3, 0, 2, 7, 0, 0, 0, 0, 0}, 3), 7);
  EXPECT_TRUE(same_bits(positions, lengths({0, 1, 2, 0, 1, 0, 1, 0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4, 5, 6}, 3)));
}

TEST(Documents, BoundsAreThoseOfTheWholeBatch) {
  const at::Tensor bounds = document_bounds(lengths({3, 0, 2, 7, 0, 0}, 2), 7);
  EXPECT_TRUE(same_bits(bounds, at::tensor({0, 3, 3, 5, 7, 14, 14, 14, 14}, at::kInt)));
}

TEST(Documents, WrongLengthsStayWithinTheRowAndAreFound) {
  const at::Tensor wrong = lengths({3, 9, 2, 2, -1, 4, 3, 4, 0}, 3);
  EXPECT_TRUE(same_bits(have_wrong_lengths(wrong, 7), at::tensor({1, 1, 0}, at::kInt).to(at::kBool)));
  const at::Tensor bounds = document_bounds(wrong, 7), positions = document_positions(wrong, 7);
  EXPECT_TRUE(bounds.diff().ge(0).all().item<bool>());
  EXPECT_TRUE(positions.ge(0).logical_and(positions.lt(7)).all().item<bool>());
}

TEST(Documents, WrongLengthsAreRefusedByNameOnTheCpu) {
  expect_error(ExitCode::kUserError, {"document 1 of sequence 1 has length -1", "3 of the sequence's 5 positions"}, [] {
    (void)documents_of_rows(lengths({5, 0, 2, -1}, 2), 5);
  });
  expect_error(ExitCode::kUserError, {"document 1 of sequence 0 has length 4", "3 of the sequence's 5 positions"}, [] {
    (void)documents_of_rows(lengths({2, 4}, 1), 5);
  });
}

}  // namespace
}  // namespace rp::models
