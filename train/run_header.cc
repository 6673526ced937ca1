#include "train/run_header.h"

#include <algorithm>
#include <vector>

#include "common/text.h"
#include "train/output/number_text.h"
#include "train/output/wrapped_text.h"
#include "train/run/run_directory.h"

namespace rp {
namespace {

constexpr std::size_t kNameColumns = 20;

std::string row(const std::string& name, const std::string& value) {
  const std::size_t fill = name.size() < kNameColumns ? kNameColumns - name.size() : 1;
  return cat("  ", name, std::string(fill, ' '), value, "\n");
}

std::string header_row(const std::string& name, const std::string& text) {
  constexpr std::size_t kIndent = 12;
  return wrapped(name + std::string(kIndent - name.size(), ' '), text, kIndent);
}

std::string rounded(double number) { return formatted("%.3g", number); }

std::int64_t as_signed(std::uint64_t number) { return static_cast<std::int64_t>(number); }

std::string filled_text(const SequenceCounts& counts, std::int64_t length) {
  return formatted("%.1f %% filled", 100.0 * static_cast<double>(counts.tokens) /
                                         (static_cast<double>(counts.sequences) * static_cast<double>(length)));
}

// "156 sequences of 2048 tokens, packed from 2,307 documents and 98.9 % filled".
std::string sequences_text(const TrainSettings& settings, const SequenceCounts& counts) {
  std::string text =
      cat(counted(as_signed(counts.sequences), "sequence", "sequences"), " of ", settings.sequence_length, " tokens, ",
          settings.is_packed ? cat("packed from ", counted(as_signed(counts.pieces), "piece", "pieces"), " and ") : "",
          filled_text(counts, settings.sequence_length));
  if (counts.truncated > 0)
    text +=
        cat("; ", counted(as_signed(counts.truncated), "example is", "examples are"), " cut at the sequence length");
  if (counts.dropped > 0) text += cat("; ", grouped(counts.dropped), " without a trained token left out");
  return text;
}

std::string data_text(const TrainSettings& settings, const RunInputs& inputs) {
  return cat(grouped(inputs.data->num_documents()),
             inputs.data->kind() == TokenFile::Kind::kChat ? " examples, " : " documents, ",
             grouped(inputs.data->num_tokens()), " tokens, ", grouped(inputs.data->num_trained()),
             " of them trained; an epoch is ", sequences_text(settings, inputs.sequences->counts()));
}

std::string evaluation_data_text(const TrainSettings& settings, const Sequences& sequences) {
  return cat(grouped(sequences.counts().trained), " trained tokens",
             settings.eval_data.empty() ? " held out" : cat(" of ", settings.eval_data.string()), ", ",
             sequences_text(settings, sequences.counts()), "; every ", counted(settings.eval_every, "step", "steps"));
}

std::string trained_text(const LoraSettings& lora, const models::ModelInfo& model) {
  std::string text =
      cat(grouped(model.num_trained), " parameters, ",
          rounded(100.0 * static_cast<double>(model.num_trained) / static_cast<double>(model.num_parameters)),
          " % of the model's");
  if (model.num_quantised > 0) {
    text += cat("; ", grouped(model.num_quantised), " frozen ones are quantised, with ",
                rounded(8.0 * static_cast<double>(model.quantised_bytes) / static_cast<double>(model.num_quantised)),
                " bits each");
  }
  if (lora.rank == 0) return text;
  return text + cat("; pairs of rank ", lora.rank, lora.is_dora ? " (DoRA)" : "", ", scaled by ", lora.scale(), ", at ",
                    grouped(model.num_adapted), " linear layers: ", model.adapted);
}

// "57 (3 epochs), of 8 sequences in 8 microbatches: 16,384 tokens a step".
std::string steps_text(const TrainSettings& s) {
  return cat(grouped(s.max_steps),
             s.epochs > 0 ? cat(" (", rounded(s.epochs), s.epochs == 1 ? " epoch)" : " epochs)") : "", ", of ",
             counted(s.batch_size, "sequence", "sequences"), " in ",
             s.rounds_per_step > 1 ? cat(s.rounds_per_step, " rounds of ") : "",
             counted(s.num_microbatches, "microbatch", "microbatches"), ": ", grouped(s.tokens_of_step()),
             " tokens a step", s.asynchronous ? ", updated during the next round" : "");
}

// "7e-05 after 2 steps of warm-up, cosine to 0; gradients are clipped at 1, weights decay by 0.1".
std::string rate_text(const TrainSettings& s) {
  std::string text =
      cat(rounded(s.learning_rate),
          s.warmup_steps > 0 ? cat(" after ", counted(s.warmup_steps, "step", "steps"), " of warm-up") : "");
  switch (s.schedule) {
    case LearningRateSchedule::kConstant: text += ", constant"; break;
    case LearningRateSchedule::kLinear: text += cat(", linear to ", rounded(s.min_learning_rate)); break;
    case LearningRateSchedule::kCosine: text += cat(", cosine to ", rounded(s.min_learning_rate)); break;
    case LearningRateSchedule::kWarmupStableDecay:
      text +=
          cat(", linear to ", rounded(s.min_learning_rate), " in the last ", counted(s.decay_steps, "step", "steps"));
      break;
  }
  if (s.max_grad_norm > 0) text += cat("; gradients are clipped at ", rounded(s.max_grad_norm));
  if (s.weight_decay > 0)
    text += cat("; ", s.decays_all ? "weights" : "matrices", " decay by ", rounded(s.weight_decay));
  if (s.router_bias_update_rate > 0) text += cat("; routers' corrections move by ", rounded(s.router_bias_update_rate));
  return text;
}

std::string output_text(const TrainSettings& s) {
  std::string text = s.output.string();
  if (s.save_every.is_on())
    text +=
        cat(", a checkpoint every ", s.save_every.text(), s.save_every.steps > 0 ? " steps" : "", " and at the end");
  if (s.save_every.is_on() && s.num_kept_checkpoints() > 0)
    text += cat(", the newest ", s.num_kept_checkpoints(), " are kept");
  return text + "; train.log there has all settings";
}

std::string memory_row(const std::string& purpose, std::uint64_t bytes) {
  const std::string text = formatted("%12s", bytes_text(bytes).c_str());
  const std::size_t columns = std::max<std::size_t>(26, purpose.size() + 1);
  return cat("  ", purpose, std::string(columns - purpose.size(), ' '), text, "\n");
}

}  // namespace

std::string header_text(const TrainSettings& settings, const RunInputs& inputs) {
  const models::ModelInfo& model = inputs.model;
  std::string text = header_row("model", cat(model.architecture, ", ", grouped(model.num_parameters), " parameters, ",
                                             model.num_layers, " layers, vocabulary ", grouped(model.vocabulary),
                                             ", up to ", grouped(model.max_sequence_length), " tokens a sequence"));
  if (!model.wrapper.empty()) {
    text += header_row("text part", cat("of a model of type ", model.wrapper, ", whose ", grouped(model.num_carried),
                                        " other tensors are carried along as they are"));
  }
  if ((settings.parts.lora.rank == 0 || settings.saves_merged) && !model.left_out.empty()) {
    text += header_row("left out", cat("of what is saved: ", list_of(model.left_out, 8),
                                       " (no known file of a tokenizer or a licence, or not a file of this folder)"));
  }
  if (settings.parts != TrainedParts{}) text += header_row("trained", trained_text(settings.parts.lora, model));
  if (!settings.parts.adapter.empty()) text += header_row("begins from", settings.parts.adapter.string());
  text += header_row("data", data_text(settings, inputs));
  if (inputs.eval_sequences) text += header_row("evaluation", evaluation_data_text(settings, *inputs.eval_sequences));
  text += header_row("steps", steps_text(settings));
  text += header_row("rate", rate_text(settings));
  text += header_row("output", output_text(settings));
  if (inputs.resume.checkpoint) text += header_row("checkpoint", inputs.resume.checkpoint->string());
  return text;
}

std::string settings_text(const TrainSettings& settings, int threads_per_worker) {
  std::string text = "settings\n";
  for (const SettingRow& setting : setting_rows(settings)) {
    if (settings.parts.lora.rank > 0 || !is_setting_of_pairs(setting.name)) text += row(setting.name, setting.shown);
  }
  return text + row("threads-per-worker", cat(threads_per_worker, "  (of rp-launch)"));
}

std::string ended_text(const TrainSettings& settings) {
  return cat("the run in ", settings.output.string(), " has ended: its model is in ",
             RunDirectory(settings.output).final_model().string(),
             ", and --resume auto leaves it as it is; to train on, move that away and raise --epochs or --max-steps\n");
}

std::string memory_text(const MemoryPlan& plan) {
  std::string text = "host memory\n";
  std::uint64_t in_files = 0;
  for (const MemoryPlan::Item& item : plan.items) {
    text += memory_row(item.is_in_files ? cat(item.purpose, ", in files") : item.purpose, item.bytes);
    if (item.is_in_files) in_files += item.bytes;
  }
  if (in_files > 0) text += memory_row("in files", in_files);
  const std::string share = formatted("  (%.1f bytes a parameter + activations)", plan.bytes_per_parameter);
  std::string last = memory_row(in_files > 0 ? "in memory" : "total", plan.bytes() - in_files);
  last.pop_back();
  text += last + share + "\n";
  return plan.pages.empty() ? text : text + wrapped("  ", plan.pages, 2);
}

std::string warm_up_text(double seconds) {
  return formatted("warm-up: %.2f s, before step 1, for each kind of layer once", seconds);
}

std::string activations_text(const MemoryPlan& plan) {
  const std::uint64_t budget = plan.activation_bytes().value_or(0);
  return cat("activations: budget ", bytes_text(budget), ", the plan of host memory is ", bytes_text(plan.bytes()),
             " with it");
}

std::string measured_text(const MemoryPlan& plan) {
  return cat("host memory: planned ", bytes_text(plan.bytes()), ", measured ", bytes_text(plan.measured_bytes()));
}

// Reports the worker that came closest to its limit. Workers on the processor have no limit; there,
// reports the one that used the largest amount.
std::string worker_memory_text(const std::vector<WorkerMemoryUse>& workers) {
  const auto share = [](const WorkerMemoryUse& use) {
    const auto bytes = static_cast<double>(use.peak_bytes);
    return use.limit_bytes == 0 ? bytes : bytes / static_cast<double>(use.limit_bytes);
  };
  const auto most = std::max_element(workers.begin(), workers.end(),
                                     [&](const auto& a, const auto& b) { return share(a) < share(b); });
  if (most == workers.end()) return "";
  std::string items;
  for (const WorkerMemoryUse::Item& item : most->items)
    items += cat(items.empty() ? "" : ", ", item.purpose, " ", bytes_text(item.peak_bytes));
  const bool is_on_gpu = most->limit_bytes > 0;
  return cat(is_on_gpu ? "GPU memory" : "worker memory", ": at most ", bytes_text(most->peak_bytes),
             is_on_gpu ? cat(" of ", bytes_text(most->limit_bytes)) : "", " (worker ", most->worker,
             "); each purpose at its own time: ", items);
}

std::string speed_text(int num_workers, const std::string& plan) {
  return cat("speed: ", num_workers, num_workers == 1 ? " worker" : " workers", "; stages: ", plan, "\n");
}

}  // namespace rp
