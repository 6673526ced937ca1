#include "train/output/event_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <sstream>

#include "tests/common/temp_directory.h"

namespace rp {
namespace {

// Returns the data of each record. Verifies the checksums.
std::vector<std::string> records_of(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  const std::string bytes = text.str();
  std::vector<std::string> records;
  for (std::size_t at = 0; at < bytes.size();) {
    std::uint64_t length = 0;
    std::uint32_t checksum = 0;
    std::memcpy(&length, bytes.data() + at, sizeof length);
    std::memcpy(&checksum, bytes.data() + at + 8, sizeof checksum);
    EXPECT_EQ(checksum, masked_crc32c(bytes.substr(at, 8)));
    records.push_back(bytes.substr(at + 12, length));
    std::memcpy(&checksum, bytes.data() + at + 12 + length, sizeof checksum);
    EXPECT_EQ(checksum, masked_crc32c(records.back()));
    at += 16 + length;
  }
  return records;
}

std::vector<std::filesystem::path> files_in(const TempDirectory& directory) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(directory.path())) paths.push_back(entry.path());
  return paths;
}

TEST(EventFile, ChecksumsAreMaskedCrc32c) {
  // RFC 3720, B.4: 32 zeros have the CRC-32C 0x8a9136aa.
  const std::uint32_t crc = 0x8a9136aa;
  EXPECT_EQ(masked_crc32c(std::string(32, '\0')), ((crc >> 15) | (crc << 17)) + 0xa282ead8);
}

TEST(EventFile, BeginsWithItsVersionAndAStartThatOutdatesLaterSteps) {
  const TempDirectory directory;
  (void)EventFile::create(directory.path(), 200);
  ASSERT_EQ(files_in(directory).size(), 1U);
  const std::vector<std::string> records = records_of(files_in(directory).front());
  ASSERT_EQ(records.size(), 2U);
  EXPECT_EQ(records[0].substr(9), std::string("\x10\0\x1a\x0d"
                                              "brain.Event:2",
                                              17))
      << "behind the time: step 0, the version";
  EXPECT_EQ(records[1].substr(9), std::string("\x10\xc9\x01\x3a\x02\x08\x01", 7)) << "step 201, a session that starts";
}

TEST(EventFile, NumbersAreAtTheirStepUnderTheirNames) {
  const TempDirectory directory;
  EventFile::create(directory.path(), 0).add(7, {{"train/loss", 1.5}, {"eval/loss", 0.5}});
  const std::vector<std::string> records = records_of(files_in(directory).front());
  ASSERT_EQ(records.size(), 3U);
  EXPECT_EQ(records[2].substr(9), std::string("\x10\x07\x2a\x25", 4) +
                                      std::string("\x0a\x11\x0a\x0atrain/loss\x15\0\0\xc0\x3f", 19) +
                                      std::string("\x0a\x10\x0a\x09"
                                                  "eval/loss\x15\0\0\0\x3f",
                                                  18));
}

TEST(EventFile, EachStartOfARunHasAFileOfItsOwn) {
  const TempDirectory directory;
  (void)EventFile::create(directory.path(), 0);
  (void)EventFile::create(directory.path(), 0);
  EXPECT_EQ(files_in(directory).size(), 2U);
}

}  // namespace
}  // namespace rp
