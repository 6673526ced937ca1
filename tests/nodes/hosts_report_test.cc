#include "launcher/hosts_doctor/hosts_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "common/text.h"
#include "roundpipe/error.h"

namespace rp {
namespace {

using testing::HasSubstr;
using testing::Not;

HostFacts facts_of(const std::string& build) {
  return {.same = {{kBuildFact, build}, {kMpiFact, "Open MPI v4.1.4"}, {kInstructionsFact, "avx2 fma"}},
          .limits = {{.key = "open_files", .name = "open files (ulimit -Hn)", .value = "4096"}}};
}

// Hosts a, b and c, each connected with both others at 10 Gbit/s.
HostsReport good_report() {
  HostsReport report;
  for (const char* name : {"a", "b", "c"}) {
    report.answers.push_back({.host = {.name = name}, .text = {}, .output = {}, .is_reached = true});
    report.facts.emplace_back(facts_of("1.0, build 7"));
    report.nodes.push_back(report.nodes.size());
  }
  NodesMeasurement& measured = report.measurement.emplace();
  measured.clocks = {ClockDifference{}, ClockDifference{.seconds = 0.0005, .uncertainty_seconds = 0.00004},
                     ClockDifference{.seconds = -0.0002, .uncertainty_seconds = 0.00003}};
  for (int node = 0; node < 3; ++node) {
    const LinkSpeed speed{.first = node,
                          .second = (node + 1) % 3,
                          .latency_us = 70.0 + node,
                          .gbs_to_second = 1.2,
                          .gbs_to_first = 1.175};
    measured.links.push_back({.first = speed.first, .second = speed.second, .speed = speed});
  }
  return report;
}

TEST(HostsReport, HasOneLineForEachCheckAndTheNetworkForThePlanner) {
  EXPECT_EQ(hosts_text(good_report()),
            "check             result\n"
            "answer        ok  3 of 3 hosts can start a run\n"
            "RoundPipe     ok  1.0, build 7\n"
            "Open MPI      ok  Open MPI v4.1.4\n"
            "instructions  ok  avx2 fma\n"
            "limits        ok  no problem\n"
            "clocks        ok  700 us apart (measured to 40 us)\n"
            "messages      ok  arrive between 3 of 3 pairs of neighbours\n"
            "latency       ok  72 us between c and a, median 71 us\n"
            "bandwidth     ok  9.40 Gbit/s between a and b, median 9.40 Gbit/s, in each direction at once\n"
            "\nrp-plan plan --nodes 3 --network 9.40gbit,72us\n");
}

TEST(HostsReport, NamesTheHostsThatDiffer) {
  HostsReport report = good_report();
  report.facts[1] = facts_of("1.1, build 8");
  EXPECT_THAT(hosts_text(report), HasSubstr("RoundPipe     PROBLEM  a, c: 1.0, build 7; b: 1.1, build 8\n"));
  EXPECT_THAT(
      hosts_text(report),
      HasSubstr("  b: RoundPipe is 1.1, build 8, and 1.0, build 7 on a, c; install the same build on all hosts\n"));
}

TEST(HostsReport, AClockThatDiffersByMoreThanASecondIsAProblem) {
  HostsReport report = good_report();
  report.measurement->clocks[2]->seconds = 0.9;
  EXPECT_THAT(advice_text(advice_on_hosts(report)), Not(HasSubstr("clock")));
  report.measurement->clocks[2]->seconds = -63.5;
  EXPECT_THAT(hosts_text(report), HasSubstr("clocks        PROBLEM  63.5 s apart (measured to 40 us)\n"));
  EXPECT_THAT(hosts_text(report), HasSubstr("  c: its clock is 63.5 s behind that of a: times in logs and of files"));
}

TEST(HostsReport, ALimitIsOneMessageForAllHostsThatHaveIt) {
  HostsReport report = good_report();
  for (const std::size_t host : {0, 2}) {
    report.facts[host]->limits[0] = {
        .key = "open_files", .name = "open files (ulimit -Hn)", .value = "64", .advice = "too few", .is_problem = true};
  }
  EXPECT_THAT(hosts_text(report), HasSubstr("limits        PROBLEM  problems on a, c\n"));
  EXPECT_THAT(advice_text(advice_on_hosts(report)),
              testing::Eq("\nwhat is wrong, and what to do\n  a, c: open files (ulimit -Hn): 64: too few\n"));
}

TEST(HostsReport, NamesPairsWithoutMessagesAndSlowOnes) {
  HostsReport report = good_report();
  report.measurement->links[1].speed.reset();
  EXPECT_THAT(hosts_text(report), HasSubstr("messages      PROBLEM  arrive between 2 of 3 pairs of neighbours\n"));
  EXPECT_THAT(hosts_text(report), HasSubstr("  b and c: messages between them do not arrive in time"));
  report = good_report();
  report.measurement->links[2].speed->gbs_to_first = 0.1;
  EXPECT_THAT(hosts_text(report), HasSubstr("bandwidth     PROBLEM  0.800 Gbit/s between c and a, median 9.40 Gbit/s"));
  EXPECT_THAT(hosts_text(report),
              HasSubstr("  c and a: their network reaches 0.800 Gbit/s, and the median of all pairs 9.40"));
  EXPECT_EQ(planned_network(report), "0.800gbit,72us");
}

TEST(HostsReport, AHostThatDoesNotAnswerLeavesTheLinesOfTheOthers) {
  HostsReport report = good_report();
  report.answers[1] = {
      .host = {.name = "b"}, .code = 69, .text = "rp-launch: host b cannot be reached\n", .output = {}};
  report.facts[1].reset();
  report.nodes = {0, 2};
  report.measurement->clocks.pop_back();
  report.measurement->links.resize(1);
  const std::string text = hosts_text(report);
  EXPECT_THAT(text, HasSubstr("answer        PROBLEM  2 of 3 hosts can start a run\n"));
  EXPECT_THAT(text, HasSubstr("latency       ok       70 us between a and c\n"));
  EXPECT_THAT(text, HasSubstr("rp-plan plan --nodes 2 --network 9.40gbit,70us\n"));
  report.facts.assign(3, std::nullopt);
  report.nodes.clear();
  report.measurement.reset();
  report.unmeasured = "no host takes part";
  EXPECT_THAT(hosts_text(report), HasSubstr("network  PROBLEM  not measured\n"));
  EXPECT_THAT(hosts_text(report), HasSubstr("  network: no host takes part\n"));
}

TEST(HostsReport, AsJsonHasTheSameForPrograms) {
  HostsReport report = good_report();
  report.measurement->links[1].speed.reset();
  report.measurement->clocks[1].reset();
  const auto json = nlohmann::json::parse(hosts_json(report));
  EXPECT_EQ(json["hosts"][1]["host"], "b");
  EXPECT_EQ(json["hosts"][1]["same"]["Open MPI"], "Open MPI v4.1.4");
  EXPECT_EQ(json["hosts"][1]["limits"][0]["value"], "4096");
  EXPECT_EQ(json["nodes"], nlohmann::json({"a", "b", "c"}));
  EXPECT_TRUE(json["clocks"][1].is_null());
  EXPECT_EQ(json["clocks"][2]["seconds_ahead"], -0.0002);
  EXPECT_EQ(json["links"][0]["first"], "a");
  EXPECT_EQ(json["links"][0]["gbs_to_second"], 1.2);
  EXPECT_TRUE(json["links"][1]["latency_us"].is_null());
  EXPECT_EQ(json["network"], "9.40gbit,72us");
  EXPECT_EQ(json["checks"].size(), checks_of(report).size());
  EXPECT_EQ(json["advice"].size(), advice_on_hosts(report).size());
}

TEST(HostsReport, MeasurementsAndFactsPassThroughTheirLines) {
  HostsReport report = good_report();
  report.measurement->links[1].speed.reset();
  report.measurement->clocks[1].reset();
  const std::string line = measurement_json(*report.measurement);
  const auto measured = parse_measurement("a shell's greeting\n" + line);
  ASSERT_TRUE(measured);
  EXPECT_EQ(measurement_json(*measured), line);
  EXPECT_FALSE(parse_measurement("Open MPI has a problem"));
  HostFacts facts = facts_of("1.0, build 7");
  facts.network_problem = "no library";
  facts.limits[0].advice = "raise it";
  EXPECT_EQ(host_facts_json(parse_host_facts(host_facts_json(facts))), host_facts_json(facts));
  EXPECT_THROW((void)parse_host_facts("usage: rp-launch"), Error);
}

TEST(HostFacts, ThisHostHasThem) {
  const HostFacts facts = observe_host_facts("/no/such/folder", "");
  ASSERT_EQ(facts.same.size(), 3U);
  EXPECT_THAT(facts.same[0].second, HasSubstr(", build "));
  EXPECT_THAT(facts.network_problem, HasSubstr("libroundpipe_mpi.so"));
  EXPECT_FALSE(facts.limits.empty());
}

}  // namespace
}  // namespace rp
