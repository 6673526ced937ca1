#include "planner/nodes_report.h"

#include <algorithm>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <sstream>

#include "planner/report_text.h"

namespace rp {

namespace {

// How much longer a step is because of the network, and the rest of the time in which data moves.
double exposed_ms(const RunPrediction& prediction) {
  return std::max(0.0, prediction.run.step_ms - prediction.without_network_ms);
}
double hidden_ms(const RunPrediction& prediction) {
  return std::max(0.0, prediction.network_ms() - exposed_ms(prediction));
}

std::string seconds_text(double ms) { return cat(decimal(ms / 1000, 3), " s"); }

}  // namespace

std::string network_text(const PlanAnswer& answer) {
  const RunPrediction& prediction = *answer.asked.prediction;
  const double exposed = exposed_ms(prediction);
  std::string text =
      cat("Network: each node sends ", gib_text(prediction.run.sent_bytes), " GiB and receives ",
          gib_text(prediction.run.received_bytes), " GiB a step, at ", decimal(answer.setup.network.gbs, 3),
          " GB/s each way ", seconds_text(prediction.network_ms()), ": ", seconds_text(hidden_ms(prediction)),
          " behind computation, ", seconds_text(exposed), " exposed\n");
  const RunPrediction& fewest = *answer.by_nodes.front().prediction;
  if (fewest.num_nodes < prediction.num_nodes) {
    text +=
        cat("  ", nodes_text(prediction.num_nodes), " are ", decimal(prediction.tokens_per_s / fewest.tokens_per_s, 2),
            " times as fast as ", nodes_text(fewest.num_nodes), " with the same step (efficiency ",
            share_text(nodes_efficiency(prediction, fewest), 1), ")\n");
  }
  constexpr double kMuch = 0.05;
  if (exposed < kMuch * prediction.run.step_ms) return text;
  return text + cat("  to hide more of it: ", answer.setup.asynchronous ? "" : "--async, or ",
                    "a larger --batch-size, since a round moves the same bytes however many sequences it has\n");
}

std::string nodes_table(const PlanAnswer& answer) {
  if (answer.by_nodes.empty()) return {};
  std::ostringstream out;
  out << "\n"
      << std::left << std::setw(24) << "nodes, the same step" << std::right << std::setw(10) << "tokens/s"
      << std::setw(10) << "s a step" << std::setw(12) << "efficiency" << std::setw(16) << "network hidden"
      << std::setw(17) << "network exposed" << std::setw(16) << "each host, GiB"
      << "\n";
  for (const PredictedRow& row : answer.by_nodes) {
    const RunPrediction& prediction = *row.prediction;
    out << std::left << std::setw(24) << row.name << std::right << std::setw(10) << decimal(prediction.tokens_per_s, 0)
        << std::setw(10) << decimal(prediction.run.step_ms / 1000, 3) << std::setw(12)
        << share_text(nodes_efficiency(prediction, *answer.by_nodes.front().prediction), 1) << std::setw(16)
        << seconds_text(hidden_ms(prediction)) << std::setw(17) << seconds_text(exposed_ms(prediction)) << std::setw(16)
        << gib_text(static_cast<double>(prediction.host.total()))
        << (fits_host(answer.setup, prediction) ? "" : "  more than the host has") << "\n";
  }
  return out.str();
}

nlohmann::ordered_json network_json(const RunPrediction& prediction) {
  return {{"sent_bytes", prediction.run.sent_bytes},
          {"received_bytes", prediction.run.received_bytes},
          {"ms", prediction.network_ms()},
          {"hidden_ms", hidden_ms(prediction)},
          {"exposed_ms", exposed_ms(prediction)}};
}

double nodes_efficiency(const RunPrediction& prediction, const RunPrediction& of_fewer) {
  return prediction.tokens_per_s / prediction.num_nodes / (of_fewer.tokens_per_s / of_fewer.num_nodes);
}

}  // namespace rp
