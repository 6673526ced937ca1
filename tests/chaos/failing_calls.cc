// A library for LD_PRELOAD. It counts the system calls that a program makes through the C library,
// and lets one of them fail. docs/design/chaos.md describes its use, and which calls it does not
// see.
//
// Settings, as environment variables:
//   CHAOS_LOG      a file. Each counted call appends a line to it: pid, process, call, index,
//                  fault, caller, path, separated by tabs.
//   CHAOS_PROCESS  the process in which a call fails: launcher, coordinator, worker0, worker1, ...,
//                  or child (between a fork and the exec after it, and forked children that do
//                  not call exec)
//   CHAOS_CALL     the call that fails, by the names in kCallNames
//   CHAOS_INDEX    the index of the failing call among calls of that name, from 1, counted by
//                  process
//   CHAOS_TIMES    the number of consecutive calls that fail, starting with that one; default: 1
//   CHAOS_FAULT    ENOSPC, EIO, EINTR, EMFILE, EAGAIN, short (for writes only: half of the bytes
//                  are written), or slow (the call is made 50 ms later)
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

namespace {

enum Call {
  kWrite,
  kPwrite,
  kWritev,
  kFsync,
  kFdatasync,
  kRename,
  kFallocate,
  kFtruncate,
  kDup,
  kFork,
  kOpen,
  kMkdir,
  kUnlink,
  kMmap,
  kSocketpair,
  kPipe,
  kEpoll,
  kEventfd,
  kSignalfd,
  kMemfd,
  kPidfd,
  kThread,
  kNumCalls
};
constexpr std::array<const char*, kNumCalls> kCallNames = {
    "write", "pwrite",  "writev",   "fsync",        "fdatasync",  "rename",        "fallocate",  "ftruncate",
    "dup",   "fork",    "open",     "mkdir",        "unlink",     "mmap",          "socketpair", "pipe",
    "epoll", "eventfd", "signalfd", "memfd_create", "pidfd_open", "pthread_create"};

constexpr int kNone = 0;
constexpr int kShort = -1;
constexpr int kSlow = -2;
struct FaultName {
  const char* name;
  int error;  // or kShort, kSlow
};
constexpr std::array kFaults = {FaultName{"ENOSPC", ENOSPC}, FaultName{"EIO", EIO},       FaultName{"EINTR", EINTR},
                                FaultName{"EMFILE", EMFILE}, FaultName{"EAGAIN", EAGAIN}, FaultName{"short", kShort},
                                FaultName{"slow", kSlow}};

// The settings of this process. They are read at its first counted call, which may come before any
// constructor has run, and change later only in forked children.
struct Settings {
  std::array<char, 32> process{};
  const char* log = nullptr;
  int call = -1;  // index in kCallNames; -1: no call fails
  long first = 0;
  long times = 1;
  int fault = kNone;
  bool is_chosen = false;  // this is the process in which a call fails
};

Settings g_settings;
std::atomic<int> g_ready{0};  // 1: a thread is reading the settings; 2: they have been read
std::array<std::atomic<long>, kNumCalls> g_counts{};

[[noreturn]] void refuse(const char* variable) {
  dprintf(2, "failing_calls: %s has no value that I know\n", variable);
  _exit(99);
}

// Returns a copy, because the program may change its environment.
const char* copy_of_variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? nullptr : strdup(value);
}

void name_process(Settings& settings) {
  const char* role = std::getenv("RP_ROLE");
  const char* worker = std::getenv("RP_WORKER");
  const bool is_worker = role != nullptr && std::strcmp(role, "worker") == 0;
  std::snprintf(settings.process.data(), settings.process.size(), "%s%s", role == nullptr ? "launcher" : role,
                is_worker && worker != nullptr ? worker : "");
}

void choose(Settings& settings) {
  const char* chosen = std::getenv("CHAOS_PROCESS");
  settings.is_chosen = chosen != nullptr && std::strcmp(chosen, settings.process.data()) == 0;
}

void read_fault(Settings& settings) {
  const char* call = std::getenv("CHAOS_CALL");
  if (call == nullptr) return;
  const char* fault = std::getenv("CHAOS_FAULT");
  const char* index = std::getenv("CHAOS_INDEX");
  const char* times = std::getenv("CHAOS_TIMES");
  for (int i = 0; i < kNumCalls; ++i) {
    if (std::strcmp(kCallNames[i], call) == 0) settings.call = i;
  }
  for (const FaultName& each : kFaults) {
    if (fault != nullptr && std::strcmp(each.name, fault) == 0) settings.fault = each.error;
  }
  settings.first = index == nullptr ? 0 : std::strtol(index, nullptr, 10);
  if (times != nullptr) settings.times = std::strtol(times, nullptr, 10);
  if (settings.call < 0) refuse("CHAOS_CALL");
  if (settings.fault == kNone) refuse("CHAOS_FAULT");
  if (settings.first <= 0) refuse("CHAOS_INDEX");
  if (settings.times <= 0) refuse("CHAOS_TIMES");
}

const Settings& settings() {
  int expected = 0;
  if (g_ready.load() != 2 && g_ready.compare_exchange_strong(expected, 1)) {
    name_process(g_settings);
    g_settings.log = copy_of_variable("CHAOS_LOG");
    read_fault(g_settings);
    choose(g_settings);
    g_ready.store(2);
  }
  while (g_ready.load() != 2) sched_yield();
  return g_settings;
}

// Runs before main() removes the variables that identify the process from its environment.
[[gnu::constructor]] void read_settings() { (void)settings(); }

// Runs in a forked child, whose calls are counted separately from its parent's.
void become_child() {
  std::snprintf(g_settings.process.data(), g_settings.process.size(), "child");
  choose(g_settings);
  for (auto& count : g_counts) count.store(0);
}

const char* name_of_fault(int fault) {
  for (const FaultName& each : kFaults) {
    if (each.error == fault) return each.name;
  }
  return "-";
}

// Uses system calls that are not counted, and keeps no descriptor open.
void log_call(int call, long index, int fault, const char* path, int fd, const void* caller) {
  std::array<char, 512> file{};
  if (path == nullptr && fd >= 0) {
    std::array<char, 64> link{};
    std::snprintf(link.data(), link.size(), "/proc/self/fd/%d", fd);
    if (syscall(SYS_readlink, link.data(), file.data(), file.size() - 1) < 0) file[0] = '\0';
    path = file.data();
  }
  Dl_info module{};
  const char* name = "?";
  if (dladdr(caller, &module) != 0 && module.dli_fname != nullptr) {
    const char* slash = std::strrchr(module.dli_fname, '/');
    name = slash == nullptr ? module.dli_fname : slash + 1;
  }
  std::array<char, 1024> line{};
  const int length = std::snprintf(
      line.data(), line.size(), "%d\t%s\t%s\t%ld\t%s\t%s+0x%lx\t%s\n", getpid(), g_settings.process.data(),
      kCallNames[call], index, name_of_fault(fault), name,
      static_cast<unsigned long>(static_cast<const char*>(caller) - static_cast<const char*>(module.dli_fbase)),
      path == nullptr ? "" : path);
  const long log = syscall(SYS_openat, AT_FDCWD, g_settings.log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
  if (log < 0) return;
  (void)syscall(SYS_write, log, line.data(), std::min<std::size_t>(static_cast<std::size_t>(length), line.size() - 1));
  (void)syscall(SYS_close, log);
}

// Counts a call and returns how it fails: an errno, kShort or kNone. Waits here if the call is to
// be slow. Leaves errno unchanged.
int count(Call call, const char* path, int fd, const void* caller) {
  const int before = errno;
  const Settings& set = settings();
  const long index = 1 + g_counts[call].fetch_add(1);
  const bool fails = set.is_chosen && set.call == call && index >= set.first && index - set.first < set.times;
  const int fault = fails ? set.fault : kNone;
  if (set.log != nullptr) log_call(call, index, fault, path, fd, caller);
  if (fault == kSlow) {
    const timespec time{.tv_sec = 0, .tv_nsec = 50'000'000};
    (void)syscall(SYS_nanosleep, &time, nullptr);
  }
  errno = before;
  return fault == kSlow ? kNone : fault;
}

// Like count(), for calls that return -1 and set errno. Returns true if this call is to do so.
// These calls cannot be short.
bool fails(Call call, const char* path, int fd, const void* caller) {
  const int fault = count(call, path, fd, caller);
  if (fault == kNone || fault == kShort) return false;
  errno = fault;
  return true;
}

// Returns the number of bytes that a short write of `bytes` writes.
std::size_t half_of(std::size_t bytes) { return bytes > 1 ? bytes / 2 : bytes; }

template <typename Function>
Function* find_next(std::atomic<void*>& slot, const char* name) {
  void* found = slot.load();
  if (found == nullptr) slot.store(found = dlsym(RTLD_NEXT, name));
  return reinterpret_cast<Function*>(found);
}

}  // namespace

// The function of the C library itself.
#define NEXT(name)                                   \
  ([]() -> decltype(&::name) {                       \
    static std::atomic<void*> slot{nullptr};         \
    return find_next<decltype(::name)>(slot, #name); \
  }())
#define CALLER __builtin_return_address(0)
// For wrappers of calls that return -1: calls with a path, calls with a descriptor, and others.
#define FAIL_BY_PATH(call, path) \
  if (fails(call, path, -1, CALLER)) return -1
#define FAIL_BY_FD(call, fd) \
  if (fails(call, nullptr, fd, CALLER)) return -1
#define FAIL(call) \
  if (fails(call, "", -1, CALLER)) return -1
// Declares `mode`, the third argument of open(), which exists only with some flags.
#define OPEN_MODE(flags)                                                                 \
  va_list list;                                                                          \
  va_start(list, flags);                                                                 \
  const mode_t mode = ((flags) & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(list, mode_t) : 0; \
  va_end(list)

extern "C" {

ssize_t write(int fd, const void* data, size_t bytes) {
  const int fault = count(kWrite, nullptr, fd, CALLER);
  if (fault > 0) return errno = fault, -1;
  return NEXT(write)(fd, data, fault == kShort ? half_of(bytes) : bytes);
}
ssize_t pwrite(int fd, const void* data, size_t bytes, off_t offset) {
  const int fault = count(kPwrite, nullptr, fd, CALLER);
  if (fault > 0) return errno = fault, -1;
  return NEXT(pwrite)(fd, data, fault == kShort ? half_of(bytes) : bytes, offset);
}
ssize_t pwrite64(int fd, const void* data, size_t bytes, off64_t offset) {
  const int fault = count(kPwrite, nullptr, fd, CALLER);
  if (fault > 0) return errno = fault, -1;
  return NEXT(pwrite64)(fd, data, fault == kShort ? half_of(bytes) : bytes, offset);
}
ssize_t writev(int fd, const iovec* parts, int num_parts) {
  const int fault = count(kWritev, nullptr, fd, CALLER);
  if (fault > 0) return errno = fault, -1;
  if (fault != kShort || num_parts == 0) return NEXT(writev)(fd, parts, num_parts);
  const iovec first{parts[0].iov_base, half_of(parts[0].iov_len)};
  return NEXT(writev)(fd, &first, 1);
}

int fsync(int fd) {
  FAIL_BY_FD(kFsync, fd);
  return NEXT(fsync)(fd);
}
int fdatasync(int fd) {
  FAIL_BY_FD(kFdatasync, fd);
  return NEXT(fdatasync)(fd);
}
int rename(const char* from, const char* to) noexcept {
  FAIL_BY_PATH(kRename, from);
  return NEXT(rename)(from, to);
}
int renameat(int from_fd, const char* from, int to_fd, const char* to) noexcept {
  FAIL_BY_PATH(kRename, from);
  return NEXT(renameat)(from_fd, from, to_fd, to);
}
int renameat2(int from_fd, const char* from, int to_fd, const char* to, unsigned flags) noexcept {
  FAIL_BY_PATH(kRename, from);
  return NEXT(renameat2)(from_fd, from, to_fd, to, flags);
}

int fallocate(int fd, int mode, off_t offset, off_t bytes) {
  FAIL_BY_FD(kFallocate, fd);
  return NEXT(fallocate)(fd, mode, offset, bytes);
}
int fallocate64(int fd, int mode, off64_t offset, off64_t bytes) {
  FAIL_BY_FD(kFallocate, fd);
  return NEXT(fallocate64)(fd, mode, offset, bytes);
}
int posix_fallocate(int fd, off_t offset, off_t bytes) {
  if (const int fault = count(kFallocate, nullptr, fd, CALLER); fault > 0) return fault;
  return NEXT(posix_fallocate)(fd, offset, bytes);
}
int posix_fallocate64(int fd, off64_t offset, off64_t bytes) {
  if (const int fault = count(kFallocate, nullptr, fd, CALLER); fault > 0) return fault;
  return NEXT(posix_fallocate64)(fd, offset, bytes);
}
int ftruncate(int fd, off_t bytes) noexcept {
  FAIL_BY_FD(kFtruncate, fd);
  return NEXT(ftruncate)(fd, bytes);
}
int ftruncate64(int fd, off64_t bytes) noexcept {
  FAIL_BY_FD(kFtruncate, fd);
  return NEXT(ftruncate64)(fd, bytes);
}

int dup(int fd) noexcept {
  FAIL_BY_FD(kDup, fd);
  return NEXT(dup)(fd);
}
int dup2(int fd, int to) noexcept {
  FAIL_BY_FD(kDup, fd);
  return NEXT(dup2)(fd, to);
}
int dup3(int fd, int to, int flags) noexcept {
  FAIL_BY_FD(kDup, fd);
  return NEXT(dup3)(fd, to, flags);
}
// Only commands that create a descriptor are counted.
int fcntl(int fd, int command, ...) {
  va_list list;
  va_start(list, command);
  void* argument = va_arg(list, void*);
  va_end(list);
  if (command == F_DUPFD || command == F_DUPFD_CLOEXEC) FAIL_BY_FD(kDup, fd);
  return NEXT(fcntl)(fd, command, argument);
}
int fcntl64(int fd, int command, ...) {
  va_list list;
  va_start(list, command);
  void* argument = va_arg(list, void*);
  va_end(list);
  if (command == F_DUPFD || command == F_DUPFD_CLOEXEC) FAIL_BY_FD(kDup, fd);
  return NEXT(fcntl64)(fd, command, argument);
}

pid_t fork() noexcept {
  FAIL(kFork);
  const pid_t pid = NEXT(fork)();
  if (pid == 0) become_child();
  return pid;
}
// A wrapper cannot return twice after a real vfork, so it uses fork, which has the same effect but
// is slower.
pid_t vfork() noexcept { return fork(); }
int posix_spawn(pid_t* pid, const char* path, const posix_spawn_file_actions_t* actions,
                const posix_spawnattr_t* attributes, char* const* arguments, char* const* environment) {
  if (const int fault = count(kFork, path, -1, CALLER); fault > 0) return fault;
  return NEXT(posix_spawn)(pid, path, actions, attributes, arguments, environment);
}
int posix_spawnp(pid_t* pid, const char* file, const posix_spawn_file_actions_t* actions,
                 const posix_spawnattr_t* attributes, char* const* arguments, char* const* environment) {
  if (const int fault = count(kFork, file, -1, CALLER); fault > 0) return fault;
  return NEXT(posix_spawnp)(pid, file, actions, attributes, arguments, environment);
}
int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*), void* argument) noexcept {
  if (const int fault = count(kThread, "", -1, CALLER); fault > 0) return fault;
  return NEXT(pthread_create)(thread, attributes, run, argument);
}

int open(const char* path, int flags, ...) {
  OPEN_MODE(flags);
  FAIL_BY_PATH(kOpen, path);
  return NEXT(open)(path, flags, mode);
}
int open64(const char* path, int flags, ...) {
  OPEN_MODE(flags);
  FAIL_BY_PATH(kOpen, path);
  return NEXT(open64)(path, flags, mode);
}
int openat(int directory, const char* path, int flags, ...) {
  OPEN_MODE(flags);
  FAIL_BY_PATH(kOpen, path);
  return NEXT(openat)(directory, path, flags, mode);
}
int openat64(int directory, const char* path, int flags, ...) {
  OPEN_MODE(flags);
  FAIL_BY_PATH(kOpen, path);
  return NEXT(openat64)(directory, path, flags, mode);
}
int mkdir(const char* path, mode_t mode) noexcept {
  FAIL_BY_PATH(kMkdir, path);
  return NEXT(mkdir)(path, mode);
}
int mkdirat(int directory, const char* path, mode_t mode) noexcept {
  FAIL_BY_PATH(kMkdir, path);
  return NEXT(mkdirat)(directory, path, mode);
}
int unlink(const char* path) noexcept {
  FAIL_BY_PATH(kUnlink, path);
  return NEXT(unlink)(path);
}
int unlinkat(int directory, const char* path, int flags) noexcept {
  FAIL_BY_PATH(kUnlink, path);
  return NEXT(unlinkat)(directory, path, flags);
}
int rmdir(const char* path) noexcept {
  FAIL_BY_PATH(kUnlink, path);
  return NEXT(rmdir)(path);
}
int remove(const char* path) noexcept {
  FAIL_BY_PATH(kUnlink, path);
  return NEXT(remove)(path);
}

void* mmap(void* address, size_t bytes, int protection, int flags, int fd, off_t offset) noexcept {
  if (fails(kMmap, nullptr, fd, CALLER)) return MAP_FAILED;
  return NEXT(mmap)(address, bytes, protection, flags, fd, offset);
}
void* mmap64(void* address, size_t bytes, int protection, int flags, int fd, off64_t offset) noexcept {
  if (fails(kMmap, nullptr, fd, CALLER)) return MAP_FAILED;
  return NEXT(mmap64)(address, bytes, protection, flags, fd, offset);
}

int socketpair(int domain, int type, int protocol, int ends[2]) noexcept {
  FAIL(kSocketpair);
  return NEXT(socketpair)(domain, type, protocol, ends);
}
int pipe(int ends[2]) noexcept {
  FAIL(kPipe);
  return NEXT(pipe)(ends);
}
int pipe2(int ends[2], int flags) noexcept {
  FAIL(kPipe);
  return NEXT(pipe2)(ends, flags);
}
int epoll_create1(int flags) noexcept {
  FAIL(kEpoll);
  return NEXT(epoll_create1)(flags);
}
int epoll_ctl(int epoll, int operation, int fd, epoll_event* event) noexcept {
  FAIL(kEpoll);
  return NEXT(epoll_ctl)(epoll, operation, fd, event);
}
int epoll_wait(int epoll, epoll_event* events, int max_events, int timeout_ms) {
  FAIL(kEpoll);
  return NEXT(epoll_wait)(epoll, events, max_events, timeout_ms);
}
int eventfd(unsigned initial, int flags) noexcept {
  FAIL(kEventfd);
  return NEXT(eventfd)(initial, flags);
}
int signalfd(int fd, const sigset_t* set, int flags) noexcept {
  FAIL(kSignalfd);
  return NEXT(signalfd)(fd, set, flags);
}
int memfd_create(const char* name, unsigned flags) noexcept {
  FAIL_BY_PATH(kMemfd, name);
  return NEXT(memfd_create)(name, flags);
}
// Of the calls that programs make by number, only SYS_pidfd_open is counted.
long syscall(long number, ...) noexcept {
  std::array<long, 6> a{};
  va_list list;
  va_start(list, number);
  for (long& argument : a) argument = va_arg(list, long);
  va_end(list);
  if (number == SYS_pidfd_open) FAIL(kPidfd);
  return NEXT(syscall)(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

}  // extern "C"
