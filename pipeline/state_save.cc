#include "pipeline/state_save.h"

#include <pthread.h>

#include <chrono>
#include <utility>

#include "common/files/output_file.h"
#include "common/system/crash_point.h"
#include "common/text.h"
#include "hoststore/memory/memory_limit.h"
#include "model_files/weights/safetensors_writer.h"
#include "models/layers/scalar_type.h"
#include "pipeline/process/process_end.h"
#include "pipeline/state_files.h"
#include "roundpipe/error.h"

namespace rp {
namespace {

using namespace std::chrono_literals;

// rp-launch ends a process two seconds after a second INT.
constexpr std::int64_t kRemovalNs = kNsPerSecond + kNsPerSecond / 2;

std::vector<BufferState> buffers_of_step(Pipeline::Impl& pipeline) {
  if (!pipeline.has_buffers()) return {};
  pipeline.coordinator().synchronize();  // buffers are outputs of rounds, which must have finished
  return pipeline.buffers(Coordinator::BuffersOf::kLastStep);
}

std::shared_ptr<StateSnapshot> snapshot_of(const std::vector<StateTensor>& tensors) {
  std::vector<StateSnapshot::Part> parts;
  for (const StateTensor& tensor : tensors) {
    const auto* data = static_cast<const std::byte*>(tensor.value.const_data_ptr());
    parts.push_back({.group = tensor.group, .memory = {data, tensor.value.nbytes()}});
  }
  return std::make_shared<StateSnapshot>(parts, [] { return available_memory(); });
}

NodeMessageTag saved_tag(int pipeline) {
  return {.kind = NodeMessageKind::kSaved, .number = static_cast<std::uint32_t>(pipeline)};
}

}  // namespace

StateSave::Impl::Impl(Pipeline::Impl& pipeline, std::filesystem::path directory, const std::string& user_data)
    : pipeline_(pipeline),
      directory_(std::move(directory)),
      description_{.step = pipeline.coordinator().pipeline_state(pipeline.number()).num_steps,
                   .round = pipeline.coordinator().pipeline_state(pipeline.number()).num_rounds_of_steps,
                   .updates = {},
                   .dtype = at::toString(pipeline.model().dtype()),
                   .rounds_per_step = pipeline.options().rounds_per_step,
                   .asynchronous = pipeline.options().asynchronous,
                   .user_data = user_data},
      buffers_(buffers_of_step(pipeline)),
      tensors_(pipeline.state_tensors(buffers_)),
      snapshot_(snapshot_of(tensors_)) {
  pipeline.coordinator().keep_state(pipeline.number(), snapshot_);
  if (pipeline.runtime()->place().num_nodes > 1) share_directory();
}

void StateSave::Impl::share_directory() {
  NodeNetwork& network = *pipeline_.runtime()->network();
  const NodePlace place = network.place();
  network.add_failure_handler(
      [pending = parts_of_others_](std::exception_ptr error) mutable { pending.fail(std::move(error)); });
  if (place.node == 0) output_.emplace(OutputDirectory::create(directory_, kStateChecksums));
  const std::string path = pipeline_.session().from_first_node(place.node == 0 ? output_->path().string() : "");
  if (place.node > 0) {
    output_.emplace(OutputDirectory::join(path, kStateChecksums));
    return;
  }
  for (int node = 1; node < place.num_nodes; ++node) {
    parts_.push_back(std::make_shared<PartMessage>());
    network.receive(node, saved_tag(pipeline_.number()), std::as_writable_bytes(std::span(parts_.back().get(), 1)),
                    [part = parts_.back(), done = parts_of_others_.add()] { done(); });
  }
}

void StateSave::Impl::share_checksums(const std::string& own_file) {
  NodeNetwork& network = *pipeline_.runtime()->network();
  const NodePlace place = network.place();
  if (place.node > 0) {
    const auto part = std::make_shared<PartMessage>();
    const std::string& checksum = output_->checksums().entries().at(own_file);
    std::ranges::copy(checksum, part->checksum.begin());
    network.send(0, saved_tag(pipeline_.number()), std::as_bytes(std::span(part.get(), 1)),
                 [part, done = parts_of_others_.add()] { done(); });
  }
  parts_of_others_.wait();
  for (int node = 1; node <= static_cast<int>(parts_.size()); ++node)
    output_->list(state_file_name(node, place.num_nodes), parts_[static_cast<std::size_t>(node) - 1]->checksum.data());
}

StateSave::Impl::~Impl() {
  stop();
  snapshot_->close();  // also after a write() that threw in the caller's thread
}

void StateSave::Impl::write() {
  description_.updates = pipeline_.coordinator().wait_kept_state(pipeline_.number());
  if (!output_) output_.emplace(OutputDirectory::create(directory_, kStateChecksums));
  const NodePlace place = pipeline_.runtime()->place();
  std::vector<TensorDeclaration> declarations;
  for (const StateTensor& tensor : tensors_) {
    declarations.push_back({state_part_name(tensor.name, tensor.is_whole(), tensor.begin), tensor.dtype,
                            tensor.is_whole() ? tensor.shape : tensor.value.sizes().vec()});
  }
  RP_CRASH_POINT("coordinator.save.begins");
  const std::string file = state_file_name(place.node, place.num_nodes);
  SafetensorsWriter writer = SafetensorsWriter::create(*output_, file, declarations);
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const bool is_complete = snapshot_->read_next([&](std::span<const std::byte> bytes) {
      writer.write(declarations[i].name, bytes.data(), bytes.size());
      pipeline_.coordinator().publish_written();
    });
    if (!is_complete)
      throw Error(ExitCode::kOutputFailed,
                  cat(directory_.string(), ": the pipeline ended before its state was written"));
  }
  snapshot_->close();
  RP_CRASH_POINT("coordinator.save.has_tensors");
  writer.commit();
  if (place.num_nodes > 1) share_checksums(file);
  if (place.node == 0) output_->write_file(kStateDescriptionFile, description_.text());
  RP_CRASH_POINT("coordinator.save.is_written");
  written_ns_ = now_ns();
}

void StateSave::Impl::commit() {
  if (pipeline_.runtime()->place().node == 0) output_->commit();
  output_.reset();
}

void StateSave::Impl::give_up() {
  snapshot_->close();
  parts_of_others_.fail(std::make_exception_ptr(
      Error(ExitCode::kOutputFailed, cat(directory_.string(), ": the pipeline ended before its state was written"))));
}

void StateSave::Impl::start() {
  thread_ = std::thread([this] { run(); });
}

void StateSave::Impl::run() {
  pthread_setname_np(pthread_self(), "rp-save");
  try {
    write();
    has_ended_.store(true);
    has_ended_.notify_all();
    wait_to_be_finished();
  } catch (const Interrupted&) {  // a second INT has requested an immediate end
    snapshot_->close();
    output_.reset();
    wait_for_unfinished_output(Deadline::after_ns(kRemovalNs));  // threads of other pipelines remove theirs
    end_process(std::current_exception());
  } catch (...) {
    error_ = std::current_exception();
    snapshot_->close();  // first, because removing files may take long and no update may wait for it
    output_.reset();
  }
  snapshot_->close();
  has_ended_.store(true);
  has_ended_.notify_all();
}

void StateSave::Impl::wait_to_be_finished() {
  while (!may_end_.try_acquire_for(20ms)) check_interrupted_output();
}

void StateSave::Impl::finish() {
  wait_written();
  stop();
  if (error_) std::rethrow_exception(error_);
  commit();
}

void StateSave::Impl::stop() {
  give_up();
  if (!thread_.joinable()) return;
  may_end_.release();
  thread_.join();
}

StateSave::StateSave(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
StateSave::StateSave(StateSave&&) noexcept = default;
StateSave& StateSave::operator=(StateSave&&) noexcept = default;
StateSave::~StateSave() = default;

bool StateSave::is_written() const { return impl_->is_written(); }

double StateSave::seconds() const { return impl_->seconds(); }

void StateSave::finish() { impl_->finish(); }

void Pipeline::save_state(const std::filesystem::path& directory, const std::string& user_data) {
  impl_->wait_for_save();
  synchronize();
  try {
    StateSave::Impl save(*impl_, directory, user_data);
    save.write();
    save.commit();
  } catch (...) {
    throw;  // caught so that destructors run and remove unfinished files even if no caller catches the exception
  }
}

StateSave Pipeline::begin_save_state(const std::filesystem::path& directory, const std::string& user_data) {
  impl_->wait_for_save();
  auto save = std::make_shared<StateSave::Impl>(*impl_, directory, user_data);
  save->start();
  impl_->set_save(save);
  return StateSave(std::move(save));
}

}  // namespace rp
