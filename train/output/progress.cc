#include "train/output/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "common/system/clock.h"
#include "common/text.h"
#include "train/output/number_text.h"
#include "train/output/standard_output.h"
#include "train/output/wrapped_text.h"

namespace rp {
namespace {

constexpr std::int64_t kRedrawNs = 100 * kNsPerMs;
constexpr std::int64_t kLoadingLineNs = 30 * kNsPerSecond;
constexpr std::size_t kBarColumns = 24;
constexpr int kMaxColumns = 160;

std::string step_text(std::int64_t step, std::int64_t max_steps) {
  const std::string last = std::to_string(max_steps);
  return formatted("%*lld/%s", static_cast<int>(last.size()), static_cast<long long>(step), last.c_str());
}

// Returns everything that follows the step's number.
std::vector<std::string> details(const StepReport& report) {
  return {formatted("loss %.4f", report.loss),
          formatted(report.grad_norm < 1e-3 ? "grad norm %.2e" : "grad norm %.3f", report.grad_norm),
          formatted("lr %.2e", report.learning_rate),
          formatted("%.0f tokens/s", report.tokens_per_second),
          report.busy > 0 ? formatted("busy %.0f %%", 100 * report.busy) : "busy ?",
          "host " + bytes_text(report.host_bytes),
          "eta " + duration_text(report.eta_seconds)};
}

// Indices into details(), by importance: loss, ETA and speed, then the rest.
constexpr std::array<std::size_t, 7> kByImportance = {0, 6, 3, 1, 4, 5, 2};

int terminal_width(int fd) {
  winsize size{};
  return ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

bool is_terminal(int fd) {
  const char* kind = std::getenv("TERM");
  return isatty(fd) == 1 && (kind == nullptr || std::string_view(kind) != "dumb");
}

// Replaces the current line of the terminal.
void draw(const std::string& line) { print_error("\r" + line + "\x1b[K"); }

}  // namespace

std::string duration_text(double seconds) {
  const auto whole = static_cast<long long>(std::ceil(std::max(0.0, seconds)));
  return formatted("%lld:%02lld:%02lld", whole / 3600, whole / 60 % 60, whole % 60);
}

std::string step_line(const StepReport& report, std::int64_t max_steps, int columns) {
  std::string line = "step " + step_text(report.step, max_steps);
  const std::vector<std::string> all = details(report);
  std::array<bool, kByImportance.size()> is_shown{};
  std::size_t size = line.size();
  for (const std::size_t i : kByImportance) {
    size += 2 + all[i].size();
    if (columns > 0 && size > static_cast<std::size_t>(columns)) break;
    is_shown[i] = true;
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (is_shown[i]) line += "  " + all[i];
  }
  return line;
}

std::string loading_text(int num_loaded, int num_layers, double seconds) {
  return formatted("loading weights  %d/%d layers  ", num_loaded, num_layers) + duration_text(seconds);
}

LoadingProgress::LoadingProgress()
    : is_on_terminal_(is_terminal(STDERR_FILENO)), begun_ns_(now_ns()), shown_ns_(begun_ns_) {}

void LoadingProgress::show(int num_loaded, int num_layers) {
  const std::int64_t now = now_ns();
  const std::int64_t due_ns = !is_on_terminal_ ? kLoadingLineNs : has_bar_ ? kRedrawNs : kNsPerSecond;
  if (now - shown_ns_ < due_ns) return;
  shown_ns_ = now;
  const std::string text = loading_text(num_loaded, num_layers, static_cast<double>(now - begun_ns_) / kNsPerSecond);
  if (!is_on_terminal_) return print(text + "\n");
  draw(text);
  has_bar_ = true;
}

LoadingProgress::~LoadingProgress() {
  if (has_bar_) draw("");
}

std::string bar_line(const StepReport& report, std::int64_t max_steps, int width) {
  const auto most = static_cast<std::size_t>(std::clamp(width, 1, kMaxColumns) - 1);  // the last column may wrap
  std::string line = "step " + step_text(report.step, max_steps);
  const std::vector<std::string> all = details(report);
  const std::size_t done = kBarColumns * static_cast<std::size_t>(report.step) / static_cast<std::size_t>(max_steps);
  const std::string bar = " [" + std::string(done, '#') + std::string(kBarColumns - done, '.') + "]";
  // Of the details, only loss and ETA come before the bar itself.
  std::vector<std::string> pieces;
  for (const std::size_t i : kByImportance) pieces.push_back("  " + all[i]);
  pieces.insert(pieces.begin() + 2, bar);
  for (const std::string& piece : pieces) {
    if (line.size() + piece.size() > most) break;
    line += piece;
  }
  return line.substr(0, most);
}

std::string evaluation_text(const EvaluationReport& report) {
  return formatted("evaluation after step %lld: loss %.4f, perplexity %.4g, in %.1f s%s",
                   static_cast<long long>(report.step), report.loss, report.perplexity(), report.seconds,
                   report.is_best ? "; the best so far" : "");
}

ProgressStyle ProgressStyle::observe(std::int64_t line_every) {
  const bool bar = is_terminal(STDERR_FILENO);
  const bool is_shown_beside = bar && isatty(STDOUT_FILENO) == 1;
  return {.bar = bar, .line_every = is_shown_beside ? line_every : 1, .fits_terminal = is_terminal(STDOUT_FILENO)};
}

void Progress::show(const StepReport& report) {
  const bool is_first = !std::exchange(has_shown_, true);
  if (is_first || report.step % style_.line_every == 0 || report.step == max_steps_) {
    put(step_line(report, max_steps_, style_.fits_terminal ? terminal_width(STDOUT_FILENO) : 0) + "\n");
  }
  if (!style_.bar) return;
  const std::int64_t now = now_ns();
  if (report.step < max_steps_ && drawn_at_ns_ != 0 && now - drawn_at_ns_ < kRedrawNs) return;
  drawn_at_ns_ = now;
  bar_ = bar_line(report, max_steps_, terminal_width(STDERR_FILENO));
  draw(bar_);
}

void Progress::note(const std::string& text) {
  if (!style_.fits_terminal) return put(text + "\n");
  std::string lines;
  std::istringstream all(text);
  for (std::string line; std::getline(all, line);) {
    const std::size_t indent = std::min(line.find_first_not_of(' '), line.size());
    lines += wrapped(line.substr(0, indent), line, indent + 2, static_cast<std::size_t>(terminal_width(STDOUT_FILENO)));
  }
  put(lines);
}

void Progress::put(const std::string& lines) {
  const std::string bar = bar_;
  remove_bar();
  print(lines);
  if (bar.empty()) return;
  bar_ = bar;
  draw(bar_);
}

void Progress::remove_bar() {
  if (bar_.empty()) return;
  draw("");
  bar_.clear();
}

}  // namespace rp
