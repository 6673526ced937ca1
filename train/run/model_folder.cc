#include "train/run/model_folder.h"

#include <algorithm>
#include <system_error>

#include "common/files/directory_names.h"
#include "common/text.h"
#include "train/run/run_directory.h"

namespace rp {
namespace {

namespace fs = std::filesystem;

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

// Returns true for an owner and a name: "meta-llama/Llama-3.2-1B".
bool is_hub_name(const std::string& text) {
  return std::count(text.begin(), text.end(), '/') == 1 && text.front() != '/' && text.front() != '.' &&
         text.back() != '/';
}

// Returns the first file of the folder with this ending, or "".
std::string file_with(const fs::path& folder, const char* ending) {
  std::error_code ignored;
  for (const std::string& name : names_in(folder, ignored)) {
    if (name.ends_with(ending)) return name;
  }
  return "";
}

}  // namespace

std::optional<std::string> why_no_model(const fs::path& model) {
  const std::string name = model.string();
  std::error_code ignored;
  if (!is_there(model)) {
    if (!is_hub_name(name)) return cat(name, ": there is no such folder");
    return cat(
        name, ": there is no such folder; if it is a name of the Hugging Face hub, fetch the model first: hf download ",
        name, " --local-dir ", model.filename().string());
  }
  if (!fs::is_directory(model, ignored))
    return cat(name, ": is not a folder; give the one with config.json and *.safetensors");
  if (is_there(model / "adapter_config.json") && !is_there(model / "config.json")) {
    return cat(name, ": is an adapter; give its base model as --model, and this as --adapter");
  }
  if (is_there(model / "XXH128SUMS") && is_there(model / "state.json")) {
    return cat(
        name,
        ": is a checkpoint of a run; to go on with the run give it to --resume, to have its model give it to --export");
  }
  if (!is_there(model / "config.json") && RunDirectory(model).has_final_model()) {
    return cat(name, ": is the output directory of a run, whose model is in ",
               RunDirectory(model).final_model().string());
  }
  if (!file_with(model, ".safetensors").empty() || is_there(model / "model.safetensors.index.json"))
    return std::nullopt;
  for (const char* ending : {".bin", ".pth", ".pt"}) {
    if (const std::string file = file_with(model, ending); !file.empty()) {
      return cat((model / file).string(),
                 ": weights of PyTorch's pickle format are not read; write the model as safetensors: python -c \"from "
                 "transformers import AutoModelForCausalLM as M; M.from_pretrained('",
                 name, "').save_pretrained('", name, "-safetensors')\", and copy its tokenizer");
    }
  }
  if (const std::string file = file_with(model, ".gguf"); !file.empty()) {
    return cat((model / file).string(),
               ": GGUF files are not read; fetch the model that this one was made from, as safetensors");
  }
  return std::nullopt;
}

}  // namespace rp
