// Tests what the driver finds in a reader with one fault of each kind.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "common/text.h"
#include "tests/common/temp_directory.h"
#include "tests/fuzz/mutator.h"

namespace rp::fuzz {
namespace {

struct Answer {
  int code = -1;
  std::string text{};
};

Answer run(const std::string& command) {
  Answer answer;
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return answer;
  std::array<char, 4096> piece{};
  while (const std::size_t got = std::fread(piece.data(), 1, piece.size(), pipe)) answer.text.append(piece.data(), got);
  const int status = pclose(pipe);
  answer.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return answer;
}

// Runs the broken target on one input, in a separate directory.
Answer run_broken(const TempDirectory& directory, const std::string& input) {
  const auto file = directory.write("input", input);
  return run(cat("cd ", directory.path().string(), " && ", RP_FUZZ_BROKEN, " broken ", file.string()));
}

class FuzzDriver : public ::testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(FuzzDriver, SavesTheInputAndPrintsTheCommandThatRepeatsIt) {
  const auto& [input, reason] = GetParam();
  const TempDirectory directory;
  const Answer answer = run_broken(directory, input);
  EXPECT_NE(answer.code, 0) << answer.text;
  EXPECT_NE(answer.text.find(reason), std::string::npos) << answer.text;
  const std::string before_command = "repeat it by\n  ";
  const std::size_t found = answer.text.find(before_command);
  ASSERT_NE(found, std::string::npos) << answer.text;
  const std::size_t begin = found + before_command.size();
  const std::string command = answer.text.substr(begin, answer.text.find('\n', begin) - begin);
  EXPECT_EQ(command.find(RP_FUZZ_BROKEN), 0U) << command;
  std::ifstream saved(command.substr(command.rfind(' ') + 1));
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(saved), {}), input);
}

INSTANTIATE_TEST_SUITE_P(
    Faults, FuzzDriver,
    ::testing::Values(std::pair("beyond", "buffer-overflow"), std::pair("overflow", "signed integer overflow"),
                      std::pair("abort", "ABRT"), std::pair("exception", "not for its reader"),
                      std::pair("slow", "more than 1 s of processor time"), std::pair("waits", "does not end"),
                      std::pair("huge", "allocation-size-too-big"), std::pair("many", "more than 1 GiB of memory")),
    [](const auto& info) { return std::string(info.param.first); });

TEST(FuzzDriver, ReturnsWhetherAnInputWasTaken) {
  const TempDirectory directory;
  EXPECT_NE(run_broken(directory, "good").text.find("input: taken"), std::string::npos);
  EXPECT_NE(run_broken(directory, "other").text.find("input: refused"), std::string::npos);
}

TEST(Mutator, MakesTheSameInputAgain) {
  const Mutator mutator({"one = 1", "two = 22"}, {"[", "word"});
  std::string all;
  for (std::uint64_t i = 0; i < 100; ++i) {
    EXPECT_EQ(mutator.make(7, i), mutator.make(7, i));
    EXPECT_LE(mutator.make(7, i).size(), Mutator::kMaxMutatedBytes);
    all += mutator.make(7, i);
  }
  EXPECT_NE(mutator.make(8, 1) + mutator.make(8, 2), mutator.make(7, 1) + mutator.make(7, 2));
  EXPECT_NE(all.find("18446744073709551616"), std::string::npos) << "numbers at their extremes";
  EXPECT_NE(all.find("[[[["), std::string::npos) << "words of the dictionary, repeated";
}

TEST(Mutator, LeavesOutNoPrefixAndNestsEachWord) {
  const Mutator mutator({"ab", "xyz"}, {"[", "{\"a\":"});
  ASSERT_EQ(mutator.num_systematic(), 2U + 3U + 4U);
  EXPECT_EQ(mutator.systematic(1), "a");
  EXPECT_EQ(mutator.systematic(4), "xy");
  EXPECT_EQ(mutator.systematic(5), std::string(Mutator::kMaxNestedBytes, '['));
  EXPECT_EQ(mutator.systematic(8).substr(0, 11), "a{\"a\":{\"a\":");
}

TEST(Dictionary, IsReadInLibFuzzersFormat) {
  const TempDirectory directory;
  const auto file = directory.write("words.dict", "# words\n\"plain\"\n\n\"a\\\"b\\\\\"\n\"\\x00\\xff\"\n");
  EXPECT_EQ(read_dictionary(file), (std::vector<std::string>{"plain", "a\"b\\", std::string("\0\xff", 2)}));
  EXPECT_THROW((void)read_dictionary(directory.write("bad.dict", "plain\n")), std::runtime_error);
}

}  // namespace
}  // namespace rp::fuzz
