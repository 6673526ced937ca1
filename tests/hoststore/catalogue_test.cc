#include "hoststore/catalogue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "scheduler/host_memory.h"
#include "tests/common/expect_refusal.h"
#include "tests/hoststore/small_catalogue.h"

namespace rp {
namespace {

struct Range {
  std::uint64_t first;
  std::uint64_t end;
};

void expect_apart_and_inside(std::vector<Range> ranges, std::uint64_t arena_bytes) {
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.first < b.first; });
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    EXPECT_EQ(ranges[i].first % 4096, 0U);
    EXPECT_LE(ranges[i].end, i + 1 < ranges.size() ? ranges[i + 1].first : arena_bytes);
  }
}

void expect_no_overlap(const Catalogue& catalogue, bool with_sums) {
  std::vector<Range> parameters, state, gradients;
  const auto add = [](std::vector<Range>& to, std::uint64_t offset, std::uint64_t bytes) {
    to.push_back({offset, offset + bytes});
  };
  for (const WeightGroupRecord& group : catalogue.weight_groups()) {
    for (std::uint32_t copy = 0; copy < group.num_copies; ++copy)
      add(parameters, group.parameter_offset[copy], group.bytes());
    if (group.is_trained == 0) continue;
    if (group.dtype != DType::kFloat32) add(state, group.master_offset, 4 * group.num_elements);
    add(state, group.moment1_offset, 4 * group.num_elements);
    add(state, group.moment2_offset, 4 * group.num_elements);
  }
  for (const UseRecord& use : catalogue.uses()) {
    if (catalogue.weight_groups()[use.group].is_trained == 0) continue;
    add(gradients, use.gradient_offset, catalogue.weight_groups()[use.group].bytes());
    if (with_sums) add(state, use.sum_offset, 4 * catalogue.weight_groups()[use.group].num_elements);
  }
  expect_apart_and_inside(parameters, catalogue.parameter_bytes());
  expect_apart_and_inside(state, catalogue.state_bytes());
  expect_apart_and_inside(gradients, catalogue.gradient_bytes());
}

// A small language model: a tied embedding and head, with uneven shapes between them.
std::vector<LayerRequest> model(DType dtype) {
  const ParameterRequest table{.name = "table", .dtype = dtype, .shape = {101, 12}, .tied_group = 5};
  return {
      {.name = "embedding", .arguments_hash = 1, .parameters = {table}},
      {.name = "block",
       .arguments_hash = 2,
       .parameters = {{.name = "a", .dtype = dtype, .shape = {12, 13}}, {.name = "b", .dtype = dtype, .shape = {7}}}},
      {.name = "nothing", .arguments_hash = 3, .parameters = {}},
      {.name = "head", .arguments_hash = 4, .parameters = {{.name = "norm", .dtype = dtype, .shape = {12}}, table}}};
}

TEST(Catalogue, PutsAllUntiedParametersOfALayerIntoOneGroup) {
  const Catalogue catalogue = Catalogue::lay_out(model(DType::kBFloat16), 1, false);
  ASSERT_EQ(catalogue.num_layers(), 4);
  ASSERT_EQ(catalogue.weight_groups().size(), 3U);  // of the table, of the layer "block", and of the head's norm
  ASSERT_EQ(catalogue.uses_of(CatalogueLayer(1)).size(), 1U);
  const WeightGroupRecord& group =
      catalogue.weight_groups()[catalogue.uses()[catalogue.uses_of(CatalogueLayer(1))[0]].group];
  const auto tensors = catalogue.tensors_of(CatalogueLayer(1));
  ASSERT_EQ(tensors.size(), 2U);
  EXPECT_STREQ(tensors[0].name.data(), "a");
  EXPECT_EQ(tensors[0].element_offset, 0U);
  EXPECT_STREQ(tensors[1].name.data(), "b");
  EXPECT_EQ(tensors[1].element_offset, 160U);  // 156, rounded up to whole cache lines
  EXPECT_EQ(group.num_elements, 160U + 32U);
  EXPECT_TRUE(catalogue.uses_of(CatalogueLayer(2)).empty());
  EXPECT_TRUE(catalogue.tensors_of(CatalogueLayer(2)).empty());
}

TEST(Catalogue, GivesATiedParameterOneGroupWithAGradientPerUse) {
  const Catalogue catalogue = Catalogue::lay_out(model(DType::kBFloat16), 2, true);
  const GroupId table = catalogue.uses()[catalogue.uses_of(CatalogueLayer(0))[0]].group;
  ASSERT_EQ(catalogue.weight_groups()[table].num_uses, 2U);
  const auto uses = catalogue.uses_of_group(table);
  EXPECT_EQ(uses[0].layer, CatalogueLayer(0));  // in layer order
  EXPECT_EQ(uses[1].layer, CatalogueLayer(3));
  EXPECT_NE(uses[0].gradient_offset, uses[1].gradient_offset);
  EXPECT_NE(uses[0].sum_offset, uses[1].sum_offset);
  EXPECT_EQ(catalogue.uses_of(CatalogueLayer(3)).size(), 2U);
  EXPECT_EQ(catalogue.num_parameters(), 101U * 12U + 12U * 13U + 7U + 12U);
}

TEST(Catalogue, CountsAParameterOnceThatOneLayerUsesTwice) {
  const ParameterRequest once{.name = "u", .dtype = DType::kFloat32, .shape = {8}, .tied_group = 0};
  const ParameterRequest again{.name = "v", .dtype = DType::kFloat32, .shape = {8}, .tied_group = 0};
  const ParameterRequest none{.name = "none", .dtype = DType::kFloat32, .shape = {0}};
  const ParameterRequest own{.name = "own", .dtype = DType::kFloat32, .shape = {3}};
  const Catalogue catalogue = Catalogue::lay_out({{.name = "l", .parameters = {once, again, none, own}}}, 1, false);
  EXPECT_EQ(catalogue.num_parameters(), 11U);
  EXPECT_EQ(catalogue.uses_of(CatalogueLayer(0)).size(), 2U);
}

TEST(Catalogue, AlignsGroupsToPagesWithoutOverlap) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const std::uint32_t copies : {1U, 2U}) {
      for (const bool with_sums : {false, true})
        expect_no_overlap(Catalogue::lay_out(model(dtype), copies, with_sums), with_sums);
    }
  }
}

TEST(Catalogue, AlignsGroupsOfRandomModelsWithoutOverlap) {
  for (unsigned seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    std::vector<LayerRequest> layers(1 + random() % 6);
    for (LayerRequest& layer : layers) {
      layer.name = "layer";
      const std::size_t num = random() % 5;
      for (std::size_t i = 0; i < num; ++i) {
        const bool tied = random() % 4 == 0;
        layer.parameters.push_back({.name = "p" + std::to_string(i),
                                    .dtype = random() % 2 == 0 || tied ? DType::kFloat32 : DType::kBFloat16,
                                    .shape = {tied ? 77 : static_cast<std::int64_t>(random() % 3000)},
                                    .tied_group = tied ? static_cast<int>(random() % 2) : -1,
                                    .is_trained = tied || random() % 3 != 0});
      }
    }
    const bool with_sums = random() % 2 == 0;
    expect_no_overlap(Catalogue::lay_out(layers, 1 + random() % 2, with_sums), with_sums);
  }
}

TEST(Catalogue, AGroupTakesWholePagesOfADeviceAndOneAtLeast) {
  const WeightGroupRecord group{.dtype = DType::kBFloat16, .num_elements = 2049}, empty{.dtype = DType::kBFloat16};
  EXPECT_EQ(group.device_bytes(), 2 * 4096U);
  EXPECT_EQ(group.accumulator_bytes(), 3 * 4096U);
  EXPECT_EQ(empty.device_bytes(), 4096U);
  EXPECT_EQ(empty.accumulator_bytes(), 4096U);
}

TEST(Catalogue, KeepsFrozenParametersApartInOneWorkingCopyAndNothingElse) {
  const ParameterRequest trained{.name = "w", .dtype = DType::kBFloat16, .shape = {4096}};
  ParameterRequest frozen = trained;
  frozen.name = "f";
  frozen.is_trained = false;
  const Catalogue catalogue = Catalogue::lay_out(
      {{.name = "l", .parameters = {frozen, trained, frozen}}, {.name = "m", .parameters = {frozen}}}, 2, true);
  ASSERT_EQ(catalogue.uses_of(CatalogueLayer(0)).size(), 2U);
  const UseRecord& use = catalogue.uses()[catalogue.uses_of(CatalogueLayer(0))[0]];
  const WeightGroupRecord& group = catalogue.weight_groups()[use.group];
  EXPECT_EQ(group.is_trained, 0U);
  EXPECT_EQ(group.num_copies, 1U);
  EXPECT_EQ(group.num_elements, 2 * 4096U);
  for (const std::uint64_t offset : {group.master_offset, group.moment1_offset, use.gradient_offset, use.sum_offset}) {
    EXPECT_EQ(offset, kNoOffset);
  }
  EXPECT_TRUE(catalogue.is_trained(CatalogueLayer(0)));
  EXPECT_FALSE(catalogue.is_trained(CatalogueLayer(1)));
  EXPECT_EQ(catalogue.parameter_bytes(), 2 * 4096U * 2 + 3 * 4096U * 2);
  EXPECT_EQ(catalogue.gradient_bytes(), 4096U * 2);
  EXPECT_EQ(catalogue.state_bytes(), 4096U * 4 * 4);
}

TEST(Catalogue, GivesACorrectionAGroupOfItsOwnWithoutPaddingMomentsOrMaster) {
  const ParameterRequest correction{
      .name = "correction", .dtype = DType::kFloat32, .shape = {5}, .is_trained = true, .is_correction = true};
  ParameterRequest another = correction;
  another.name = "another";
  for (const DType dtype : {DType::kBFloat16, DType::kFloat32}) {
    const ParameterRequest weight{.name = "w", .dtype = dtype, .shape = {64}};
    const LayerRequest layer{.name = "l", .parameters = {weight, correction, another, weight}};
    const Catalogue catalogue = Catalogue::from_bytes(
        Catalogue::lay_out({{.name = "", .layers = {layer}, .num_copies = 2, .with_sums = true, .num_moments = 1}})
            .to_bytes());
    ASSERT_EQ(catalogue.weight_groups().size(), 3U);
    EXPECT_EQ(catalogue.weight_groups()[GroupId(0)].is_correction, 0U);
    EXPECT_EQ(catalogue.weight_groups()[GroupId(0)].num_elements, 128U);
    for (const GroupId index : {GroupId(1), GroupId(2)}) {
      const WeightGroupRecord& group = catalogue.weight_groups()[index];
      EXPECT_EQ(group.is_correction, 1U);
      EXPECT_EQ(group.num_elements, 5U);
      EXPECT_EQ(group.num_copies, 2U);
      EXPECT_TRUE(group.working_is_master());
      EXPECT_EQ(group.master_offset, kNoOffset);
      EXPECT_EQ(group.moment1_offset, kNoOffset);
      EXPECT_NE(catalogue.uses_of_group(index)[0].gradient_offset, kNoOffset);
      EXPECT_NE(catalogue.uses_of_group(index)[0].sum_offset, kNoOffset);
    }
    EXPECT_EQ(catalogue.trained_groups(0).size(), 3U);
  }
}

TEST(WeightGroupRecord, KeepsVersionsInItsCopiesByTurnsAndAFrozenGroupInItsOnly) {
  const WeightGroupRecord alternating{.num_copies = 2};
  EXPECT_EQ(alternating.version_in(Version(7)), Version(7));
  EXPECT_EQ(alternating.copy_of(Version(7)), 1U);
  EXPECT_EQ(alternating.copy_of(Version(8)), 0U);
  const WeightGroupRecord frozen{.num_copies = 1, .is_trained = 0};
  EXPECT_EQ(frozen.version_in(Version(7)), Version(0));
  EXPECT_EQ(frozen.copy_of(Version(7)), 0U);
}

TEST(Catalogue, NumbersTheLayersOfAllPipelinesThrough) {
  const PipelineRequest first{.name = "teacher", .layers = model(DType::kBFloat16), .num_copies = 1};
  const PipelineRequest second{.name = "student", .layers = model(DType::kFloat32), .num_copies = 2, .with_sums = true};
  const Catalogue catalogue = Catalogue::from_bytes(Catalogue::lay_out({first, second}).to_bytes());
  ASSERT_EQ(catalogue.pipelines().size(), 2U);
  EXPECT_STREQ(catalogue.pipelines()[1].name.data(), "student");
  EXPECT_EQ(catalogue.pipelines()[1].first_layer, CatalogueLayer(4));
  EXPECT_EQ(catalogue.pipelines()[1].first_group, GroupId(3));
  EXPECT_EQ(catalogue.num_layers(), 8);
  EXPECT_EQ(catalogue.layers()[CatalogueLayer(5)].pipeline, 1U);
  for (const WeightGroupRecord& group : catalogue.weight_groups()) EXPECT_EQ(group.num_copies, group.pipeline + 1);
  // A tied group belongs to its pipeline.
  EXPECT_NE(catalogue.uses()[catalogue.uses_of(CatalogueLayer(0))[0]].group,
            catalogue.uses()[catalogue.uses_of(CatalogueLayer(4))[0]].group);
  EXPECT_EQ(catalogue.num_parameters(), 2 * (101U * 12U + 12U * 13U + 7U + 12U));
}

// docs/design/host-store.md promises this host memory per trained parameter.
TEST(Catalogue, TakesThePromisedBytesPerParameter) {
  constexpr std::int64_t kRows = 4096;
  const auto bytes_per_parameter = [](DType dtype, std::uint32_t copies, bool with_sums) {
    const Catalogue catalogue = Catalogue::lay_out(
        {{.name = "big", .parameters = {{.name = "w", .dtype = dtype, .shape = {kRows, kRows}}}}}, copies, with_sums);
    const std::uint64_t bytes = catalogue.parameter_bytes() + catalogue.state_bytes() + catalogue.gradient_bytes();
    return static_cast<double>(bytes) / static_cast<double>(catalogue.num_parameters());
  };
  EXPECT_EQ(bytes_per_parameter(DType::kBFloat16, 1, false), 16.0);
  EXPECT_EQ(bytes_per_parameter(DType::kBFloat16, 2, false), 18.0);
  EXPECT_EQ(bytes_per_parameter(DType::kFloat32, 1, false), 16.0);
  EXPECT_EQ(bytes_per_parameter(DType::kFloat32, 2, false), 20.0);
  EXPECT_EQ(bytes_per_parameter(DType::kBFloat16, 1, true), 20.0);
}

TEST(Catalogue, TakesTheWorkingCopyOnlyOfAFrozenParameter) {
  for (const auto& [dtype, bytes] : {std::pair{DType::kBFloat16, 2U}, {DType::kFloat32, 4U}}) {
    const Catalogue catalogue = Catalogue::lay_out(
        {{.name = "big", .parameters = {{.name = "w", .dtype = dtype, .shape = {1024, 1024}, .is_trained = false}}}}, 2,
        true);
    EXPECT_EQ(catalogue.parameter_bytes(), bytes << 20);
    EXPECT_EQ(catalogue.state_bytes() + catalogue.gradient_bytes(), 0U);
  }
}

TEST(Catalogue, GivesEachPipelineItsShareAndTheSharesAreAll) {
  const PipelineRequest first{.name = "teacher", .layers = model(DType::kBFloat16), .num_copies = 1};
  const PipelineRequest second{.name = "student", .layers = model(DType::kFloat32), .num_copies = 2, .with_sums = true};
  const Catalogue both = Catalogue::lay_out({first, second});
  Catalogue::Share sum;
  for (const auto& [number, alone] : {std::pair{0U, Catalogue::lay_out({first})}, {1U, Catalogue::lay_out({second})}}) {
    const Catalogue::Share share = both.share_of(number);
    EXPECT_EQ(share.parameter_bytes, alone.parameter_bytes());
    EXPECT_EQ(share.gradient_bytes, alone.gradient_bytes());
    EXPECT_EQ(share.state_bytes, alone.state_bytes());
    EXPECT_EQ(share.num_parameters, alone.num_parameters());
    sum.parameter_bytes += share.parameter_bytes;
    sum.state_bytes += share.state_bytes;
    sum.gradient_bytes += share.gradient_bytes;
  }
  EXPECT_EQ(sum.parameter_bytes, both.parameter_bytes());
  EXPECT_EQ(sum.state_bytes, both.state_bytes());
  EXPECT_EQ(sum.gradient_bytes, both.gradient_bytes());
}

// A layer of so many rows of 65,536 parameters, a chunk each.
LayerRequest layer_of_chunks(std::int64_t rows, bool is_trained = true) {
  return {.name = "big",
          .parameters = {{.name = "w", .dtype = DType::kBFloat16, .shape = {rows, 65'536}, .is_trained = is_trained}}};
}

TEST(Catalogue, ReceivesNoLongerPiecesThanANodeOwns) {
  const auto longest = [](std::int64_t rows, int num_nodes) {
    const PipelineRequest request{
        .name = "model", .layers = {layer_of_chunks(rows), layer_of_chunks(100, false)}, .with_sums = true};
    return Catalogue::lay_out(std::vector{request}, {.node = 0, .num_nodes = num_nodes}).longest_piece_bytes(0);
  };
  EXPECT_EQ(longest(100, 2), kMessageBytes);
  EXPECT_EQ(longest(2, 2), kMessageBytes / 2);
  EXPECT_EQ(longest(8, 1), kMessageBytes);
}

// Before there is a catalogue, rp-plan estimates what it will have.
TEST(Catalogue, TakesTheMemoryThatIsPlannedForItsNode) {
  PipelineRequest request{.name = "model", .layers = {}, .with_sums = true};
  std::vector<LayerCost> costs;
  for (const std::int64_t rows : {100, 17, 3, 41}) {
    const auto elements = static_cast<std::uint64_t>(rows) * kChunkElements;
    request.layers.push_back(layer_of_chunks(rows));
    costs.push_back({.gradient_bytes = 2 * elements, .trained_elements = elements, .gradient_elements = elements});
  }
  // Two layers have the correction of a router, which takes a whole page.
  constexpr std::uint64_t kExperts = 1024;
  for (const std::size_t layer : {1, 2}) {
    request.layers[layer].parameters.push_back({.name = "c", .shape = {kExperts}, .is_correction = true});
    costs[layer].gradient_bytes += kExperts * 4;
    costs[layer].gradient_elements += kExperts;
    costs[layer].correction_bytes = kExperts * 4;
  }
  const Plan plan{.forward = {}, .fused_start = 4, .backward = {}};
  for (const int num_nodes : {1, 2, 5, 30}) {
    for (const int node : {0, num_nodes - 1}) {
      const NodePlace place{.node = node, .num_nodes = num_nodes};
      const Catalogue catalogue = Catalogue::lay_out(std::vector{request}, place);
      const HostMemory planned = host_memory(costs, plan, {.rounds_per_step = 40, .place = place});
      EXPECT_EQ(catalogue.state_bytes(), planned.optimizer_state) << "node " << node << " of " << num_nodes;
      EXPECT_EQ(catalogue.parameter_bytes(), planned.weights);
      EXPECT_EQ(catalogue.gradient_bytes(), planned.gradients);
      EXPECT_EQ(receive_buffers_bytes(catalogue.longest_piece_bytes(0), num_nodes), planned.received_gradients);
    }
  }
}

// Qwen3-8B: what a node updates, and what it keeps for this. benchmarks/optimizer/nodes_optimizer.cc measures the time.
TEST(Catalogue, GivesEachNodeItsPartOfTheUpdatesWithinAThousandth) {
  const auto layer = [](std::int64_t num_parameters) {
    return LayerRequest{.name = "layer",
                        .parameters = {{.name = "w", .dtype = DType::kBFloat16, .shape = {num_parameters}}}};
  };
  PipelineRequest request{.name = "qwen3-8b", .layers = {layer(151'936 * 4096)}, .with_sums = true};
  request.layers.resize(37, layer(192'946'432));
  request.layers.push_back(layer(151'936 * 4096 + 4096));
  const Catalogue alone = Catalogue::lay_out(std::vector{request});
  for (const int num_nodes : {2, 3, 4, 8, 16}) {
    for (int node = 0; node < num_nodes; ++node) {
      const Catalogue catalogue = Catalogue::lay_out(std::vector{request}, {.node = node, .num_nodes = num_nodes});
      std::uint64_t owned = 0;
      for (const GroupId group : catalogue.trained_groups(0)) owned += catalogue.owned(group).size();
      const auto expect_part = [num_nodes](std::uint64_t part, std::uint64_t all) {
        EXPECT_NEAR(static_cast<double>(part) * num_nodes / static_cast<double>(all), 1, 0.001)
            << num_nodes << " nodes";
      };
      expect_part(owned, alone.num_parameters());
      expect_part(catalogue.state_bytes(), alone.state_bytes());
    }
  }
}

TEST(Catalogue, IsTheSameAfterATripThroughBytes) {
  const Catalogue catalogue = Catalogue::lay_out(model(DType::kBFloat16), 2, true);
  const std::vector<std::byte> bytes = catalogue.to_bytes();
  const Catalogue copy = Catalogue::from_bytes(bytes);
  EXPECT_EQ(copy.to_bytes(), bytes);
  EXPECT_EQ(copy.num_layers(), catalogue.num_layers());
  EXPECT_EQ(copy.parameter_bytes(), catalogue.parameter_bytes());
  EXPECT_EQ(copy.uses_of(CatalogueLayer(3)), catalogue.uses_of(CatalogueLayer(3)));
  EXPECT_STREQ(copy.layers()[CatalogueLayer(3)].name.data(), "head");
  EXPECT_EQ(copy.layers()[CatalogueLayer(3)].arguments_hash, 4U);
  EXPECT_EQ(copy.num_parameters(), catalogue.num_parameters());
}

TEST(Catalogue, IsRefusedWithAnyByteChangedOrMissing) {
  std::vector<std::byte> bytes = Catalogue::lay_out(model(DType::kFloat32), 1, false).to_bytes();
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] ^= std::byte{0x10};
    EXPECT_THROW((void)Catalogue::from_bytes(bytes), Error) << "byte " << i;
    bytes[i] ^= std::byte{0x10};
  }
  for (std::size_t length = 0; length < bytes.size(); length += 41) {
    EXPECT_THROW((void)Catalogue::from_bytes(std::span(bytes).first(length)), Error) << "length " << length;
  }
  expect_error(ExitCode::kUserError, {"catalogue", "damaged"}, [&] { (void)Catalogue::from_bytes({}); });
  EXPECT_NO_THROW((void)Catalogue::from_bytes(bytes));
}

// The checksum is correct here. The data in shared memory is found by these numbers.
TEST(Catalogue, IsRefusedWhereANumberLeadsBeyondWhatIsThere) {
  const std::vector<std::byte> good = test::small_catalogue().to_bytes();
  const Catalogue catalogue = Catalogue::from_bytes(good);
  constexpr std::size_t kHeaderBytes = 88;
  const std::size_t layers = kHeaderBytes + catalogue.pipelines().size() * sizeof(PipelineRecord);
  const std::size_t groups = layers + static_cast<std::size_t>(catalogue.num_layers()) * sizeof(LayerRecord);
  const std::size_t uses = groups + catalogue.weight_groups().size() * sizeof(WeightGroupRecord);
  const std::size_t tensors = uses + catalogue.uses().size() * sizeof(UseRecord);
  ASSERT_EQ(tensors + catalogue.tensors().size() * sizeof(TensorRecord), good.size());
  const auto refuses = [&good](std::size_t place, std::uint32_t number) {
    std::vector<std::byte> bytes = good;
    std::memcpy(bytes.data() + place, &number, sizeof(number));
    test::set_checksum(bytes);
    return error_of([&] { (void)Catalogue::from_bytes(bytes); }).find("damaged") != std::string::npos;
  };
  for (const std::size_t place :
       {std::size_t{80} /* reduce */, kHeaderBytes + offsetof(PipelineRecord, first_layer),
        kHeaderBytes + offsetof(PipelineRecord, num_groups), layers + offsetof(LayerRecord, first_tensor),
        layers + offsetof(LayerRecord, num_tensors), layers + offsetof(LayerRecord, pipeline),
        groups + offsetof(WeightGroupRecord, dtype), groups + offsetof(WeightGroupRecord, num_copies),
        groups + offsetof(WeightGroupRecord, num_elements), groups + offsetof(WeightGroupRecord, parameter_offset),
        groups + offsetof(WeightGroupRecord, pipeline), uses + offsetof(UseRecord, group),
        uses + offsetof(UseRecord, layer), uses + offsetof(UseRecord, gradient_offset),
        tensors + offsetof(TensorRecord, use), tensors + offsetof(TensorRecord, element_offset),
        tensors + offsetof(TensorRecord, desc)}) {
    EXPECT_TRUE(refuses(place, 100'000)) << "place " << place;
  }
  std::vector<std::byte> endless = good;
  std::fill_n(endless.begin() + static_cast<std::ptrdiff_t>(tensors), sizeof(TensorRecord::name), std::byte{'x'});
  test::set_checksum(endless);
  EXPECT_THROW((void)Catalogue::from_bytes(endless), Error);
}

TEST(Catalogue, RefusesWhatItCannotDescribe) {
  const auto lay_out = [](ParameterRequest parameter) {
    (void)Catalogue::lay_out({{.name = "l", .parameters = {std::move(parameter)}}}, 1, false);
  };
  expect_error(ExitCode::kUsage, {"too long", "127"}, [&] { lay_out({.name = std::string(128, 'x')}); });
  expect_error(ExitCode::kUsage, {"p has 9 dimensions", "at most 8"},
               [&] { lay_out({.name = "p", .shape = std::vector<std::int64_t>(9, 1)}); });
  expect_error(ExitCode::kUsage, {"too long", "111"},
               [] { (void)Catalogue::lay_out({{.name = std::string(112, 'x')}}, 1, false); });
  const ParameterRequest wide{.name = "wide", .shape = {8}, .tied_group = 1};
  const ParameterRequest high{.name = "high", .shape = {9}, .tied_group = 1};
  ParameterRequest frozen = wide;
  frozen.name = "frozen";
  frozen.is_trained = false;
  expect_error(ExitCode::kUsage, {"frozen", "tied", "trained"}, [&] {
    (void)Catalogue::lay_out({{.name = "l", .parameters = {wide}}, {.name = "m", .parameters = {frozen}}}, 1, false);
  });
  expect_error(ExitCode::kUsage, {"high", "tied"}, [&] {
    (void)Catalogue::lay_out({{.name = "l", .parameters = {wide}}, {.name = "m", .parameters = {high}}}, 1, false);
  });
}

}  // namespace
}  // namespace rp
