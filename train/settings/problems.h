// train/settings/problems.h
// Everything that is wrong with a run, collected so that one start tells all of it.
#pragma once

#include <string>
#include <vector>

#include "roundpipe/error.h"

namespace rp {

class Problems {
 public:
  void add(ExitCode code, std::string message);
  // Calls `check`; an rp::Error that it throws is one more problem.
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

  // Does nothing if there are none. Else throws one rp::Error with all of them, a line each; its code is kUsage if one
  // of them is, else that of the first.
  void throw_if_any() const;

 private:
  std::vector<std::string> messages_;
  ExitCode code_ = ExitCode::kOk;
};

}  // namespace rp
