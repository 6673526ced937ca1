#include "tests/fuzz/input_limits.h"

#include <fcntl.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "common/system/clock.h"

// Functions of the sanitizers' run-time library; GCC does not come with the headers.
extern "C" std::size_t __sanitizer_get_allocated_size(const volatile void* memory);
extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*on_malloc)(const volatile void*, std::size_t),
                                                         void (*on_free)(const volatile void*));
extern "C" void __sanitizer_set_death_callback(void (*callback)());

namespace {

// One process runs one input at a time. Signal handlers and hooks of the allocator can reach it
// only through a global variable.
struct Watch {
  std::string repeat{};  // the command without the file
  std::string file{};
  std::string_view input{};
  bool has_input = false;
  std::int64_t begin_ns = 0;
  std::atomic<std::int64_t> bytes{0};  // currently allocated
  std::int64_t bytes_before = 0;       // allocated before the input
  std::int64_t peak_bytes = 0;
};
Watch watch;

void say(std::string_view text) { (void)!write(STDERR_FILENO, text.data(), text.size()); }

// Makes no allocation, because signal handlers and the sanitizer's death callback call it.
void report(const char* why) {
  if (!watch.has_input) return;
  watch.has_input = false;
  const int fd = open(watch.file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  const bool is_saved =
      fd >= 0 && write(fd, watch.input.data(), watch.input.size()) == static_cast<ssize_t>(watch.input.size());
  say("fuzz: FAILED: the input ");
  say(why);
  say(is_saved ? "; repeat it by\n  " : "; it cannot be saved, else one would repeat it by\n  ");
  say(watch.repeat);
  say(watch.file);
  say("\n");
}

void on_limit(int number) {
  report(number == SIGPROF ? "takes more than 1 s of processor time" : "does not end");
  _exit(1);
}

void on_malloc(const volatile void*, std::size_t bytes) {
  const auto size = static_cast<std::int64_t>(bytes);
  const std::int64_t now = watch.bytes.fetch_add(size, std::memory_order_relaxed) + size;
  if (now <= watch.peak_bytes) return;
  watch.peak_bytes = now;
  if (!watch.has_input || now - watch.bytes_before <= rp::fuzz::kMaxBytes) return;
  report("takes more than 1 GiB of memory");
  _exit(1);
}

void on_free(const volatile void* memory) {
  if (memory == nullptr) return;
  const auto size = static_cast<std::int64_t>(__sanitizer_get_allocated_size(memory));
  watch.bytes.fetch_sub(size, std::memory_order_relaxed);
}

void set_timer(decltype(ITIMER_REAL) which, std::int64_t seconds) {
  const itimerval value{.it_interval = {}, .it_value = {.tv_sec = seconds, .tv_usec = 0}};
  setitimer(which, &value, nullptr);
}

}  // namespace

// A single allocation above the limit ends the process, as an abort does, through report(). The
// other sanitizer has a separate run-time library that does not call report(), so it aborts.
extern "C" const char* __asan_default_options() {
  return "handle_abort=1:max_allocation_size_mb=1024:allocator_may_return_null=0:quarantine_size_mb=32";
}
extern "C" const char* __ubsan_default_options() { return "halt_on_error=1:abort_on_error=1:print_stacktrace=1"; }

namespace rp::fuzz {

void watch_inputs(const std::string& program, const std::string& target) {
  const auto directory = std::filesystem::current_path();
  watch.file = (directory / ("fuzz-failure-" + target + "-" + std::to_string(getpid()))).string();
  watch.repeat = std::filesystem::absolute(program).string() + " " + target + " ";
  __sanitizer_set_death_callback([] { report("ends the process (above)"); });
  __sanitizer_install_malloc_and_free_hooks(on_malloc, on_free);
  for (const int number : {SIGPROF, SIGALRM}) std::signal(number, on_limit);
}

void begin_input(std::string_view input) {
  watch.input = input;
  watch.begin_ns = now_ns();
  watch.bytes_before = watch.peak_bytes = watch.bytes.load(std::memory_order_relaxed);
  watch.has_input = true;
  set_timer(ITIMER_PROF, kMaxProcessorSeconds);
  set_timer(ITIMER_REAL, kMaxSeconds);
}

InputCost end_input() {
  set_timer(ITIMER_PROF, 0);
  set_timer(ITIMER_REAL, 0);
  watch.has_input = false;
  return {.ms = static_cast<double>(now_ns() - watch.begin_ns) * 1e-6, .bytes = watch.peak_bytes - watch.bytes_before};
}

void fail_input(const char* why) {
  watch.has_input = true;
  report(why);
  _exit(1);
}

}  // namespace rp::fuzz
