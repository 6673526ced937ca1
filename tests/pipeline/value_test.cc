#include "roundpipe/value.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/Parallel.h>

#include <cmath>

#include "pipeline/description/value_structure.h"
#include "roundpipe/roundpipe.h"
#include "tests/common/expect_refusal.h"

namespace rp::test {
namespace {

TEST(Value, ComesBackFromItsStructureAndItsTensors) {
  const at::Tensor a = at::ones({2}), b = at::zeros({3}, at::kLong);
  const Value value = Value::Map{{"tensors", Value::List{a, at::Tensor(), Value::List{}, Value::Map{{"inner", b}}}},
                                 {"yes", true},
                                 {"count", std::int64_t{1} << 60},
                                 {"minus", -7},
                                 {"rate", 0.1},
                                 {"infinite", INFINITY},
                                 {"text", "a \"text\"\xff"},
                                 {"nothing", Value()}};
  const Tensors tensors = tensors_of(value);
  ASSERT_EQ(tensors.size(), 3U);
  const Value copy = value_of(structure_of(value), tensors);
  EXPECT_TRUE(copy.at("tensors").at(0).tensor().is_same(a));
  EXPECT_FALSE(copy.at("tensors").at(1).tensor().defined());
  EXPECT_TRUE(copy.at("tensors").at(2).list().empty());
  EXPECT_TRUE(copy.at("tensors").at(3).at("inner").tensor().is_same(b));
  EXPECT_TRUE(copy.at("yes").boolean());
  EXPECT_EQ(copy.at("count").integer(), std::int64_t{1} << 60);
  EXPECT_EQ(copy.at("minus").number(), -7);
  EXPECT_EQ(copy.at("rate").number(), 0.1);
  EXPECT_EQ(copy.at("infinite").number(), INFINITY);
  EXPECT_EQ(copy.at("text").text(), "a \"text\"\xff");
  EXPECT_TRUE(copy.at("nothing").is_nothing());
  EXPECT_EQ(copy.map().size(), 8U);
}

TEST(Value, AListOfTensorsNeedsNoStructure) {
  const Tensors tensors = {at::ones({2}), at::Tensor()};
  EXPECT_TRUE(structure_of(tensors).empty());
  EXPECT_TRUE(value_of({}, tensors).tensors()[0].is_same(tensors[0]));
  EXPECT_FALSE(structure_of(Value(tensors[0])).empty());
  EXPECT_TRUE(value_of(structure_of(Value(tensors[0])), {tensors[0]}).tensor().is_same(tensors[0]));
}

TEST(Value, SaysWhatItIsInstead) {
  const Value value = Value::Map{{"labels", Value::List{1, 2}}};
  EXPECT_THAT(error_of([&] { (void)value.tensor(); }), testing::HasSubstr("is a map, not a tensor"));
  EXPECT_THAT(error_of([&] { (void)value.at("label"); }), testing::HasSubstr("did you mean labels?"));
  EXPECT_THAT(error_of([&] { (void)value.at("labels").at(2); }), testing::HasSubstr("the list has 2"));
  EXPECT_THAT(error_of([&] { (void)value.at("labels").tensors(); }), testing::HasSubstr("is an integer, not a tensor"));
}

struct Scale : torch::nn::Module {
  Scale() : weight(register_parameter("weight", at::ones({4}))) {}
  at::Tensor forward(at::Tensor x) { return x * weight; }
  at::Tensor weight;
};

// The tensors in a call's arguments are cut; everything else reaches each microbatch unchanged.
TEST(NestedArguments, ReachTheLossOfEveryMicrobatch) {
  at::set_num_threads(1);
  const auto nested_loss = [](at::Tensor output, const Value& arguments) {
    if (arguments.at("name").text() != "both") throw std::runtime_error("another name");
    const at::Tensor labels = arguments.at("labels").at(1).tensor();
    if (labels.size(0) != output.size(0)) throw std::runtime_error("labels that are not cut");
    return (output - labels).square().sum() * arguments.at("weight").number() * arguments.at("divisor").tensor();
  };
  Session session(0, nullptr);
  Pipeline pipeline(session, {layer<Scale>(), layer<Scale>()}, loss("nested", nested_loss),
                    {.num_microbatches = 3, .rounds_per_step = 4});
  session.start();
  const at::Tensor x = at::arange(28, at::kFloat).view({7, 4});
  const Value::Map arguments{
      {"labels", Value::List{Value(), x + 1}}, {"name", "both"}, {"weight", 0.5}, {"divisor", at::scalar_tensor(0.25)}};
  EXPECT_EQ(pipeline.forward_backward(x, arguments).loss(), 28 * 0.125);
  EXPECT_THAT(error_of([&] { (void)pipeline.forward_backward(Batch(arguments), x); }),
              testing::HasSubstr("inputs of a call are a list"));
  EXPECT_THAT(error_of([&] {
                (void)pipeline.forward_backward(x, arguments,
                                                {.split_arguments = Split{.function = [](const Tensors& t, int n) {
                                                   return std::vector<Tensors>(static_cast<std::size_t>(n), {t[0]});
                                                 }}});
              }),
              testing::HasSubstr("gave 1 arguments, but the nested arguments have 2 tensors"));
  EXPECT_THAT(error_of([&] {
                (void)pipeline.forward_backward(x, Value::Map{{"name", "both"}}).loss();
              }),
              testing::HasSubstr("labels"));
}

}  // namespace
}  // namespace rp::test
