#include <nlohmann/json.hpp>

#include "common/text.h"
#include "launcher/doctor/doctor_report.h"

namespace rp {

namespace {

using Json = nlohmann::ordered_json;

Json link_json(const PcieLink& link) { return {{"generation", link.generation}, {"lanes", link.width}}; }

Json gpu_json(const Gpu& gpu) {
  return {{"index", gpu.index},
          {"uuid", gpu.uuid},
          {"name", gpu.name},
          {"memory_bytes", gpu.memory_bytes},
          {"free_bytes", gpu.free_bytes},
          {"compute_capability", cat(gpu.capability_major, ".", gpu.capability_minor)},
          {"pci_address", gpu.pci_address},
          {"pcie_now", link_json(gpu.link)},
          {"pcie_at_most", link_json(gpu.most_link)},
          {"pcie_of_card", link_json(gpu.card_link)},
          {"numa_node", gpu.numa_node},
          {"problem", gpu.problem}};
}

Json gpus_json(const std::vector<Gpu>& gpus) {
  Json list = Json::array();
  for (const Gpu& gpu : gpus) list.push_back(gpu_json(gpu));
  return list;
}

Json figures_json(const std::optional<ProbeFigures>& figures) {
  return figures ? Json::parse(probe_line(*figures)) : Json(nullptr);
}

}  // namespace

std::string doctor_json(const DoctorReport& report) {
  Json json{{"missing", report.system.missing},
            {"driver", report.system.driver},
            {"cuda", report.system.cuda},
            {"plugin", report.plugin}};
  json["gpus"] = gpus_json(report.system.gpus);
  json["mig_instances"] = gpus_json(report.system.instances);
  json["bandwidths"] = Json::array();
  for (const GpuBandwidth& gpu : report.bandwidths) {
    json["bandwidths"].push_back({{"index", gpu.gpu.index},
                                  {"uuid", gpu.gpu.uuid},
                                  {"alone", figures_json(gpu.alone)},
                                  {"together", figures_json(gpu.together)},
                                  {"failure", gpu.failure}});
  }
  json["unmeasured"] = report.unmeasured;
  json["numa_nodes"] = Json::array();
  for (const NumaNode& node : report.nodes) json["numa_nodes"].push_back({{"node", node.number}, {"cores", node.cpus}});
  json["limits"] = Json::array();
  for (const LimitLine& line : report.limits) {
    json["limits"].push_back({{"key", line.key}, {"name", line.name}, {"value", line.value}});
  }
  json["advice"] = Json::array();
  for (const Advice& advice : advice_on(report)) {
    json["advice"].push_back({{"about", advice.about}, {"text", advice.text}, {"problem", advice.is_problem}});
  }
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace rp
