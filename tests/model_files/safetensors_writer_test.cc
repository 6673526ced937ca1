#include "model_files/weights/safetensors_writer.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include "model_files/weights/safetensors.h"
#include "tests/common/expect_refusal.h"
#include "tests/common/temp_directory.h"

namespace rp {
namespace {

TEST(SafetensorsWriter, WhatIsWrittenInPiecesIsReadBack) {
  const TempDirectory directory;
  const auto path = directory.file("new.safetensors");
  auto writer = SafetensorsWriter::create(
      path, {{"z", DType::kFloat32, {2, 1}}, {"none", DType::kFloat32, {0}}, {"a.b", DType::kBFloat16, {3}}});
  writer.write("z", "12345", 5);
  writer.write("z", "678", 3);
  writer.write("none", nullptr, 0);
  writer.write("a.b", "abcdef", 6);
  writer.commit();

  const auto file = SafetensorsFile::open(path);
  ASSERT_EQ(file.tensors().size(), 3U);
  EXPECT_EQ(file.tensor("z").shape, (std::vector<std::int64_t>{2, 1}));
  EXPECT_EQ(file.tensor("a.b").dtype, DType::kBFloat16);
  std::string bytes(6, '?');
  file.read("a.b", bytes.data(), 6);
  EXPECT_EQ(bytes, "abcdef");
  EXPECT_EQ((std::filesystem::file_size(path) - 14) % 8, 0U) << "the data begins at a multiple of 8";
}

TEST(SafetensorsWriter, AFileThatExistsIsNotOverwritten) {
  const TempDirectory directory;
  const auto path = directory.write("mine", "precious");
  expect_error(ExitCode::kOutputFailed, {path.string(), "File exists"}, [&] { SafetensorsWriter::create(path, {}); });
  EXPECT_EQ(std::filesystem::file_size(path), 8U);
}

TEST(SafetensorsWriter, AFileBeyondTheFileSystemsLimitIsRefusedAtTheStartWithTheBytesNeeded) {
  const TempDirectory directory;
  const auto path = directory.file("huge.safetensors");
  expect_error(ExitCode::kOutputFailed, {path.string(), "4096 TiB"}, [&] {
    SafetensorsWriter::create(path, {{"w", DType::kFloat32, {std::int64_t{1} << 50}}});
  });
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(SafetensorsWriter, ADiskThatFillsUpIsAnErrorWithTheSystemsReasonAndTheBytesNeeded) {
  const TempDirectory directory;
  const auto path = directory.file("w.safetensors");
  auto writer = SafetensorsWriter::create(path, {{"w", DType::kUInt8, {1 << 20}}});
  // The process's limit for the size of a file: the closest to a full disk that exists on every
  // system.
  signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{.rlim_cur = 100'000, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string bytes(1 << 20, 'x');
  expect_error(ExitCode::kOutputFailed, {path.string(), "File too large", "needs 1.00 MiB"},
               [&] { writer.write("w", bytes.data(), bytes.size()); });
  setrlimit(RLIMIT_FSIZE, &before);
}

TEST(SafetensorsWriterDeath, TensorsOutOfTurnAreABugOfTheCaller) {
  const TempDirectory directory;
  auto writer = SafetensorsWriter::create(directory.file("f"), {{"a", DType::kUInt8, {2}}, {"b", DType::kUInt8, {2}}});
  EXPECT_DEATH(writer.write("b", "12", 2), "does not hold");
  EXPECT_DEATH(writer.write("a", "123", 3), "does not hold");
  EXPECT_DEATH(writer.commit(), "does not hold");
}

}  // namespace
}  // namespace rp
