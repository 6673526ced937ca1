#include "train/run_header.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <vector>

#include "common/text.h"
#include "train/run_directory.h"

namespace rp {
namespace {

constexpr std::size_t kNameColumns = 20;

std::string row(const std::string& name, const std::string& value) {
  const std::size_t fill = name.size() < kNameColumns ? kNameColumns - name.size() : 1;
  return cat("  ", name, std::string(fill, ' '), value, "\n");
}

// "134,515,008".
std::string grouped(std::int64_t number) {
  std::string text = std::to_string(number);
  for (std::ptrdiff_t place = static_cast<std::ptrdiff_t>(text.size()) - 3; place > 0; place -= 3) {
    text.insert(static_cast<std::size_t>(place), 1, ',');
  }
  return text;
}

std::string grouped(std::uint64_t number) { return grouped(static_cast<std::int64_t>(number)); }

std::string data_text(const RunInputs& inputs) {
  const SequenceCounts& counts = inputs.batches->counts();
  std::string text = cat(grouped(inputs.data->num_documents()),
                         inputs.data->kind() == TokenFile::Kind::kChat ? " chats, " : " documents, ",
                         grouped(inputs.data->num_tokens()), " tokens, ", grouped(inputs.data->num_trained()),
                         " of them trained; ", grouped(counts.sequences), " sequences an epoch");
  if (counts.truncated > 0) text += cat(", ", grouped(counts.truncated), " of them cut at the sequence length");
  if (counts.dropped > 0) text += cat("; ", grouped(counts.dropped), " without a trained token left out");
  return text;
}

std::string trained_text(const LoraSettings& lora, const models::ModelInfo& model) {
  std::array<char, 16> share{};
  std::snprintf(share.data(), share.size(), "%.3g", 100.0 * static_cast<double>(model.num_trained) / static_cast<double>(model.num_parameters));
  std::string text = cat(grouped(model.num_trained), " parameters, ", share.data(), " % of the model's");
  if (lora.rank == 0) return text;
  return text + cat("; pairs of rank ", lora.rank, lora.is_dora ? " (DoRA)" : "", ", scaled by ", lora.scale(), ", at ", grouped(model.num_adapted),
                    " linear layers: ", model.adapted);
}

std::string memory_row(const std::string& purpose, std::uint64_t bytes) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%12s", bytes_text(bytes).c_str());
  const std::size_t columns = std::max<std::size_t>(30, purpose.size() + 1);
  return cat("  ", purpose, std::string(columns - purpose.size(), ' '), text.data(), "\n");
}

}  // namespace

std::string settings_text(const TrainSettings& settings, const RunInputs& inputs, int threads_per_worker) {
  std::string text = "settings\n";
  for (const SettingRow& setting : setting_rows(settings)) {
    if (settings.parts.lora.rank > 0 || !is_setting_of_pairs(setting.name)) text += row(setting.name, setting.shown);
  }
  text += row("threads-per-worker", cat(threads_per_worker, "  (of rp-launch)"));
  text += "inputs\n";
  text += row("model", cat(inputs.model.architecture, ", ", grouped(inputs.model.num_parameters), " parameters, ",
                           inputs.model.num_layers, " layers, vocabulary ", grouped(inputs.model.vocabulary),
                           ", up to ", grouped(inputs.model.max_sequence_length), " tokens a sequence"));
  if (!inputs.model.wrapper.empty()) {
    text += row("text part", cat("of a model of type ", inputs.model.wrapper, ", whose ", grouped(inputs.model.num_carried),
                                 " other tensors are carried along as they are"));
  }
  if (settings.parts.lora.rank == 0 || settings.saves_merged) {
    if (const std::vector<std::string>& names = inputs.model.left_out; !names.empty()) {
      text += row("left out", cat("of what is saved: ", list_of(names, 8), " (no known file of a tokenizer or a licence, or not a file of this folder)"));
    }
  }
  if (settings.parts != TrainedParts{}) text += row("trained", trained_text(settings.parts.lora, inputs.model));
  text += row("data", data_text(inputs));
  if (inputs.resume.checkpoint) text += row("checkpoint", inputs.resume.checkpoint->string());
  return text;
}

std::string ended_text(const TrainSettings& settings) {
  return cat("the run in ", settings.output.string(), " has ended: its model is in ", RunDirectory(settings.output).final_model().string(),
             ", and --resume auto leaves it as it is; to train on, raise --max-steps and move that away\n");
}

std::string memory_text(const MemoryPlan& plan) {
  std::string text = "host memory\n";
  std::uint64_t in_files = 0;
  for (const MemoryPlan::Item& item : plan.items) {
    text += memory_row(item.is_in_files ? cat(item.purpose, ", in files") : item.purpose, item.bytes);
    if (item.is_in_files) in_files += item.bytes;
  }
  if (in_files > 0) text += memory_row("in files", in_files);
  std::array<char, 80> share{};
  std::snprintf(share.data(), share.size(), "  (%.1f bytes a parameter; activations come on top, see step 1)", plan.bytes_per_parameter);
  std::string last = memory_row(in_files > 0 ? "in memory" : "total", plan.bytes() - in_files);
  last.pop_back();
  text += last + share.data() + "\n";
  return plan.pages.empty() ? text : text + cat("  ", plan.pages, "\n");
}

std::string warm_up_text(double seconds) {
  std::array<char, 80> text{};
  std::snprintf(text.data(), text.size(), "warm-up: %.2f s, before step 1, for each kind of layer once", seconds);
  return text.data();
}

std::string activations_text(const MemoryPlan& plan) {
  const std::uint64_t budget = plan.activation_bytes().value_or(0);
  return cat("activations: budget ", bytes_text(budget), ", the plan of host memory is ", bytes_text(plan.bytes()), " with it");
}

std::string measured_text(const MemoryPlan& plan) {
  return cat("host memory: planned ", bytes_text(plan.bytes()), ", measured ", bytes_text(plan.measured_bytes()));
}

// Of the worker that came closest to its limit; on the processor, whose workers have none, of the one that took most.
std::string worker_memory_text(const std::vector<WorkerMemoryUse>& workers) {
  const auto share = [](const WorkerMemoryUse& use) {
    const auto bytes = static_cast<double>(use.most_bytes);
    return use.limit_bytes == 0 ? bytes : bytes / static_cast<double>(use.limit_bytes);
  };
  const auto most = std::max_element(workers.begin(), workers.end(), [&](const auto& a, const auto& b) { return share(a) < share(b); });
  if (most == workers.end()) return "";
  std::string items;
  for (const WorkerMemoryUse::Item& item : most->items) items += cat(items.empty() ? "" : ", ", item.purpose, " ", bytes_text(item.most_bytes));
  const bool is_on_gpu = most->limit_bytes > 0;
  return cat(is_on_gpu ? "GPU memory" : "worker memory", ": at most ", bytes_text(most->most_bytes),
             is_on_gpu ? cat(" of ", bytes_text(most->limit_bytes)) : "", " (worker ", most->worker, "); each purpose at its own time: ", items);
}

std::string speed_text(int num_workers, const std::string& plan) {
  return cat("speed: ", num_workers, num_workers == 1 ? " worker" : " workers", "; stages: ", plan, "\n");
}

}  // namespace rp
