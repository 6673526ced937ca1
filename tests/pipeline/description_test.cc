#include "pipeline/description/description.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "roundpipe/error.h"

namespace rp {
namespace {

class PlainLayer : public Layer {
 public:
  PlainLayer(std::string name, std::int64_t size)
      : parameters_{{std::move(name), placeholder({size, 2}, at::kFloat)}} {}
  std::vector<NamedParameter> parameters() override { return parameters_; }
  Tensors forward(const Tensors& inputs) override { return inputs; }

 private:
  std::vector<NamedParameter> parameters_;
};

LayerSpec plain(const std::string& layer, const std::string& parameter, std::int64_t size) {
  LayerSpec spec;
  spec.name = layer;
  spec.arguments_hash = static_cast<std::uint64_t>(size);
  spec.make = [parameter, size] { return std::make_unique<PlainLayer>(parameter, size); };
  return spec;
}

Catalogue catalogue_of(const Model& model) { return Catalogue::lay_out(describe_layers(model), 1, false); }

template <typename Function>
std::string error_of(Function function, ExitCode code) {
  try {
    function();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    return error.what();
  }
  return "accepted";
}

TEST(Description, TiesJoinGroupsAcrossSeveralCalls) {
  Model model{plain("A", "w", 4), plain("B", "w", 4), plain("C", "w", 4), plain("D", "w", 4)};
  model.tie({0, "w"}, {1, "w"}).tie({2, "w"}, {3, "w"}).tie({1, "w"}, {2, "w"});
  const Catalogue catalogue = catalogue_of(model);
  EXPECT_EQ(catalogue.weight_groups().size(), 1U);
  EXPECT_EQ(catalogue.uses().size(), 4U);
  EXPECT_EQ(catalogue.num_parameters(), 8U);
}

TEST(Description, ATieThatDoesNotFitIsNamed) {
  Model names{plain("A", "weight", 4), plain("B", "weight", 4)};
  names.tie({0, "weight"}, {1, "wieght"});
  EXPECT_THAT(error_of([&] { (void)describe_layers(names); }, ExitCode::kUsage),
              testing::HasSubstr("layer 1 (B) has no parameter 'wieght' (did you mean weight?)"));
  Model shapes{plain("A", "w", 4), plain("B", "w", 5)};
  shapes.tie({0, "w"}, {1, "w"});
  EXPECT_THAT(error_of([&] { (void)describe_layers(shapes); }, ExitCode::kUsage), testing::HasSubstr("is [4, 2], but"));
  EXPECT_THAT(error_of([] { (void)describe_layers(Model()); }, ExitCode::kUsage), testing::HasSubstr("no layers"));
}

TEST(Description, ATieThatMakesTwoParametersOfOneLayerOneIsRefused) {
  Model model{plain("A", "w", 4), plain("B", "w", 4)};
  LayerSpec two = plain("C", "w", 4);
  two.make = [] {
    struct Two : Layer {
      std::vector<NamedParameter> parameters() override {
        return {{"w", placeholder({4, 2}, at::kFloat)}, {"v", placeholder({4, 2}, at::kFloat)}};
      }
      Tensors forward(const Tensors& inputs) override { return inputs; }
    };
    return std::make_unique<Two>();
  };
  model.add(two).tie({0, "w"}, {2, "w"}).tie({0, "w"}, {1, "w"}).tie({1, "w"}, {2, "v"});
  EXPECT_THAT(error_of([&] { (void)describe_layers(model); }, ExitCode::kUsage),
              testing::HasSubstr("'w' and 'v' of one layer (C) are tied to the same parameter"));
}

TEST(Description, ACorrectionIsATrainedVectorInFp32ThatIsNotTied) {
  const auto model_with = [](const at::Tensor& value, bool keeps_dtype) {
    LayerSpec spec = plain("A", "w", 4);
    spec.make = [value, keeps_dtype] {
      struct Router : Layer {
        std::vector<NamedParameter> parameters() override { return all; }
        Tensors forward(const Tensors& inputs) override { return inputs; }
        std::vector<NamedParameter> all;
      };
      auto layer = std::make_unique<Router>();
      layer->all = {{.name = "c", .value = value, .keeps_dtype = keeps_dtype, .is_correction = true}};
      return layer;
    };
    return std::move(Model{spec}.set_dtype(at::kBFloat16));
  };
  const std::vector<LayerRequest> layers = describe_layers(model_with(placeholder({6}, at::kFloat), true));
  EXPECT_TRUE(layers.at(0).parameters.at(0).is_correction);
  EXPECT_TRUE(layers[0].parameters[0].is_trained);
  EXPECT_EQ(layers[0].parameters[0].dtype, DType::kFloat32);
  const auto refusal = [&](const at::Tensor& value, bool keeps_dtype = true) {
    return error_of([&] { (void)describe_layers(model_with(value, keeps_dtype)); }, ExitCode::kUsage);
  };
  EXPECT_THAT(refusal(placeholder({6}, at::kBFloat16)), testing::HasSubstr("must be fp32"));
  EXPECT_THAT(refusal(placeholder({6}, at::kFloat), false), testing::HasSubstr("keep its dtype"));
  EXPECT_THAT(refusal(placeholder({2, 3}, at::kFloat)), testing::HasSubstr("but it is Float [2, 3]"));
  EXPECT_THAT(refusal(placeholder({65537}, at::kFloat)), testing::HasSubstr("at most 65536 elements"));
  EXPECT_THAT(refusal(placeholder({6}, at::kFloat).requires_grad_(false)), testing::HasSubstr("require a gradient"));
  Model tied = model_with(placeholder({6}, at::kFloat), true);
  tied.add(tied.layers().front()).tie({0, "c"}, {1, "c"});
  EXPECT_THAT(error_of([&] { (void)describe_layers(tied); }, ExitCode::kUsage),
              testing::HasSubstr("the correction of a router cannot be tied"));
}

TEST(Description, AFrozenParameterMayKeepADtypeOfItsOwn) {
  const auto model_with = [](bool is_frozen) {
    LayerSpec spec = plain("A", "w", 4);
    spec.make = [is_frozen] {
      struct Mixed : Layer {
        std::vector<NamedParameter> parameters() override { return all; }
        Tensors forward(const Tensors& inputs) override { return inputs; }
        std::vector<NamedParameter> all{{"w", placeholder({4, 2}, at::kFloat)}};
      };
      auto layer = std::make_unique<Mixed>();
      layer->all.push_back(
          {.name = "kept", .value = placeholder({3}, at::kFloat).requires_grad_(!is_frozen), .keeps_dtype = true});
      if (is_frozen) layer->all.push_back({.name = "bytes", .value = placeholder({5}, at::kByte), .keeps_dtype = true});
      return layer;
    };
    return std::move(Model{spec}.set_dtype(at::kBFloat16));
  };
  const std::vector<LayerRequest> layers = describe_layers(model_with(/*is_frozen=*/true));
  ASSERT_EQ(layers.at(0).parameters.size(), 3U);
  EXPECT_EQ(layers[0].parameters[0].dtype, DType::kBFloat16);
  EXPECT_EQ(layers[0].parameters[1].dtype, DType::kFloat32);
  EXPECT_EQ(layers[0].parameters[2].dtype, DType::kUInt8);
  EXPECT_THAT(error_of([&] { (void)describe_layers(model_with(/*is_frozen=*/false)); }, ExitCode::kUsage),
              testing::HasSubstr("'kept' of layer 0 (A) keeps its dtype, so it must be frozen"));
}

TEST(Description, TheFirstLayerThatDiffersBetweenProcessesIsNamed) {
  const Model coordinator{plain("A", "w", 4), plain("B", "w", 4)};
  const Catalogue catalogue = catalogue_of(coordinator);
  EXPECT_NO_THROW(compare_layers(coordinator, catalogue, catalogue.pipelines()[0]));
  const auto difference = [&](const Model& worker) {
    return error_of([&] { compare_layers(worker, catalogue, catalogue.pipelines()[0]); }, ExitCode::kUserError);
  };
  EXPECT_THAT(difference(Model{plain("A", "w", 4)}), testing::HasSubstr("has 2 layers, this worker's has 1"));
  EXPECT_THAT(difference(Model{plain("A", "w", 4), plain("C", "w", 4)}),
              testing::HasSubstr("layer 1 is B in the coordinator and C in this worker"));
  EXPECT_THAT(difference(Model{plain("A", "w", 5), plain("B", "w", 4)}),
              testing::HasSubstr("layer 0 (A) was given other arguments"));
  EXPECT_THAT(error_of([&] { compare_parameters(PlainLayer("w", 5).parameters(), catalogue, CatalogueLayer(0)); },
                       ExitCode::kUserError),
              testing::HasSubstr("w [4, 2] in the coordinator and w [5, 2] in this worker"));
}

}  // namespace
}  // namespace rp
