// Implements Pipeline::load_state(), and the functions that read a saved state without loading it.
#include <c10/core/GradMode.h>

#include <map>
#include <string_view>
#include <vector>

#include "common/bad_input.h"
#include "common/text.h"
#include "model_files/weights/safetensors.h"
#include "models/layers/scalar_type.h"
#include "pipeline/pipeline_impl.h"
#include "pipeline/state_description.h"
#include "roundpipe/error.h"

namespace rp {
namespace {

void check_between_steps(Pipeline::Impl& pipeline) {
  const int rounds = pipeline.coordinator().pipeline_state(pipeline.number()).rounds_since_step;
  if (rounds == 0) return;
  throw Error(ExitCode::kUsage,
              cat("load_state() after ", rounds,
                  " rounds without step(): their gradients are not those of other weights; call step() first"));
}

// Throws rp::Error (kBadInput) if the file does not contain exactly these tensors.
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

// Reads all tensors. Returns the checksum of the file's bytes. REQUIRES: check_tensors().
std::string read_tensors(const SafetensorsFile& file, const std::vector<StateTensor>& tensors) {
  std::map<std::string_view, const at::Tensor*> by_name;
  for (const StateTensor& tensor : tensors) by_name.emplace(tensor.name, &tensor.value);
  Checksum checksum(kStateChecksums);
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

SavedState Pipeline::saved_state(const std::filesystem::path& directory) {
  StateDescription saved = StateDescription::read(directory);
  return {.step = static_cast<std::int64_t>(saved.step), .user_data = std::move(saved.user_data)};
}

void Pipeline::verify_state(const std::filesystem::path& directory) {
  (void)StateDescription::read(directory);
  read_state_checksums(directory).verify(directory);
}

std::string Pipeline::load_state(const std::filesystem::path& directory) {
  check_between_steps(*impl_);
  impl_->wait_for_save();
  synchronize();
  const StateDescription saved = StateDescription::read(directory);
  const auto refuse = [&](const std::string& what) { throw bad_input(directory, what); };
  if (saved.asynchronous != impl_->options().asynchronous) {
    refuse(cat("was saved by ", impl_->options().asynchronous ? "a synchronous" : "an asynchronous",
               " run; go on in the same way"));
  }
  if (saved.rounds_per_step != impl_->options().rounds_per_step) {
    refuse(cat("was saved with ", saved.rounds_per_step, " rounds per step, not ", impl_->options().rounds_per_step));
  }
  if (saved.dtype != at::toString(impl_->model().dtype())) {
    refuse(cat("was saved with weights of ", saved.dtype, ", not ", at::toString(impl_->model().dtype())));
  }
  const SafetensorsFile file = SafetensorsFile::open(directory / kStateTensorsFile);
  const std::vector<BufferState> buffers =
      impl_->buffers(Coordinator::BuffersOf::kLastStep);  // copies, which are overwritten with the file's values
  check_tensors(file, impl_->state_tensors(buffers));
  impl_->coordinator().restart_at(impl_->number(), saved.step, saved.round,
                                  saved.updates);  // decides which working copy is the newest
  const std::string checksum = read_tensors(file, impl_->state_tensors(buffers));
  read_state_checksums(directory).expect(file.path(), checksum);
  impl_->set_buffers(buffers);
  const c10::NoGradGuard no_grad;
  for (const ParameterState& parameter : impl_->parameters()) {
    if (parameter.master.defined() && parameter.working.data_ptr() != parameter.master.data_ptr()) {
      at::Tensor(parameter.working).copy_(parameter.master);
    }
  }
  impl_->coordinator().finish_restart(impl_->number(), saved.user_data);
  return saved.user_data;
}

}  // namespace rp
