#include "planner/plan_report.h"

#include <algorithm>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <sstream>

#include "common/text.h"
#include "model_files/part_selection.h"
#include "planner/nodes_report.h"
#include "planner/published_runs.h"
#include "planner/report_text.h"
#include "planner/timeline/run_timeline.h"

namespace rp {

namespace {

// Returns a note if the sequence is longer than the positions for which the model was made: it can
// be computed, but the model was not trained for it.
std::string beyond_positions(const ModelConfig& model, std::int64_t tokens) {
  const bool is_beyond = model.max_sequence_length > 0 && tokens > model.max_sequence_length;
  return is_beyond ? cat(", beyond the model's ", model.max_sequence_length, " positions") : "";
}

using Items = std::vector<std::pair<std::string, std::uint64_t>>;

Items items_of(const GpuMemory& memory) {
  Items items{{"weights of two stages", memory.weights},
              {"fp32 gradients", memory.accumulators},
              {"rounded gradients", memory.gradients},
              {"inputs", memory.inputs},
              {"outputs", memory.outputs},
              {"saved activations", memory.saved},
              {"workspace", memory.workspace}};
  if (memory.expanded > 0) items.emplace_back("expanded weights", memory.expanded);
  return items;
}
Items items_of(const HostMemory& memory) {
  Items items{{"weights", memory.weights},
              {"gradients", memory.gradients},
              {"optimizer state", memory.optimizer_state},
              {"activations", memory.activations}};
  if (memory.received_gradients > 0) items.emplace_back("gradients of other nodes", memory.received_gradients);
  return items;
}

std::string items_text(const Items& items) {
  std::string text;
  for (const auto& [name, bytes] : items)
    text += cat(text.empty() ? "" : ", ", name, " ", gib_text(static_cast<double>(bytes)));
  return text;
}

// For example "3x4,2": four stages of three layers, then one of two.
std::string stages_text(const std::vector<LayerRange>& stages) {
  return stages.empty() ? "none" : lengths_text(stages);
}

std::string billions(std::int64_t count) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(count < 10'000'000'000 ? 2 : 1) << static_cast<double>(count) / 1e9
      << " billion";
  return out.str();
}

const char* grain_of(const RunPrediction& prediction) {
  return prediction.recompute == RecomputeGrain::kLayer ? "layer" : "stage";
}

// Returns the trained parts as options of `train`.
std::string parts_text(const TrainedParts& parts) {
  std::string text;
  if (const LoraSettings& lora = parts.lora; lora.rank > 0) {
    text = cat(" --lora-rank ", lora.rank, lora.on_experts ? " --lora-experts" : "");
    if (lora.targets != LoraSettings{}.targets) text += cat(" --lora-targets '", lora.targets, "'");
  }
  if (const std::string name = frozen_weights_name(parts.frozen_weights); !name.empty()) text += " --quantize " + name;
  if (!parts.freeze.empty()) text += cat(" --freeze '", parts.freeze, "'");
  if (!parts.train.empty()) text += cat(" --train '", parts.train, "'");
  if (parts.corrections) text += " --router-bias-update-rate 1e-3";
  return text;
}

// Returns the options with which `train` runs what is predicted, except for the plan and the data.
std::string train_options_text(const TrainingSetup& setup, const RunPrediction& prediction) {
  return cat("--batch-size ", setup.batch, " --sequence-length ", setup.sequence_length, " --num-microbatches ",
             prediction.round_microbatches, " --rounds-per-step ", prediction.rounds_per_step, " --recompute-grain ",
             grain_of(prediction), setup.asynchronous ? " --async" : "", parts_text(setup.parts));
}

// For example "4 nodes of 8 x rtx4090".
std::string machines_text(const TrainingSetup& setup) {
  return cat(setup.num_nodes > 1 ? nodes_text(setup.num_nodes) + " of " : "", setup.num_gpus, " x ", setup.gpu.name);
}

bool fits_gpu(const TrainingSetup& setup, const RunPrediction& prediction) {
  return static_cast<double>(prediction.gpu.total()) <= setup.gpu.usable_bytes();
}

constexpr const char* kNotTheFastest =
    "  the fastest plan needs more memory than the host has; for this one, give rp-launch --plan a file with the plan "
    "that --json prints\n";

void print_asked(std::ostringstream& out, const TrainingSetup& setup, const RunPrediction& prediction) {
  const RunResult& run = prediction.run;
  const GpuTime& times = run.gpus;
  const double gpus = prediction.num_gpus, total = times.total();
  const bool fits = fits_host(setup, prediction);
  out << (fits ? std::string("It fits.")
               : cat("It does not fit the host's memory: it needs ", prediction.is_held_by_host ? "at least " : "",
                     gib_text(static_cast<double>(prediction.host.total())), " GiB."))
      << "\n"
      << "  each GPU, GiB   " << gib_text(static_cast<double>(prediction.gpu.total())) << " of "
      << gib_text(setup.gpu.usable_bytes()) << " usable: " << items_text(items_of(prediction.gpu)) << "\n"
      << (prediction.num_nodes > 1 ? "  each host, GiB  " : "  the host, GiB   ")
      << gib_text(static_cast<double>(prediction.host.total())) << " of " << gib_text(setup.host_bytes) << ": "
      << items_text(items_of(prediction.host)) << "\n"
      << "Plan: " << prediction.rounds_per_step << (prediction.rounds_per_step == 1 ? " round" : " rounds")
      << " a step, " << prediction.round_microbatches << " microbatches a round, " << std::setprecision(3)
      << prediction.microbatch_sequences << (prediction.microbatch_sequences == 1 ? " sequence" : " sequences")
      << " each, recompute by " << grain_of(prediction) << "\n"
      << "  layers of the stages (embedding and decoder layers): forward " << stages_text(prediction.plan.forward)
      << "; fused " << prediction.fused_layers() << " and the head; backward " << stages_text(prediction.plan.backward)
      << "\n"
      << "  with train: " << train_options_text(setup, prediction) << "\n"
      << (prediction.is_held_by_host && fits ? kNotTheFastest : "") << std::fixed << std::setprecision(0)
      << "Speed: " << prediction.tokens_per_s << " tokens/s, " << std::setprecision(3) << run.step_ms / 1000
      << " s a step (no order of these stages takes less than " << prediction.lower_bound_ms / 1000 << ")\n";
  const auto line = [&](const char* name, double ms) {
    out << "  " << std::left << std::setw(34) << name << std::right << std::setw(9) << ms / gpus / 1000 << " s "
        << std::setw(8) << share_text(ms, total) << "\n";
  };
  line("computing", times.busy);
  line("waiting for inputs on their way", times.inputs);
  line("waiting for weights on their way", times.weights);
  line("waiting for gradients on their way", times.gradients);
  line(prediction.num_nodes > 1 ? "waiting for updates of all nodes" : "waiting for updates", times.updates);
  line("bubble", times.bubble);
  out << "  of a step: " << std::setprecision(1) << run.uploaded_bytes / kGiB << " GiB up, "
      << run.downloaded_bytes / kGiB << " GiB down, updates run " << std::setprecision(3) << run.update_ms / 1000
      << " s\n";
}

bool has_experts(const ModelConfig& model) {
  return std::any_of(model.layers.begin(), model.layers.end(),
                     [](const DecoderLayerConfig& layer) { return layer.mlp.experts.has_value(); });
}

// Prints for which kernels the times hold, and with what they have been compared.
void print_kernels(std::ostringstream& out, const PlanAnswer& answer) {
  const GpuProfile& gpu = answer.setup.gpu;
  const auto source_of = [&answer](const std::string& key) {
    const auto figure = std::find_if(answer.efficiencies.begin(), answer.efficiencies.end(),
                                     [&](const FigureSource& each) { return each.key == key; });
    return figure == answer.efficiencies.end() ? std::string("not said") : figure->source;
  };
  const auto line = [&](const char* work, double share, double peak, const char* unit, const char* key) {
    out << "  " << std::left << std::setw(18) << work << std::right << std::setprecision(2) << share << " of "
        << std::setprecision(1) << peak << " " << unit << " (" << source_of(key) << ")\n";
  };
  out << std::fixed
      << "Kernels that are assumed: this program's, which pass over memory once for each elementwise operation; the "
         "published runs had one\n"
         "for each operation of transformers' layers. Times by formulas from the profile "
      << gpu.name << ":\n";
  line("matrix products", gpu.gemm_efficiency, gpu.peak_tflops(answer.setup.accumulate), "TFLOP/s", "gemm_efficiency");
  line("attention", gpu.attention_efficiency, gpu.fp32_accumulate_tflops, "TFLOP/s", "attention_efficiency");
  line("elementwise", gpu.memory_efficiency, gpu.memory_gbs, "GB/s", "memory_efficiency");
  out << "  compared with published runs on RTX 4090s and their kernels (rp-plan compare --published), with no run of "
         "this program on a GPU\n";
}

void print_rows(std::ostringstream& out, const TrainingSetup& setup, const char* title,
                const std::vector<PredictedRow>& rows) {
  if (rows.empty()) return;
  out << "\n"
      << std::left << std::setw(24) << title << std::right << std::setw(10) << "tokens/s" << std::setw(10) << "s a step"
      << std::setw(11) << "computing" << std::setw(11) << "transfers" << std::setw(9) << "updates" << std::setw(9)
      << "bubble" << std::setw(10) << "GPU, GiB" << std::setw(11) << "host, GiB"
      << "\n";
  for (const PredictedRow& row : rows) {
    out << std::left << std::setw(24) << row.name << std::right;
    if (!row.prediction) {
      out << "  does not fit\n";
      continue;
    }
    const RunPrediction& prediction = *row.prediction;
    const GpuTime& times = prediction.run.gpus;
    const double total = times.total();
    out << std::fixed << std::setprecision(0) << std::setw(10) << prediction.tokens_per_s << std::setprecision(3)
        << std::setw(10) << prediction.run.step_ms / 1000 << std::setw(11) << share_text(times.busy, total)
        << std::setw(11) << share_text(times.transfers(), total) << std::setw(9) << share_text(times.updates, total)
        << std::setw(9) << share_text(times.bubble, total) << std::setw(10)
        << gib_text(static_cast<double>(prediction.gpu.total())) << std::setw(11)
        << gib_text(static_cast<double>(prediction.host.total()))
        << (prediction.recompute == RecomputeGrain::kLayer ? "  recompute by layer" : "")
        << (fits_gpu(setup, prediction) ? "" : "  more than the GPU has")
        << (fits_host(setup, prediction) ? "" : "  more than the host has") << "\n";
  }
}

nlohmann::ordered_json items_json(const Items& items) {
  nlohmann::ordered_json json;
  for (const auto& [name, bytes] : items) json[name] = bytes;
  return json;
}

nlohmann::ordered_json row_json(const TrainingSetup& setup, const PredictedRow& row) {
  nlohmann::ordered_json json;
  json["name"] = row.name;
  if (!row.prediction) {
    json["problem"] = row.problem;
    return json;
  }
  const RunPrediction& prediction = *row.prediction;
  const GpuTime& times = prediction.run.gpus;
  json["gpus"] = prediction.num_gpus;
  json["fits_gpu"] = fits_gpu(setup, prediction);
  json["fits_host"] = fits_host(setup, prediction);
  json["gpu_bytes"] = items_json(items_of(prediction.gpu));
  json["host_bytes"] = items_json(items_of(prediction.host));
  json["round_microbatches"] = prediction.round_microbatches;
  json["rounds_per_step"] = prediction.rounds_per_step;
  json["recompute_grain"] = grain_of(prediction);
  json["is_held_by_host"] = prediction.is_held_by_host;
  json["plan"] = plan_text(prediction.plan, prediction.num_layers);
  json["tokens_per_s"] = prediction.tokens_per_s;
  json["step_ms"] = prediction.run.step_ms;
  json["lower_bound_ms"] = prediction.lower_bound_ms;
  if (prediction.num_nodes > 1) {
    json["nodes"] = prediction.num_nodes;
    json["network"] = network_json(prediction);
  }
  const double gpus = prediction.num_gpus;
  json["gpu_ms"] = {{"computing", times.busy / gpus},  {"inputs", times.inputs / gpus},
                    {"weights", times.weights / gpus}, {"gradients", times.gradients / gpus},
                    {"updates", times.updates / gpus}, {"bubble", times.bubble / gpus}};
  return json;
}

}  // namespace

std::string answer_text(const PlanAnswer& answer) {
  const TrainingSetup& setup = answer.setup;
  std::ostringstream out;
  out << setup.model.name << ": " << billions(answer.num_parameters) << " parameters, "
      << (answer.num_trained == answer.num_parameters ? "all" : billions(answer.num_trained)) << " trained; steps of "
      << setup.batch << " sequences of " << setup.sequence_length << " tokens"
      << beyond_positions(setup.model, setup.sequence_length) << ", "
      << (setup.asynchronous ? "asynchronous" : "synchronous") << "\n"
      << machines_text(setup) << " (" << setup.gpu.memory_gib << " GiB), server " << setup.server.name << ", "
      << gib_text(setup.host_bytes) << " GiB of host memory, fp" << (setup.accumulate == Accumulate::kFp16 ? 16 : 32)
      << " sums, " << (setup.pinned_weights ? "pinned" : "pageable") << " weights\n\n";
  if (answer.asked.prediction) {
    print_asked(out, setup, *answer.asked.prediction);
    if (setup.num_nodes > 1) out << network_text(answer);
    if (has_experts(setup.model)) out << "  " << experts_distance_text() << "\n";
    print_kernels(out, answer);
  } else {
    out << "It does not fit: " << answer.asked.problem << "\n";
  }
  if (answer.longest_sequence > 0) {
    out << "Longest sequence that fits: " << answer.longest_sequence << " tokens (one in a microbatch, "
        << setup.num_gpus << " microbatches a round)" << beyond_positions(setup.model, answer.longest_sequence) << "\n";
  } else {
    out << "No sequence length fits.\n";
  }
  out << nodes_table(answer);
  print_rows(out, setup, setup.num_nodes > 1 ? "GPUs of each node" : "GPUs", answer.by_gpus);
  print_rows(out, setup, "fused stage", answer.by_fused);
  return out.str();
}

TimelinePage answer_page(const PlanAnswer& answer) {
  const TrainingSetup& setup = answer.setup;
  TimelinePage page{.title = cat(setup.model.name, " on ", machines_text(setup))};
  page.facts = {{"sequences of a step", cat(setup.batch)},
                {"tokens of a sequence", cat(setup.sequence_length)},
                {"steps", setup.asynchronous ? "asynchronous" : "synchronous"}};
  if (!answer.asked.prediction) {
    page.facts.push_back({"does not fit", answer.asked.problem});
    return page;
  }
  const RunPrediction& prediction = *answer.asked.prediction;
  page.columns = {"GPUs", "tokens/s", "step s", "computing", "bubble"};
  for (const PredictedRow& row : answer.by_gpus) {
    if (!row.prediction) continue;
    const GpuTime& times = row.prediction->run.gpus;
    std::ostringstream speed, step;
    speed << std::fixed << std::setprecision(0) << row.prediction->tokens_per_s;
    step << std::fixed << std::setprecision(3) << row.prediction->run.step_ms / 1000;
    const auto of_all = [&times](double part) { return share_text(part, times.total()); };
    page.records.push_back(
        {.cells = {cat(row.prediction->num_gpus), speed.str(), step.str(), of_all(times.busy), of_all(times.bubble)},
         .note = cat("waiting for copies ", of_all(times.transfers()), ", for updates ", of_all(times.updates))});
  }
  page.sections = {run_section(prediction.run, prediction.plan, prediction.num_layers, prediction.num_gpus,
                               kPredictedLength.warm_up, 2)};
  if (const GpuMemorySample* peak = prediction.run.peak_of(0)) {
    TimelineStrip& strip = page.sections.front().strips.front();
    strip.full = static_cast<double>(prediction.gpu.total());
    strip.hover = cat("GPU 0 memory, ", strip.note, ": ", items_text(items_of(peak->bytes)),
                      "\nthe strip's height: what the plan reserves, ",
                      gib_text(static_cast<double>(prediction.gpu.total())), " GiB");
  }
  page.sections.front().figures = {{"microbatches of a round", cat(prediction.round_microbatches)},
                                   {"rounds of a step", cat(prediction.rounds_per_step)},
                                   {"recompute", cat("by ", grain_of(prediction))},
                                   {"forward", stages_text(prediction.plan.forward)},
                                   {"fused", cat(prediction.fused_layers(), " and the head")},
                                   {"backward", stages_text(prediction.plan.backward)}};
  return page;
}

std::string answer_json(const PlanAnswer& answer) {
  const TrainingSetup& setup = answer.setup;
  nlohmann::ordered_json json;
  json["model"] = setup.model.name;
  json["parameters"] = answer.num_parameters;
  json["trained_parameters"] = answer.num_trained;
  json["gpu"] = setup.gpu.name;
  json["server"] = setup.server.name;
  if (setup.num_nodes > 1) {
    json["nodes"] = setup.num_nodes;
    json["network_gbs"] = setup.network.gbs;
    json["network_latency_us"] = setup.network.latency_us;
  }
  for (const FigureSource& figure : answer.efficiencies) json["kernels"][figure.key] = figure.source;
  json["usable_gpu_bytes"] = setup.gpu.usable_bytes();
  json["usable_host_bytes"] = setup.host_bytes;
  json["longest_sequence"] = answer.longest_sequence;
  json["asked"] = row_json(setup, answer.asked);
  for (const PredictedRow& row : answer.by_gpus) json["by_gpus"].push_back(row_json(setup, row));
  for (const PredictedRow& row : answer.by_nodes) {
    json["by_nodes"].push_back(row_json(setup, row));
    json["by_nodes"].back()["efficiency"] = nodes_efficiency(*row.prediction, *answer.by_nodes.front().prediction);
  }
  for (const PredictedRow& row : answer.by_fused) json["by_fused"].push_back(row_json(setup, row));
  return json.dump() + "\n";
}

}  // namespace rp
