#include "hoststore/records/crash_handler.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <functional>
#include <stdexcept>

#include "common/check.h"
#include "tests/common/sanitizers.h"

namespace rp {
namespace {

// Runs `crash` in a child process with the handler installed. Returns the child's wait status.
int status_of_child(const FaultBoard& board, const std::function<void()>& crash) {
  const pid_t child = fork();
  if (child == 0) {
    install_crash_handler(board.entry(0));
    crash();
    _exit(0);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

TEST(CrashHandler, ASegmentationFaultIsRecordedWithItsAddressAndEndsByItsOwnSignal) {
  const FaultBoard board = FaultBoard::create(1);
  const int status = status_of_child(board, [] {
    std::uintptr_t nowhere = 0x10;
    asm volatile("" : "+r"(nowhere));
    *reinterpret_cast<volatile int*>(nowhere) = 1;
  });
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGSEGV);
  const std::optional<Fault> fault = board.entry(0).fault();
  ASSERT_TRUE(fault.has_value());
  EXPECT_EQ(fault->kind, FaultKind::kSignal);
  EXPECT_EQ(fault->code, SIGSEGV);
  EXPECT_EQ(fault->message, "segmentation fault at address 0x10");
  EXPECT_NE(fault->backtrace.find("#0 "), std::string::npos);
}

TEST(CrashHandler, ABrokenInvariantIsRecordedAsSuchAndAborts) {
  const FaultBoard board = FaultBoard::create(1);
  const int status = status_of_child(board, [] { RP_ASSERT(1 + 1 == 3); });
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGABRT);
  const std::optional<Fault> fault = board.entry(0).fault();
  ASSERT_TRUE(fault.has_value());
  EXPECT_EQ(fault->kind, FaultKind::kAssertion);
  EXPECT_NE(fault->message.find("1 + 1 == 3"), std::string::npos);
}

TEST(CrashHandler, AnErrorIsRecordedWithItsExitCode) {
  const FaultBoard board = FaultBoard::create(2);
  try {
    throw Error(ExitCode::kBadInput, "model.safetensors is cut off");
  } catch (...) {
    record_exception(board.entry(0), describe_current_exception());
  }
  try {
    throw std::runtime_error("a user's exception");
  } catch (...) {
    record_exception(board.entry(1), describe_current_exception());
  }
  EXPECT_EQ(board.entry(0).fault()->message, "model.safetensors is cut off");
  EXPECT_EQ(board.entry(0).fault()->code, 64);
  EXPECT_EQ(board.entry(0).fault()->kind, FaultKind::kError);
  EXPECT_EQ(board.entry(1).fault()->code, 1);
  EXPECT_EQ(board.entry(1).fault()->kind, FaultKind::kException);
}

int overflow_stack(int depth) {
  volatile char frame[4096];
  frame[0] = static_cast<char>(depth);
  if (depth < 0) return 0;  // never true; without it, compilers warn of endless recursion
  return overflow_stack(depth + 1) + frame[0];
}

TEST(CrashHandler, AStackOverflowIsRecorded) {
  if (test::kIsSanitized) GTEST_SKIP() << "the sanitizers report a stack overflow themselves";
  const FaultBoard board = FaultBoard::create(1);
  const int status = status_of_child(board, [] { overflow_stack(0); });
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGSEGV);
  ASSERT_TRUE(board.entry(0).fault().has_value());
  EXPECT_NE(board.entry(0).fault()->message.find("at address 0x"), std::string::npos);
}

}  // namespace
}  // namespace rp
