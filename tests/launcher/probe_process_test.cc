#include "launcher/doctor/probe_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "common/text.h"
#include "roundpipe/error.h"
#include "tests/common/temp_directory.h"

namespace rp {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

constexpr double kPatience = 20;

// Replaces rp-probe by a shell script.
class ProbeProcessTest : public testing::Test {
 protected:
  // Writes a script with `body` after "#!/bin/sh". In it, $line is the line of rp-probe for figures
  // with the upload bandwidth `up`.
  [[nodiscard]] fs::path script(const std::string& body, double up = 25) const {
    const fs::path file = directory_.file("probe");
    const ProbeFigures figures{.host_to_device_gbs = up,
                               .device_to_host_gbs = 24,
                               .both_directions_gbs = 20,
                               .copy_latency_us = 9,
                               .register_s_per_gib = 0.1,
                               .memory_gib = 24,
                               .usable_gib = 23};
    std::ofstream(file) << "#!/bin/sh\nline='" << probe_line(figures) << "'\n" << body << "\n";
    fs::permissions(file, fs::perms::owner_all);
    return file;
  }
  static std::vector<Gpu> gpus(int number) {
    std::vector<Gpu> list;
    for (int i = 0; i < number; ++i) list.push_back({.index = i, .uuid = cat("GPU-", i)});
    return list;
  }
  static std::vector<GpuBandwidth> measured(const fs::path& program, int number, double seconds = kPatience) {
    return measure_bandwidths(program, gpus(number), std::vector<CpuList>(number), seconds, false);
  }

  const TempDirectory directory_;
};

TEST_F(ProbeProcessTest, FiguresReadBackAsTheyWereWritten) {
  const ProbeFigures figures{.host_to_device_gbs = 25.25,
                             .copy_latency_us = 9.125,
                             .register_read_only_s_per_gib = 0.5,
                             .usable_gib = 22,
                             .huge_pages = true,
                             .copy_engines = 3,
                             .has_word_operations = true,
                             .registers_read_only = true,
                             .has_unified_addressing = true,
                             .bf16_tflops = 150.5,
                             .memory_gbs = 900,
                             .products_problem = "no \"cuBLAS\""};
  EXPECT_EQ(parse_probe_line(probe_line(figures)), figures);
  EXPECT_THROW((void)parse_probe_line("{}"), Error);
  EXPECT_THROW((void)parse_probe_line("hello"), Error);
}

TEST_F(ProbeProcessTest, OneGpuIsMeasuredAloneOnly) {
  const std::vector<GpuBandwidth> found = measured(script("while read word; do echo \"$line\"; done"), 1);
  ASSERT_TRUE(found.at(0).alone.has_value()) << found[0].failure;
  EXPECT_EQ(found[0].alone->host_to_device_gbs, 25);
  EXPECT_FALSE(found[0].together.has_value());
  EXPECT_EQ(found[0].failure, "");
}

TEST_F(ProbeProcessTest, SeveralAreMeasuredOnceMoreTogetherEachWithItsOwnCard) {
  const fs::path log = directory_.file("log");
  const fs::path program = script(
      cat("while read word; do echo \"$1 $CUDA_VISIBLE_DEVICES $word\" >> ", log.string(), "; echo \"$line\"; done"));
  for (const GpuBandwidth& gpu : measured(program, 2)) {
    EXPECT_TRUE(gpu.alone && gpu.together) << gpu.failure;
  }
  std::ifstream file(log);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  ASSERT_EQ(lines.size(), 4U);
  EXPECT_EQ(lines[0], "--wait GPU-0 measure");
  EXPECT_EQ(lines[1], "--wait GPU-1 measure");
  EXPECT_THAT(std::vector<std::string>(lines.begin() + 2, lines.end()),
              testing::UnorderedElementsAre("--wait GPU-0 measure", "--wait GPU-1 measure"));
}

TEST_F(ProbeProcessTest, ProductsAreAskedForByAnOption) {
  const fs::path log = directory_.file("log");
  const fs::path program = script(cat("while read word; do echo \"$*\" >> ", log.string(), "; echo \"$line\"; done"));
  ASSERT_TRUE(measure_bandwidths(program, gpus(1), {{}}, kPatience, true).at(0).alone.has_value());
  std::string words;
  std::ifstream file(log);
  EXPECT_TRUE(std::getline(file, words));
  EXPECT_EQ(words, "--wait --products");
}

TEST_F(ProbeProcessTest, OneThatFailsSaysWhyAndTheOthersGoOn) {
  const fs::path program = script(
      "[ $CUDA_VISIBLE_DEVICES = GPU-1 ] && { echo 'rp-probe: out of luck' >&2; exit 69; }\nwhile read word; do echo "
      "\"$line\"; done");
  const std::vector<GpuBandwidth> found = measured(program, 3);
  EXPECT_EQ(found[1].failure, "rp-probe: out of luck");
  EXPECT_FALSE(found[1].alone.has_value());
  EXPECT_TRUE(found[0].together && found[2].together);
}

TEST_F(ProbeProcessTest, OneThatDiesInTheSecondMeasurementKeepsItsFirst) {
  const fs::path program = script(
      "read word; echo \"$line\"; [ $CUDA_VISIBLE_DEVICES = GPU-0 ] && { read word; kill -KILL $$; }\nread word; echo "
      "\"$line\"; read word");
  const std::vector<GpuBandwidth> found = measured(program, 2);
  EXPECT_TRUE(found[0].alone.has_value());
  EXPECT_FALSE(found[0].together.has_value());
  EXPECT_EQ(found[0].failure, "rp-probe was killed by signal 9");
  EXPECT_TRUE(found[1].together.has_value()) << found[1].failure;
}

TEST_F(ProbeProcessTest, OneThatHangsIsGivenUpAndKilled) {
  const fs::path pid_file = directory_.file("pid");
  const std::vector<GpuBandwidth> found =
      measured(script(cat("echo $$ > ", pid_file.string(), "; exec sleep 600")), 1, 0.5);
  EXPECT_THAT(found.at(0).failure, HasSubstr("did not answer in time"));
  pid_t pid = 0;
  std::ifstream(pid_file) >> pid;
  ASSERT_GT(pid, 0);
  EXPECT_NE(kill(pid, 0), 0) << "it is gone";
}

TEST_F(ProbeProcessTest, OneThatEndsWithoutAWordOrPrintsNonsenseOrIsNotThereIsALineToo) {
  EXPECT_EQ(measured(script("exit 3"), 1).at(0).failure, "rp-probe ended with exit code 3");
  EXPECT_THAT(measured(script("echo nonsense; read word"), 1).at(0).failure, HasSubstr("printed \"nonsense\""));
  EXPECT_THAT(measured("/no/such/probe", 1).at(0).failure, HasSubstr("/no/such/probe"));
}

}  // namespace
}  // namespace rp
