// Pipeline::save_state() and load_state(): docs/formats/checkpoint.md.
#include <c10/core/GradMode.h>
#include <xxhash.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "common/output_file.h"
#include "common/text.h"
#include "model_files/json_file.h"
#include "model_files/output_directory.h"
#include "model_files/safetensors.h"
#include "model_files/safetensors_writer.h"
#include "models/scalar_type.h"
#include "pipeline/pipeline_impl.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

constexpr int kStateVersion = 3;
constexpr std::uint64_t kMaxStateJsonBytes = std::uint64_t{16} << 20;

// A tensor of a state file: its name there and where it lies in the store.
struct StateTensor {
  std::string name;
  at::Tensor value;
};

// Masters and moments; asynchronous also the working weights of one step before, which the next round computes with; and
// the buffers, all as of the last step.
std::vector<StateTensor> state_tensors(Pipeline::Impl& pipeline, const std::vector<BufferState>& buffers) {
  std::vector<StateTensor> tensors;
  for (const ParameterState& parameter : pipeline.parameters()) {
    if (!parameter.master.defined()) continue;  // frozen
    tensors.push_back({parameter.name + ".master", parameter.master});
    if (parameter.moment1.defined()) tensors.push_back({parameter.name + ".moment1", parameter.moment1});
    if (parameter.moment2.defined()) tensors.push_back({parameter.name + ".moment2", parameter.moment2});
  }
  if (pipeline.options().asynchronous) {
    for (const ParameterState& parameter : pipeline.parameters(1)) {
      if (parameter.master.defined()) tensors.push_back({parameter.name + ".previous", parameter.working});
    }
  }
  for (const BufferState& buffer : buffers) {
    if (buffer.value.defined()) tensors.push_back({buffer.name + ".buffer", buffer.value});
  }
  return tensors;
}

// Of what the tensors hold, in the order of the file.
class Checksum {
 public:
  Checksum() : state_(XXH3_createState()) { XXH3_64bits_reset(state_.get()); }
  void add(const at::Tensor& tensor) { XXH3_64bits_update(state_.get(), tensor.const_data_ptr(), tensor.nbytes()); }
  [[nodiscard]] std::uint64_t value() const { return XXH3_64bits_digest(state_.get()); }

 private:
  struct Free {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  std::unique_ptr<XXH3_state_t, Free> state_;
};

// state.json.
struct Description {
  std::uint64_t step = 0;
  std::uint64_t round = 0;  // rounds of training up to this step
  UpdateHistory updates;
  std::string dtype;  // of the model's weights
  std::uint64_t checksum = 0;
  int rounds_per_step = 1;
  bool asynchronous = false;
  std::string user_data;
};

UpdateHistory read_history(const nlohmann::json& object) {
  const nlohmann::json& scale = object.at("loss_scale");
  return {.num_applied = object.at("updates").get<std::uint64_t>(),
          .loss_scale = {.scale = scale.at("scale").get<double>(),
                         .previous_scale = scale.at("previous_scale").get<double>(),
                         .steps_since_overflow = scale.at("steps_since_overflow").get<int>()}};
}

nlohmann::json loss_scale_json(const LossScaleHistory& history) {
  return {{"scale", history.scale},
          {"previous_scale", history.previous_scale},
          {"steps_since_overflow", history.steps_since_overflow}};
}

Description read_description(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / "state.json";
  if (!std::filesystem::exists(path)) {
    throw Error(ExitCode::kBadInput, cat(directory.string(), ": is no saved state (it has no state.json)"));
  }
  const nlohmann::json object = read_json_file(path, kMaxStateJsonBytes);
  try {
    if (object.at("version").get<int>() != kStateVersion) {
      throw Error(ExitCode::kBadInput, cat(path.string(), ": was written by another version of the program"));
    }
    const auto step = object.at("step").get<std::int64_t>();
    if (step < 0) throw Error(ExitCode::kBadInput, cat(path.string(), ": is of step ", step));
    return {.step = static_cast<std::uint64_t>(step),
            .round = object.at("round").get<std::uint64_t>(),
            .updates = read_history(object),
            .dtype = object.at("dtype").get<std::string>(),
            .checksum = object.at("checksum").get<std::uint64_t>(),
            .rounds_per_step = object.at("rounds_per_step").get<int>(),
            .asynchronous = object.at("asynchronous").get<bool>(),
            .user_data = object.at("user_data").get<std::string>()};
  } catch (const nlohmann::json::exception& error) {
    throw Error(ExitCode::kBadInput, cat(path.string(), ": is no state of a pipeline: ", error.what()));
  }
}

void check_between_steps(Pipeline::Impl& pipeline) {
  if (pipeline.coordinator().rounds_since_step(pipeline.number()) == 0) return;
  throw Error(ExitCode::kUsage, cat("load_state() after ", pipeline.coordinator().rounds_since_step(pipeline.number()),
                                    " rounds without step(): their gradients are not those of other weights; call step() first"));
}

// The file must have these tensors and no others.
void check_tensors(const SafetensorsFile& file, const std::vector<StateTensor>& tensors) {
  for (const StateTensor& tensor : tensors) {
    const TensorInfo& info = file.tensor(tensor.name);
    if (at::IntArrayRef(info.shape) != tensor.value.sizes() || info.dtype != dtype_of(tensor.value.scalar_type())) {
      throw Error(ExitCode::kBadInput, cat(file.path().string(), ": tensor ", tensor.name,
                                           " has another shape or dtype than in this model"));
    }
  }
  if (file.tensors().size() != tensors.size()) {
    throw Error(ExitCode::kBadInput, cat(file.path().string(), ": has ", file.tensors().size(),
                                         " tensors, this model's state ", tensors.size(), ": it is of a larger model"));
  }
}

}  // namespace

void Pipeline::save_state(const std::filesystem::path& directory, const std::string& user_data) {
  synchronize();
  OutputDirectory::make(directory, [&](const OutputDirectory& output) {
    const std::vector<StateTensor> tensors = state_tensors(*impl_, impl_->buffers(Coordinator::BuffersOf::kLastStep));
    std::vector<TensorDeclaration> declarations;
    for (const StateTensor& tensor : tensors) {
      declarations.push_back({tensor.name, dtype_of(tensor.value.scalar_type()), tensor.value.sizes().vec()});
    }
    SafetensorsWriter writer = SafetensorsWriter::create(output.path() / "state.safetensors", declarations);
    Checksum checksum;
    for (const StateTensor& tensor : tensors) {
      writer.write(tensor.name, tensor.value.const_data_ptr(), tensor.value.nbytes());
      checksum.add(tensor.value);
    }
    writer.commit();
    const UpdateHistory history = impl_->coordinator().update_history(impl_->number());
    const nlohmann::json description = {{"version", kStateVersion},
                                        {"step", num_steps()},
                                        {"round", impl_->coordinator().num_rounds_of_steps(impl_->number())},
                                        {"updates", history.num_applied},
                                        {"loss_scale", loss_scale_json(history.loss_scale)},
                                        {"dtype", at::toString(impl_->model().dtype())},
                                        {"checksum", checksum.value()},
                                        {"rounds_per_step", impl_->options().rounds_per_step},
                                        {"asynchronous", impl_->options().asynchronous},
                                        {"user_data", user_data}};
    const std::string text = description.dump(2) + "\n";
    OutputFile file = OutputFile::create(output.path() / "state.json", text.size());
    file.write(text.data(), text.size());
    file.commit();
  });
}

std::string Pipeline::saved_user_data(const std::filesystem::path& directory) { return read_description(directory).user_data; }

std::string Pipeline::load_state(const std::filesystem::path& directory) {
  check_between_steps(*impl_);
  synchronize();
  const Description saved = read_description(directory);
  const auto refuse = [&](const std::string& what) { throw Error(ExitCode::kBadInput, cat(directory.string(), ": ", what)); };
  if (saved.asynchronous != impl_->options().asynchronous) {
    refuse(cat("was saved by ", impl_->options().asynchronous ? "a synchronous" : "an asynchronous", " run; go on in the same way"));
  }
  if (saved.rounds_per_step != impl_->options().rounds_per_step) {
    refuse(cat("was saved with ", saved.rounds_per_step, " rounds per step, not ", impl_->options().rounds_per_step));
  }
  if (saved.dtype != at::toString(impl_->model().dtype())) {
    refuse(cat("was saved with weights of ", saved.dtype, ", not ", at::toString(impl_->model().dtype())));
  }
  const SafetensorsFile file = SafetensorsFile::open(directory / "state.safetensors");
  const std::vector<BufferState> buffers = impl_->buffers(Coordinator::BuffersOf::kLastStep);  // copies, to be read into
  check_tensors(file, state_tensors(*impl_, buffers));
  impl_->coordinator().restart_at(impl_->number(), saved.step, saved.round, saved.updates);  // which working copy is the newest depends on it
  Checksum checksum;
  for (const StateTensor& tensor : state_tensors(*impl_, buffers)) {
    file.read(tensor.name, tensor.value.data_ptr(), tensor.value.nbytes());
    checksum.add(tensor.value);
  }
  if (checksum.value() != saved.checksum) {
    refuse("state.safetensors does not have the checksum of state.json: one of them is damaged; use another saved state");
  }
  impl_->set_buffers(buffers);
  const c10::NoGradGuard no_grad;
  for (const ParameterState& parameter : impl_->parameters()) {
    if (parameter.master.defined() && parameter.working.data_ptr() != parameter.master.data_ptr()) {
      at::Tensor(parameter.working).copy_(parameter.master);
    }
  }
  return saved.user_data;
}

}  // namespace rp
