// Tests that the reader accepts the token files that the tools write.
#include <gtest/gtest.h>

#include "tests/common/run_python.h"
#include "tests/common/temp_directory.h"
#include "train/data/token_file.h"

namespace rp {
namespace {

TEST(PythonTokenFile, WhatTheToolsWritePassesEveryCheckOfTheReader) {
  const TempDirectory directory;
  run_python("tools = '" RP_TOOLS
             "'"
             R"(
import sys
from pathlib import Path
sys.path.insert(0, tools)
from token_file import TokenFileWriter
writer = TokenFileWriter(vocabulary=70000, eos_token=None, kind="chat")
writer.add([5, 69999, 7], [0, 1, 1])
writer.add([], [])
writer.add([9], [0])
writer.write(Path(sys.argv[1]))
)",
             directory.file("data"));
  const auto file = TokenFile::open(directory.file("data"), 70000);
  EXPECT_EQ(file.num_documents(), 2U);
  EXPECT_EQ(file.num_trained(), 2U);
  EXPECT_EQ(file.kind(), TokenFile::Kind::kChat);
  EXPECT_FALSE(file.eos_token().has_value());
  EXPECT_EQ(file.read(0, 4).tokens, (std::vector<std::uint32_t>{5, 69999, 7, 9}));
  EXPECT_EQ(file.read(0, 4).is_trained, (std::vector<std::uint8_t>{0, 1, 1, 0}));
}

}  // namespace
}  // namespace rp
