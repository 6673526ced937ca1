#include "launcher/machine/gpu_list.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "common/text.h"
#include "hoststore/control.h"
#include "launcher/process/runtime_settings.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

constexpr const char* kAllowed = "allowed: all, a number of GPUs, or a list of indices and UUIDs such as 0,2,5";
constexpr const char* kVisible = "CUDA_VISIBLE_DEVICES";

bool is_uuid(const std::string& word) {
  return (word.starts_with("GPU-") && word.size() > 4) || (word.starts_with("MIG-") && word.size() > 4);
}

std::optional<int> whole_number(const std::string& word) {
  int number = 0;
  const char* end = word.data() + word.size();
  const auto result = std::from_chars(word.data(), end, number);
  if (result.ec != std::errc{} || result.ptr != end || number < 0) return std::nullopt;
  return number;
}

// Returns the words between commas, without surrounding blanks.
std::vector<std::string> split_words(const std::string& text) {
  std::vector<std::string> words;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    std::string word = text.substr(begin, end - begin);
    word.erase(0, word.find_first_not_of(" \t"));
    word.erase(word.find_last_not_of(" \t") + 1);
    words.push_back(std::move(word));
    begin = end + 1;
  }
  return words;
}

// The GPUs that CUDA_VISIBLE_DEVICES shows.
struct Visible {
  std::vector<Gpu> gpus;
  bool by_index = false;  // at least one was named by its index
};

// Returns the GPU that a word of CUDA_VISIBLE_DEVICES names; nullopt if it names none or several.
std::optional<Gpu> named_by(const std::string& word, const GpuSystem& system) {
  if (const auto index = whole_number(word)) {
    if (static_cast<std::size_t>(*index) >= system.gpus.size()) return std::nullopt;
    return system.gpus[*index];
  }
  if (!is_uuid(word)) return std::nullopt;
  std::vector<Gpu> found;
  for (const std::vector<Gpu>* list : {&system.gpus, &system.instances}) {
    std::copy_if(list->begin(), list->end(), std::back_inserter(found),
                 [&word](const Gpu& gpu) { return gpu.uuid.starts_with(word); });
  }
  return found.size() == 1 ? std::optional(found[0]) : std::nullopt;
}

// Reads the variable as CUDA does: the list ends at the first word that names nothing, such as -1.
Visible visible_gpus(const GpuSystem& system, const CudaVariables& variables) {
  if (!variables.visible_devices) return {.gpus = system.gpus};
  Visible visible;
  for (const std::string& word : split_words(*variables.visible_devices)) {
    const std::optional<Gpu> gpu = named_by(word, system);
    if (!gpu) break;
    visible.by_index = visible.by_index || whole_number(word).has_value();
    for (const Gpu& before : visible.gpus) {
      if (before.uuid == gpu->uuid && before.index == gpu->index) {
        throw Error(ExitCode::kUsage, cat(kVisible, "=", *variables.visible_devices, " names ", gpu_text(*gpu),
                                          " twice; name it once, and for several workers on it use --gpus 0,0"));
      }
    }
    visible.gpus.push_back(*gpu);
  }
  return visible;
}

// Returns, for example, "; there are 2: 0 NVIDIA A100 GPU-1, 1 ...". A GPU that cannot be used is
// listed with the reason.
std::string what_there_is(const std::vector<Gpu>& gpus, const CudaVariables& variables) {
  const std::string by = variables.visible_devices ? cat(" by ", kVisible, "=", *variables.visible_devices) : "";
  if (gpus.empty()) return cat("; none is visible", by);
  std::string list;
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    const Gpu& gpu = gpus[i];
    list += cat(i == 0 ? "" : ", ", i, " ", gpu.name, gpu.name.empty() ? "" : " ", gpu.uuid);
    if (!gpu.problem.empty()) list += " (not usable)";
  }
  return cat("; visible", by, gpus.size() == 1 ? " is " : " are ", gpus.size(), ": ", list);
}

class Chooser {
 public:
  Chooser(const GpuRequest& request, const std::vector<Gpu>& visible, const GpuSystem& system,
          const CudaVariables& variables)
      : request_(request), visible_(visible), system_(system), variables_(variables) {}

  [[nodiscard]] std::vector<Gpu> chosen() const {
    if (request_.kind != GpuRequest::Kind::kList) return first_usable();
    std::vector<Gpu> gpus;
    for (const std::string& word : request_.words)
      gpus.push_back(usable(whole_number(word) ? by_index(word) : by_uuid(word)));
    return gpus;
  }

 private:
  [[noreturn]] void fail(ExitCode code, const std::string& why, const std::string& remedy) const {
    throw Error(code, cat(request_.asked, ": ", why, what_there_is(visible_, variables_), "; ", remedy));
  }

  [[nodiscard]] std::vector<Gpu> first_usable() const {
    std::vector<Gpu> gpus;
    const Gpu* unusable = nullptr;
    for (const Gpu& gpu : visible_) {
      if (gpu.problem.empty()) gpus.push_back(gpu);
      else if (unusable == nullptr) unusable = &gpu;
    }
    const bool all = request_.kind == GpuRequest::Kind::kAll;
    const auto wanted = all ? std::max<std::size_t>(1, gpus.size()) : static_cast<std::size_t>(request_.count);
    if (gpus.size() < wanted) {
      const std::string present = gpus.empty() ? "no GPU can be used" : cat("only ", gpus.size(), " can be used");
      const std::string reason = unusable == nullptr ? "" : cat("; ", gpu_text(*unusable), ": ", unusable->problem);
      fail(ExitCode::kNoResource, present + reason,
           gpus.empty() ? "use --device cpu instead"
                        : cat("ask for at most ", gpus.size(), ", or name one several times"));
    }
    gpus.resize(wanted);
    return gpus;
  }

  [[nodiscard]] Gpu by_index(const std::string& word) const {
    const auto index = static_cast<std::size_t>(*whole_number(word));
    if (index >= visible_.size()) {
      fail(ExitCode::kNoResource, cat("there is no GPU ", word),
           "indices count the visible GPUs from 0 (rp-launch doctor)");
    }
    return visible_[index];
  }

  [[nodiscard]] Gpu by_uuid(const std::string& word) const {
    std::vector<Gpu> found;
    const auto take = [&](const Gpu& gpu) {
      if (gpu.uuid.starts_with(word)) found.push_back(gpu);
    };
    std::for_each(visible_.begin(), visible_.end(), take);
    if (!variables_.visible_devices) std::for_each(system_.instances.begin(), system_.instances.end(), take);
    if (found.empty()) fail(ExitCode::kNoResource, cat("there is no GPU ", word), "nvidia-smi -L lists them");
    if (found.size() > 1)
      fail(ExitCode::kUsage, cat(word, " begins the UUIDs of ", found.size(), " GPUs"), "write more of it");
    return found[0];
  }

  [[nodiscard]] Gpu usable(Gpu gpu) const {
    if (gpu.problem.empty()) return gpu;
    throw Error(ExitCode::kNoResource, cat(request_.asked, ": ", gpu_text(gpu), " cannot be used: ", gpu.problem));
  }

  const GpuRequest& request_;
  const std::vector<Gpu>& visible_;
  const GpuSystem& system_;
  const CudaVariables& variables_;
};

void check_sharing(const GpuRequest& request, const std::vector<Gpu>& gpus) {
  if (gpus.size() > static_cast<std::size_t>(kMaxWorkers)) {
    throw Error(ExitCode::kUsage,
                cat(request.asked, ": these are ", gpus.size(), " workers; allowed: at most ", kMaxWorkers));
  }
  for (const Gpu& gpu : gpus) {
    const auto workers =
        std::count_if(gpus.begin(), gpus.end(), [&gpu](const Gpu& other) { return other.uuid == gpu.uuid; });
    if (workers == 1 || !gpu.exclusive) continue;
    throw Error(ExitCode::kNoResource,
                cat(request.asked, ": ", gpu_text(gpu), " would get ", workers,
                    " workers, but its compute mode allows one process; change it with nvidia-smi -i ", gpu.index,
                    " -c DEFAULT, or name it once"));
  }
}

// By default CUDA counts the fastest card first, so the user's index may have meant another card.
// Returns a note if that is possible.
std::string order_note(const Visible& visible, const GpuSystem& system, const CudaVariables& variables) {
  const bool cards_differ = std::any_of(system.gpus.begin(), system.gpus.end(),
                                        [&](const Gpu& gpu) { return gpu.name != system.gpus.front().name; });
  if (!visible.by_index || !cards_differ || variables.device_order == "PCI_BUS_ID") return "";
  return cat(kVisible, "=", *variables.visible_devices,
             " is counted by PCI address, as nvidia-smi counts; other CUDA programs may count these cards, which "
             "differ, in another order: set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name UUIDs");
}

std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);  // an empty value counts as set
}

}  // namespace

GpuRequest parse_gpus(const std::string& name, const std::string& value) {
  GpuRequest request{.asked = cat(name, " ", value)};
  if (value == "all") return request;
  std::vector<std::string> words = split_words(value);
  const std::optional<int> number = words.size() == 1 ? whole_number(words[0]) : std::nullopt;
  if (number && *number > 0) {
    request.kind = GpuRequest::Kind::kCount;
    request.count = parse_count(name, words[0], 1, kMaxWorkers, "; for one GPU by its index write a comma behind it");
    return request;
  }
  request.kind = GpuRequest::Kind::kList;
  if (words.size() == 2 && words[1].empty()) words.pop_back();
  for (const std::string& word : words) {
    if (!whole_number(word) && !is_uuid(word)) {
      const std::string what = word.empty() ? "an entry is empty" : cat("\"", word, "\" is none");
      throw Error(ExitCode::kUsage, cat(name, " is \"", value, "\"; ", what, "; ", kAllowed));
    }
  }
  request.words = std::move(words);
  return request;
}

CudaVariables CudaVariables::of_this_process() {
  return {.visible_devices = variable(kVisible), .device_order = variable("CUDA_DEVICE_ORDER")};
}

GpuChoice choose_gpus(const GpuRequest& request, const GpuSystem& system, const CudaVariables& variables) {
  if (!system.missing.empty()) {
    throw Error(ExitCode::kNoResource, cat(request.asked, ": ", system.missing, "; or use --device cpu instead"));
  }
  const Visible visible = visible_gpus(system, variables);
  GpuChoice choice;
  choice.gpus = Chooser(request, visible.gpus, system, variables).chosen();
  check_sharing(request, choice.gpus);
  choice.note = order_note(visible, system, variables);
  return choice;
}

std::string visible_devices(const std::vector<Gpu>& gpus, std::size_t worker, const std::string& signals) {
  std::vector<std::string> seen{gpus[worker].uuid};
  if (signals == "events") {
    for (const Gpu& gpu : gpus) {
      if (std::find(seen.begin(), seen.end(), gpu.uuid) == seen.end()) seen.push_back(gpu.uuid);
    }
    const bool has_instance = std::any_of(gpus.begin(), gpus.end(), [](const Gpu& gpu) { return gpu.is_instance; });
    if (has_instance && seen.size() > 1) {
      throw Error(ExitCode::kUsage,
                  "--signals events needs every GPU of the run in each worker, and CUDA shows a process one MIG "
                  "instance; use --signals memops");
    }
  }
  std::string text;
  for (const std::string& uuid : seen) text += cat(text.empty() ? "" : ",", uuid);
  return text;
}

}  // namespace rp
