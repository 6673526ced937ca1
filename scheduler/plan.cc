#include "scheduler/plan.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <limits>
#include <sstream>

#include "common/text.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

[[noreturn]] void fail(const std::string& what) { throw Error(ExitCode::kUsage, cat("the plan is wrong: ", what)); }

void check_range(const char* part, const LayerRange& range, int num_layers) {
  if (range.first < 0 || range.end > num_layers || range.first >= range.end) {
    fail(cat("the ", part, " stage ", range.first, "-", range.end - 1, " is empty or outside the model's layers 0-",
             num_layers - 1));
  }
}

constexpr std::size_t kShortestRun = 3;  // the fewest equal stages that are written as LENGTHxCOUNT

struct Run {
  int length = 0;
  std::size_t count = 0;
};

// Parses a run such as "2x4".
std::optional<Run> parse_run(const std::string& word) {
  Run run;
  const char* end = word.data() + word.size();
  const auto length = std::from_chars(word.data(), end, run.length);
  if (length.ec != std::errc() || length.ptr == end || *length.ptr != 'x') return std::nullopt;
  const auto count = std::from_chars(length.ptr + 1, end, run.count);
  if (count.ec != std::errc() || count.ptr != end || run.length < 1 || run.count < 1) return std::nullopt;
  return run;
}

// Returns the text of forward or backward stages, the first of which begins (forward) or ends
// (backward) at `layer`.
std::string ranges_text(const std::vector<LayerRange>& ranges, int layer, bool backward) {
  std::string text;
  for (std::size_t i = 0; i < ranges.size();) {
    const int length = ranges[i].end - ranges[i].first;
    std::size_t count = 0;
    int next = layer;
    for (; i + count < ranges.size(); ++count) {
      const LayerRange& range = ranges[i + count];
      if (range.end - range.first != length || (backward ? range.end : range.first) != next) break;
      next += backward ? -length : length;
    }
    if (count >= kShortestRun) {
      text += cat(" ", length, "x", count);
      layer = next;
      i += count;
      continue;
    }
    text += cat(" ", ranges[i].first, "-", ranges[i].end - 1);
    layer = backward ? ranges[i].first : ranges[i].end;
    ++i;
  }
  return text;
}

LayerRange parse_range(const std::string& word) {
  LayerRange range;
  const char* end = word.data() + word.size();
  const auto first = std::from_chars(word.data(), end, range.first);
  int last = range.first;
  bool good = first.ec == std::errc();
  if (good && first.ptr != end) {
    const auto second = std::from_chars(first.ptr + 1, end, last);
    good = *first.ptr == '-' && second.ec == std::errc() && second.ptr == end;
  }
  if (!good || last == std::numeric_limits<int>::max()) {
    fail(cat("'", word, "' is no range of layers such as 4-7, and no stages of the same length such as 2x4"));
  }
  range.end = last + 1;
  return range;
}

// Parses what ranges_text() writes; `layer` and `backward` have the same meaning as there.
std::vector<LayerRange> parse_stages(const std::vector<std::string>& words, int layer, int num_layers, bool backward) {
  std::vector<LayerRange> ranges;
  for (const std::string& word : words) {
    const std::optional<Run> run = parse_run(word);
    if (!run) {
      ranges.push_back(parse_range(word));
      layer = backward ? ranges.back().first : ranges.back().end;
      continue;
    }
    // A range before this run may be anything, since validate_plan() checks it later; so `layer`
    // may be out of bounds.
    const std::int64_t left = layer < 0 ? 0 : backward ? std::int64_t{layer} : std::int64_t{num_layers} - layer;
    if (left < run->length || run->count > static_cast<std::size_t>(left / run->length)) {
      fail(cat("'", word, "' stands for more layers than the ", std::max<std::int64_t>(left, 0), " that are left ",
               backward ? cat("below layer ", layer) : cat("from layer ", layer, " on")));
    }
    for (std::size_t i = 0; i < run->count; ++i) {
      const int next = backward ? layer - run->length : layer + run->length;
      ranges.push_back({std::min(layer, next), std::max(layer, next)});
      layer = next;
    }
  }
  return ranges;
}

}  // namespace

std::vector<PlanStage> stages_of(const Plan& plan, int num_layers, int first_trained_layer) {
  std::vector<PlanStage> stages;
  for (const LayerRange& layers : plan.forward) stages.push_back({StageKind::kForward, layers});
  if (plan.fused_start < num_layers) stages.push_back({StageKind::kFused, {plan.fused_start, num_layers}});
  for (const LayerRange& layers : plan.backward) {
    const LayerRange part = trained_part(layers, first_trained_layer);
    if (!part.is_empty()) stages.push_back({StageKind::kBackward, part});
  }
  return stages;
}

PlanKind kind_of(const Plan& plan, int num_layers) {
  if (plan.fused_start < num_layers) return PlanKind::kFused;
  return plan.backward.empty() ? PlanKind::kInfer : PlanKind::kTrain;
}

Plan plan_for(PlanKind kind, const Plan& plan, int num_layers) {
  const PlanKind is = kind_of(plan, num_layers);
  if (is == kind) return plan;
  if (kind == PlanKind::kFused) {
    fail(cat("forward_backward() needs a fused stage, but `", plan_text(plan, num_layers),
             "` has none; `forward 0-3 | fused 4-7 | backward 0-3` has"));
  }
  if (is == PlanKind::kInfer) {
    fail(cat("forward() with gradients needs backward stages, but `", plan_text(plan, num_layers), "` has none"));
  }
  Plan result = plan;
  const LayerRange fused{plan.fused_start, num_layers};
  result.fused_start = num_layers;
  if (is == PlanKind::kFused) {
    result.forward.push_back(fused);
    result.backward.insert(result.backward.begin(), fused);
  }
  if (kind == PlanKind::kInfer) result.backward.clear();
  return result;
}

void validate_plan(const Plan& plan, int num_layers) {
  if (plan.fused_start < 0 || plan.fused_start > num_layers) {
    fail(cat("the fused stage must begin at a layer from 0 to ", num_layers - 1, ", not at ", plan.fused_start));
  }
  int next = 0;
  for (const LayerRange& range : plan.forward) {
    check_range("forward", range, num_layers);
    if (range.first != next) fail(cat("layer ", next, " must begin the next forward stage, not layer ", range.first));
    next = range.end;
  }
  if (next != plan.fused_start && plan.fused_start == num_layers) {
    fail(cat("the forward stages end before layer ", next, ", and there is no fused stage from there to layer ",
             num_layers - 1));
  }
  if (next != plan.fused_start) {
    fail(cat("the forward stages end before layer ", next, ", but the fused stage begins at layer ", plan.fused_start));
  }
  if (kind_of(plan, num_layers) == PlanKind::kInfer) return;
  for (const LayerRange& range : plan.backward) {
    check_range("backward", range, num_layers);
    if (range.end != next)
      fail(cat("layer ", next - 1, " must end the next backward stage, not layer ", range.end - 1));
    next = range.first;
  }
  if (next != 0) fail(cat("the backward stages end at layer ", next, " instead of layer 0"));
}

std::string plan_text(const Plan& plan, int num_layers) {
  std::string text;
  const auto add = [&text](const char* part, const std::string& ranges) {
    if (!ranges.empty()) text += cat(text.empty() ? "" : " | ", part, ranges);
  };
  add("forward", ranges_text(plan.forward, 0, false));
  if (plan.fused_start < num_layers) add("fused", cat(" ", plan.fused_start, "-", num_layers - 1));
  add("backward", ranges_text(plan.backward, plan.fused_start, true));
  return text;
}

Plan parse_plan(const std::string& text, int num_layers) {
  Plan plan{.forward = {}, .fused_start = num_layers, .backward = {}};
  std::string part;
  std::vector<std::string> forward, fused, backward;
  std::istringstream lines(text);
  std::string line;
  while (std::getline(lines, line)) {
    line = line.substr(0, line.find('#'));
    std::string spaced;
    for (const char c : line) spaced += c == '|' || c == ':' ? std::string(1, ' ') : std::string(1, c);
    std::istringstream words(spaced);
    std::string word;
    while (words >> word) {
      if (word == "forward" || word == "fused" || word == "backward") {
        part = word;
      } else if (!part.empty()) {
        (part == "forward" ? forward : part == "fused" ? fused : backward).push_back(word);
      } else {
        fail(cat("'", word, "' stands before any of the words forward, fused and backward"));
      }
    }
  }
  if (part.empty()) fail("it is empty; a plan is as `forward 0-3 | fused 4-7 | backward 0-3`");
  for (const std::string& word : fused) {
    const LayerRange range = parse_range(word);
    if (fused.size() > 1 || range.end != num_layers) {
      fail(cat("there is one fused stage, which ends with the last layer, ", num_layers - 1, "; got ", fused.back()));
    }
    plan.fused_start = range.first;
  }
  plan.forward = parse_stages(forward, 0, num_layers, false);
  plan.backward = parse_stages(backward, plan.fused_start, num_layers, true);
  validate_plan(plan, num_layers);
  return plan;
}

std::string lengths_text(const std::vector<int>& lengths) {
  std::string text;
  for (std::size_t i = 0; i < lengths.size();) {
    const auto end = std::find_if(lengths.begin() + static_cast<std::ptrdiff_t>(i), lengths.end(),
                                  [&](int length) { return length != lengths[i]; });
    const auto count = static_cast<std::size_t>(end - lengths.begin()) - i;
    const bool is_run = count >= kShortestRun;
    text += cat(text.empty() ? "" : ",", lengths[i], is_run ? cat("x", count) : "");
    i += is_run ? count : 1;
  }
  return text;
}

std::string lengths_text(const std::vector<LayerRange>& stages) {
  std::vector<int> lengths;
  for (const LayerRange& stage : stages) lengths.push_back(stage.end - stage.first);
  return lengths_text(lengths);
}

std::optional<std::vector<int>> parse_lengths(const std::string& text, std::size_t most) {
  std::vector<int> lengths;
  std::istringstream words(text);
  std::string word;
  while (std::getline(words, word, ',')) {
    int length = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), length);
    const bool is_number = error == std::errc() && end == word.data() + word.size() && length >= 0;
    const std::optional<Run> run = is_number ? Run{.length = length, .count = 1} : parse_run(word);
    if (!run || run->count > most - lengths.size()) return std::nullopt;
    lengths.insert(lengths.end(), run->count, run->length);
  }
  return lengths;
}

}  // namespace rp
