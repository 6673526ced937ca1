// train/settings/problems.h
// Collects everything that is wrong with a run, so that one start reports all of it.
#pragma once

#include <string>
#include <vector>

#include "roundpipe/error.h"

namespace rp {

class Problems {
 public:
  void add(ExitCode code, std::string message);
  // Calls `check`. If it throws an rp::Error, adds that as a problem.
  template <typename Check>
  void collect(Check&& check) {
    try {
      check();
    } catch (const Error& error) {
      add(error.code(), error.what());
    }
  }

  [[nodiscard]] bool empty() const { return messages_.empty(); }
  [[nodiscard]] const std::vector<std::string>& messages() const { return messages_; }

  // Does nothing if there are no problems. Otherwise throws one rp::Error with all of them, one per
  // line. Its code is kUsage if any problem has that code, else the code of the first problem.
  void throw_if_any() const;

 private:
  std::vector<std::string> messages_;
  ExitCode code_ = ExitCode::kOk;
};

}  // namespace rp
