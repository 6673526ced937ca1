// tests/planner/workload_json.h
// Makes workload files for `rp-plan simulate`.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "planner/prediction/workload_file.h"
#include "scheduler/workload.h"
#include "tests/common/temp_directory.h"

namespace rp::test {

inline nlohmann::json work_json(const LayerWork& work) {
  return {{"forward_ms", work.forward}, {"backward_ms", work.backward}};
}

inline nlohmann::json workload_json(const Workload& workload) {
  nlohmann::json layers = nlohmann::json::array();
  for (const LayerWork& layer : workload.layers) layers.push_back(work_json(layer));
  return {{"gpus", workload.num_gpus},
          {"microbatches", workload.num_microbatches},
          {"hop_ms", workload.hop},
          {"layers", layers},
          {"head", work_json(workload.head)}};
}

// Adds these figures to each layer and to the head.
inline nlohmann::json with_memory(nlohmann::json input, const nlohmann::json& figures) {
  for (nlohmann::json& layer : input["layers"]) layer.update(figures);
  input["head"].update(figures);
  return input;
}

inline WorkloadFile read_json(const nlohmann::json& json) {
  const TempDirectory directory;
  return read_workload_file(directory.write("workload.json", json.dump()));
}

}  // namespace rp::test
