#include "hoststore/records/crash_handler.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cstring>
#include <optional>
#include <string_view>

#include "common/check.h"

namespace rp {

namespace {

constexpr std::array kFatalSignals = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
constexpr std::size_t kSignalStackBytes = 64 * 1024;
constexpr int kMaxFrames = 32;
constexpr unsigned kBacktraceSeconds = 2;

// A signal handler has no argument of its own, so the process needs these globals. g_entry holds
// only a pointer, and is set before the handlers are installed.
std::optional<FaultBoardEntry> g_entry;
std::atomic<int> g_fatal_signal{0};
bool g_waits_for_debugger = false;

const char* signal_text(int signal_number) {
  switch (signal_number) {
    case SIGSEGV: return "segmentation fault";
    case SIGBUS: return "bus error";
    case SIGFPE: return "arithmetic error";
    case SIGILL: return "illegal instruction";
    case SIGABRT: return "abort";
    default: return "fatal signal";
  }
}

class NumberText {
 public:
  explicit NumberText(std::uintptr_t value, int base) {
    const auto result = std::to_chars(digits_.data(), digits_.data() + digits_.size(), value, base);
    size_ = static_cast<std::size_t>(result.ptr - digits_.data());
  }
  [[nodiscard]] std::string_view view() const { return {digits_.data(), size_}; }

 private:
  std::array<char, 24> digits_{};
  std::size_t size_ = 0;
};

std::string_view base_name(const char* path) {
  const char* slash = std::strrchr(path, '/');
  return slash == nullptr ? path : slash + 1;
}

// Appends a line such as "#3 libroundpipe.so!symbol+0x1f" or "#3 train+0x4711" (for addr2line).
void append_frame(FaultBoardEntry& entry, int number, void* frame) {
  entry.append_backtrace("#");
  entry.append_backtrace(NumberText(static_cast<std::uintptr_t>(number), 10).view());
  entry.append_backtrace(" ");
  const auto address = reinterpret_cast<std::uintptr_t>(frame);
  std::uintptr_t base = 0;
  Dl_info info{};
  if (dladdr(frame, &info) != 0 && info.dli_fname != nullptr) {
    entry.append_backtrace(base_name(info.dli_fname));
    base = reinterpret_cast<std::uintptr_t>(info.dli_fbase);
    if (info.dli_sname != nullptr) {
      entry.append_backtrace("!");
      entry.append_backtrace(info.dli_sname);
      base = reinterpret_cast<std::uintptr_t>(info.dli_saddr);
    }
  }
  entry.append_backtrace("+0x");
  entry.append_backtrace(NumberText(address - base, 16).view());
  entry.append_backtrace("\n");
}

// Appends the frames from address `first` on, or all frames except this function's own if `first`
// is not among them.
void append_frames(FaultBoardEntry& entry, const void* first) {
  std::array<void*, kMaxFrames> frames{};
  const auto end = frames.begin() + backtrace(frames.data(), kMaxFrames);
  auto frame = std::find(frames.begin(), end, first);
  if (frame == end && frame != frames.begin()) frame = frames.begin() + 1;
  for (int number = 0; frame < end; ++frame, ++number) append_frame(entry, number, *frame);
}

// Returns the instruction that a signal interrupted, or nullptr if this code does not know the
// processor.
const void* interrupted_instruction(const void* context) {
#if defined(__x86_64__)
  const auto& registers = static_cast<const ucontext_t*>(context)->uc_mcontext.gregs;
  return reinterpret_cast<const void*>(registers[REG_RIP]);
#elif defined(__aarch64__)
  return reinterpret_cast<const void*>(static_cast<const ucontext_t*>(context)->uc_mcontext.pc);
#else
  (void)context;
  return nullptr;
#endif
}

// Sets the handler of a signal and lets the signal arrive.
void admit(int signal_number, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  sigaction(signal_number, &action, nullptr);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, signal_number);
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

// Waits until rp-launch has seen a debugger attach to this process and leave it again. This process cannot see it: it
// is stopped while a debugger looks at it.
void wait_for_debugger() {
  if (!g_waits_for_debugger) return;
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);  // not only parents may attach, where Yama restricts that
  const timespec pause{.tv_sec = 0, .tv_nsec = 20'000'000};
  while (!g_entry->observe_debugger_left()) nanosleep(&pause, nullptr);
}

[[noreturn]] void die_by(int signal_number) {
  admit(signal_number, SIG_DFL);
  raise(signal_number);
  _exit(128 + signal_number);
}

// Runs when the backtrace has not finished in time, because the crash happened inside the loader,
// which holds its lock. Publishes what was recorded so far.
void on_backtrace_timeout(int) {
  g_entry->publish_fault();
  die_by(g_fatal_signal.load());
}

void arm_backtrace_timeout() {
  admit(SIGALRM, on_backtrace_timeout);
  alarm(kBacktraceSeconds);
}

// Waits until another thread has written the first fault, because the process must not end before
// that. Gives up after 3 seconds.
void wait_for_first_fault() {
  const timespec pause{.tv_sec = 0, .tv_nsec = 10'000'000};
  for (int i = 0; i < 300 && !g_entry->observe_fault_ready(); ++i) nanosleep(&pause, nullptr);
}

void append_cause(FaultBoardEntry& entry, int signal_number, const siginfo_t& info) {
  entry.append_message(signal_text(signal_number));
  if (info.si_code == SI_USER || info.si_code == SI_TKILL || info.si_code == SI_QUEUE) {
    if (info.si_pid != getpid()) {
      entry.append_message(" sent by process ");
      entry.append_message(NumberText(static_cast<std::uintptr_t>(info.si_pid), 10).view());
    }
    return;
  }
  entry.append_message(" at address 0x");
  entry.append_message(NumberText(reinterpret_cast<std::uintptr_t>(info.si_addr), 16).view());
}

// Returns whether the program forked this process. The entry then belongs to the parent, which
// continues to run.
bool is_forked_child(const FaultBoardEntry& entry) { return entry.pid() != 0 && entry.pid() != getpid(); }

void on_fatal_signal(int signal_number, siginfo_t* info, void* context) {
  g_fatal_signal.store(signal_number);
  FaultBoardEntry entry = *g_entry;
  if (is_forked_child(entry)) die_by(signal_number);
  if (!entry.claim_fault()) {
    wait_for_first_fault();
    wait_for_debugger();
    die_by(signal_number);
  }
  entry.set_fault(FaultKind::kSignal, signal_number, info->si_addr);
  append_cause(entry, signal_number, *info);
  arm_backtrace_timeout();
  append_frames(entry, interrupted_instruction(context));
  alarm(0);
  entry.publish_fault();
  wait_for_debugger();
  die_by(signal_number);
}

void on_broken_invariant(const char* text) {
  FaultBoardEntry entry = *g_entry;
  if (is_forked_child(entry) || !entry.claim_fault()) return;
  entry.set_fault(FaultKind::kAssertion, SIGABRT, nullptr);
  entry.append_message(text);
  append_frames(entry, __builtin_return_address(0));
  entry.publish_fault();
}

}  // namespace

SignalStack::SignalStack() : memory_(nullptr), size_bytes_(kSignalStackBytes) {
  void* memory = mmap(nullptr, size_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return;
  memory_ = memory;
  stack_t stack{};
  stack.ss_sp = memory_;
  stack.ss_size = size_bytes_;
  sigaltstack(&stack, nullptr);
}

SignalStack::~SignalStack() {
  if (memory_ == nullptr) return;
  stack_t stack{};
  stack.ss_flags = SS_DISABLE;
  sigaltstack(&stack, nullptr);
  munmap(memory_, size_bytes_);
}

void install_crash_handler(FaultBoardEntry entry, bool waits_for_debugger) {
  static SignalStack main_stack;
  g_entry = entry;
  g_waits_for_debugger = waits_for_debugger;
  // The first backtrace() of a process loads the unwinder, which a signal handler must not do.
  std::array<void*, 2> frames{};
  backtrace(frames.data(), static_cast<int>(frames.size()));
  set_assertion_recorder(on_broken_invariant);
  struct sigaction action {};
  action.sa_sigaction = on_fatal_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  for (const int signal_number : kFatalSignals) sigaction(signal_number, &action, nullptr);
}

void record_exception(FaultBoardEntry entry, const ExceptionDescription& exception) {
  entry.record_fault(exception.is_error ? FaultKind::kError : FaultKind::kException, static_cast<int>(exception.code),
                     exception.text);
}

}  // namespace rp
