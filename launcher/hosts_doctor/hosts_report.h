// launcher/hosts_doctor/hosts_report.h
// Formats what `rp-launch doctor --hosts` has found, as text or JSON: one line for each check, and one message for each
// cause. Keys: docs/doctor.md.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/doctor/doctor_report.h"
#include "launcher/hosts/host_check.h"
#include "launcher/hosts_doctor/host_facts.h"
#include "nodes/measurement.h"

namespace rp {

struct HostsReport {
  std::vector<HostAnswer> answers{};              // to whether a run can start, by host
  std::vector<std::optional<HostFacts>> facts{};  // by host; nullopt: it did not say
  std::vector<std::size_t> nodes{};               // the host of each node of the measurement
  std::optional<NodesMeasurement> measurement{};
  std::string unmeasured{};  // why there is no measurement; empty if there is one
};

struct HostsCheck {
  std::string name{};
  bool is_ok = false;
  std::string result{};
};

[[nodiscard]] std::vector<HostsCheck> checks_of(const HostsReport& report);

// Returns a message for each cause, with the hosts that it concerns, problems first. What a host has answered itself
// (HostAnswer::text) is not repeated.
[[nodiscard]] std::vector<Advice> advice_on_hosts(const HostsReport& report);

// Returns the network for `rp-plan plan --network`, such as "9.41gbit,74us": that of the slowest pair. Empty if no pair
// was measured.
[[nodiscard]] std::string planned_network(const HostsReport& report);

[[nodiscard]] std::string hosts_text(const HostsReport& report);
[[nodiscard]] std::string hosts_json(const HostsReport& report);

// Returns the measurement as one line of JSON. Node 0 prints it, and the rp-launch that has started all nodes reads it.
[[nodiscard]] std::string measurement_json(const NodesMeasurement& measurement);
// Returns nothing if the output contains no measurement.
[[nodiscard]] std::optional<NodesMeasurement> parse_measurement(const std::string& output);

}  // namespace rp
