#include "scheduler/plan.h"

#include <charconv>
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

std::string range_text(int first, int end) { return cat(" ", first, "-", end - 1); }

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
  if (!good || last == std::numeric_limits<int>::max()) fail(cat("'", word, "' is no range of layers such as 4-7"));
  range.end = last + 1;
  return range;
}

}  // namespace

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
    fail(cat("the forward stages end before layer ", next, ", and there is no fused stage from there to layer ", num_layers - 1));
  }
  if (next != plan.fused_start) {
    fail(cat("the forward stages end before layer ", next, ", but the fused stage begins at layer ", plan.fused_start));
  }
  if (kind_of(plan, num_layers) == PlanKind::kInfer) return;
  for (const LayerRange& range : plan.backward) {
    check_range("backward", range, num_layers);
    if (range.end != next) fail(cat("layer ", next - 1, " must end the next backward stage, not layer ", range.end - 1));
    next = range.first;
  }
  if (next != 0) fail(cat("the backward stages end at layer ", next, " instead of layer 0"));
}

std::string plan_text(const Plan& plan, int num_layers) {
  std::string text;
  const auto add = [&text](const char* part, const std::vector<LayerRange>& ranges) {
    if (ranges.empty()) return;
    text += cat(text.empty() ? "" : " | ", part);
    for (const LayerRange& range : ranges) text += range_text(range.first, range.end);
  };
  add("forward", plan.forward);
  if (plan.fused_start < num_layers) add("fused", {{plan.fused_start, num_layers}});
  add("backward", plan.backward);
  return text;
}

Plan parse_plan(const std::string& text, int num_layers) {
  Plan plan{.forward = {}, .fused_start = num_layers, .backward = {}};
  std::string part;
  int num_fused = 0;
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
      } else if (part == "forward") {
        plan.forward.push_back(parse_range(word));
      } else if (part == "backward") {
        plan.backward.push_back(parse_range(word));
      } else if (part == "fused") {
        const LayerRange range = parse_range(word);
        if (++num_fused > 1 || range.end != num_layers) {
          fail(cat("there is one fused stage, which ends with the last layer, ", num_layers - 1, "; got ", word));
        }
        plan.fused_start = range.first;
      } else {
        fail(cat("'", word, "' stands before any of the words forward, fused and backward"));
      }
    }
  }
  if (part.empty()) fail("it is empty; a plan is as `forward 0-3 | fused 4-7 | backward 0-3`");
  validate_plan(plan, num_layers);
  return plan;
}

}  // namespace rp
