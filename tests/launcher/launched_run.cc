#include "tests/launcher/launched_run.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>

#include "common/system/clock.h"
#include "common/text.h"

namespace rp {

namespace fs = std::filesystem;

namespace {

constexpr int kPollMs = 5;

bool wait_until(const std::function<bool()>& condition, double seconds) {
  const Deadline deadline = Deadline::after_seconds(seconds);
  while (!condition()) {
    if (deadline.passed()) return false;
    poll(nullptr, 0, kPollMs);
  }
  return true;
}

// Gives this test program its own /dev/shm and TMPDIR before its first test.
class OwnFiles : public testing::Environment {
 public:
  void SetUp() override {
    temp_ = (fs::temp_directory_path() / "rp-test-XXXXXX").string();
    if (mkdtemp(temp_.data()) == nullptr) std::abort();
    setenv("TMPDIR", temp_.c_str(), 1);
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return;
    owns_shm_ = mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=64m") == 0;
  }
  void TearDown() override { fs::remove_all(temp_); }

  [[nodiscard]] std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(temp_)) names.push_back(entry.path());
    if (!owns_shm_) return names;
    for (const auto& entry : fs::directory_iterator("/dev/shm")) names.push_back(entry.path());
    return names;
  }

 private:
  std::string temp_;
  bool owns_shm_ = false;
};
const OwnFiles* const g_own_files =
    static_cast<OwnFiles*>(testing::AddGlobalTestEnvironment(new OwnFiles));  // gtest owns it

[[noreturn]] void become_launcher(std::vector<std::string> words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  execv(RP_LAUNCH_PATH, pointers.data());
  _exit(127);
}

}  // namespace

LaunchedRun::LaunchedRun(const std::vector<std::string>& arguments,
                         const std::vector<std::pair<std::string, std::string>>& variables)
    : out_(memfd_create("stdout", MFD_CLOEXEC)), err_(memfd_create("stderr", MFD_CLOEXEC)) {
  static std::atomic<int> num_runs{0};
  mark_ = cat("RP_TEST_RUN=", getpid(), "-", num_runs++);
  std::vector<std::string> words{"rp-launch"};
  for (const std::string& word : arguments) words.push_back(word == "TOY" ? RP_TOY_PATH : word);
  pid_ = fork();
  if (pid_ != 0) return;
  // Starts a session without a terminal, as in a batch job.
  setsid();
  dup2(out_.get(), 1);
  dup2(err_.get(), 2);
  putenv(mark_.data());
  setenv("RP_ON_WORKER_FAILURE", "abort", 1);  // unless `variables` has another
  for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
  become_launcher(std::move(words));
}

LaunchedRun::~LaunchedRun() {
  if (code_ >= 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

bool LaunchedRun::wait_for_output(const std::string& text) const {
  return wait_until([this, &text] { return out().find(text) != std::string::npos; }, 20);
}

int LaunchedRun::wait_for_end(double seconds) {
  int status = 0;
  if (!wait_until([this, &status] { return waitpid(pid_, &status, WNOHANG) == pid_; }, seconds)) return -1;
  code_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return code_;
}

std::vector<pid_t> LaunchedRun::processes() const {
  std::vector<pid_t> pids;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (std::isdigit(static_cast<unsigned char>(name[0])) == 0) continue;
    std::ifstream file(entry.path() / "environ");
    for (std::string variable; std::getline(file, variable, '\0');) {
      if (variable == mark_) pids.push_back(std::stoi(name));
    }
  }
  return pids;
}

bool LaunchedRun::all_gone_within(double seconds) const {
  return wait_until([this] { return processes().empty(); }, seconds);
}

std::string LaunchedRun::text_of(int fd) {
  std::ifstream file(cat("/proc/self/fd/", fd));
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<std::string> files_left() { return g_own_files->files(); }

int count_of(const std::string& text, const std::string& part) {
  int count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

}  // namespace rp
