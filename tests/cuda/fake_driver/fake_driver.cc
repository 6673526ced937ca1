#include "tests/cuda/fake_driver/fake_driver.h"

#include "common/check.h"
#include "tests/cuda/fake_driver/fake_state.h"

namespace rp::test {

namespace {

FakeDriver::State* g_state = nullptr;

}  // namespace

FakeDriver::State& fake_state() {
  RP_ASSERT(g_state != nullptr);
  return *g_state;
}

void FakeDriver::share_between_processes() {
  share_event_cells();
  share_registrations();
}

FakeDriver::FakeDriver(const FakeDriverOptions& options) : state_(std::make_unique<State>(options)) {
  RP_ASSERT(g_state == nullptr);
  share_between_processes();  // before there are threads
  g_state = state_.get();
}

FakeDriver::~FakeDriver() {
  stop();
  g_state = nullptr;
}

const CudaDriver& FakeDriver::table() const {
  static const CudaDriver table = fake_calls();
  return table;
}

void FakeDriver::fail(const std::string& function, CUresult result, int call) {
  const std::lock_guard lock(state_->mutex);
  state_->failures[function] = {.result = result, .calls_left = call};
}

void FakeDriver::fault(CUresult result) {
  {
    const std::lock_guard lock(state_->mutex);
    state_->fault = result;
  }
  stop();
}

void FakeDriver::stop() { state_->streams.stop(); }

int FakeDriver::num_calls(const std::string& function) const {
  const std::lock_guard lock(state_->mutex);
  const auto found = state_->calls.find(function);
  return found == state_->calls.end() ? 0 : found->second;
}

std::vector<std::vector<std::string>> FakeDriver::log() const { return state_->streams.log(); }
void FakeDriver::clear_log() { state_->streams.clear_log(); }
void FakeDriver::hold(int stream) { state_->streams.hold(stream, true); }
void FakeDriver::let_go(int stream) { state_->streams.hold(stream, false); }

void FakeDriver::refuse_registrations(bool refuses) { state_->registrations.refuse_all(refuses); }
int FakeDriver::num_registered_twice() const { return state_->registrations.num_twice(); }

void FakeDriver::load(CUstream stream, const std::string& kernel) {
  bool is_first = false;
  {
    const std::lock_guard lock(fake_state().mutex);
    is_first = fake_state().loaded_kernels[stream->context].insert(kernel).second;
  }
  if (is_first) fake_state().streams.wait_until_idle(stream->context);
}

std::size_t FakeDriver::num_loaded(CUstream stream) {
  const std::lock_guard lock(fake_state().mutex);
  return fake_state().loaded_kernels[stream->context].size();
}

std::uint64_t FakeDriver::registered_bytes() const {
  const std::lock_guard lock(state_->mutex);
  return state_->memory.registered_bytes();
}

std::uint64_t FakeDriver::taken_bytes() const {
  const std::lock_guard lock(state_->mutex);
  return state_->memory.taken_bytes();
}

}  // namespace rp::test
