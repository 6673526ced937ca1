// launcher/member.h
// One process of a run as rp-launch sees it: the child, its channel, its output.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launcher/launch_plan.h"
#include "launcher/machine/child_process.h"
#include "launcher/output.h"
#include "launcher/process/channel.h"
#include "launcher/run_context.h"

namespace rp {

// Owned by the supervisor. Its process is started by the constructor and killed, at the latest, by the destructor.
class Member {
 public:
  // REQUIRES: as ChildProcess::start(). Throws what that throws, and kOutputFailed if a log file cannot be made.
  Member(RunContext& run, const PlannedProcess& planned);

  [[nodiscard]] const std::string& name() const { return planned_.name; }
  [[nodiscard]] int board_index() const { return planned_.board_index; }
  [[nodiscard]] int worker() const { return planned_.board_index - 1; }
  [[nodiscard]] bool is_worker() const { return planned_.is_worker(); }
  [[nodiscard]] ChildProcess& process() { return process_; }
  [[nodiscard]] const ChildProcess& process() const { return process_; }
  [[nodiscard]] Channel& channel() { return channel_; }
  [[nodiscard]] std::vector<std::unique_ptr<ProcessOutput>>& outputs() { return outputs_; }
  // "" where it has none of its own.
  [[nodiscard]] const std::string& log_file() const { return log_file_; }
  [[nodiscard]] bool alive() const { return !process_.status().has_value(); }

  // The launcher ended it on purpose: its death is no failure.
  void kill_on_purpose();
  [[nodiscard]] bool killed_on_purpose() const { return killed_on_purpose_; }

  // A profiler or sanitizer watches it: it needs time for its end.
  void set_watched() { is_watched_ = true; }
  [[nodiscard]] bool is_watched() const { return is_watched_; }

  // Takes what it wrote until now; a dead process wrote all of it before.
  void read_output();
  // See ProcessOutput; of both streams.
  void open_output();
  std::string release_output();

 private:
  // Makes the pipes or files of stdout and stderr where the coordinator's are not the launcher's own.
  void redirect_output(RunContext& run, ChildSpec& spec);
  [[nodiscard]] ChildProcess start(RunContext& run);
  [[nodiscard]] std::vector<std::string> environment(const RunContext& run) const;

  PlannedProcess planned_;
  Channel channel_;
  std::optional<Channel> child_end_;   // until the child is started
  std::vector<UniqueFd> child_stdio_;  // likewise
  std::vector<std::unique_ptr<ProcessOutput>> outputs_;
  std::string log_file_;
  bool killed_on_purpose_ = false;
  bool is_watched_ = false;
  ChildProcess process_;
};

}  // namespace rp
