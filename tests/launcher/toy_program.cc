// A minimal program for rp-launch: a coordinator and workers without a pipeline. Its first argument
// selects its behaviour. The system test is launch_test.cc.

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "common/system/clock.h"
#include "common/system/futex.h"
#include "hoststore/records/crash_handler.h"
#include "launcher/process/liveness_watch.h"
#include "launcher/process/process_role.h"
#include "launcher/process/worker_attach.h"
#include "roundpipe/error.h"

namespace {

using rp::Deadline;

// Shared by the processes of a toy run: the number of attached workers, and whether they may end.
struct ToyStore {
  std::atomic<std::uint32_t> num_attached;
  std::atomic<std::uint32_t> stopped;
};

volatile sig_atomic_t g_signal = 0;
volatile sig_atomic_t g_num_signals = 0;
void on_signal(int number) {
  g_signal = number;
  g_num_signals = g_num_signals + 1;
}

class Toy {
 public:
  Toy(std::string mode, std::vector<std::string> arguments)
      : mode_(std::move(mode)),
        arguments_(std::move(arguments)),
        role_(rp::ProcessRole::from_environment()),
        board_(rp::FaultBoard::attach(std::move(role_.fault_board))),
        watch_(std::move(role_.liveness)) {
    entry().publish_start(getpid());
    rp::install_crash_handler(entry());
  }

  // Handles exceptions as the terminate handler of a Session does: a worker records them for
  // rp-launch to print; a coordinator prints them itself.
  int run_recorded() {
    try {
      return role_.role == rp::Role::kWorker ? run_worker() : run_coordinator();
    } catch (...) {
      const rp::ExceptionDescription exception = rp::describe_current_exception();
      rp::record_exception(entry(), exception);
      return static_cast<int>(exception.code);
    }
  }

 private:
  rp::FaultBoardEntry entry() { return board_.entry(1 + role_.worker); }
  bool is(const char* mode) const { return mode_ == mode; }

  static ToyStore* map_store(int fd) {
    void* base = mmap(nullptr, sizeof(ToyStore), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return static_cast<ToyStore*>(base);
  }

  static void wait_word(std::atomic<std::uint32_t>& word, std::uint32_t least) {
    while (word.load() < least && g_signal == 0) rp::futex_wait(&word, word.load(), 20 * rp::kNsPerMs);
  }

  void send(rp::MessageKind kind) {
    rp::Message message;
    message.kind = kind;
    (void)role_.channel->send(message);
  }

  void start_workers() {
    rp::Message message;
    message.kind = rp::MessageKind::kStartWorkers;
    message.descriptors.emplace_back(memfd_create("toy-store", MFD_CLOEXEC));
    if (ftruncate(message.descriptors[0].get(), 4096) != 0) std::abort();
    store_ = map_store(message.descriptors[0].get());
    const std::size_t num_descriptors = is("many_descriptors") ? rp::kMaxDescriptors : 1;
    while (message.descriptors.size() < num_descriptors) message.descriptors.emplace_back(dup(0));
    if (!role_.channel->send(message)) std::abort();
  }

  int end_normally(int code) {
    send(rp::MessageKind::kFinished);
    store_->stopped.store(1);
    rp::futex_wake_all(&store_->stopped);
    return code;
  }

  // Reacts to signals as a program with a Session does.
  int wait_for_signal() {
    std::cout << "ready" << std::endl;
    while (g_signal == 0) poll(nullptr, 0, 20);
    if (is("preempted")) send(rp::MessageKind::kPreempted);
    if (is("count_signals")) {
      poll(nullptr, 0, 200);
      std::cout << "signals " << g_num_signals << std::endl;
    }
    return end_normally(128 + g_signal);
  }

  int run_coordinator() {
    if (is("exit_early")) return std::atoi(arguments_[0].c_str());
    if (is("environment")) return print_environment();
    for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) signal(number, is("deaf") ? SIG_IGN : on_signal);
    start_workers();
    if (is("crash_before_attach") || is("fail_all") || is("throw_all") || is("exit_before_attach"))
      return wait_for_worker_gone();
    wait_word(store_->num_attached, static_cast<std::uint32_t>(role_.num_workers));
    if (is("exit")) return end_normally(std::atoi(arguments_[0].c_str()));
    if (is("abort")) std::abort();
    if (is("segfault")) raise(SIGSEGV);
    if (is("crash_in_task") || is("chatty_crash") || is("eat_memory")) return wait_for_worker_gone();
    if (is("crash_silently")) pause_for_ever();
    if (is("hang") || is("deaf")) print_pids_and_hang();
    if (is("finish")) return finish_and_go_on();
    if (is("wait_for_nodes")) wait_for_nodes();
    if (is("chatty")) wait_word(store_->stopped, static_cast<std::uint32_t>(role_.num_workers));
    if (is("wait") || is("preempted") || is("count_signals")) return wait_for_signal();
    return end_normally(0);
  }

  static int print_environment() {
    for (const char* name : {"RP_ROLE", "RP_CHANNEL_FD", "RP_WORKERS", "RP_STORE", "RP_PREFETCH", "RP_GPU"}) {
      const char* value = std::getenv(name);
      std::cout << name << "=" << (value == nullptr ? "unset" : value) << "\n";
    }
    return 0;
  }

  // Like a Session, prints nothing, because rp-launch reports the failure.
  int wait_for_worker_gone() {
    while (const auto message = role_.channel->receive(Deadline::after_seconds(30))) {
      if (message->kind == rp::MessageKind::kWorkerGone) return 1;
    }
    return 99;
  }

  [[noreturn]] static void pause_for_ever() {
    while (true) poll(nullptr, 0, -1);
  }

  void print_pids() {
    std::cout << "pid " << getpid() << std::endl;
    for (int w = 0; w < role_.num_workers; ++w) std::cout << "pid " << board_.entry(1 + w).pid() << std::endl;
    std::cout << "ready" << std::endl;
  }

  [[noreturn]] void print_pids_and_hang() {
    print_pids();
    pause_for_ever();
  }

  // Waits until rp-launch says for at least so long that this node waits for others; for -1, until it does not say so.
  void await_node_wait(std::int64_t least_ns) {
    const Deadline deadline = Deadline::after_seconds(10);
    while (least_ns < 0 ? entry().observe_node_wait_ns() > 0 : entry().observe_node_wait_ns() < least_ns) {
      if (deadline.passed()) std::abort();
      poll(nullptr, 0, 20);
    }
  }

  // Waits before and after the end of the Session, as a node whose program has ended before those of others.
  void wait_for_nodes() {
    entry().waits(rp::CoordinatorThread::kUser).publish({.kind = rp::WaitKind::kNodeRound});
    await_node_wait(rp::kNsPerSecond);
    send(rp::MessageKind::kFinished);
    await_node_wait(2 * rp::kNsPerSecond);
    entry().waits(rp::CoordinatorThread::kUser).publish_none();
    await_node_wait(-1);
  }

  // As a program whose main() goes on after its Session has ended.
  int finish_and_go_on() {
    send(rp::MessageKind::kFinished);
    print_pids();
    return role_.channel->receive(rp::Deadline::after_seconds(1)) ? 99 : end_normally(std::atoi(arguments_[0].c_str()));
  }

  int run_worker() {
    std::cout << "before attach " << role_.worker << std::endl;
    if (is("crash_before_attach") && role_.worker == 0) raise(SIGSEGV);
    if (is("exit_before_attach") && role_.worker == 0) return 0;
    if (is("fail_all")) throw rp::Error(rp::ExitCode::kUserError, "layer 3 differs between the processes");
    if (is("throw_all")) throw_before_attach();
    rp::Patience patience(30 * rp::kNsPerSecond);
    const rp::Message store = rp::receive_attach(*role_.channel, patience);
    if (is("many_descriptors") && store.descriptors.size() != rp::kMaxDescriptors) std::abort();
    store_ = map_store(store.descriptors.at(0).get());
    rp::confirm_attached(*role_.channel, patience);
    entry().publish_state(rp::ProcessState::kAttached);
    if (is("gpus")) std::cout << gpu_text() << std::flush;
    if (is("exit")) std::cout << "after attach " << role_.worker << std::endl;
    store_->num_attached.fetch_add(1);
    rp::futex_wake_all(&store_->num_attached);
    if (is("crash_in_task") && role_.worker == 0) crash_in_task();
    if (is("crash_silently") && role_.worker == 0) _exit(7);
    if (is("eat_memory") && role_.worker == 0) eat_memory();
    if (is("chatty")) chat();
    if (is("chatty_crash") && role_.worker == 0) chat_and_crash();
    while (store_->stopped.load() == 0 || is("chatty"))
      rp::futex_wait(&store_->stopped, store_->stopped.load(), INT64_MAX);
    if (is("long_end")) write_report();
    return is("ignore_end") ? (pause_for_ever(), 0) : 0;
  }

  // Needs, like a profiler at the end of a process, longer than rp-launch normally waits for a
  // worker.
  static void write_report() {
    poll(nullptr, 0, 1500);
    std::cout << "report written" << std::endl;
  }

  [[nodiscard]] std::string gpu_text() const {
    std::ostringstream text;
    text << "worker " << role_.worker << " on " << role_.gpu.uuid;
    for (const char* name : {"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_MAX_CONNECTIONS", "RP_GPU"}) {
      const char* value = std::getenv(name);
      text << " " << (value == nullptr ? "unset" : value);
    }
    text << "\n";
    return text.str();
  }

  // Acts like an exception that leaves main() before Session::start(): the terminate handler both
  // records and prints it.
  [[noreturn]] static void throw_before_attach() {
    std::cerr << "toy: error: no file model.bin\nin any folder" << std::endl;
    throw rp::Error(rp::ExitCode::kBadInput, "no file model.bin\nin any folder");
  }

  void crash_in_task() {
    entry().publish_task({.epoch = 0,
                          .slot = 12,
                          .phase = rp::Phase::kFused,
                          .first_layer = 3,
                          .end_layer = 5,
                          .layer = 4,
                          .microbatch = 7});
    raise(SIGSEGV);
  }

  [[noreturn]] static void eat_memory() {
    constexpr std::size_t kPiece = 1U << 20U;
    for (;;) std::fill_n(static_cast<volatile char*>(std::malloc(kPiece)), kPiece, 1);
  }

  void chat() {
    for (int i = 0; i < 500; ++i) {
      std::printf("worker %d line %d %s end\n", role_.worker, i,
                  std::string(static_cast<std::size_t>(i % 300), 'x').c_str());
    }
    std::fflush(stdout);
    store_->stopped.fetch_add(1);
    rp::futex_wake_all(&store_->stopped);
  }

  static void chat_and_crash() {
    for (int i = 0; i < 200; ++i) std::printf("last words %d\n", i);
    std::printf("torn");
    std::fflush(stdout);
    raise(SIGKILL);
  }

  std::string mode_;
  std::vector<std::string> arguments_;
  rp::ProcessRole role_;
  rp::FaultBoard board_;
  rp::LivenessWatch watch_;
  ToyStore* store_ = nullptr;
};

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "exit";
  Toy toy(mode, {argv + std::min(argc, 2), argv + argc});
  const int code = toy.run_recorded();
  std::cout.flush();
  std::fflush(nullptr);
  _exit(code);
}
