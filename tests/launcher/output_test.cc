#include "launcher/output.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <regex>
#include <string>
#include <utility>

namespace rp {
namespace {

std::pair<UniqueFd, UniqueFd> make_pipe() {
  std::array<int, 2> ends{};
  EXPECT_EQ(pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK), 0);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

void write_text(const UniqueFd& fd, const std::string& text) {
  ASSERT_EQ(write(fd.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
}

std::string read_text(const UniqueFd& file) {
  lseek(file.get(), 0, SEEK_SET);
  std::string text;
  std::array<char, 4096> bytes;
  for (ssize_t size = 0; (size = read(file.get(), bytes.data(), bytes.size())) > 0;) {
    text.append(bytes.data(), static_cast<std::size_t>(size));
  }
  return text;
}

void write_all(OutputSink& sink) {
  while (!sink.empty()) sink.write_some();
}

TEST(LineAssembler, GivesOnlyWholeLinesEachWithItsTag) {
  LineAssembler lines("[w] ");
  EXPECT_EQ(lines.add("one\ntw"), "[w] one\n");
  EXPECT_EQ(lines.add("o"), "");
  EXPECT_EQ(lines.add("\n\nthree"), "[w] two\n[w] \n");
  EXPECT_EQ(lines.finish(), "[w] three\n");
  EXPECT_EQ(lines.finish(), "");
}

TEST(LineAssembler, ALineWithoutEndIsGivenInPieces) {
  LineAssembler lines("");
  EXPECT_EQ(lines.add(std::string(LineAssembler::kMaxLineBytes, 'x')).size(), LineAssembler::kMaxLineBytes + 1);
}

TEST(LineAssembler, PutsTheTimeBeforeTheTagOfEachLine) {
  LineAssembler lines("[w] ", /*has_times=*/true);
  const std::string time = R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3})";
  EXPECT_TRUE(std::regex_match(lines.add("one\ntwo\n"), std::regex(time + " \\[w\\] one\n" + time + " \\[w\\] two\n")));
}

TEST(ProcessOutput, WhatWasHeldIsDroppedWhenTheOutputOpens) {
  auto [read_end, write_end] = make_pipe();
  OutputSink sink(-1);
  ProcessOutput output(std::move(read_end), LineAssembler(""), true, &sink);
  write_text(write_end, "header\n");
  output.read_available();
  write_text(write_end, "more of it\nunfinished");
  output.open();
  EXPECT_TRUE(sink.empty());
  write_text(write_end, "kept\n");
  output.read_available();
  EXPECT_EQ(sink.queued_bytes(), 5U);
}

// Appends the newline with +=, because GCC 12 gives a false warning if it is added with +.
std::string long_line(char c) {
  std::string line(9999, c);
  line += '\n';
  return line;
}

TEST(ProcessOutput, TheNewestOfWhatWasHeldIsPassedOnWhenTheProcessFails) {
  auto [read_end, write_end] = make_pipe();
  const UniqueFd file(memfd_create("output", MFD_CLOEXEC));
  OutputSink sink(file.get());
  ProcessOutput output(std::move(read_end), LineAssembler(""), true, &sink);
  for (int i = 0; i < 20; ++i) {
    write_text(write_end, long_line(static_cast<char>('a' + i)));
    output.read_available();
  }
  write_text(write_end, "the reason");
  write_end.reset();
  output.read_available();
  EXPECT_TRUE(output.ended());
  output.release();
  EXPECT_LE(sink.queued_bytes(), ProcessOutput::kMaxHeldBytes);
  write_all(sink);
  const std::string text = read_text(file);
  EXPECT_EQ(text.substr(text.size() - 13), "t\nthe reason\n");
  EXPECT_TRUE(text.starts_with(long_line(text[0])));
}

TEST(OutputSink, FillsUpAndThenMakesProcessesWaitUntilItMayDropOutput) {
  OutputSink sink(-1);
  while (!sink.is_full()) sink.add(long_line('x'));
  const std::size_t queued = sink.queued_bytes();
  EXPECT_LT(queued, OutputSink::kMaxQueuedBytes + 10000);
  sink.drop_what_does_not_fit();
  EXPECT_FALSE(sink.is_full());
  sink.add(long_line('y'));
  EXPECT_EQ(sink.queued_bytes(), queued);
  EXPECT_EQ(sink.dropped_bytes(), 10000U);
  sink.drop_queued();
  EXPECT_TRUE(sink.empty());
  EXPECT_EQ(sink.dropped_bytes(), 10000U + queued);
}

TEST(OutputSink, WhenItsReaderIsGoneOutputIsDropped) {
  signal(SIGPIPE, SIG_IGN);
  auto [read_end, write_end] = make_pipe();
  read_end.reset();
  OutputSink sink(write_end.get());
  sink.add("lost\n");
  write_all(sink);
  EXPECT_TRUE(sink.empty());
  signal(SIGPIPE, SIG_DFL);
}

}  // namespace
}  // namespace rp
