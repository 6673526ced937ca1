// Pipeline::save_state() and load_state(): docs/formats/checkpoint.md.
#include <c10/core/GradMode.h>

#include <map>
#include <nlohmann/json.hpp>

#include "common/bad_input.h"
#include "common/input_file.h"
#include "common/text.h"
#include "model_files/checksum.h"
#include "model_files/json_file.h"
#include "model_files/output_directory.h"
#include "model_files/safetensors.h"
#include "model_files/safetensors_writer.h"
#include "models/scalar_type.h"
#include "pipeline/pipeline_impl.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

constexpr int kStateVersion = 4;
constexpr const char* kDescriptionFile = "state.json";
constexpr const char* kTensorsFile = "state.safetensors";
constexpr ChecksumKind kChecksums = ChecksumKind::kXxh128;
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

// state.json.
struct Description {
  std::uint64_t step = 0;
  std::uint64_t round = 0;  // rounds of training up to this step
  UpdateHistory updates;
  std::string dtype;  // of the model's weights
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

// The list of a state, which names its two other files and no more.
ChecksumList read_checksums(const std::filesystem::path& directory) {
  std::error_code ignored;
  if (!std::filesystem::exists(directory / ChecksumList::file_name(kChecksums), ignored)) {
    throw bad_input(directory, "lacks ", ChecksumList::file_name(kChecksums), ": it is damaged, or was written by an older version of the program");
  }
  ChecksumList list = ChecksumList::read(directory, kChecksums);
  if (list.entries().size() == 2 && list.entries().contains(kDescriptionFile) && list.entries().contains(kTensorsFile)) return list;
  throw bad_input(directory / ChecksumList::file_name(kChecksums), "does not list ", kDescriptionFile, " and ", kTensorsFile,
                  " and nothing else: it was changed or damaged");
}

Description read_description(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / kDescriptionFile;
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) throw bad_input(directory, "is no saved state (it has no ", kDescriptionFile, ")");
  const std::string text = InputFile::open(path).read_all(kMaxStateJsonBytes);
  Checksum checksum(kChecksums);
  checksum.add(text.data(), text.size());
  read_checksums(directory).expect(path, checksum.hex());
  const nlohmann::json object = parse_json_file(path, text);
  try {
    if (object.at("version").get<int>() != kStateVersion) {
      throw bad_input(path, "was written by another version of the program");
    }
    const auto step = object.at("step").get<std::int64_t>();
    if (step < 0) throw bad_input(path, "is of step ", step);
    return {.step = static_cast<std::uint64_t>(step),
            .round = object.at("round").get<std::uint64_t>(),
            .updates = read_history(object),
            .dtype = object.at("dtype").get<std::string>(),
            .rounds_per_step = object.at("rounds_per_step").get<int>(),
            .asynchronous = object.at("asynchronous").get<bool>(),
            .user_data = object.at("user_data").get<std::string>()};
  } catch (const nlohmann::json::exception& error) {
    throw bad_input(path, "is no state of a pipeline: ", error.what());
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
      throw bad_input(file.path(), "tensor ", tensor.name, " has another shape or dtype than in this model");
    }
  }
  if (file.tensors().size() != tensors.size()) {
    throw bad_input(file.path(), "has ", file.tensors().size(), " tensors, this model's state ", tensors.size(),
                    ": it is of a larger model");
  }
}

// Reads them all; returns the checksum of the file's bytes. REQUIRES: check_tensors().
std::string read_tensors(const SafetensorsFile& file, const std::vector<StateTensor>& tensors) {
  std::map<std::string_view, const at::Tensor*> by_name;
  for (const StateTensor& tensor : tensors) by_name.emplace(tensor.name, &tensor.value);
  Checksum checksum(kChecksums);
  const std::string header = file.header();
  const std::uint64_t header_bytes = header.size();
  checksum.add(&header_bytes, sizeof header_bytes);
  checksum.add(header.data(), header.size());
  for (const std::string& name : file.names_in_order()) {
    const at::Tensor& value = *by_name.at(name);
    file.read(name, value.data_ptr(), value.nbytes());
    checksum.add(value.const_data_ptr(), value.nbytes());
  }
  return checksum.hex();
}

}  // namespace

void Pipeline::save_state(const std::filesystem::path& directory, const std::string& user_data) {
  synchronize();
  OutputDirectory::make(directory, kChecksums, [&](const OutputDirectory& output) {
    const std::vector<StateTensor> tensors = state_tensors(*impl_, impl_->buffers(Coordinator::BuffersOf::kLastStep));
    std::vector<TensorDeclaration> declarations;
    for (const StateTensor& tensor : tensors) {
      declarations.push_back({tensor.name, dtype_of(tensor.value.scalar_type()), tensor.value.sizes().vec()});
    }
    SafetensorsWriter writer = SafetensorsWriter::create(output, kTensorsFile, declarations);
    for (const StateTensor& tensor : tensors) writer.write(tensor.name, tensor.value.const_data_ptr(), tensor.value.nbytes());
    writer.commit();
    const UpdateHistory history = impl_->coordinator().update_history(impl_->number());
    const nlohmann::json description = {{"version", kStateVersion},
                                        {"step", num_steps()},
                                        {"round", impl_->coordinator().num_rounds_of_steps(impl_->number())},
                                        {"updates", history.num_applied},
                                        {"loss_scale", loss_scale_json(history.loss_scale)},
                                        {"dtype", at::toString(impl_->model().dtype())},
                                        {"rounds_per_step", impl_->options().rounds_per_step},
                                        {"asynchronous", impl_->options().asynchronous},
                                        {"user_data", user_data}};
    output.write_file(kDescriptionFile, description.dump(2) + "\n");
  });
}

SavedState Pipeline::saved_state(const std::filesystem::path& directory) {
  Description saved = read_description(directory);
  return {.step = static_cast<std::int64_t>(saved.step), .user_data = std::move(saved.user_data)};
}

void Pipeline::verify_state(const std::filesystem::path& directory) {
  (void)read_description(directory);
  read_checksums(directory).verify(directory);
}

std::string Pipeline::load_state(const std::filesystem::path& directory) {
  check_between_steps(*impl_);
  synchronize();
  const Description saved = read_description(directory);
  const auto refuse = [&](const std::string& what) { throw bad_input(directory, what); };
  if (saved.asynchronous != impl_->options().asynchronous) {
    refuse(cat("was saved by ", impl_->options().asynchronous ? "a synchronous" : "an asynchronous", " run; go on in the same way"));
  }
  if (saved.rounds_per_step != impl_->options().rounds_per_step) {
    refuse(cat("was saved with ", saved.rounds_per_step, " rounds per step, not ", impl_->options().rounds_per_step));
  }
  if (saved.dtype != at::toString(impl_->model().dtype())) {
    refuse(cat("was saved with weights of ", saved.dtype, ", not ", at::toString(impl_->model().dtype())));
  }
  const SafetensorsFile file = SafetensorsFile::open(directory / kTensorsFile);
  const std::vector<BufferState> buffers = impl_->buffers(Coordinator::BuffersOf::kLastStep);  // copies, to be read into
  check_tensors(file, state_tensors(*impl_, buffers));
  impl_->coordinator().restart_at(impl_->number(), saved.step, saved.round, saved.updates);  // which working copy is the newest depends on it
  const std::string checksum = read_tensors(file, state_tensors(*impl_, buffers));
  read_checksums(directory).expect(file.path(), checksum);
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
