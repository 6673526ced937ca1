#include "launcher/report.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>

namespace rp {
namespace {

Failure crash() {
  Failure failure{.process = "worker 3", .pid = 4711, .status = SIGSEGV};
  failure.state = ProcessState::kBusy;
  failure.task = {
      .epoch = 0, .slot = 12, .phase = Phase::kBackward, .first_layer = 3, .end_layer = 6, .layer = 4, .microbatch = 7};
  return failure;
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(Report, SaysWhichProcessWhatWhereAndWhatToDo) {
  Failure failure = crash();
  failure.fault = Fault{.kind = FaultKind::kSignal,
                        .code = SIGSEGV,
                        .message = "segmentation fault at address 0x10",
                        .backtrace = "#0 libc.so.6!abort+0x1\n#1 train!_ZN2rp3runEv+0x1f\n#2 train+0x20\n"};
  failure.layer_inputs = "BFloat16[2, 16, 64]";
  const std::string text = failure_text(failure);
  EXPECT_TRUE(has(text, "layer 4, microbatch 7\n  inputs: BFloat16[2, 16, 64]\n")) << text;
  EXPECT_TRUE(has(text, "worker 3 (pid 4711) was killed by SIGSEGV")) << text;
  EXPECT_TRUE(has(text, "segmentation fault at address 0x10")) << text;
  EXPECT_TRUE(has(text, "task 12, backward stage of layers 3 to 5, layer 4, microbatch 7")) << text;
  EXPECT_TRUE(has(text, "#1 train!rp::run()+0x1f")) << text;
  EXPECT_FALSE(has(text, "abort")) << text;
  EXPECT_TRUE(has(text, "--debug-worker 3")) << text;
}

TEST(Report, HasFewLinesWhateverWasRecorded) {
  Failure failure = crash();
  std::string many;
  for (int i = 0; i < 50; ++i) many += "line\n";
  failure.fault = Fault{.message = many, .backtrace = many};
  failure.log_file = "logs/worker-3.err";
  failure.layer_inputs = "Float[1]";
  failure.crash_notice = "everything";
  failure.seen_late = true;
  const std::string text = failure_text(failure);
  EXPECT_LE(std::count(text.begin(), text.end(), '\n'), kMaxReportLines) << text;
}

TEST(Report, SaysWhatTheProcessLeftToBeSaidAndThatItWasSeenLate) {
  Failure failure = crash();
  EXPECT_FALSE(has(failure_text(failure), "lost:"));
  EXPECT_FALSE(has(failure_text(failure), "SIGSTOP"));
  failure.crash_notice = "the steps after checkpoint-4";
  failure.seen_late = true;
  const std::string text = failure_text(failure);
  EXPECT_TRUE(has(text, "\n  lost:   the steps after checkpoint-4\n")) << text;
  EXPECT_TRUE(has(text, "\n  when:   while rp-launch was stopped (SIGSTOP)")) << text;
}

TEST(Report, SaysHowToFindTheKernelThatMadeAGpuFail) {
  Failure failure = crash();
  failure.process = "worker 2";
  failure.status = 71 << 8;
  failure.fault = Fault{.kind = FaultKind::kError, .code = 71, .message = "GPU: CUDA_ERROR_ILLEGAL_ADDRESS"};
  const std::string text = failure_text(failure);
  EXPECT_TRUE(has(text, "see dmesg (Xid)") && has(text, "--debug-worker 2=compute-sanitizer")) << text;
}

TEST(Report, SaysThatALayerMustNotEndItsProcess) {
  Failure failure = crash();
  for (const int code : {0, 7}) {
    failure.status = code << 8;
    const std::string text = failure_text(failure);
    EXPECT_TRUE(has(text, "task 12, backward stage of layers 3 to 5, layer 4")) << text;
    EXPECT_TRUE(has(text, "a layer must return, or throw to end the run")) << text;
  }
  failure.said = "train: error: it said why";
  EXPECT_FALSE(has(failure_text(failure), "a layer must return"));
}

TEST(Report, PassesNoControlCharacterOn) {
  Failure failure = crash();
  failure.fault = Fault{.message = "the layer's \x1b[2J message"};
  EXPECT_TRUE(has(failure_text(failure), "the layer's \\x1b[2J message")) << failure_text(failure);
}

TEST(Report, NamesTheOutOfMemoryKillerWhereItStruck) {
  Failure failure = crash();
  failure.status = SIGKILL;
  EXPECT_FALSE(has(failure_text(failure), "out-of-memory"));
  failure.out_of_memory = "the memory of the machine was used up";
  EXPECT_TRUE(has(failure_text(failure), "out-of-memory killer ended it: the memory of the machine was used up; give"));
}

}  // namespace
}  // namespace rp
