#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>

#include "roundpipe/error.h"
#include "tests/common/expect_refusal.h"
#include "tests/pipeline/saved_states.h"

namespace rp::test {
namespace {

using models::same_bits;

TEST(StateFile, ARunThatWasSavedAndResumedHasTheBitsOfOneThatWasNot) {
  const auto rounds = tiny_rounds(6);
  for (const bool asynchronous : {false, true}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      SCOPED_TRACE(testing::Message() << "asynchronous " << asynchronous << " " << at::toString(dtype));
      const TinySettings settings{.dtype = dtype, .options = {.num_microbatches = 3, .asynchronous = asynchronous}};
      const TempDirectory scratch;
      std::vector<double> whole, parts;
      std::vector<at::Tensor> masters;
      {
        TinyRun run(settings);
        run.train(rounds, 0, 6, whole);
        for (const ParameterState& parameter : run.pipeline().parameters()) masters.push_back(parameter.master.clone());
      }
      {
        TinyRun run(settings);
        run.train(rounds, 0, 3, parts);
        run.pipeline().save_state(scratch.path() / "state", "{\"cursor\": 24}");
      }
      TinyRun run(settings);
      EXPECT_EQ(run.pipeline().load_state(scratch.path() / "state"), "{\"cursor\": 24}");
      EXPECT_EQ(run.pipeline().num_steps(), 3);
      run.train(rounds, 3, 6, parts);
      EXPECT_EQ(parts, whole);
      const auto parameters = run.pipeline().parameters();
      for (std::size_t i = 0; i < parameters.size(); ++i) EXPECT_TRUE(same_bits(parameters[i].master, masters[i]));
    }
  }
}

TEST(StateFile, AStateOfAnotherKindOfRunIsRefusedWithTheDifference) {
  const TempDirectory scratch;
  {
    TinyRun run({});
    run.pipeline().save_state(scratch.path() / "state", "");
    EXPECT_THROW(run.pipeline().save_state(scratch.path() / "state", ""), Error) << "it exists already";
  }
  TinyRun run({.options = {.asynchronous = true}});
  try {
    (void)run.pipeline().load_state(scratch.path() / "state");
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadInput);
    EXPECT_THAT(error.what(), testing::HasSubstr("was saved by a synchronous run"));
  }
}

std::string refusal(Pipeline& pipeline, const std::filesystem::path& state) {
  try {
    (void)pipeline.load_state(state);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(StateFile, AnotherDtypeIsRefused) {
  const TempDirectory scratch;
  const std::filesystem::path state = scratch.path() / "state";
  TinyRun({}).pipeline().save_state(state, "");
  EXPECT_THAT(refusal(TinyRun({.dtype = at::kBFloat16, .options = {}}).pipeline(), state),
              testing::HasSubstr("was saved with weights of Float"));
}

void write_contents(const std::filesystem::path& state, const StateContents& contents) {
  for (const auto& [name, content] : contents) std::ofstream(state / name, std::ios::binary) << content;
}

// Replaces one number, string or boolean in the text by another value.
std::string with_another_value(const std::string& text, std::mt19937_64& random) {
  nlohmann::json object = nlohmann::json::parse(text);
  const nlohmann::json leaves = object.flatten();
  auto leaf = leaves.begin();
  std::advance(leaf, static_cast<std::ptrdiff_t>(random() % leaves.size()));
  nlohmann::json& value = object[nlohmann::json::json_pointer(leaf.key())];
  if (value.is_boolean()) {
    value = !value.get<bool>();
  } else if (value.is_string()) {
    value = value.get<std::string>() + "1";
  } else if (value.is_number_float()) {
    value = value.get<double>() * 2;
  } else {
    value = value.get<std::int64_t>() + 1 + static_cast<std::int64_t>(random() % 3);
  }
  return object.dump(2) + "\n";
}

// Makes one random change to the files of a state. `other` contains the files of another state of
// the same run. Returns a description of the change.
std::string edit(StateContents& contents, const StateContents& other, std::mt19937_64& random) {
  const std::string name = kStateFiles[random() % kStateFiles.size()];
  std::string& content = contents[name];
  const std::size_t place = random() % content.size();
  switch (random() % 7) {
    case 0:
      content[place] = static_cast<char>(content[place] ^ static_cast<char>(1 << random() % 8));
      return "a bit of " + name;
    case 1: content.insert(place, 1, static_cast<char>(random())); return "a byte more in " + name;
    case 2: content.erase(place, 1 + random() % 16); return "bytes missing in " + name;
    case 3: content.resize(place); return "the end missing of " + name;
    case 4: contents["state.json"] = with_another_value(contents["state.json"], random); return "a value of state.json";
    case 5: content = other.at(name); return "another state's " + name;
    default:
      std::swap_ranges(content.begin(), content.begin() + static_cast<std::ptrdiff_t>(content.size() / 2),
                       content.begin() + static_cast<std::ptrdiff_t>(content.size() / 2));
      return "halves exchanged of " + name;
  }
}

TEST(StateFile, NoEditOfAnyFileIsAccepted) {
  const TempDirectory scratch;
  const std::filesystem::path first = scratch.path() / "first", second = scratch.path() / "second";
  const auto rounds = tiny_rounds(2);
  std::vector<double> losses;
  TinyRun run({.options = {.num_microbatches = 3}});
  run.train(rounds, 0, 1, losses);
  run.pipeline().save_state(first, "{\"cursor\": 8}");
  run.train(rounds, 1, 2, losses);
  run.pipeline().save_state(second, "{\"cursor\": 16}");
  const StateContents good = contents_of(first), other = contents_of(second);
  std::mt19937_64 random(1);
  for (int i = 0; i < 2000; ++i) {
    StateContents edited = good;
    const std::string change = edit(edited, other, random);
    if (edited == good) continue;
    write_contents(first, edited);
    const std::string message = refusal(run.pipeline(), first);
    EXPECT_THAT(message, testing::StartsWith(first.string())) << change;
    EXPECT_THAT(error_of([&] { Pipeline::verify_state(first); }), testing::StartsWith(first.string())) << change;
  }
  write_contents(first, good);
  EXPECT_EQ(run.pipeline().load_state(first), "{\"cursor\": 8}");
}

TEST(StateFile, NoFlippedBitOfATensorIsAccepted) {
  const TempDirectory scratch;
  const std::filesystem::path state = scratch.path() / "state";
  TinyRun run({});
  run.pipeline().save_state(state, "");
  StateContents contents = contents_of(state);
  std::string& tensors = contents["state.safetensors"];
  std::mt19937_64 random(2);
  for (int i = 0; i < 10000; ++i) {
    char& byte = tensors[random() % tensors.size()];
    const char before = byte;
    byte = static_cast<char>(byte ^ static_cast<char>(1 << random() % 8));
    std::ofstream(state / "state.safetensors", std::ios::binary) << tensors;
    EXPECT_THAT(refusal(run.pipeline(), state), testing::HasSubstr("state.safetensors"));
    byte = before;
  }
}

TEST(StateFile, AStateCanBeLoadedIntoARunThatHasTrained) {
  const TempDirectory scratch;
  const auto rounds = tiny_rounds(4);
  for (const bool asynchronous : {false, true}) {
    TinyRun run({.options = {.num_microbatches = 3, .asynchronous = asynchronous}});
    const std::filesystem::path state = scratch.path() / (asynchronous ? "async" : "sync");
    std::vector<double> first, second;
    run.pipeline().save_state(state, "");
    run.train(rounds, 0, 4, first);
    for (int i = 0; i < 2; ++i) {
      (void)run.pipeline().load_state(state);
      EXPECT_EQ(run.pipeline().num_steps(), 0);
      second.clear();
      run.train(rounds, 0, 4, second);
      EXPECT_EQ(second, first) << "asynchronous " << asynchronous;
    }
    (void)run.pipeline().forward_backward(rounds[0].inputs, rounds[0].arguments);
    EXPECT_THAT(refusal(run.pipeline(), state), testing::HasSubstr("1 rounds without step()"));
  }
}

}  // namespace
}  // namespace rp::test
