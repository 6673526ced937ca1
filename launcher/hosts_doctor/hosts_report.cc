#include "launcher/hosts_doctor/hosts_report.h"

#include <algorithm>
#include <cmath>

#include "common/text.h"
#include "common/text_table.h"

namespace rp {

namespace {

constexpr double kLargestClockDifference = 1;  // seconds: times in logs and of files are compared
constexpr double kSlowLink = 0.5;              // of the median of all

std::string name_of_node(const HostsReport& report, int node) {
  return report.answers[report.nodes[static_cast<std::size_t>(node)]].host.name;
}

std::string pair_text(const HostsReport& report, int first, int second) {
  return cat(name_of_node(report, first), " and ", name_of_node(report, second));
}

std::vector<LinkSpeed> speeds_of(const HostsReport& report) {
  std::vector<LinkSpeed> speeds;
  if (!report.measurement) return speeds;
  for (const auto& link : report.measurement->links) {
    if (link.speed) speeds.push_back(*link.speed);
  }
  return speeds;
}

double slower_gbs(const LinkSpeed& speed) { return std::min(speed.gbs_to_first, speed.gbs_to_second); }

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

std::string gbit(double gbs) {
  const double value = gbs * 8;
  return decimal(value, value < 0.1 ? 4 : value < 1 ? 3 : value < 10 ? 2 : 1);
}

std::string time_text(double seconds) {
  if (seconds < 1e-3) return cat(decimal(seconds * 1e6, 0), " us");
  return seconds < 1 ? cat(decimal(seconds * 1e3, 1), " ms") : cat(decimal(seconds, 1), " s");
}

const std::string* value_of(const HostFacts& facts, const std::string& name) {
  const auto found = std::ranges::find(facts.same, name, &std::pair<std::string, std::string>::first);
  return found == facts.same.end() ? nullptr : &found->second;
}

// Hosts by value of a fact, in the order of the hosts.
struct Value {
  std::string text;
  std::vector<std::string> hosts;
};
std::vector<Value> values_of(const HostsReport& report, const std::string& name) {
  std::vector<Value> values;
  for (std::size_t i = 0; i < report.facts.size(); ++i) {
    if (!report.facts[i]) continue;
    const std::string* const text = value_of(*report.facts[i], name);
    if (text == nullptr) continue;
    const auto found = std::ranges::find(values, *text, &Value::text);
    (found == values.end() ? values.emplace_back(Value{.text = *text, .hosts = {}}) : *found)
        .hosts.push_back(report.answers[i].host.name);
  }
  return values;
}

HostsCheck answer_check(const HostsReport& report) {
  const auto num = std::ranges::count(report.answers, 0, &HostAnswer::code);
  return {.name = "answer",
          .is_ok = static_cast<std::size_t>(num) == report.answers.size(),
          .result = cat(num, " of ", report.answers.size(), " hosts can start a run")};
}

HostsCheck same_check(const HostsReport& report, const char* name) {
  const std::vector<Value> values = values_of(report, name);
  HostsCheck check{.name = name, .is_ok = values.size() == 1};
  for (const Value& value : values) {
    check.result += check.result.empty() ? "" : "; ";
    check.result += values.size() == 1 ? value.text : cat(list_of(value.hosts, 4), ": ", value.text);
  }
  return check;
}

HostsCheck limits_check(const HostsReport& report) {
  std::vector<std::string> hosts;
  for (std::size_t i = 0; i < report.facts.size(); ++i) {
    if (report.facts[i] && std::ranges::any_of(report.facts[i]->limits, &LimitLine::is_problem))
      hosts.push_back(report.answers[i].host.name);
  }
  return {.name = "limits",
          .is_ok = hosts.empty(),
          .result = hosts.empty() ? "no problem" : cat("problems on ", list_of(hosts, 4))};
}

HostsCheck clock_check(const HostsReport& report) {
  HostsCheck check{.name = "clocks", .is_ok = true};
  double earliest = 0;
  double latest = 0;
  double uncertainty = 0;
  for (const auto& clock : report.measurement->clocks) {
    check.is_ok = check.is_ok && clock && std::abs(clock->seconds) <= kLargestClockDifference;
    if (!clock) continue;
    earliest = std::min(earliest, clock->seconds);
    latest = std::max(latest, clock->seconds);
    uncertainty = std::max(uncertainty, clock->uncertainty_seconds);
  }
  check.is_ok = check.is_ok && latest - earliest <= kLargestClockDifference;
  check.result = cat(time_text(latest - earliest), " apart (measured to ", time_text(uncertainty), ")");
  return check;
}

// The line of one figure of all pairs: the worst of them, its pair, and the median if there are several.
template <typename Figure, typename Text>
std::string worst_text(const HostsReport& report, const std::vector<LinkSpeed>& speeds, bool more_is_worse,
                       Figure figure, Text text) {
  std::vector<double> values;
  for (const LinkSpeed& speed : speeds) values.push_back(figure(speed));
  const auto worst = more_is_worse ? std::ranges::max_element(values) : std::ranges::min_element(values);
  const LinkSpeed& pair = speeds[static_cast<std::size_t>(worst - values.begin())];
  const std::string between = cat(text(*worst), " between ", pair_text(report, pair.first, pair.second));
  return speeds.size() == 1 ? between : cat(between, ", median ", text(median(values)));
}

void add_network_checks(const HostsReport& report, std::vector<HostsCheck>& checks) {
  if (!report.measurement) {
    if (!report.unmeasured.empty()) checks.push_back({.name = "network", .is_ok = false, .result = "not measured"});
    return;
  }
  checks.push_back(clock_check(report));
  const std::vector<LinkSpeed> speeds = speeds_of(report);
  const std::size_t num_pairs = report.measurement->links.size();
  checks.push_back({.name = "messages",
                    .is_ok = speeds.size() == num_pairs,
                    .result = cat("arrive between ", speeds.size(), " of ", num_pairs, " pairs of neighbours")});
  if (speeds.empty()) return;
  checks.push_back({.name = "latency",
                    .is_ok = true,
                    .result = worst_text(
                        report, speeds, true, [](const LinkSpeed& speed) { return speed.latency_us; },
                        [](double us) { return time_text(us / 1e6); })});
  std::vector<double> rates;
  for (const LinkSpeed& speed : speeds) rates.push_back(slower_gbs(speed));
  checks.push_back(
      {.name = "bandwidth",
       .is_ok = std::ranges::min(rates) >= kSlowLink * median(rates),
       .result = worst_text(report, speeds, false, slower_gbs, [](double gbs) { return cat(gbit(gbs), " Gbit/s"); }) +
                 ", in each direction at once"});
}

void add_difference(const HostsReport& report, const char* name, const char* remedy, std::vector<Advice>& list) {
  const std::vector<Value> values = values_of(report, name);
  for (std::size_t i = 1; i < values.size(); ++i) {
    list.push_back(
        {list_of(values[i].hosts, 8),
         cat(name, " is ", values[i].text, ", and ", values[0].text, " on ", list_of(values[0].hosts, 4), remedy),
         true});
  }
}

// One message for all hosts with the same advice on the same value.
void add_limits(const HostsReport& report, std::vector<Advice>& list) {
  std::vector<std::pair<LimitLine, std::vector<std::string>>> causes;
  for (std::size_t i = 0; i < report.facts.size(); ++i) {
    if (!report.facts[i]) continue;
    for (const LimitLine& line : report.facts[i]->limits) {
      if (line.advice.empty()) continue;
      const auto found = std::ranges::find_if(causes, [&line](const auto& cause) {
        return cause.first.key == line.key && cause.first.value == line.value && cause.first.advice == line.advice;
      });
      auto& hosts =
          found == causes.end() ? causes.emplace_back(line, std::vector<std::string>{}).second : found->second;
      hosts.push_back(report.answers[i].host.name);
    }
  }
  for (const auto& [line, hosts] : causes)
    list.push_back({list_of(hosts, 8), cat(line.name, ": ", line.value, ": ", line.advice), line.is_problem});
}

void add_clocks(const HostsReport& report, std::vector<Advice>& list) {
  for (std::size_t node = 0; node < report.measurement->clocks.size(); ++node) {
    const auto& clock = report.measurement->clocks[node];
    const std::string host = name_of_node(report, static_cast<int>(node));
    if (!clock) {
      list.push_back({host, cat("messages between it and ", name_of_node(report, 0), " do not arrive"), true});
    } else if (std::abs(clock->seconds) > kLargestClockDifference) {
      list.push_back({host,
                      cat("its clock is ", time_text(std::abs(clock->seconds)),
                          clock->seconds > 0 ? " ahead of" : " behind", " that of ", name_of_node(report, 0),
                          ": times in logs and of files cannot be compared; start a time service, such as chrony, on "
                          "all hosts"),
                      true});
    }
  }
}

void add_links(const HostsReport& report, std::vector<Advice>& list) {
  std::vector<double> rates;
  for (const LinkSpeed& speed : speeds_of(report)) rates.push_back(slower_gbs(speed));
  for (const auto& link : report.measurement->links) {
    const std::string pair = pair_text(report, link.first, link.second);
    if (!link.speed) {
      list.push_back({pair,
                      "messages between them do not arrive in time: look for a firewall that blocks TCP connections "
                      "between the two, or for a network that only one of them has (OMPI_MCA_btl_tcp_if_include names "
                      "the one to use)",
                      true});
    } else if (slower_gbs(*link.speed) < kSlowLink * median(rates)) {
      list.push_back(
          {pair,
           cat("their network reaches ", gbit(slower_gbs(*link.speed)), " Gbit/s, and the median of all pairs ",
               gbit(median(rates)), ": look at its cables, ports and other users"),
           true});
    }
  }
}

}  // namespace

std::vector<HostsCheck> checks_of(const HostsReport& report) {
  std::vector<HostsCheck> checks = {answer_check(report)};
  const bool has_facts = std::ranges::any_of(report.facts, [](const auto& facts) { return facts.has_value(); });
  if (has_facts) {
    for (const char* name : {kBuildFact, kMpiFact, kInstructionsFact}) checks.push_back(same_check(report, name));
    checks.push_back(limits_check(report));
  }
  add_network_checks(report, checks);
  return checks;
}

std::vector<Advice> advice_on_hosts(const HostsReport& report) {
  std::vector<Advice> list;
  for (std::size_t i = 0; i < report.facts.size(); ++i) {
    if (report.facts[i] && !report.facts[i]->network_problem.empty())
      list.push_back({report.answers[i].host.name, report.facts[i]->network_problem, true});
  }
  add_difference(report, kBuildFact, "; install the same build on all hosts", list);
  add_difference(report, kMpiFact, "; install the same version on all hosts", list);
  add_difference(report, kInstructionsFact,
                 ": LibTorch computes with other instructions on the CPU there, so results on CPU workers have other "
                 "bits; use equal processors, or GPUs",
                 list);
  if (report.measurement) {
    add_clocks(report, list);
    add_links(report, list);
  } else if (!report.unmeasured.empty()) {
    list.push_back({"network", report.unmeasured, true});
  }
  add_limits(report, list);
  std::ranges::stable_partition(list, &Advice::is_problem);
  return list;
}

std::string planned_network(const HostsReport& report) {
  const std::vector<LinkSpeed> speeds = speeds_of(report);
  if (speeds.empty()) return "";
  double gbs = HUGE_VAL;
  double latency_us = 0;
  for (const LinkSpeed& speed : speeds) {
    gbs = std::min(gbs, slower_gbs(speed));
    latency_us = std::max(latency_us, speed.latency_us);
  }
  return cat(gbit(gbs), "gbit,", decimal(latency_us, 0), "us");
}

std::string hosts_text(const HostsReport& report) {
  TextTable table({"check", "", "result"});
  for (const HostsCheck& check : checks_of(report))
    table.add({check.name, check.is_ok ? "ok" : "PROBLEM", check.result});
  std::string text = table.text();
  const std::string network = planned_network(report);
  if (!network.empty()) text += cat("\nrp-plan plan --nodes ", report.nodes.size(), " --network ", network, "\n");
  return text + advice_text(advice_on_hosts(report));
}

}  // namespace rp
