// train/output/progress.h
// Shows the progress of a run: a bar that is redrawn in place on a terminal, a line for each step
// elsewhere.
#pragma once

#include <cstdint>
#include <string>

#include "train/output/step_report.h"

namespace rp {

// Returns a line such as "step 12/60  loss 1.8467  grad norm 0.812  lr 1.00e-05  1234 tokens/s
// busy 93 %  host 3.10 GiB  eta 0:04:10". Leaves out what does not fit into `columns`, the least
// important details first. 0: no limit.
[[nodiscard]] std::string step_line(const StepReport& report, std::int64_t max_steps, int columns = 0);

// Returns the same details with a bar, in at most `width` columns. Leaves out what does not fit,
// the least important details first.
[[nodiscard]] std::string bar_line(const StepReport& report, std::int64_t max_steps, int width);

// "evaluation after step 40: loss 1.8467, perplexity 6.34, in 3.2 s; the best so far".
[[nodiscard]] std::string evaluation_text(const EvaluationReport& report);

// "0:04:10".
[[nodiscard]] std::string duration_text(double seconds);

// "loading weights  12/61 layers  0:00:34".
[[nodiscard]] std::string loading_text(int num_loaded, int num_layers, double seconds);

// Determines where and how steps are shown.
struct ProgressStyle {
  bool bar = false;             // on stderr
  std::int64_t line_every = 1;  // a line on stdout every so many steps, and for the first and the last step
  bool fits_terminal = false;   // stdout is a terminal, and its lines are shortened to fit
  // Chooses a bar if stderr is a terminal. Chooses a line for every step, or every `line_every`
  // steps if the lines share a terminal with the bar.
  static ProgressStyle observe(std::int64_t line_every);
};

// Shows the progress of loading if it takes longer than a second: on a terminal as one line that is
// redrawn, elsewhere as a line every half minute. The destructor removes the line from a terminal.
// Used by one thread.
class LoadingProgress {
 public:
  LoadingProgress();
  LoadingProgress(const LoadingProgress&) = delete;
  LoadingProgress& operator=(const LoadingProgress&) = delete;
  ~LoadingProgress();

  void show(int num_loaded, int num_layers);

 private:
  const bool is_on_terminal_;
  const std::int64_t begun_ns_;
  std::int64_t shown_ns_;
  bool has_bar_ = false;
};

// Shows steps. Owned by the training loop; used by one thread. The destructor removes the bar.
class Progress {
 public:
  Progress(std::int64_t max_steps, ProgressStyle style) : max_steps_(max_steps), style_(style) {}
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress() { remove_bar(); }

  // Shows a step. Redraws the bar at most ten times a second, and after the last step.
  void show(const StepReport& report);

  // Prints a text that stays above the bar on stdout. On a terminal, its lines break between words.
  void note(const std::string& text);

  // Removes the bar from the terminal.
  void remove_bar();

 private:
  void put(const std::string& lines);

  std::int64_t max_steps_;
  ProgressStyle style_;
  bool has_shown_ = false;
  std::int64_t drawn_at_ns_ = 0;
  std::string bar_;  // as drawn on the terminal, or ""
};

}  // namespace rp
