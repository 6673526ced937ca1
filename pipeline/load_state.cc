// Implements Pipeline::load_state(), and the functions that read a saved state without loading it.
#include <c10/core/GradMode.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <vector>

#include "common/bad_input.h"
#include "common/system/clock.h"
#include "common/text.h"
#include "model_files/weights/safetensors.h"
#include "models/layers/scalar_type.h"
#include "pipeline/pipeline_impl.h"
#include "pipeline/state_description.h"
#include "pipeline/state_files.h"
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

// Reads all tensors of a state that is one file. Returns the checksum of the file's bytes. REQUIRES:
// StateFiles::check().
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

// Reads what this node owns of the tensors.
void read_owned(const StateFiles& files, const std::vector<StateTensor>& tensors) {
  for (const StateTensor& tensor : tensors) {
    files.read(tensor.name, tensor.begin, static_cast<std::uint64_t>(tensor.value.numel()),
               tensor.value.mutable_data_ptr());
  }
}

// Reads a parameter's master, or the working weights of the step before, from beginning to end, and
// rounds it to `working`.
void read_working(const StateFiles& files, const std::string& tensor, at::ScalarType dtype, const at::Tensor& working) {
  constexpr std::int64_t kPieceElements = std::int64_t{4} << 20;
  const at::Tensor to = working.view({-1});
  const at::Tensor piece = at::empty({std::min(kPieceElements, to.numel())}, dtype);
  for (std::int64_t begin = 0; begin < to.numel(); begin += kPieceElements) {
    const std::int64_t length = std::min(kPieceElements, to.numel() - begin);
    files.read(tensor, static_cast<std::uint64_t>(begin), static_cast<std::uint64_t>(length), piece.mutable_data_ptr());
    to.narrow(0, begin, length).copy_(piece.narrow(0, 0, length));
  }
}

// The working copy of a correction is its master.
at::ScalarType master_type(const ParameterState& parameter, const PipelineOptions& options) {
  return parameter.is_correction ? parameter.working.scalar_type() : options.optimizer_dtype;
}

// What a state of this model must contain, on all nodes together.
std::vector<StateFiles::Tensor> declared_tensors(Pipeline::Impl& pipeline, const std::vector<BufferState>& buffers) {
  std::vector<StateFiles::Tensor> tensors;
  const PipelineOptions& options = pipeline.options();
  for (const ParameterState& parameter : pipeline.parameters()) {
    if (!parameter.is_trained) continue;
    const auto add = [&](const char* what, at::ScalarType dtype) {
      tensors.push_back(
          {.name = parameter.name + what, .dtype = dtype_of(dtype), .shape = parameter.working.sizes().vec()});
    };
    const int num_moments = parameter.is_correction ? 0 : options.num_moments;
    add(".master", master_type(parameter, options));
    if (num_moments >= 1) add(".moment1", at::kFloat);
    if (num_moments >= 2) add(".moment2", at::kFloat);
    if (options.asynchronous) add(".previous", parameter.working.scalar_type());
  }
  for (const BufferState& buffer : buffers) {
    if (!buffer.value.defined()) continue;
    tensors.push_back({.name = buffer.name + ".buffer",
                       .dtype = dtype_of(buffer.value.scalar_type()),
                       .shape = buffer.value.sizes().vec()});
  }
  return tensors;
}

// A directory that another machine has renamed may not be visible at once.
void wait_until_visible(const std::filesystem::path& directory) {
  constexpr std::int64_t kMostNs = 60 * kNsPerSecond;
  const Deadline deadline = Deadline::after_ns(kMostNs);
  std::error_code ignored;
  while (!std::filesystem::exists(directory, ignored) && !deadline.passed()) usleep(10'000);
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
  const NodePlace place = impl_->runtime()->place();
  (void)impl_->session().from_first_node("");  // it may have given the directory its name just now
  if (place.node > 0) wait_until_visible(directory);
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
  const StateFiles files = StateFiles::open(directory);
  const std::vector<BufferState> buffers =
      impl_->buffers(Coordinator::BuffersOf::kLastStep);  // copies, which are overwritten with the file's values
  files.check(declared_tensors(*impl_, buffers));
  // A file that one node reads from beginning to end is verified while it is read.
  const bool is_streamed = place.num_nodes == 1 && files.files().size() == 1;
  if (!is_streamed && place.node == 0) read_state_checksums(directory).verify(directory);
  impl_->coordinator().restart_at(impl_->number(), saved.step, saved.round,
                                  saved.updates);  // decides which working copy is the newest
  if (is_streamed) {
    const SafetensorsFile& file = files.files().front();
    read_state_checksums(directory).expect(file.path(), read_tensors(file, impl_->state_tensors(buffers)));
  } else {
    read_owned(files, impl_->state_tensors(buffers));
  }
  impl_->set_buffers(buffers);
  const c10::NoGradGuard no_grad;
  const std::vector<ParameterState> before =
      impl_->options().asynchronous ? impl_->parameters(1) : std::vector<ParameterState>();
  const std::vector<ParameterState> now = impl_->parameters();
  for (std::size_t i = 0; i < now.size(); ++i) {
    const ParameterState& parameter = now[i];
    if (!parameter.is_trained) continue;
    if (place.num_nodes > 1) {
      read_working(files, parameter.name + ".master", master_type(parameter, impl_->options()), parameter.working);
      if (!before.empty())
        read_working(files, parameter.name + ".previous", before[i].working.scalar_type(), before[i].working);
    } else if (parameter.working.data_ptr() != parameter.master.data_ptr()) {
      at::Tensor(parameter.working).copy_(parameter.master);
    }
  }
  impl_->coordinator().finish_restart(impl_->number(), saved.user_data);
  return saved.user_data;
}

}  // namespace rp
