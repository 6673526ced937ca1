// tests/common/run_python.h
// Runs a few lines of Python with the interpreter of the tools ($RP_PYTHON).
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "tests/common/temp_directory.h"

namespace rp {

// Fails the test if the script fails. The script gets `argument` as sys.argv[1].
inline void run_python(const std::string& script, const std::filesystem::path& argument) {
  const char* python = std::getenv("RP_PYTHON");
  ASSERT_NE(python, nullptr) << "RP_PYTHON is not set; run this test through ctest";
  const TempDirectory directory;
  const std::string command =
      std::string(python) + " " + directory.write("script.py", script).string() + " " + argument.string();
  ASSERT_EQ(std::system(command.c_str()), 0) << script;
}

}  // namespace rp
