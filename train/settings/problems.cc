#include "train/settings/problems.h"

#include <utility>

#include "common/text.h"

namespace rp {

void Problems::add(ExitCode code, std::string message) {
  if (messages_.empty() || code == ExitCode::kUsage) code_ = code;
  messages_.push_back(std::move(message));
}

void Problems::throw_if_any() const {
  if (messages_.empty()) return;
  if (messages_.size() == 1) throw Error(code_, messages_.front());
  std::string text = cat(messages_.size(), " problems:");
  for (const std::string& message : messages_) text += "\n  " + message;
  throw Error(code_, text);
}

}  // namespace rp
