#include "hoststore/round_table.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <set>
#include <vector>

namespace rp {
namespace {

struct Table {
  explicit Table(const RoundShape& shape)
      : memory(RoundTable::bytes(shape) / 8 + 1, ~std::uint64_t{0}),
        table(RoundTable::create(reinterpret_cast<std::byte*>(memory.data()), shape)) {}
  std::vector<std::uint64_t> memory;
  RoundTable table;
};

std::vector<std::pair<BlockKind, int>> rows(int num_layers) {
  std::vector<std::pair<BlockKind, int>> result;
  for (int i = 0; i <= num_layers; ++i)
    result.insert(result.end(), {{BlockKind::kActivation, i}, {BlockKind::kGradient, i}});
  for (int i = 0; i < num_layers; ++i)
    result.insert(result.end(), {{BlockKind::kRecompute, i}, {BlockKind::kBuffers, i}});
  for (int i = 0; i < kMaxImports; ++i)
    result.insert(result.end(), {{BlockKind::kInputImport, i}, {BlockKind::kArgumentImport, i}});
  result.emplace_back(BlockKind::kArguments, 0);
  return result;
}

// docs/formats/control.md defines these offsets, because other processes read these bytes.
TEST(RoundTable, HasTheDocumentedOffsetsAndSizes) {
  EXPECT_EQ(sizeof(RoundShape), 16U);
  EXPECT_EQ(sizeof(BlockPlace), 32U);
  EXPECT_EQ(sizeof(InputSource), 16U);
  EXPECT_EQ(sizeof(BlockOrigin), 24U);
  EXPECT_EQ(sizeof(LossRecord), 64U);
  EXPECT_EQ(sizeof(LayerTime), 24U);
  EXPECT_EQ(sizeof(LayerMemory), 56U);
  const std::uint64_t num_rows = 4 * 5 + 2 + 1 + 2 * 8;
  const Table t({.num_layers = 5, .num_microbatches = 3, .num_uses = 7});
  const auto offset = [&t](const void* place) {
    return static_cast<std::uint64_t>(static_cast<const std::byte*>(place) -
                                      reinterpret_cast<const std::byte*>(t.memory.data()));
  };
  const std::uint64_t sources = 16 + 32 * num_rows * 3;
  EXPECT_EQ(offset(&t.table.place(BlockKind::kActivation, 0, 0)), 16U);
  EXPECT_EQ(offset(&t.table.place(BlockKind::kGradient, 1, 2)), 16U + 32 * (7 * 3 + 2));
  EXPECT_EQ(offset(&t.table.source(BlockKind::kActivation, 0)), sources);
  EXPECT_EQ(offset(&t.table.origin(BlockKind::kActivation, 0)), sources + 16 * num_rows);
  EXPECT_EQ(offset(&t.table.loss(0)), sources + 40 * num_rows);
  EXPECT_EQ(offset(&t.table.square_sum(UseId(0))), sources + 40 * num_rows + 64 * 3);
  EXPECT_EQ(offset(&t.table.layer_time(0)), sources + 40 * num_rows + 64 * 3 + 8 * 7);
  EXPECT_EQ(offset(&t.table.layer_memory(1)), sources + 40 * num_rows + 64 * 3 + 8 * 7 + 24 * 5 + 56);
  EXPECT_EQ(RoundTable::bytes(t.table.shape()), sources + 40 * num_rows + 64 * 3 + 8 * 7 + 24 * 5 + 56 * 5);
}

TEST(RoundTable, HasItsChecksumsBehindAllElseAndNoBytesForThemIfItIsNotChecked) {
  const RoundShape plain{.num_layers = 5, .num_microbatches = 3, .num_uses = 7};
  RoundShape shape = plain;
  shape.is_checked = 1;
  const std::uint64_t num_rows = 4 * 5 + 2 + 1 + 2 * 8;
  const Table t(shape);
  const auto offset = [&t](const void* place) {
    return static_cast<std::uint64_t>(static_cast<const std::byte*>(place) -
                                      reinterpret_cast<const std::byte*>(t.memory.data()));
  };
  const std::uint64_t checksums = RoundTable::bytes(plain);
  EXPECT_EQ(offset(&t.table.checksum(BlockKind::kActivation, 0, 0)), checksums);
  EXPECT_EQ(offset(&t.table.gradient_checksum(UseId(0))), checksums + 8 * num_rows * 3);
  EXPECT_EQ(offset(&t.table.weights_seen(UseId(0), false)), checksums + 8 * num_rows * 3 + 8 * 7);
  EXPECT_EQ(offset(&t.table.weights_seen(UseId(3), true)), checksums + 8 * num_rows * 3 + 8 * 7 + 16 * 7);
  EXPECT_EQ(RoundTable::bytes(shape), checksums + 8 * num_rows * 3 + 8 * 7 + 2 * 16 * 7);
}

TEST(RoundTable, HasAPlaceOfItsOwnForEachFact) {
  const Table t({.num_layers = 3, .num_microbatches = 4, .num_uses = 2, .is_checked = 1});
  std::set<const void*> places;
  std::size_t num = 0;
  const auto add = [&](const void* place) {
    places.insert(place);
    ++num;
  };
  for (const auto& [kind, index] : rows(3)) {
    for (int m = 0; m < 4; ++m) {
      add(&t.table.place(kind, index, m));
      add(&t.table.checksum(kind, index, m));
    }
    add(&t.table.source(kind, index));
    add(&t.table.origin(kind, index));
  }
  for (int m = 0; m < 4; ++m) add(&t.table.loss(m));
  for (const UseId use : {UseId(0), UseId(1)}) {
    add(&t.table.square_sum(use));
    add(&t.table.gradient_checksum(use));
    add(&t.table.weights_seen(use, false));
    add(&t.table.weights_seen(use, true));
  }
  for (int layer = 0; layer < 3; ++layer) {
    add(&t.table.layer_time(layer));
    add(&t.table.layer_memory(layer));
  }
  EXPECT_EQ(places.size(), num);
}

TEST(RoundTable, BeginsWithoutAnyBlockWhateverLayThereBefore) {
  const Table t({.num_layers = 3, .num_microbatches = 2, .num_uses = 2});
  for (const auto& [kind, index] : rows(3)) {
    EXPECT_EQ(t.table.place(kind, index, 1).bytes, 0U);
    EXPECT_EQ(t.table.source(kind, index).worker, -1);
    EXPECT_EQ(t.table.origin(kind, index).table_bytes, 0U);
  }
  EXPECT_EQ(t.table.loss(1).num, 0U);
}

TEST(RoundTableDeathTest, RefusesRowsThatItDoesNotHave) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const Table t({.num_layers = 3, .num_microbatches = 2, .num_uses = 2});
  EXPECT_DEATH((void)t.table.place(BlockKind::kActivation, 4, 0), "index");
  EXPECT_DEATH((void)t.table.place(BlockKind::kBuffers, 3, 0), "index");
  EXPECT_DEATH((void)t.table.place(BlockKind::kActivation, 3, 2), "microbatch");
}

}  // namespace
}  // namespace rp
