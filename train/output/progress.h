// train/output/progress.h
// How a run is shown: a bar that is redrawn in place on a terminal, a line a step elsewhere.
#pragma once

#include <cstdint>
#include <string>

#include "train/output/step_report.h"

namespace rp {

// "step 12/60  loss 1.8467  grad norm 0.812  lr 1.00e-05  1234 tokens/s  busy 93 %  host 3.10 GiB
// eta 0:04:10". What does not fit into `columns` is left out, the least important first; 0: all is there.
[[nodiscard]] std::string step_line(const StepReport& report, std::int64_t max_steps, int columns = 0);

// The same as a bar of at most `width` columns: what does not fit is left out, the least important first.
[[nodiscard]] std::string bar_line(const StepReport& report, std::int64_t max_steps, int width);

// "evaluation after step 40: loss 1.8467, perplexity 6.34, in 3.2 s; the best so far".
[[nodiscard]] std::string evaluation_text(const EvaluationReport& report);

// "0:04:10".
[[nodiscard]] std::string duration_text(double seconds);

// "loading weights  12/61 layers  0:00:34".
[[nodiscard]] std::string loading_text(int num_loaded, int num_layers, double seconds);

// Where and how to show it.
struct ProgressStyle {
  bool bar = false;  // on stderr
  std::int64_t line_every =
      1;  // steps from a line on stdout to the next; there is one of the first and of the last step, too
  bool fits_terminal = false;  // stdout is one: lines are made to fit it
  // A bar if stderr is a terminal. A line every step, but every `line_every` steps above a bar on the same terminal.
  static ProgressStyle observe(std::int64_t line_every);
};

// Shows how far loading is, if it takes longer than a second: a bar's line that is redrawn on a terminal, else a line
// every half minute. The destructor removes it. Used by one thread.
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

// Shows steps. Made by the training loop; used by one thread. The destructor removes the bar.
class Progress {
 public:
  Progress(std::int64_t max_steps, ProgressStyle style) : max_steps_(max_steps), style_(style) {}
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress() { remove_bar(); }

  // Redraws the bar at most ten times a second, and after the last step.
  void show(const StepReport& report);

  // A text on stdout that stays, above the bar. On a terminal its lines break between words.
  void note(const std::string& text);

  // Leaves no trace of the bar.
  void remove_bar();

 private:
  void put(const std::string& lines);

  std::int64_t max_steps_;
  ProgressStyle style_;
  bool has_shown_ = false;
  std::int64_t drawn_at_ns_ = 0;
  std::string bar_;  // as it stands on the terminal, or ""
};

}  // namespace rp
