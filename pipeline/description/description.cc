#include "pipeline/description/description.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <torch/headeronly/version.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <vector>

#include "common/nodes.h"
#include "common/system/fd.h"
#include "common/text.h"
#include "hoststore/control.h"
#include "hoststore/data_checksum.h"
#include "models/layers/scalar_type.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

constexpr std::uint64_t kPrime = 1099511628211ULL;

std::uint64_t hash_text(const std::string& text, std::uint64_t hash = 14695981039346656037ULL) {
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * kPrime;
  return hash;
}

std::string shape_text(at::IntArrayRef shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) text += cat(i == 0 ? "" : ", ", shape[i]);
  return text + "]";
}

ParameterRequest& find_parameter(std::vector<LayerRequest>& layers, const ParameterUse& use) {
  auto& parameters = layers[use.layer].parameters;
  const auto found = std::find_if(parameters.begin(), parameters.end(), [&use](const ParameterRequest& parameter) {
    return parameter.name == use.parameter;
  });
  if (found != parameters.end()) return *found;
  std::vector<std::string> names;
  for (const ParameterRequest& parameter : parameters) names.push_back(parameter.name);
  throw Error(ExitCode::kUsage, cat("tie(): layer ", use.layer, " (", layers[use.layer].name, ") has no parameter '",
                                    use.parameter, "'", did_you_mean(use.parameter, names)));
}

// A node updates the elements that it owns, and needs all of them for their mean, so they must be in one chunk.
void check_correction(const NamedParameter& parameter, const std::string& of_layer) {
  const at::Tensor& value = parameter.value;
  const bool is_good = value.scalar_type() == at::kFloat && parameter.keeps_dtype && value.requires_grad() &&
                       value.dim() == 1 && static_cast<std::uint64_t>(value.numel()) <= kChunkElements;
  if (is_good) return;
  throw Error(ExitCode::kUsage, cat("parameter '", parameter.name, "'", of_layer,
                                    " is the correction of a router: it must be fp32, keep its dtype, require a "
                                    "gradient, and have one dimension of at most ",
                                    kChunkElements, " elements, but it is ", at::toString(value.scalar_type()), " ",
                                    shape_text(value.sizes())));
}

// Two parameters of one layer may be tied to each other through parameters of other layers.
void check_groups(const LayerRequest& layer) {
  std::map<int, std::string> first;
  for (const ParameterRequest& parameter : layer.parameters) {
    if (parameter.tied_group < 0) continue;
    const auto [place, is_new] = first.emplace(parameter.tied_group, parameter.name);
    if (is_new) continue;
    throw Error(ExitCode::kUsage,
                cat("tie(): '", place->second, "' and '", parameter.name, "' of one layer (", layer.name,
                    ") are tied to the same parameter; let the layer use one parameter twice"));
  }
}

void tie_parameters(const Model& model, std::vector<LayerRequest>& layers) {
  int num_groups = 0;
  for (const auto& [first_use, second_use] : model.ties()) {
    ParameterRequest& first = find_parameter(layers, first_use);
    ParameterRequest& second = find_parameter(layers, second_use);
    if (first.is_correction || second.is_correction)
      throw Error(ExitCode::kUsage,
                  cat("tie(): '", first.name, "' of layer ", first_use.layer, " and '", second.name, "' of layer ",
                      second_use.layer, ": the correction of a router cannot be tied"));
    if (first.shape != second.shape) {
      throw Error(ExitCode::kUsage,
                  cat("tie(): '", first.name, "' of layer ", first_use.layer, " is ", shape_text(first.shape),
                      ", but '", second.name, "' of layer ", second_use.layer, " is ", shape_text(second.shape)));
    }
    const int group = first.tied_group >= 0    ? first.tied_group
                      : second.tied_group >= 0 ? second.tied_group
                                               : num_groups++;
    const int merged = first.tied_group >= 0 && second.tied_group >= 0 ? second.tied_group : -1;
    first.tied_group = second.tied_group = group;
    if (merged < 0 || merged == group) continue;
    for (LayerRequest& layer : layers) {
      for (ParameterRequest& parameter : layer.parameters) {
        if (parameter.tied_group == merged) parameter.tied_group = group;
      }
    }
  }
  for (const LayerRequest& layer : layers) check_groups(layer);
}

}  // namespace

std::vector<LayerRequest> describe_layers(const Model& model) {
  if (model.num_layers() == 0) throw Error(ExitCode::kUsage, "the model has no layers");
  if (model.num_layers() > kMaxLayers) {
    throw Error(ExitCode::kUsage,
                cat("the model has ", model.num_layers(), " layers; at most ", kMaxLayers, " are possible"));
  }
  std::vector<LayerRequest> layers;
  for (const LayerSpec& spec : model.layers()) {
    LayerRequest request{.name = spec.name, .arguments_hash = spec.arguments_hash, .parameters = {}};
    const std::string of_layer = cat(" of layer ", layers.size(), " (", spec.name, ")");
    const std::unique_ptr<Layer> layer = spec.make();
    for (const NamedParameter& parameter : layer->parameters()) {
      if (parameter.is_correction) {
        check_correction(parameter, of_layer);
      } else if (parameter.keeps_dtype && parameter.value.requires_grad()) {
        throw Error(ExitCode::kUsage, cat("parameter '", parameter.name, "'", of_layer,
                                          " keeps its dtype, so it must be frozen, but it requires a gradient"));
      }
      if (!parameter.keeps_dtype && !at::isFloatingType(parameter.value.scalar_type())) {
        throw Error(ExitCode::kUsage,
                    cat("parameter '", parameter.name, "'", of_layer, " is of dtype ",
                        at::toString(parameter.value.scalar_type()), "; only floating point can be trained"));
      }
      request.parameters.push_back(
          {.name = parameter.name,
           .dtype = dtype_of(parameter.keeps_dtype ? parameter.value.scalar_type() : model.dtype()),
           .shape = parameter.value.sizes().vec(),
           .tied_group = -1,
           .is_trained = parameter.value.requires_grad(),
           .is_correction = parameter.is_correction});
    }
    for (const NamedBuffer& buffer : layer->buffers()) {
      ++request.num_buffers;
      if (buffer.value.defined() && buffer.value.requires_grad()) {
        throw Error(ExitCode::kUsage,
                    cat("buffer '", buffer.name, "'", of_layer, " requires a gradient; make it a parameter"));
      }
    }
    layers.push_back(std::move(request));
  }
  tie_parameters(model, layers);
  return layers;
}

std::uint64_t fingerprint(const Model& model, const std::vector<Loss>& losses) {
  std::uint64_t hash = hash_text(at::toString(model.dtype()));
  for (const Loss& loss : losses) hash = hash_text(loss.name + "\n", hash);
  for (const auto& [first, second] : model.ties()) {
    hash = hash_text(cat(first.layer, " ", first.parameter, " ", second.layer, " ", second.parameter), hash);
  }
  return hash;
}

void compare_layers(const Model& model, const Catalogue& catalogue, const PipelineRecord& pipeline) {
  const std::string remedy =
      "; every process must describe the same model: what stands before Session::start() may not depend on the "
      "process, the time or on random numbers";
  const std::string of_pipeline =
      catalogue.pipelines().size() > 1 ? cat(" of pipeline '", pipeline.name.data(), "'") : "";
  if (model.num_layers() != static_cast<int>(pipeline.num_layers)) {
    throw Error(ExitCode::kUserError,
                cat("the processes differ: the coordinator's model", of_pipeline, " has ", pipeline.num_layers,
                    " layers, this worker's has ", model.num_layers(), remedy));
  }
  for (int layer = 0; layer < model.num_layers(); ++layer) {
    const LayerSpec& spec = model.layers()[layer];
    const LayerRecord& record = catalogue.layers()[pipeline.catalogue_layer(layer)];
    const std::string who = cat("the processes differ: layer ", layer, of_pipeline);
    if (spec.name != record.name.data()) {
      throw Error(ExitCode::kUserError, cat(who, " is ", record.name.data(), " in the coordinator and ", spec.name,
                                            " in this worker", remedy));
    }
    if (spec.arguments_hash != record.arguments_hash) {
      throw Error(ExitCode::kUserError,
                  cat(who, " (", spec.name, ") was given other arguments than in the coordinator", remedy));
    }
  }
}

void compare_parameters(const std::vector<NamedParameter>& parameters, const Catalogue& catalogue,
                        CatalogueLayer layer) {
  const auto expected = catalogue.tensors_of(layer);
  const LayerRecord& record = catalogue.layers()[layer];
  const int local = catalogue.pipelines()[record.pipeline].layer_of(layer);
  const std::string who = cat("the processes differ: layer ", local, " (", record.name.data(), ")");
  if (parameters.size() != expected.size()) {
    throw Error(ExitCode::kUserError, cat(who, " has ", expected.size(), " parameters in the coordinator and ",
                                          parameters.size(), " in this worker"));
  }
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const TensorDesc& desc = expected[i].desc;
    const at::IntArrayRef shape(desc.shape.data(), static_cast<std::size_t>(desc.rank));
    if (parameters[i].name != expected[i].name.data() || parameters[i].value.sizes() != shape) {
      throw Error(ExitCode::kUserError, cat(who, " has the parameter ", expected[i].name.data(), " ", shape_text(shape),
                                            " in the coordinator and ", parameters[i].name, " ",
                                            shape_text(parameters[i].value.sizes()), " in this worker"));
    }
    const bool is_trained = catalogue.weight_groups()[catalogue.uses()[expected[i].use].group].is_trained != 0;
    if (parameters[i].value.requires_grad() != is_trained) {
      throw Error(ExitCode::kUserError,
                  cat(who, ": the parameter ", parameters[i].name, " is ", is_trained ? "trained" : "frozen",
                      " in the coordinator, but not in this worker"));
    }
  }
}

std::uint64_t build_id() {
  // Under valgrind, stat() of this path finds valgrind itself, but open() finds the program.
  const UniqueFd program(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  struct stat info {};
  if (!program || fstat(program.get(), &info) != 0) return 0;
  return hash_text(cat(info.st_ino, " ", info.st_size, " ", info.st_mtim.tv_sec, " ", info.st_mtim.tv_nsec));
}

std::string build_contents() {
  DataChecksum checksum;
  checksum.add_file("/proc/self/exe");
  Dl_info library{};  // the program again, if this library is linked into it
  if (dladdr(reinterpret_cast<const void*>(&build_id), &library) != 0) checksum.add_file(library.dli_fname);
  std::array<char, 20> text{};
  std::snprintf(text.data(), text.size(), "%016llx", static_cast<unsigned long long>(checksum.value()));
  return cat(text.data(), " with LibTorch ", TORCH_VERSION);
}

}  // namespace rp
