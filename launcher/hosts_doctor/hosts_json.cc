#include <nlohmann/json.hpp>

#include "launcher/hosts_doctor/hosts_report.h"

namespace rp {

namespace {

using Json = nlohmann::ordered_json;

Json clocks_json(const NodesMeasurement& measurement) {
  Json list = Json::array();
  for (const auto& clock : measurement.clocks) {
    list.push_back(clock ? Json{{"seconds_ahead", clock->seconds}, {"uncertainty_seconds", clock->uncertainty_seconds}}
                         : Json(nullptr));
  }
  return list;
}

// `first` and `second`: how the nodes are called.
Json link_json(const NodesMeasurement::Link& link, const Json& first, const Json& second) {
  Json json{{"first", first}, {"second", second}};
  json["latency_us"] = link.speed ? Json(link.speed->latency_us) : Json(nullptr);
  json["gbs_to_second"] = link.speed ? Json(link.speed->gbs_to_second) : Json(nullptr);
  json["gbs_to_first"] = link.speed ? Json(link.speed->gbs_to_first) : Json(nullptr);
  return json;
}

Json host_json(const HostsReport& report, std::size_t host) {
  const HostAnswer& answer = report.answers[host];
  Json json{{"host", answer.host.name}, {"code", answer.code}, {"text", answer.text}};
  json["same"] = Json::object();
  json["limits"] = Json::array();
  const auto& facts = report.facts[host];
  if (!facts) return json;
  for (const auto& [name, value] : facts->same) json["same"][name] = value;
  for (const LimitLine& line : facts->limits)
    json["limits"].push_back({{"key", line.key}, {"name", line.name}, {"value", line.value}});
  return json;
}

}  // namespace

std::string measurement_json(const NodesMeasurement& measurement) {
  Json json{{"clocks", clocks_json(measurement)}, {"links", Json::array()}};
  for (const NodesMeasurement::Link& link : measurement.links)
    json["links"].push_back(link_json(link, link.first, link.second));
  return json.dump() + "\n";
}

std::optional<NodesMeasurement> parse_measurement(const std::string& output) try {
  const Json json = Json::parse(output.substr(std::min(output.size(), output.find("{\"clocks\""))));
  NodesMeasurement measurement;
  for (const Json& clock : json.at("clocks")) {
    auto& added = measurement.clocks.emplace_back();
    if (clock.is_null()) continue;
    added = {.seconds = clock.at("seconds_ahead"), .uncertainty_seconds = clock.at("uncertainty_seconds")};
  }
  for (const Json& link : json.at("links")) {
    auto& added = measurement.links.emplace_back(
        NodesMeasurement::Link{.first = link.at("first"), .second = link.at("second"), .speed = {}});
    if (link.at("latency_us").is_null()) continue;
    added.speed = {.first = added.first,
                   .second = added.second,
                   .latency_us = link.at("latency_us"),
                   .gbs_to_second = link.at("gbs_to_second"),
                   .gbs_to_first = link.at("gbs_to_first")};
  }
  return measurement;
} catch (const nlohmann::json::exception&) {
  return std::nullopt;
}

std::string hosts_json(const HostsReport& report) {
  Json json{{"hosts", Json::array()}};
  for (std::size_t host = 0; host < report.answers.size(); ++host) json["hosts"].push_back(host_json(report, host));
  json["nodes"] = Json::array();
  for (const std::size_t host : report.nodes) json["nodes"].push_back(report.answers[host].host.name);
  json["clocks"] = report.measurement ? clocks_json(*report.measurement) : Json::array();
  json["links"] = Json::array();
  if (report.measurement) {
    const auto name = [&](int node) { return report.answers[report.nodes[static_cast<std::size_t>(node)]].host.name; };
    for (const NodesMeasurement::Link& link : report.measurement->links)
      json["links"].push_back(link_json(link, name(link.first), name(link.second)));
  }
  json["unmeasured"] = report.unmeasured;
  json["network"] = planned_network(report);
  json["checks"] = Json::array();
  for (const HostsCheck& check : checks_of(report))
    json["checks"].push_back({{"name", check.name}, {"ok", check.is_ok}, {"result", check.result}});
  json["advice"] = Json::array();
  for (const Advice& advice : advice_on_hosts(report))
    json["advice"].push_back({{"about", advice.about}, {"text", advice.text}, {"problem", advice.is_problem}});
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace rp
