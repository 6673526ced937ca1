#include "launcher/doctor/doctor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "common/text.h"
#include "launcher/doctor/doctor_report.h"
#include "roundpipe/error.h"
#include "tests/common/documented_options.h"
#include "tests/launcher/fake_nvml.h"

namespace rp {
namespace {

using testing::HasSubstr;
using testing::Not;

// A machine without problems that has two nodes and a card at each.
DoctorReport good_report() {
  fake_driver() = {};
  fake_driver().cards = equal_cards(2);
  DoctorReport report{
      .system = observe_gpus(fake_nvml()), .plugin = "/lib/libroundpipe_cuda.so", .nodes = {{0, {0, 1}}, {1, {2, 3}}}};
  for (std::size_t i = 0; i < 2; ++i) {
    report.system.gpus[i].numa_node = static_cast<int>(i);
    report.system.gpus[i].card_link = {4, 16};
    const ProbeFigures alone{.host_to_device_gbs = 25.0,
                             .device_to_host_gbs = 26.0,
                             .both_directions_gbs = 20.0,
                             .copy_latency_us = 9,
                             .register_s_per_gib = 0.125,
                             .register_read_only_s_per_gib = 0.25,
                             .copy_engines = 2,
                             .has_word_operations = true,
                             .registers_read_only = true,
                             .has_unified_addressing = true};
    ProbeFigures together = alone;
    together.host_to_device_gbs = 12.5;
    report.bandwidths.push_back({.gpu = report.system.gpus[i], .alone = alone, .together = together});
  }
  report.limits = {{.key = "shm", .name = "/dev/shm", .value = "64.0 GiB, 64.0 GiB free"}};
  return report;
}

std::string advice_text(const DoctorReport& report) {
  std::string text;
  for (const Advice& advice : advice_on(report))
    text += cat(advice.is_problem ? "! " : "  ", advice.about, ": ", advice.text, "\n");
  return text;
}

TEST(Doctor, PrintsCardsBandwidthsNodesAndLimits) {
  const std::string text = doctor_text(good_report());
  EXPECT_THAT(text, HasSubstr("driver    580.82.07, CUDA 13.0\n"));
  EXPECT_THAT(text,
              HasSubstr("GPU  name              memory    free      sm   PCIe now  at most  card     node  UUID\n"));
  EXPECT_THAT(
      text,
      HasSubstr("1    NVIDIA Fake 4090  24.0 GiB  23.0 GiB  8.9  1.0 x16   4.0 x16  4.0 x16  1     GPU-b1-0000\n"));
  EXPECT_THAT(text, HasSubstr("0    25.0 / 12.5     26.0 / 26.0     20.0 / 20.0"));
  EXPECT_THAT(text, HasSubstr("register, s/GiB  read-only"));
  EXPECT_THAT(text, HasSubstr("0.125            0.250"));
  EXPECT_THAT(
      text, HasSubstr("GPU  copy engines  64-bit stream memory operations  read-only registration  unified addressing\n"
                      "0    2             yes                              yes                     yes\n"));
  EXPECT_THAT(text, HasSubstr("1          2-3    1\n"));
  EXPECT_THAT(text, HasSubstr("/dev/shm  64.0 GiB, 64.0 GiB free\n"));
  EXPECT_THAT(text, Not(HasSubstr("what is wrong")));
  EXPECT_EQ(advice_text(good_report()), "");
}

TEST(Doctor, PrintsProductsWhereTheyWereMeasured) {
  DoctorReport report = good_report();
  EXPECT_THAT(doctor_text(report), Not(HasSubstr("matrix products")));
  report.bandwidths[0].alone->bf16_tflops = 140.04;
  report.bandwidths[0].alone->memory_gbs = 900;
  report.bandwidths[1].alone->products_problem = "no cuBLAS";
  const std::string text = doctor_text(report);
  EXPECT_THAT(text, HasSubstr("GPU  bf16   fp16  fp16, fp16 sums  tf32  own memory, GB/s"));
  EXPECT_THAT(text, HasSubstr("0    140.0  -     -                -     900.0"));
  EXPECT_THAT(text, HasSubstr("no cuBLAS"));
}

TEST(Doctor, SaysOfEachCardWhatIsWrongWithIt) {
  const auto advice_after = [](const std::function<void(DoctorReport&)>& change) {
    DoctorReport report = good_report();
    change(report);
    return advice_text(report);
  };
  EXPECT_THAT(advice_after([](DoctorReport& r) { r.system.gpus[0].link.width = 8; }),
              HasSubstr("8 lanes and the card 16"));
  EXPECT_THAT(advice_after([](DoctorReport& r) { r.system.gpus[0].most_link.generation = 3; }),
              HasSubstr("allows PCIe 3.0 and the card does 4.0"));
  EXPECT_THAT(advice_after([](DoctorReport& r) { r.system.gpus[1].problem = "it is lost"; }),
              HasSubstr("! GPU 1 (NVIDIA Fake 4090, GPU-b1-0000): cannot be used: it is lost"));
  EXPECT_THAT(advice_after([](DoctorReport& r) { r.system.gpus[0].exclusive = true; }), HasSubstr("  GPU 0"));
  EXPECT_THAT(advice_after([](DoctorReport& r) { r.system.gpus[0].free_bytes /= 2; }),
              HasSubstr("other programs have 12.5 GiB"));
  EXPECT_THAT(advice_after([](DoctorReport& r) { r.system.gpus[0].numa_node = -1; }),
              HasSubstr("NUMA node is unknown"));
  EXPECT_THAT(advice_after([](DoctorReport& r) { r.system.gpus[0].numa_node = 5; }),
              HasSubstr("no core of its NUMA node 5 may be used"));
  EXPECT_THAT(advice_after([](DoctorReport& r) { r.bandwidths[1].failure = "it hangs"; }),
              HasSubstr("not measured: it hangs"));
  EXPECT_THAT(advice_after([](DoctorReport& r) { r.bandwidths[1].alone->has_word_operations = false; }),
              HasSubstr("! GPU 1 (NVIDIA Fake 4090, GPU-b1-0000): its streams cannot wait for 64-bit words"));
  EXPECT_THAT(advice_after([](DoctorReport& r) { r.bandwidths[1].alone->has_word_operations = false; }),
              HasSubstr("--signals events"));
  EXPECT_THAT(advice_after([](DoctorReport& r) { r.bandwidths[0].alone->has_unified_addressing = false; }),
              HasSubstr("! GPU 0"));
  EXPECT_THAT(advice_after([](DoctorReport& r) { r.bandwidths[0].alone->copy_engines = 1; }), HasSubstr("take turns"));
  EXPECT_THAT(advice_after([](DoctorReport& r) { r.bandwidths[0].alone->registers_read_only = false; }),
              HasSubstr("nothing needs to be done"));
  EXPECT_THAT(advice_after([](DoctorReport& r) { r.bandwidths[0].alone->register_read_only_s_per_gib = 0.8; }),
              HasSubstr("registering takes 0.12 s a GiB (0.80 s read-only)"));
  EXPECT_THAT(advice_after([](DoctorReport& r) { r.system.cuda = "12.4"; }),
              HasSubstr("driver of version 580 or newer"));
  EXPECT_THAT(advice_after([](DoctorReport& r) { r.plugin.clear(); }), HasSubstr("build it with the CUDA toolkit"));
}

TEST(Doctor, WhatOneNodeMeansForTheCoresIsNothing) {
  DoctorReport report = good_report();
  report.nodes = {{-1, {0, 1}}};
  report.system.gpus[0].numa_node = -1;
  EXPECT_EQ(advice_text(report), "");
}

TEST(Doctor, PutsProblemsFirstAndLimitsAmongThem) {
  DoctorReport report = good_report();
  report.limits = {{.key = "a", .name = "note", .value = "1", .advice = "good to know"},
                   {.key = "b", .name = "wrong", .value = "2", .advice = "mend it", .is_problem = true}};
  EXPECT_EQ(advice_text(report), "! wrong: mend it\n  note: good to know\n");
  EXPECT_THAT(doctor_text(report),
              HasSubstr("\nwhat is wrong, and what to do\n  wrong: mend it\n\ngood to know\n  note: good to know\n"));
}

TEST(Doctor, WithoutAGpuSaysSoAndPrintsTheRest) {
  DoctorReport report = good_report();
  report.system = {.missing = "no CUDA device: none here; buy one"};
  report.bandwidths.clear();
  report.plugin.clear();
  const std::string text = doctor_text(report);
  EXPECT_THAT(text, testing::StartsWith("no CUDA device: none here; buy one\n"));
  EXPECT_THAT(text, HasSubstr("/dev/shm"));
  EXPECT_THAT(text, Not(HasSubstr("plug-in")));
}

TEST(Doctor, AsJsonHasTheSame) {
  DoctorReport report = good_report();
  report.bandwidths[1].together.reset();
  report.bandwidths[1].failure = "it hangs";
  const auto json = nlohmann::json::parse(doctor_json(report));
  EXPECT_EQ(json.at("driver"), "580.82.07");
  EXPECT_EQ(json.at("gpus").at(1).at("uuid"), "GPU-b1-0000");
  EXPECT_EQ(json.at("gpus").at(1).at("pcie_at_most").at("lanes"), 16);
  EXPECT_EQ(json.at("bandwidths").at(0).at("together").at("host_to_device_gbs"), 12.5);
  EXPECT_EQ(json.at("bandwidths").at(0).at("alone").at("copy_engines"), 2);
  for (const char* key : {"word_operations", "read_only_registration", "unified_addressing"}) {
    EXPECT_EQ(json.at("bandwidths").at(0).at("alone").at(key), true) << key;
  }
  EXPECT_EQ(json.at("bandwidths").at(0).at("alone").at("register_read_only_s_per_gib"), 0.25);
  EXPECT_TRUE(json.at("bandwidths").at(1).at("together").is_null());
  EXPECT_EQ(json.at("numa_nodes").at(1).at("cores"), (std::vector<int>{2, 3}));
  EXPECT_EQ(json.at("limits").at(0).at("key"), "shm");
  EXPECT_EQ(json.at("advice").size(), 1U);
  EXPECT_EQ(json.at("advice").at(0).at("problem"), true);
}

TEST(Doctor, TakesItsOptionsAndNothingElse) {
  const DoctorOptions options = parse_doctor_options({"--gpus", "0,1", "--json", "--profile", "gpu.json"});
  EXPECT_EQ(options.gpus->words.size(), 2U);
  EXPECT_TRUE(options.json);
  EXPECT_EQ(options.profile, "gpu.json");
  for (const std::vector<std::string>& wrong :
       {std::vector<std::string>{"--gpu", "0"}, {"train"}, {"--profile", ""}, {"--gpus", "x"}, {"--profile"}}) {
    EXPECT_THROW((void)parse_doctor_options(wrong), Error) << wrong[0];
  }
}

TEST(Doctor, LooksAtSeveralHostsWithTheNumbersAndTheProgramOfARun) {
  const DoctorOptions options =
      parse_doctor_options({"--hosts", "a:8,b:4", "--gpus", "all", "--", "train", "--model", "m"});
  EXPECT_EQ(options.hosts, (std::vector<Host>{{.name = "a", .num_workers = 8}, {.name = "b", .num_workers = 4}}));
  EXPECT_EQ(options.options_of_node, (std::vector<std::string>{"--gpus", "all"}));
  EXPECT_EQ(options.command, (std::vector<std::string>{"train", "--model", "m"}));
  EXPECT_EQ(parse_doctor_options({kHostFactsWord}).host_part, DoctorOptions::HostPart::kFacts);
  EXPECT_EQ(parse_doctor_options({kHostNetworkWord, "--"}).host_part, DoctorOptions::HostPart::kNetwork);
  EXPECT_THROW((void)parse_doctor_options({"--hosts", "a", "--hostfile", "f"}), Error);
  EXPECT_THROW((void)parse_doctor_options({"--hosts", "a", "--profile", "f"}), Error);
}

TEST(Doctor, ItsManualNamesExactlyItsOptions) { expect_documented("doctor.md", option_rows(doctor_option_specs())); }

}  // namespace
}  // namespace rp
